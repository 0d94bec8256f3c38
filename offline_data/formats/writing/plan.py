"""The plan of an export: the place of every leaf, and what the files will not have.

```
leaf of the dataset   ->  ExportTarget.place  ->  LeafPlace, or a Loss
batch of the dataset  ->  stored_batch        ->  what `ExportTarget.write` takes, and the proof expects
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import UsageError
from offline_data.base.exact import holds
from offline_data.base.plurals import join_names, shorten
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, Key, join_key
from offline_data.formats.writing.base import (
    FINAL,
    ExportJob,
    ExportOptions,
    ExportTarget,
    Flags,
    Holds,
    LeafPlace,
    Loss,
)
from offline_data.formats.writing.episodes import ExportedEpisodes, ExportMember, Leaf, Table


def plan_export(
    episodes: ExportedEpisodes, target: ExportTarget, options: ExportOptions, dest: Path
) -> tuple[ExportJob, tuple[Loss, ...]]:
    """Return the places of all leaves, and all that the files will not have.

    Reads the flags of all rows, and nothing else. Raises `UsageError` for what the format cannot
    hold at all, such as several observations where it holds one.
    """
    holds, places = target.holds, []
    if holds.rewards == "required" and not any(leaf.key == REWARD for leaf in episodes.leaves):
        raise UsageError(
            f"{target.name} needs rewards, and {episodes.reader.manifest.id} has none",
            hint="make them with a function of `preprocess`, or choose another format",
        )
    if not holds.nested:
        options = replace(options, observation=_single_leaves(episodes, target, options))
    if not holds.both and (twice := [leaf.key for leaf in episodes.leaves if _is_second(leaf)]):
        raise UsageError(
            f"{shorten(join_key(twice[0]))} of {episodes.reader.manifest.id} is not the observation of the row after, "
            f"and {target.name} has one observation for both",
            hint="convert the source without --keep-episodes, or choose d4rl, parquet or hf",
        )
    options, chosen = target.choose(episodes, options)
    losses = [*chosen]
    for leaf in episodes.leaves:
        if leaf.key in {TERMINATED, TRUNCATED} and holds.flags == "none":
            continue
        found = _refusal(leaf, holds) or target.place(leaf, options)
        if leaf.table == "episodes" and not isinstance(found, str):
            found = target.differs(leaf, episodes) or found
        if isinstance(found, str):
            losses.append(Loss(leaf.label, None, found))
            continue
        places.append(found)
        if found.dtype != leaf.dtype and not _is_exact(leaf.dtype, found.dtype):
            losses.append(Loss(leaf.label, None, f"{leaf.dtype} becomes {found.dtype}"))
        if leaf.dtype == "text" and not (holds.missing_text or found.missing):
            count = _missing_texts(episodes, found, holds)
            why = "a missing text becomes an empty one"
            losses += [Loss(leaf.label, count, why)] if count else []
        if found.lossy:
            losses.append(Loss(leaf.label, None, found.lossy))
        if leaf.encoding and not holds.encoded:
            losses.append(Loss(leaf.label, None, f"{leaf.encoding} is decoded to pixels"))
    _check_names(places, target, episodes.reader.manifest.id)
    roots = {place.leaf.key[0] for place in places if place.leaf.table != "episodes"}
    for root in () if holds.any_leaves else ("observation", "action"):
        if root not in roots:
            raise _missing_root(root, episodes, target)
    job = ExportJob(episodes, options, tuple(places), dest.name, dest.parent, 0)
    job, lost = _count_ends(job, target)
    return job, (*losses, *lost)


def _check_names(places: Sequence[LeafPlace], target: ExportTarget, dataset: str) -> None:
    """Raise `UsageError` if a leaf has a name in the files that is another's, or is inside another's."""
    taken: dict[tuple[bool, str], str] = {}
    named = [(place.leaf, path) for place in places for path in (place.path, place.after) if path]
    for leaf, path in sorted(named, key=lambda one: one[1]):
        if leaf.key in {TERMINATED, TRUNCATED}:
            continue
        apart = target.columns_apart and leaf.table == "episodes"
        parts = path.split("/")
        above = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        others = [f"the name of {taken[apart, one]}" for one in above if (apart, one) in taken]
        others += [
            f"a name that {target.name} uses itself"
            for name in {*above} & target.own.keys()
            if not any(leaf.key[: len(root)] == root for root in target.own[name])
        ]
        if others:
            step = f"offline-data preprocess {dataset} --step rename:{leaf.label}=NEW --out NAME"
            column = leaf.table == "episodes"
            raise UsageError(
                f"{shorten(leaf.label)} of {dataset} would be {shorten(path)} in {target.name}, "
                f"{shorten(others[0])}",
                hint="rename it in the source, or choose another format"
                if column
                else f"rename it: `{step}`",
            )
        taken[apart, path] = leaf.label


def _is_second(leaf: Leaf) -> bool:
    return leaf.table == "steps" and leaf.key[:2] == ("next", "observation")


def _missing_root(root: str, episodes: ExportedEpisodes, target: ExportTarget) -> UsageError:
    there = any(leaf.key[0] == root for leaf in episodes.leaves)
    found = "it has no place for those of" if there else "there are none in"
    return UsageError(
        f"{target.name} needs {root}s, and {found} {episodes.reader.manifest.id}",
        hint="choose parquet, hf or ted, which hold any feature",
    )


def _missing_texts(episodes: ExportedEpisodes, place: LeafPlace, holds: Holds) -> int:
    """Return the number of missing texts, without those of final observations that are not written."""
    count = 0
    for batch in episodes.batches():
        missing = _is_missing(getattr(batch, place.leaf.table)[place.leaf.key])
        if place.leaf.table == "observations" and not place.after:  # else `next` has the final one
            held = holds.final_observation and place.table == "observations"
            missing[np.cumsum(batch.lengths + 1) - 1] &= batch.final_observation & held
        count += int(missing.sum())
    return count


def _is_missing(texts: Any) -> NDArray[np.bool_]:
    return np.asarray(texts == np.array(None), bool)


def _single_leaves(episodes: ExportedEpisodes, target: ExportTarget, options: ExportOptions) -> Key:
    """Return the only observation leaf, the chosen one, or the root of a tuple; raises `UsageError`."""
    found = {}
    for root in ("observation", "action"):
        keys = [leaf.key for leaf in episodes.leaves if leaf.key[0] == root]
        if root == "observation" and options.observation is not None:
            if options.observation not in keys:
                named = join_names(map(join_key, keys)) or "none"
                raise UsageError(
                    f"There is no observation {shorten(join_key(options.observation))!r}; expected one of {named}"
                )
            keys = [options.observation]
        elif target.holds.tuples and {*keys} == {(root, str(n)) for n in range(len(keys))}:
            keys = [(root,)] if root == "observation" else keys
        if not keys:
            raise _missing_root(root, episodes, target)
        if len(keys) != 1:
            named = join_names(map(join_key, keys))
            raise UsageError(
                f"{target.name} has one array of {root}s, and the dataset has {len(keys)} features: {named}",
                hint=f"choose one: --observation {join_key(keys[0])}"
                if root == "observation"
                else "make one of them with `preprocess`, or choose another format",
            )
        found[root] = keys[0]
    return found["observation"]


def _refusal(leaf: Leaf, holds: Holds) -> str:
    """Return why a format cannot hold a leaf, by the table of what it holds; empty: it can."""
    root, name = leaf.key[0], leaf.key[0]
    if leaf.table == "episodes":
        if not isinstance(holds.episodes, bool) and name in holds.episodes:
            return ""
        if holds.episodes is not True:
            return "there is no place for it"
    elif leaf.key in {TERMINATED, TRUNCATED}:
        return ""
    if leaf.dtype == "text" and not holds.text:
        return "there is no text"
    if holds.dtypes.get(leaf.dtype, "") is None:
        return f"there is no {leaf.dtype}"
    below = {*leaf.key[1:2]}
    infos = holds.info if isinstance(holds.info, bool) else holds.info & below
    if leaf.table != "episodes" and "info" in {root, *below} and not infos:
        return "there is no place for infos"
    if root in {"extra", "state"} and not holds.extra:
        return "there is no place for other features"
    return ""


def place_at(
    leaf: Leaf, path: str, holds: Holds, key: Key | None = None, table: Table | None = None
) -> LeafPlace:
    """Return the place of a leaf that the reader of a format returns under its key, or another."""
    dtype = holds.dtypes.get(leaf.dtype) or leaf.dtype
    return LeafPlace(leaf, path, dtype, key or leaf.key, table or leaf.table)


def _is_exact(dtype: str, stored: str) -> bool:
    return "text" not in {dtype, stored} and holds(stored, dtype)


def _count_ends(job: ExportJob, target: ExportTarget) -> tuple[ExportJob, list[Loss]]:
    """Return the job with the number of known final observations; and what is lost of them and of flags."""
    holds, known, total = target.holds, 0, len(job.episodes.lengths)
    differing = {TERMINATED: 0, TRUNCATED: 0}
    for member in job.episodes.members:
        final, flags = _ends_of(member)
        known += int(final.sum())
        last = np.cumsum(member.chosen.lengths) - 1
        kept = flags_in(holds.flags, flags, last)
        for key, count in differing.items():
            differing[key] = count + int((kept[key] != flags[key]).sum())
    job, losses = replace(job, known_final=known), []
    observed = [place for place in job.places if place.leaf.table == "observations"]
    whole = any(place.table == "observations" for place in observed)
    if known and whole and not holds.final_observation:
        losses.append(Loss(FINAL, known, f"{target.name} has no place for it"))
    why = "there is no place for the row after the last action of an episode"
    moved = [place for place in observed if place.table == "steps" and not place.after]
    losses += [Loss(place.leaf.label, known, why) for place in moved if known]
    repeated = whole and known < total
    if (
        repeated
        and holds.final_observation
        and not (holds.unknown_final or target.omits_final(job))
    ):
        why = "it is not known, and the one before is written in its place"
        losses.append(Loss(FINAL, total - known, why))
    losses += [
        Loss(join_key(key), count, _FLAG_REASONS[holds.flags].format(name=target.name))
        for key, count in differing.items()
        if count
    ]
    return job, losses


_FLAG_REASONS: Mapping[Flags, str] = {
    "rows": "",
    "ended": "the last row of an episode without a flag is truncated",
    "last": "{name} has flags in last rows of episodes only",
    "one": "{name} has one end for each episode, terminated or truncated",
    "none": "{name} does not say how episodes end, and they are read as truncated",
}


def _ends_of(member: ExportMember) -> tuple[NDArray[np.bool_], dict[Key, NDArray[np.bool_]]]:
    """Return what is known of final observations `[E]`, and flags `[N, 1]`."""
    reader, chosen = member.reader, member.chosen
    flags = {key: np.array(reader.step(key)[member.rows], bool) for key in (TERMINATED, TRUNCATED)}
    early = chosen.steps + chosen.lengths < reader.lengths[chosen.episodes]
    last = (np.cumsum(chosen.lengths) - 1)[early]
    flags[TRUNCATED][last] |= ~flags[TERMINATED][last]
    final = reader.final[chosen.episodes]
    return final | early, flags


def flags_in(
    held: Flags, flags: Mapping[Key, NDArray[Any]], last: NDArray[np.int64]
) -> dict[Key, NDArray[Any]]:
    """Return the flags `[N, 1]` as a format holds them; `last` are last rows of episodes.

    Example:
        >>> rows = {TERMINATED: np.array([[1], [1]], bool), TRUNCATED: np.array([[0], [1]], bool)}
        >>> kept = flags_in("one", rows, np.array([1]))
        >>> kept[TERMINATED][:, 0].tolist(), kept[TRUNCATED][:, 0].tolist()
        ([False, True], [False, False])
    """
    if held == "rows":
        return {key: flags[key] for key in (TERMINATED, TRUNCATED)}
    if held == "ended":
        truncated = np.array(flags[TRUNCATED])
        truncated[last] |= ~flags[TERMINATED][last]
        return {TERMINATED: flags[TERMINATED], TRUNCATED: truncated}
    terminated, truncated = (np.zeros_like(flags[key]) for key in (TERMINATED, TRUNCATED))
    if held != "none":
        terminated[last] = flags[TERMINATED][last]
    truncated[last] = ~terminated[last]
    if held == "last":
        truncated[last] |= flags[TRUNCATED][last]
    return {TERMINATED: terminated, TRUNCATED: truncated}


def stored_batch(batch: EpisodeBatch, job: ExportJob, holds: Holds) -> EpisodeBatch:
    """Return the leaves that have places, with the dtypes of these, and the flags that are held."""
    flags = flags_in(holds.flags, batch.steps, batch.last_rows)
    columns = {}
    for table in ("steps", "observations", "episodes"):
        found = getattr(batch, table)
        places = job.places_in(table)
        columns[table] = {key: _cast(found[key], place, holds) for key, place in places.items()}
    return EpisodeBatch(
        batch.lengths,
        {**columns["steps"], **flags},
        columns["observations"],
        batch.final_observation & holds.final_observation,
        columns["episodes"],
    )


def _cast(column: Any, place: LeafPlace, holds: Holds) -> Any:
    if place.dtype == "text":
        kept = holds.missing_text or place.missing
        return column if kept else np.where(_is_missing(column), "", column)
    decoded = place.leaf.encoding and not holds.encoded
    if place.dtype == place.leaf.dtype and not decoded:
        return column
    return np.asarray(column).astype(place.dtype)
