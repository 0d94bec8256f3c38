"""Open a D4RL file: look at it, cut it, and say in sentences what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.readers.hdf5 import open_hdf5
from offline_data.sources.base import SourceInfo
from offline_data.sources.d4rl.dataset import D4RLEpisodes
from offline_data.sources.d4rl.ends import cut_rows
from offline_data.sources.d4rl.look import look
from offline_data.sources.d4rl.successors import NextColumn, compare_next

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.sources.d4rl.catalog import Listed
    from offline_data.sources.d4rl.ends import EndRule
    from offline_data.sources.d4rl.file import FlatFile

_BLOCK = 1 << 20
"""Rows of flags that are read at once."""

CITATION = (
    "Justin Fu, Aviral Kumar, Ofir Nachum, George Tucker, Sergey Levine: D4RL: Datasets for Deep "
    "Data-Driven Reinforcement Learning, 2020, arXiv:2004.07219"
)


def open_file(
    path: Path,
    rule: EndRule,
    published: Listed | None = None,
    notes: tuple[str, ...] = (),
    *,
    keep_episodes: bool = False,
) -> D4RLEpisodes:
    """Open a file: its flags are read, and `next_observations` is compared with the observations.

    Args:
        path: The file.
        rule: How it is cut.
        published: The set it is; None for a file of the user's own.
        notes: Sentences to put before those found here.
        keep_episodes: Whether episodes go on where `next_observations` is not the next row.

    Raises:
        FormatError: It is not a D4RL file, or nothing marks the ends of its episodes.
    """
    with open_hdf5(path) as file:
        flat = look(file, path)
        terminals, timeouts, odd = _flags(flat, file)
        cut = cut_rows(rule, terminals, timeouts, str(path))
        found = (*odd, *_demonstrations(flat, file, cut.ends))
        after = None
        if flat.has_next:
            after = compare_next(flat, file, cut.ends, keep_episodes=keep_episodes)
            cut = cut if after.explicit else cut.also_at(after.jumps)
    info = SourceInfo(
        transitions=flat.rows,
        episodes=len(cut.lengths),
        environment=_environment(published),
        about=_about(published, flat),
        licence="CC-BY-4.0" if published else None,
        citation=CITATION if published else None,
        notes=(*notes, *cut.notes, *found, _final(after)),
        warnings=_jumps(after),
        dropped=flat.dropped,
    )
    return D4RLEpisodes(flat, cut.lengths, info, after)


def _environment(published: Listed | None) -> dict[str, Any]:
    if published is None:
        return {}
    return {"id": published.name, "max_episode_steps": published.rule.horizon}


def _about(published: Listed | None, flat: FlatFile) -> dict[str, Any]:
    about: dict[str, Any] = {"metadata": dict(flat.scalars)} if flat.scalars else {}
    if published is not None:
        about["url"] = published.url
        about["horizon"] = published.rule.horizon
        scores = {"ref_min_score": published.ref_min, "ref_max_score": published.ref_max}
        about |= {name: score for name, score in scores.items() if score is not None}
    return about


def _final(after: NextColumn | None) -> str:
    if after is None:
        return "The observation after the last action of an episode is not in the file."
    if after.explicit:
        return "Every next observation is that of next_observations."
    return "The final observation of every episode is that of next_observations."


def _jumps(after: NextColumn | None) -> tuple[str, ...]:
    count = 0 if after is None else int(np.count_nonzero(after.jumps))
    if after is None or not count:
        return ()
    rows = "1 row" if count == 1 else f"{count} rows"
    found = f"In {rows} inside episodes, next_observations is not the next row's observation"
    if after.explicit:
        return (f"{found}: the episodes are kept, and both are stored.",)
    return (f"{found}: episodes end there, as truncated (--keep-episodes keeps them whole).",)


def _flags(
    flat: FlatFile, file: Any
) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None, list[str]]:
    """Read `terminals` and `timeouts` in blocks, and say where they are not flags."""
    flags: dict[str, NDArray[np.bool_]] = {}
    notes = []
    for name in ("terminals", "timeouts"):
        if name in flat.columns:
            flags[name], odd = np.empty(flat.rows, bool), 0
            for start in range(0, flat.rows, _BLOCK):
                values = flat.read(file, name, start, min(start + _BLOCK, flat.rows)).reshape(-1)
                flags[name][start : start + _BLOCK] = values != 0
                odd += np.count_nonzero((values != 0) & (values != 1))
            if odd:
                notes.append(f"{odd} values of {name} are neither 0 nor 1: all but 0 count as set.")
    return flags["terminals"], flags.get("timeouts"), notes


def _demonstrations(flat: FlatFile, file: Any, ends: NDArray[np.bool_]) -> list[str]:
    """Say where kitchen's number of the demonstration does not change as the episodes do."""
    if "infos" not in flat.columns or flat.columns["infos"].shape not in {(), (1,)}:
        return []
    numbers = flat.read(file, "infos", 0, flat.rows).reshape(flat.rows, -1)
    changes = (numbers[1:] != numbers[:-1]).any(axis=1)
    against = np.count_nonzero(changes != ends[:-1])
    note = f"The demonstration's number (info/demo) and the episodes disagree in {against} rows."
    return [note] if against else []
