"""Self-identifying episodes: every value encodes its episode and step, all differ, none is zero.

Also a dataset of them, a raw dataset of them, and comparison and concatenation of batches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.episode import EpisodeBatch, Key, join_key
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.formats.base import Part, RandomAccess, SourceInfo
from offline_data.store.layout import AuditMode, LayoutName
from offline_data.store.manifest import Manifest
from offline_data.store.writer import DatasetWriter

TABLES = ("steps", "observations", "episodes")  # attributes of `EpisodeBatch` that hold columns


def toy_batch(
    lengths: Sequence[int],
    *,
    first_episode: int = 0,
    text: bool = False,
    images: bool = False,
    unknown_final: Sequence[int] = (),
    width: int = 3,
) -> EpisodeBatch:
    """Return episodes whose observation at time `t` of episode `e` is `1000·(e + 1) + t + 1`.

    The action is the negative of the observation before it, the reward a tenth of the one after it.
    Even episodes end terminated, odd ones truncated.

    Args:
        lengths: Number of steps of each episode.
        first_episode: Number of the first one, for consecutive batches.
        text: Whether there is a text observation `("observation", "mission")`.
        images: Whether there is a feature large enough for a separate file.
        unknown_final: Numbers of episodes whose final observation the source lacks.
        width: Number of values in an observation.

    Example:
        >>> toy_batch([2]).observations[("observation", "state")][:, 0].tolist()
        [1001.0, 1002.0, 1003.0]
    """
    counts = np.array(lengths, dtype=np.int64)
    numbers = np.arange(first_episode, first_episode + len(counts))
    final = ~np.isin(numbers, np.array(unknown_final, dtype=np.int64))
    runs = [1000.0 * (e + 1) + np.arange(n + 1) + 1 for e, n in zip(numbers, counts, strict=True)]
    codes = np.concatenate([*runs, np.zeros(0)])
    final_rows = np.cumsum(counts + 1) - 1
    codes[final_rows[~final]] -= 1  # the previous row is repeated
    before, after = np.delete(codes, final_rows), np.delete(codes, final_rows - counts)
    observations: dict[Key, NDArray[np.generic]] = {
        ("observation", "state"): np.repeat(codes[:, None], width, axis=1).astype(np.float32),
        ("info", "code"): codes.astype(np.int64),
    }
    if text:
        words = [f"go to {int(code) % 7}" for code in codes]
        observations[("observation", "mission")] = np.array(words, dtype=object)
    if images:
        frames = np.broadcast_to(codes[:, None, None, None] % 251, (len(codes), 48, 48, 3))
        observations[("observation", "image")] = frames.astype(np.uint8)
    last = np.cumsum(counts) - 1
    terminated, truncated = np.zeros((2, int(counts.sum()), 1), bool)
    terminated[last[numbers % 2 == 0]] = True
    truncated[last[numbers % 2 == 1]] = True
    return EpisodeBatch(
        lengths=counts,
        steps={
            ("action",): -before[:, None].astype(np.float32),
            ("next", "reward"): (after[:, None] / 10).astype(np.float64),
            ("next", "terminated"): terminated,
            ("next", "truncated"): truncated,
        },
        observations=observations,
        final_observation=final,
        episodes={("id",): numbers, ("seed",): numbers * 7 + 1},
    )


def write_toy(
    folder: Path,
    batches: Sequence[EpisodeBatch],
    *,
    layout: LayoutName = "compact",
    audit: AuditMode = "all",
    dataset: str = "local:toy@1",
) -> Manifest:
    """Write batches as a dataset directory at `folder`, without staging."""
    source, _, rest = dataset.partition(":")
    name, _, revision = rest.partition("@")
    header = Manifest(dataset, source, name, revision, layout, tables={}, counts={})
    with DatasetWriter(folder, header, audit=audit) as writer:
        for batch in batches:
            writer.append(batch)
        return writer.finish()


def assert_same_batch(found: EpisodeBatch, expected: EpisodeBatch) -> None:
    """Assert equal keys, dtypes, shapes and values; NaN equals NaN. `dropped` and `notes` are not compared."""
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_array_equal(found.final_observation, expected.final_observation)
    for table in TABLES:
        mine, theirs = getattr(found, table), getattr(expected, table)
        assert set(mine) == set(theirs), f"{table}: {sorted(mine)} but expected {sorted(theirs)}"
        for key, column in theirs.items():
            name, dtype = f"{table} {join_key(key)}", mine[key].dtype
            assert dtype == column.dtype, f"{name}: {dtype} but expected {column.dtype}"
            np.testing.assert_array_equal(mine[key], column, err_msg=name)


@dataclass(frozen=True)
class ToyRaw(RandomAccess):
    """Episodes of `toy_batch`, `per_part` in each part, each read in `seconds`; optionally failing.

    Episode `fails_at` cannot be read. The reading process exits at episode `dies_at`, unless it is
    `parent`. `threaded`: it claims to use all cores.
    """

    lengths: tuple[int, ...]
    per_part: int = 2
    seconds: float = 0.0
    fails_at: int | None = None
    dies_at: int | None = None
    parent: int | None = None
    info: SourceInfo = field(default_factory=SourceInfo)
    threaded: bool = False

    def parts(self, budget: int) -> Sequence[Part]:  # noqa: ARG002 - parts are by number
        """Divide into parts of `per_part` episodes."""
        ends = range(self.per_part, len(self.lengths) + self.per_part, self.per_part)
        return [Part(end - self.per_part, min(end, len(self.lengths))) for end in ends]

    def read_part(self, part: Part) -> EpisodeBatch:
        """Return the part's episodes."""
        time.sleep(self.seconds)
        if self.fails_at is not None and part.first <= self.fails_at < part.stop:
            raise FormatError(f"episode {self.fails_at} is broken", hint="look at it")
        dies = self.dies_at is not None and part.first <= self.dies_at < part.stop
        if dies and os.getpid() != self.parent:
            os._exit(9)
        return toy_batch(self.lengths[part.first : part.stop], first_episode=part.first, text=True)


def write_tokens(
    folder: Path, documents: Sequence[Sequence[int]], prompts: Sequence[int] | None = None
) -> Path:
    """Write `documents` of tokens as a dataset without a tokenizer; returns its directory.

    `prompts` are numbers of tokens of each document's prompt; None: there are no prompts.
    """
    lengths = np.array([len(one) for one in documents], np.int64)
    ids = np.concatenate([np.array(one, np.int32) for one in documents])
    ended = np.zeros((len(ids), 1), bool)
    ended[np.cumsum(lengths) - 1] = True
    steps: dict[Key, NDArray[Any]] = {
        ("input_ids",): ids,
        REWARD: np.zeros((len(ids), 1), np.float32),
        TERMINATED: ended,
        TRUNCATED: np.zeros_like(ended),
    }
    if prompts is not None:
        position = np.concatenate([np.arange(length) for length in lengths])
        steps["completion_mask",] = position >= np.repeat(prompts, lengths)
    write_toy(folder, [EpisodeBatch(lengths, steps, {}, np.ones(len(lengths), bool))])
    return folder
