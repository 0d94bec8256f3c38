"""Self-identifying episodes: every value tells its episode and step, none is zero, no two alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from offline_data.episodes import EpisodeBatch
from offline_data.store.manifest import Manifest
from offline_data.store.writer import DatasetWriter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.episodes import Key
    from offline_data.store.audit import AuditMode
    from offline_data.store.layout import LayoutName


def toy_batch(
    lengths: Sequence[int],
    *,
    first_episode: int = 0,
    text: bool = False,
    images: bool = False,
    unknown_final: Sequence[int] = (),
    width: int = 3,
) -> EpisodeBatch:
    """Make episodes whose observation at time `t` of episode `e` is `1000·(e + 1) + t + 1`.

    The action is the negative of the observation before it, the reward a tenth of the one after
    it. Even episodes end terminated, odd ones truncated.

    Args:
        lengths: Transitions of each episode.
        first_episode: Number of the first one, so that batches can follow each other.
        text: Whether there is a text observation `("observation", "mission")`.
        images: Whether there is a leaf large enough for a file of its own.
        unknown_final: Numbers of episodes whose final observation the source lacks.
        width: Numbers in an observation.

    Example:
        >>> toy_batch([2]).observations[("observation", "state")][:, 0].tolist()
        [1001.0, 1002.0, 1003.0]
    """
    counts = np.array(lengths, dtype=np.int64)
    numbers = np.arange(first_episode, first_episode + len(counts))
    final = ~np.isin(numbers, np.array(unknown_final, dtype=np.int64))
    codes = _codes(numbers, counts, final)
    before, after = _before(codes, counts), _after(codes, counts)
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


def _codes(
    numbers: NDArray[np.int64], counts: NDArray[np.int64], final: NDArray[np.bool_]
) -> NDArray[np.float64]:
    runs = []
    for number, count, known in zip(numbers, counts, final, strict=True):
        run = 1000.0 * (number + 1) + np.arange(count + 1) + 1
        runs.append(run if known else np.append(run[:-1], run[-2]))
    return np.concatenate(runs) if runs else np.zeros(0)


def _before(codes: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.delete(codes, np.cumsum(counts + 1) - 1)


def _after(codes: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.delete(codes, np.cumsum(counts + 1) - counts - 1)


def write_toy(
    folder: Path,
    batches: Sequence[EpisodeBatch],
    *,
    layout: LayoutName = "compact",
    audit: AuditMode = "all",
    dataset: str = "local:toy@1",
) -> Manifest:
    """Write batches as a dataset directory at `folder`, straight, without staging."""
    source, _, rest = dataset.partition(":")
    name, _, revision = rest.partition("@")
    header = Manifest(dataset, source, name, revision, layout, tables={}, counts={})
    with DatasetWriter(folder, header, audit=audit) as writer:
        for batch in batches:
            writer.append(batch)
        return writer.finish()
