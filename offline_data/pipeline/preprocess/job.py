"""`Job`: a request for a new dataset; `Recipe`: its steps; `Target`: its destination."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from offline_data.base.config import Settings, user_path
from offline_data.base.errors import ManifestError, StepError, UsageError
from offline_data.base.files import disk_errors
from offline_data.base.ids import DatasetId, parse_id
from offline_data.base.plurals import plural
from offline_data.episode.fields import Key, join_key
from offline_data.formats.corrections import defects_of
from offline_data.pipeline.jobs.executors import Executor
from offline_data.pipeline.jobs.processes.child import report_place
from offline_data.pipeline.preprocess.identity import describe_function, is_own, unknown_note
from offline_data.pipeline.preprocess.steps.base import Revision, Step
from offline_data.pipeline.preprocess.steps.leaves import column
from offline_data.pipeline.preprocess.steps.registry import parse_step
from offline_data.store.chunk import EpisodeChunk, EpisodeSelection, episode_words
from offline_data.store.layout import DEFAULT_AUDIT, LAYOUTS, AuditMode, LayoutName, parse_audit
from offline_data.store.library import Entry, entry_at, find, has_manifest
from offline_data.store.publish import lock_name
from offline_data.store.reader import DatasetReader

if TYPE_CHECKING:
    from offline_data.pipeline.preprocess.functions.ted import On

_LONG_NAME = 60  # letters of a folder's name that leave room for more in a name next to it

_SEED_STRIDE = 1_000_003  # between the seeds of functions, which must not draw the same numbers

Stage: TypeAlias = "Step | str | Callable[[Any], Any]"
"""A step, the text of one (`cast:obs=float32`, `fn:FILE.py:NAME`), or a function."""


@dataclass(frozen=True)
class RunOptions:
    """Calls of functions, rows and execution of a recipe; see `Preprocesses.preprocess`."""

    batched: int | None = None
    by: Literal["row", "episode"] = "row"
    on: On = "transitions"
    vectorize: Literal["auto"] | bool = "auto"  # True: as "auto"
    seed: int = 0
    num_frames: int | None = None
    view: EpisodeSelection | None = None  # rows of the parent; None: all
    # The result depends on the fields up to here only.
    layout: LayoutName | None = None  # None: the parent's
    workers: int | None = None
    worker_threads: int = 1
    max_tasks_per_child: int | None = None
    chunksize: int | None = None  # transitions of a task, about; None: by bytes or time
    num_chunks: int | None = None
    executor: Executor | None = None  # None: this process or local processes
    audit: AuditMode = DEFAULT_AUDIT
    resume: bool = False
    force: bool = False
    shares_parent_files: bool = True
    """Whether files none of whose features change are the parent's."""

    def __post_init__(self) -> None:
        counts = "batched", "num_frames", "workers", "worker_threads", "max_tasks_per_child"
        smallest = {**dict.fromkeys((*counts, "num_chunks"), 1), "chunksize": 0, "seed": None}
        for name, least in smallest.items():
            value = getattr(self, name)
            if value is None and name != "seed":
                continue
            try:
                whole = index(value)  # those of numpy become Python's
            except TypeError:
                whole = None
            if whole is None or (least is not None and whole < least):
                more = "" if least is None else f" of {least} or more"
                raise UsageError(f"{name} is {value!r}; expected a whole number{more}")
            object.__setattr__(self, name, whole)
        for name, known, expected in (
            ("vectorize", ("auto", True, False), "'auto' or False"),
            ("by", ("row", "episode"), "'row' or 'episode'"),
            ("on", ("transitions", "observations"), "'transitions' or 'observations'"),
        ):
            if (value := getattr(self, name)) not in known:
                raise UsageError(f"{name} is {value!r}; expected {expected}")
        object.__setattr__(self, "vectorize", "auto" if self.vectorize else False)
        if self.by == "episode" and (self.batched is not None or self.on != "transitions"):
            raise UsageError("by='episode' cannot be combined with batched= or on=")
        parse_audit(str(self.audit))
        if self.layout not in (None, *LAYOUTS):
            raise UsageError(f"layout is {self.layout!r}; expected {' or '.join(LAYOUTS)}")
        if self.chunksize is not None and self.num_chunks is not None:
            raise UsageError("give either chunksize or num_chunks, not both")

    def task_rows(self, transitions: int) -> int | None:
        """Return the requested transitions of a task; None if not given (or 0, as in TorchRL)."""
        if self.num_chunks is not None:
            return -(-transitions // self.num_chunks)
        return self.chunksize or None


@dataclass(frozen=True)
class Job:
    """A dataset to make from another one."""

    parent: Path
    stages: tuple[Stage, ...]  # in order; texts mean the same in other processes
    name: str | None = None  # the new dataset is `local:NAME`; None: use `dest`
    dest: Path | None = None  # dataset directory to make; None: use `name`
    options: RunOptions = RunOptions()

    def absolute(self) -> Job:
        """Return the same job with absolute paths."""
        dest = None if self.dest is None else user_path(self.dest, "the destination")
        stages: list[Stage] = []
        for stage in self.stages:
            found = re.fullmatch(r"fn:(.*\.py):([^:]*)", stage) if isinstance(stage, str) else None
            if found is not None:
                stage = f"fn:{user_path(found[1], 'the file of the function')}:{found[2]}"
            elif isinstance(stage, str) and (found := re.fullmatch(r"label:([^,=]+)(.*)", stage)):
                stage = f"label:{user_path(found[1].strip(), 'the file of labels')}{found[2]}"
            stages.append(stage)
        return replace(self, parent=self.parent.absolute(), stages=tuple(stages), dest=dest)


@dataclass(frozen=True)
class Recipe:
    """Steps, each applied to the output of the one before."""

    steps: tuple[Step, ...]  # in order; at least one to make a dataset

    @property
    def keeps_rows(self) -> bool:
        """Whether every episode is kept, with its length."""
        return all(step.keeps_rows for step in self.steps)

    @property
    def per_row(self) -> bool:
        """Whether Python is called for every row."""
        return any(step.per_row for step in self.steps)

    @property
    def in_blocks(self) -> bool:
        """Whether functions run on blocks: the last bits may depend on how rows are grouped."""
        return any(getattr(step, "run", "rows") != "rows" for step in self.steps)

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        """Apply all steps; raises what `Step.apply` raises.

        Also a `StepError` if a text feature has codes outside its vocabulary, or lengths have
        changed although all steps keep them, and `Revision` if a step must be revised.
        """
        given = chunk
        for number, step in enumerate(self.steps):
            before = chunk
            report_place(describe_place(step, chunk))
            try:
                chunk = step.apply(chunk)
            except Revision as found:
                raise Revision(found.state, found.reason, number) from found
            except MemoryError as error:
                raise StepError(
                    f"Memory is short for step {step.name!r} on "
                    f"{plural(len(chunk.episodes), 'episode')} of "
                    f"{plural(chunk.batch.transitions, 'step')}",
                    hint="fewer workers, or smaller blocks (batched=), take less",
                ) from error
            old, new = (before.by_rows, before.losses), (chunk.by_rows, chunk.losses)
            if new != old:
                by_rows = ((rows, why, number) for rows, why, _ in new[0][len(old[0]) :])
                losses = ((*loss[:3], number) for loss in new[1][len(old[1]) :])
                chunk = replace(chunk, by_rows=(*old[0], *by_rows), losses=(*old[1], *losses))
        if self.keeps_rows and not np.array_equal(chunk.batch.lengths, given.batch.lengths):
            raise StepError(
                f"A step changed lengths of episodes {given.episodes[0]} to {given.episodes[-1]}, "
                "and all steps say that they do not",
                hint="a step that changes lengths has `keeps_rows = False`",
            )
        for key, words in chunk.words.items():
            codes = column(chunk, key)
            if codes.size and not -1 <= codes.min() <= codes.max() < len(words):
                row = int(np.nonzero((codes < -1) | (codes >= len(words)))[0][0])
                place = chunk.place(row, observed=key in chunk.batch.observations)
                raise StepError(
                    f"The recipe gives {join_key(key)!r} at {place} the code "
                    f"{codes[row].tolist()}, which is out of range: this feature is text, with codes from "
                    f"-1 (missing) to {len(words) - 1}",
                    hint="store numbers under another name, or as another type than int32",
                )
        return chunk

    def bind(self, reader: DatasetReader) -> Recipe:
        """Return the recipe for a dataset; raises what `Step.bind` raises."""
        steps: list[Step] = []
        for step in self.steps:
            steps.append(step.bind(reader, steps))
        return Recipe(tuple(steps))

    def episode_words(self, reader: DatasetReader) -> Mapping[Key, Sequence[str]]:
        """Return the vocabularies of text columns of the new episode table."""
        words = episode_words(reader)
        for step in self.steps:
            words = step.episode_words(words)
        return words

    def then(self, step: Step) -> Recipe:
        """Return the recipe with one more step."""
        return Recipe((*self.steps, step))

    def revise(self, found: Revision) -> Recipe:
        """Return the recipe with one step revised; raises `StepError` if it rejects the state."""
        steps = list(self.steps)
        step = steps[found.number].with_state(found.state)
        if step.state() != found.state:  # it would ask for the same revision forever
            raise StepError(f"Step {step.name!r} does not take the state that it gives itself")
        steps[found.number] = step
        return Recipe(tuple(steps))

    def describe(self) -> list[dict[str, Any]]:
        """Return the parameters of all steps as JSON values."""
        return [step.describe() for step in self.steps]

    @cached_property
    def code(self) -> list[dict[str, Any]]:
        """Classes of steps that are the user's own, as `describe_function` has them."""
        own = (type(step) for step in self.steps if is_own(type(step).__module__))
        return [describe_function(kind) for kind in own]

    @property
    def unknown(self) -> str:
        """Why its result is neither reused nor resumed; empty if all functions have a digest."""
        found = (one for one in (*self.describe(), *self.code) if one.get("unknown"))
        return next((unknown_note(one) for one in found), "")

    def states(self) -> list[dict[str, Any]]:
        """Return what the steps learnt, as JSON values."""
        return [step.state() for step in self.steps]

    def with_states(self, states: Sequence[dict[str, Any]]) -> Recipe:
        """Return the recipe with the states that `states` returned."""
        pairs = zip(self.steps, states, strict=True)
        return replace(self, steps=tuple(step.with_state(state) for step, state in pairs))

    def notes(self) -> tuple[str, ...]:
        """Return the steps' notes for the manifest."""
        return tuple(note for step in self.steps for note in step.notes())


def describe_place(step: Step, chunk: EpisodeChunk) -> str:
    """Describe a step on some rows, for a message."""
    first, stop = chunk.rows.min(initial=0), (chunk.rows + chunk.batch.lengths).max(initial=1)
    return f"{step_label(step)} on rows {first} to {stop - 1}"


def step_label(step: Step) -> str:
    """Return the name of a function, or of another step, for a message."""
    name = getattr(step, "about", {}).get("name")
    return f"the function {name}" if name else f"step {step.name!r}"


def function_in(stage: str) -> str | None:
    """Return the reference of a function in the text of a stage; None: it is another step.

    Example:
        >>> function_in("fn:scale.py:scale"), function_in("clip:action,low=-1")
        ('scale.py:scale', None)
    """
    name, _, rest = stage.partition(":")
    return rest.strip() if name.strip() == "fn" else None


def recipe_of(stages: Iterable[Stage], options: RunOptions | None = None) -> Recipe:
    """Build a recipe whose functions are called as `options` say.

    Raises `UsageError` without or with an invalid stage, `NotFoundError` for an unknown step.

    Example:
        >>> recipe_of(["clip:action,low=-1", "clip:action,high=1"]).describe()[1]["high"]
        1
    """
    given = options or RunOptions()
    steps: list[Step] = []
    for number, stage in enumerate(stages):
        fn: Any = stage
        if isinstance(stage, str):
            function = function_in(stage)
            if function is None:
                steps.append(parse_step(stage))
                continue
            from offline_data.pipeline.preprocess.functions.reference import load_function

            fn = load_function(function)
        if isinstance(fn, Step):
            steps.append(fn)
        elif callable(fn):
            import offline_data.rows  # noqa: F401 # an error of ours without torch
            from offline_data.pipeline.preprocess.functions.episodes import EpisodeStep
            from offline_data.pipeline.preprocess.functions.step import FunctionStep

            seed = given.seed + number * _SEED_STRIDE
            if given.by == "episode":
                steps.append(EpisodeStep(fn, seed=seed))
            else:
                on, batched, vectorize = given.on, given.batched, given.vectorize
                made = FunctionStep(fn, seed=seed, on=on, batched=batched, vectorize=vectorize)
                steps.append(made)
        else:
            raise UsageError(f"{stage!r} is neither a function nor a step")
    if not steps:
        raise UsageError(
            "Nothing to do",
            hint="give a function or steps: --fn FILE.py:NAME, --step cast:obs=float32",
        )
    return Recipe(tuple(steps))


@dataclass(frozen=True)
class Target:
    """The destination of a new dataset."""

    id: DatasetId  # with the revision
    destination: Path
    work: Path  # on the same filesystem
    lock: str  # name of the one that is held meanwhile
    named: bool  # under the root, by its id; else in a folder of the user

    @classmethod
    def of(cls, name: str | None, dest: Path | None, revision: str, settings: Settings) -> Target:
        """Return the destination for the id `local:NAME`, or for a directory (links are followed).

        Raises `UsageError`, and `InvalidIdError` where the name cannot be part of an id.
        """
        if (name is None) == (dest is None):
            raise UsageError(
                "A new dataset needs one place: a name, or dest=, the directory to be made",
                hint="a name makes it local:NAME under the root",
            )
        if dest is not None:
            path = user_path(dest, "the destination").resolve()
            if not path.name:
                raise UsageError(f"{path} cannot be made a dataset", hint="choose a folder in it")
            fitting = re.sub(r"[^A-Za-z0-9._+=-]", "", path.name).lstrip("._+=-")
            dataset = parse_id("local:" + (fitting or "preprocessed")).at(revision)
            short = path.name if len(path.name) < _LONG_NAME else lock_name(path.name)
            work = path.with_name(f".{short}.preprocess")
            return cls(dataset, path, work, f"path/{path.as_posix().strip('/')}", named=False)
        dataset = parse_id(str(name), default_source="local")
        if dataset.source != "local" or dataset.revision:
            raise UsageError(
                f"{dataset} cannot be the name of a new dataset; expected NAME or local:NAME"
            )
        dataset = dataset.at(revision)
        work = settings.staging / f"{lock_name(dataset.folder)}.preprocess"
        destination = settings.root / dataset.folder / revision
        return cls(dataset, destination, work, dataset.folder, named=True)

    def existing(self, fingerprint: str, layout: LayoutName | None) -> bool:
        """Return True if this dataset exists, in this layout (None: any); `UsageError`: another."""
        if not has_manifest(self.destination):
            return False
        entry = entry_at(self.destination)
        same = entry.manifest.converter.get("options", {}).get("fingerprint") == fingerprint
        if same and (defects := defects_of(entry.manifest, entry.path)):
            raise UsageError(
                f"{entry.id} already exists, made by an earlier version, which {defects[0]} ({entry.path})",
                hint="replace it with --force",
            )
        if same and layout in {None, entry.manifest.layout}:
            return True
        raise UsageError(
            f"There is another dataset in {self.destination}: {entry.id}",
            hint="choose another place, or replace it with --force",
        )

    def older(self, root: Path, *, force: bool) -> Entry | None:
        """Return the dataset of this name to replace, if any; `UsageError` unless `force`."""
        try:
            found = find(root, DatasetId(self.id.source, self.id.name)) if self.named else None
        except ManifestError:
            if not force:
                raise
            return None
        if found is None or found.path == self.destination:
            return None
        if not force:
            raise UsageError(
                f"{found.id} already exists and was made by another recipe ({found.path})",
                hint="choose another name, or replace it with --force",
            )
        return found

    def check(self, parent: Entry) -> None:
        """Raise `UsageError` for a destination that even `force` may not replace.

        That is the parent itself (also by its name), a folder inside it, and anything that is
        neither a dataset nor an empty folder.
        """
        own, new = parent.path.resolve(), self.destination
        if own == new.resolve() or (self.named and own.parent == new.resolve().parent):
            raise UsageError(
                f"the output would overwrite its input, {parent.id}", hint="choose another name"
            )
        elsewhere = "choose another place"
        if own in new.resolve().parents:
            raise UsageError(f"{new} is inside the dataset it is made of", hint=elsewhere)
        with disk_errors(new):
            if has_manifest(new) or not new.exists():
                return
            if not new.is_dir() or any(new.iterdir()):
                raise UsageError(f"{new} already exists and is not a dataset", hint=elsewhere)
            if new.is_mount() or new == Path.cwd():
                raise UsageError(
                    f"{new} is in use and cannot be replaced", hint="name a folder in it"
                )
