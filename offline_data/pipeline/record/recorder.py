"""`Recorder`: a Gymnasium wrapper that writes a dataset as the environment is played.

```
row of the arrays         0     1     2     3     4
observations              s0    s1    s2    s3    …     row 0 is that of `reset`
actions, rewards          a0 r1 a1 r2 a2 r3 …           row t leads from observation t to t + 1
```

Environments of a vector share rows; an episode of one of them begins at any row, and is written when
it ends. Rows before all episodes under way are dropped.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from offline_data.base.config import resolve_settings
from offline_data.base.errors import FormatError, UsageError
from offline_data.base.files import check_links, disk_errors, file_lock
from offline_data.base.pickles import pickled_by_name
from offline_data.base.progress import Progress, progress_of
from offline_data.episode.fields import REWARD, Key, join_key
from offline_data.formats.environments import import_gymnasium, space_to_json, spec_to_json
from offline_data.formats.minari.metadata import DeclaredLeaf, space_leaves
from offline_data.pipeline.ingest.resolve import new_id
from offline_data.pipeline.record.columns import (
    GrowingLeaf,
    Info,
    InfoLeaves,
    flat_info,
    flat_vector_info,
    info_of,
)
from offline_data.pipeline.record.dataset import (
    add_kinds,
    check_same_environment,
    column_kinds,
    find_recorded,
    finish_recording,
    merge_kind,
    schema_of,
)
from offline_data.pipeline.record.log import LogLeaf, RecordingLog, begin_log, leaves_of
from offline_data.store.layout import LayoutName
from offline_data.store.library import Stored
from offline_data.store.publish import lock_name

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_NO_INFO: dict[Key, Any] = {}


@dataclass
class _Episode:
    """The episode of one environment that is under way, or was ended by the last step."""

    first: int | None = None  # row of its first observation while it is recorded
    seed: int = -1
    options: str | None = None
    info: Info | None = None  # of `reset`, if the row has another one
    marks: dict[str, Any] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    serial: int | None = None  # in the log, of the episode that the last step ended
    discarded: bool = False  # steps pass unrecorded


@pickled_by_name
class Recorder:
    """Wraps an environment of Gymnasium, and writes what it returns as the dataset `local:NAME`.

    It is a `gymnasium.Wrapper`, or of a vector environment a `gymnasium.vector.VectorWrapper` (with
    any autoreset mode): `step` and `reset` return what the environment does, unchanged. Leaving the
    `with` block, or `close()`, publishes the dataset and closes the environment.

    ```python
    with offline_data.Recorder(gymnasium.make("CartPole-v1"), "mine") as env:
        observation, info = env.reset(seed=0)
        ...
    ds = offline_data.load_dataset("local:mine")
    ```

    - A finished episode is in a file before `step` returns, and synced to the disk within a minute:
      a killed process loses only the episode under way. `resume=True` continues then. Memory holds
      only episodes under way.
    - An episode that `reset()` or `close()` ends before the environment does has its true last
      observation; its last step is marked truncated, and `interrupted` in `ds.episodes` is True.
    - Features have the dtype and shape of their space. Where an environment returns values that the
      dtype does not hold, such as float64 for a float32 space, the feature has that dtype, with a
      note.
    - Of infos, kept are numbers and arrays of numbers that every step of the first episode has in
      one shape: `info` where `reset` returns them too, else `next/info`. The manifest lists all
      others under `dropped`.
    - Columns of episodes: `id` (number), `seed` and `options` of `reset` (-1 and None if not
      given), `interrupted`, and those set by `mark`.

    Args:
        env: Environment with spaces of fixed features.
        name: `NAME` or `local:NAME`.
        resume: Whether to append to a recording of this name, finished or not; its environment and
            spaces must be the same. Nothing needs to exist.
        force: Whether to replace what exists under this name, on closing. After a kill,
            `resume=True` alone continues the recording, which still replaces it.
        record_infos: Whether to record infos.
        layout: `compact` or `ted`; None: that of the continued recording, else `compact`.
        root: Folder of all datasets; None: the user's.
        progress: Whether to show a bar on closing; or an object that receives progress.

    Raises:
        MissingDependencyError: gymnasium is not installed.
        UsageError: A dataset or an unfinished recording of that name exists, or it is being
            recorded; the environment is another one than that of the recording.
        FormatError: From `step` or `reset`: a value is not of its space's shape, or its dtype
            cannot hold it.
        NoSpaceError, AccessError: The disk is full, or not writable.

    Example:
        >>> import gymnasium, tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     with Recorder(gymnasium.make("CartPole-v1"), "tiny", root=root) as env:
        ...         _ = env.reset(seed=0)
        ...         for _ in range(3):
        ...             _ = env.step(0)
        ...         env.mark(success=False)
        ...     print(env.stored.id.name, env.stored.transitions, env.stored.episodes)
        tiny 3 1
    """

    env: Any

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __new__(cls, env: Any, *_: object, **__: object) -> Self:
        """Return an object that is also a wrapper of Gymnasium."""
        gymnasium: Any = import_gymnasium("Recorder")
        if isinstance(env, gymnasium.vector.VectorEnv):
            joined = _class_of(_VectorRecorder, gymnasium.vector.VectorWrapper)
        elif isinstance(env, gymnasium.Env):
            joined = _class_of(_EnvRecorder, gymnasium.Wrapper)
        else:
            raise UsageError(
                f"Recorder takes an environment of gymnasium, not a {type(env).__name__}",
                hint="gymnasium.make(…) or gymnasium.make_vec(…) makes one",
            )
        made: Self = object.__new__(joined)
        return made

    def __init__(
        self,
        env: Any,
        name: str,
        *,
        resume: bool = False,
        force: bool = False,
        record_infos: bool = True,
        layout: LayoutName | None = None,
        root: str | os.PathLike[str] | None = None,
        progress: bool | Progress = True,
    ) -> None:
        super().__init__(env)  # type: ignore[call-arg]
        self._stored: Stored | None = None
        self._dataset, self._settings = new_id(name), resolve_settings(root=root)
        self._layout, self._progress = layout, progress_of(progress)
        self._record_infos = record_infos
        members = getattr(env.unwrapped, "envs", ())  # a vector has no spec of its own
        spec = env.spec or next((member.spec for member in members), None)
        environment, left = spec_to_json(spec)
        spaces = {
            what: space_to_json(
                getattr(env, f"single_{what}_space", None) or getattr(env, f"{what}_space")
            )
            for what in ("observation", "action")
        }
        self._schema: dict[str, Any] = {
            "kind": "schema",
            "spaces": spaces,
            "environment": environment,
        }
        self._schema["dropped"] = [[f"environment/{one}", "JSON cannot hold it."] for one in left]
        self._infos = InfoLeaves()
        self._count = getattr(env, "num_envs", 1)
        batch = (self._count,) if isinstance(self, _VectorRecorder) else ()
        self._observation, self._action = (
            [
                GrowingLeaf((what, *path), leaf, batch)
                for path, leaf in space_leaves(space, f"the {what} space").items()
            ]
            for what, space in spaces.items()
        )
        self._reward = GrowingLeaf(REWARD, DeclaredLeaf((), "float64"), batch)
        self._row = 0  # of the last observation
        self._info_rows: list[dict[Key, Any]] = []  # by row
        self._closed = False
        self._under_way = [_Episode() for _ in range(self._count)]
        self._held = ExitStack()
        with ExitStack() as held:
            self._open_log(held, resume=resume, force=force)
            self._held = held.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def stored(self) -> Stored:
        """Id, path and counts of the published dataset.

        Raises `UsageError` before `close()`, and if there was no episode.
        """
        if self._stored is None:
            why = "it has no episode" if self._closed else "the recorder is not closed"
            raise UsageError(f"{self._dataset} is not published: {why}")
        return self._stored

    def mark(self, index: int | None = None, /, **columns: bool | float | str) -> None:
        """Set columns of the episode under way, or of the one that the last step ended.

        A column exists for all episodes of the dataset; where it was not set it is False, 0, NaN or
        None.

        Args:
            index: Number of an environment of a vector; None: all.
            columns: Values by name.

        Raises:
            UsageError: A name that is taken, a value of another type than before, or no episode.
        """
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in columns.items()}
        for name, value in plain.items():
            merge_kind(self._kinds, name, value)
        for episode in self._episodes_of(index):
            if episode.serial is not None:
                self._log.append({"kind": "change", "serial": episode.serial, "marks": plain})
            elif episode.first is not None:
                episode.marks |= plain
            else:
                raise UsageError("There is no episode to mark", hint="call reset() before")

    def discard(self, index: int | None = None, /) -> None:
        """Drop the episode under way, or the one that the last step ended.

        Nothing is recorded until the next `reset` (of a vector: until that environment's next episode).

        Args:
            index: Number of an environment of a vector; None: all.
        """
        for episode in self._episodes_of(index):
            if episode.serial is not None:
                self._log.append({"kind": "change", "serial": episode.serial, "discarded": True})
                episode.serial = None
            else:
                episode.first = None
            episode.discarded = episode.first is None

    def close(self, **options: Any) -> None:
        """Publish the dataset and close the environment; see `Recorder` on the episode under way.

        Raises what `offline_data.convert` raises; the recording can then be continued with
        `resume=True`.
        """
        if self._closed:
            return
        self._closed = True
        with self._held:
            try:
                for number in range(self._count):
                    self._end(number, self._row)
                self._log.close()
                path = self._log.path
                given = (path, self._base, self._dataset, self._settings, self._layout)
                self._stored = finish_recording(*given, self._progress)
            finally:
                self._log.close()
                self.env.close(**options)
        if self._stored is None:
            self._progress.note(f"{self._dataset} has no episode: nothing was written")

    def _episodes_of(self, index: int | None) -> list[_Episode]:
        return self._under_way if index is None else [self._under_way[index]]

    def _open_log(self, held: ExitStack, *, resume: bool, force: bool) -> None:
        """Lock the name, and continue its log, or begin one."""
        folder = self._settings.recordings
        path = folder / f"{lock_name(self._dataset.folder)}.log"
        check_links(folder.parent, path, folder.parent / self._dataset.folder)
        with disk_errors(folder):
            held.enter_context(file_lock(path.with_suffix(".lock"), self._refuse_second))
        found, self._base, replaces = find_recorded(
            path, self._dataset, self._settings, resume=resume, force=force
        )
        self._kinds: dict[str, str] = {}
        schema = None
        if self._base is not None:
            schema, self._kinds = schema_of(self._base), column_kinds(self._base.manifest)
            self._layout = self._layout or self._base.manifest.layout
        if found is not None:
            schema = found.schema or None
            add_kinds(self._kinds, found)
        if schema is not None:
            check_same_environment(schema, self._schema, self._dataset)
            self._fix(leaves_of(schema))
        if found is None:
            revision = None if self._base is None else self._base.id.revision
            about = {"id": secrets.token_hex(8), "base": revision, "replaces": replaces}
            begin_log(path, {"kind": "begin", **about})
        self._log = RecordingLog(path)
        held.callback(self._log.close)
        self._serial = 0 if found is None else found.next_serial
        self._leaves: list[LogLeaf] = []  # of the schema, once it is written

    def _refuse_second(self) -> NoReturn:
        raise UsageError(
            f"{self._dataset} is being recorded by another Recorder or process",
            hint="close that one, or record under another name",
        )

    def _fix(self, leaves: Sequence[LogLeaf]) -> None:
        """Take the features of earlier episodes, to which all others must conform."""
        known = {leaf.key: leaf for leaf in leaves}
        known.pop(REWARD, None)
        for column in (*self._observation, *self._action):
            leaf = known.pop(column.key, None)
            is_text = column.dtype.kind == "O"
            if leaf is None or leaf.shape != column.shape or (leaf.dtype == "object") != is_text:
                raise FormatError(
                    f"The recording of {self._dataset} is damaged: its {join_key(column.key)} is not "
                    "that of its spaces",
                    hint="delete it: force=True",
                )
            column.fix(leaf.dtype)
        if other := next((key for key in known if "info" not in key[:2]), None):
            raise FormatError(
                f"The recording of {self._dataset} is damaged: it has the feature {join_key(other)}",
                hint="delete it: force=True",
            )
        self._infos.leaves = tuple(known.values())
        self._record_infos = bool(known)

    def _write_schema(self, infos: Sequence[Info]) -> None:
        """Log the features before the first episode of this process."""
        if self._infos.leaves is None:
            self._infos.decide(infos)
        self._leaves = [
            *(x.to_leaf("observations") for x in self._observation),
            *(x.to_leaf("steps") for x in self._action),
            LogLeaf(REWARD, "float64", (1,), "steps"),
            *(self._infos.leaves or ()),
        ]
        notes = []
        for column in (*self._observation, *self._action):
            column.fixed = True
            if column.dtype != column.declared:
                name, said = join_key(column.key), f"its space says {column.declared}"
                notes.append(f"{name} has the recorded dtype, {column.dtype}; {said}.")
        leaves = [[join_key(x.key), x.dtype, x.shape, x.table] for x in self._leaves]
        dropped = [*self._schema["dropped"], *self._infos.dropped.items()]
        self._log.append({**self._schema, "leaves": leaves, "notes": notes, "dropped": dropped})

    def _begin(
        self, number: int, seed: Any = None, options: Mapping[str, Any] | None = None
    ) -> None:
        if self._closed:
            raise UsageError("The recorder is closed", hint="Recorder(…, resume=True) continues it")
        text = None
        if options is not None:
            try:
                text = json.dumps(options)
            except (TypeError, ValueError):
                self._infos.dropped["options"] = "Some options of reset are not JSON."
        seed = -1 if seed is None else int(seed)
        self._under_way[number] = _Episode(self._row, seed, text)

    def _end(
        self, number: int, stop: int, final: Any = None, final_info: Info | None = None
    ) -> None:
        """Log the episode under way of an environment, whose last observation is in row `stop`.

        With `final`, its last observation and info are these, and the row has those of the next one.
        """
        episode = self._under_way[number]
        first = episode.first
        if first is None or first == stop:  # not recorded, or no step
            return
        infos = [self._info(row, number) for row in range(first, stop + 1)]
        infos[0] = infos[0] if episode.info is None else episode.info
        infos[-1] = infos[-1] if final_info is None else final_info
        if not self._leaves:
            self._write_schema(infos)
        reported = len(self._infos.notes), len(self._infos.dropped)
        until = stop if final is not None else stop + 1
        columns = [self._rows_of(x, first, until, number) for x in self._observation]
        if final is not None:
            last = [x.fit(x.within(final), x.shape)[None] for x in self._observation]
            columns = [np.concatenate(both) for both in zip(columns, last, strict=True)]
        others = (*self._action, self._reward)
        columns += [self._rows_of(x, first, stop, number) for x in others]
        columns += self._infos.columns(infos)
        interrupted = not (episode.terminated or episode.truncated)
        head: dict[str, Any] = {
            "kind": "episode",
            "serial": self._serial,
            "length": stop - first,
            "terminated": episode.terminated,
            "truncated": episode.truncated or interrupted,
            "interrupted": interrupted,
            "seed": episode.seed,
            "options": episode.options,
            "marks": episode.marks,
        }
        pairs = [*zip(self._leaves, columns, strict=True)]
        if texts := {join_key(x.key): c.tolist() for x, c in pairs if x.dtype == "object"}:
            head["texts"] = texts
        if reported != (len(self._infos.notes), len(self._infos.dropped)):
            head |= {"notes": [*self._infos.notes], "dropped": [*self._infos.dropped.items()]}
        self._log.append(head, [c for x, c in pairs if x.dtype != "object"])
        episode.first, episode.serial = None, self._serial
        self._serial += 1

    def _make_room(self) -> None:
        """Drop rows before all episodes under way, and double the arrays if hardly any are dropped."""
        columns = (*self._observation, *self._action, self._reward)
        capacity = len(self._reward.rows)
        if self._row + 1 < capacity:
            return
        low = min((x.first for x in self._under_way if x.first is not None), default=self._row)
        for column in columns:
            column.make_room(low, self._row, capacity if 2 * low >= capacity else 2 * capacity)
        del self._info_rows[:low]
        self._row -= low
        for episode in self._under_way:
            if episode.first is not None:
                episode.first -= low

    def _info(self, row: int, number: int) -> Info:
        raise NotImplementedError

    def _rows_of(self, leaf: GrowingLeaf, first: int, stop: int, number: int) -> NDArray[Any]:
        raise NotImplementedError


class _EnvRecorder(Recorder):
    def __init__(self, env: Any, name: str, **options: Any) -> None:
        super().__init__(env, name, **options)
        inner, self._autoreset = env, False
        while inner is not None:  # gymnasium.wrappers.Autoreset resets in the step after the last
            self._autoreset = self._autoreset or type(inner).__name__ == "Autoreset"
            inner = vars(inner).get("env")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._end(0, self._row)
        result = self.env.reset(seed=seed, options=options)
        observation, info = result
        self._restart(observation, info, seed, options)
        return result

    def _restart(self, observation: Any, info: Any, seed: Any = None, options: Any = None) -> None:
        for leaf in self._observation:
            leaf.put(0, observation)
        self._info_rows = [flat_info(info) if self._record_infos else _NO_INFO]
        self._row = 0
        self._begin(0, seed, options)

    def step(self, action: Any) -> Any:
        episode, row = self._under_way[0], self._row
        if episode.first is None:
            return self._step_unrecorded(episode, action)
        if row + 1 == len(self._reward.rows):
            self._make_room()
        for leaf in self._action:
            leaf.put(row, action)
        result = self.env.step(action)
        try:
            observation, reward, terminated, truncated, info = result
            for leaf in self._observation:
                leaf.put(row + 1, observation)
            self._reward.put(row, reward)
            self._info_rows.append(flat_info(info) if info and self._record_infos else _NO_INFO)
            self._row = row + 1
            if terminated or truncated:
                episode.terminated, episode.truncated = bool(terminated), bool(truncated)
                self._end(0, row + 1)
        except BaseException:  # a step is missing
            episode.first, episode.discarded = None, True
            raise
        return result

    def _step_unrecorded(self, episode: _Episode, action: Any) -> Any:
        ended = episode.terminated or episode.truncated
        if not episode.discarded and not (ended and self._autoreset):
            raise UsageError("There is no episode under way", hint="call reset() before step()")
        result = self.env.step(action)
        if ended and self._autoreset:
            self._restart(result[0], result[4])
        else:
            episode.terminated, episode.truncated = map(bool, result[2:4])
        return result

    def _info(self, row: int, number: int) -> Info:  # noqa: ARG002 - there is only one
        return self._info_rows[row]

    def _rows_of(self, leaf: GrowingLeaf, first: int, stop: int, number: int) -> NDArray[Any]:  # noqa: ARG002
        return leaf.rows[first:stop]


class _VectorRecorder(Recorder):
    """Recorder of a vector environment, whose mode says when it resets an environment by itself.

    ```
    step           t (last one)                      t + 1
    NEXT_STEP      returns the last observation      ignores the action, returns the first of the next
    SAME_STEP      returns the first of the next,    as any other
                   the last one in `final_obs`
    DISABLED       returns the last observation      after reset(options={"reset_mask": …})
    ```
    """

    def __init__(self, env: Any, name: str, **options: Any) -> None:
        super().__init__(env, name, **options)
        mode = env.metadata.get("autoreset_mode")
        self._mode = getattr(mode, "name", "NEXT_STEP")  # the only one of gymnasium 1.0

    def __del__(self) -> None:
        """Do not close: that of gymnasium 1.0 does, and closing publishes."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        given = dict(options or {})  # the environment may change it
        mask = given.pop("reset_mask", None)
        chosen = [n for n in range(self._count) if mask is None or mask[n]]
        for number in chosen:
            self._end(number, self._row)
        result = self.env.reset(seed=seed, options=options)
        observation, infos = result
        if mask is None:
            self._row, self._info_rows = 0, [_NO_INFO]
        for leaf in self._observation:
            before = leaf.rows[self._row].copy()
            leaf.put(self._row, observation)
            if mask is not None:
                leaf.rows[self._row][~mask] = before[~mask]
        if isinstance(seed, (int, np.integer)):
            seed = [seed + number for number in range(self._count)]
        flat = flat_vector_info(infos) if self._record_infos else _NO_INFO
        for number in chosen:
            self._begin(number, None if seed is None else seed[number], given or None)
            self._under_way[number].info = info_of(flat, number)
        return result

    def step(self, actions: Any) -> Any:
        self._make_room()
        row, under_way = self._row, self._under_way
        for leaf in self._action:
            leaf.put(row, actions)
        result = self.env.step(actions)
        try:
            observation, rewards, terminated, truncated, infos = result
            for leaf in self._observation:
                leaf.put(row + 1, observation)
            self._reward.put(row, rewards)
            kept = infos and self._record_infos
            self._info_rows.append(flat_vector_info(infos) if kept else _NO_INFO)
            self._row = row + 1
            ended = terminated | truncated
            for number, episode in enumerate(under_way):
                episode.serial = None
                if self._mode == "NEXT_STEP" and (episode.terminated or episode.truncated):
                    self._begin(number)
                elif ended[number]:
                    flags = bool(terminated[number]), bool(truncated[number])
                    episode.terminated, episode.truncated = flags
                    if self._mode == "SAME_STEP":
                        self._end(number, row + 1, *_last_of(infos, number))
                        self._begin(number)
                        under_way[number].serial = episode.serial  # see `mark`
                    else:
                        self._end(number, row + 1)
        except BaseException:  # a step is missing
            for episode in under_way:
                episode.first, episode.discarded = None, True
            raise
        return result

    def _info(self, row: int, number: int) -> Info:
        return info_of(self._info_rows[row], number)

    def _rows_of(self, leaf: GrowingLeaf, first: int, stop: int, number: int) -> NDArray[Any]:
        return leaf.rows[first:stop, number]


def _last_of(infos: Mapping[str, Any], number: int) -> tuple[Any, Info]:
    """Return observation and info of the step after which an environment was reset in the same step."""
    if "final_obs" not in infos:
        raise FormatError("The step that reset an environment has no final_obs")
    final = infos.get("final_info")
    if isinstance(final, Mapping):
        return infos["final_obs"][number], info_of(flat_vector_info(final), number)
    return infos["final_obs"][number], flat_info((None if final is None else final[number]) or {})


@cache
def _class_of(recorder: type[Recorder], wrapper: type) -> Any:
    return type("Recorder", (recorder, wrapper), {"__module__": __name__})
