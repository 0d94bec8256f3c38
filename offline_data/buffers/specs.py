"""TorchRL specs of a dataset's batches, from declared spaces or from the data's own bounds."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.checks.block import BLOCK_ITEMS, blocks
from offline_data.episodes.fields import DONE, TERMINATED, TRUNCATED, join_key, next_of
from offline_data.errors import MissingDependencyError
from offline_data.store.spaces import LeafSpace, known_spaces, leaves_with_space, observed_leaves

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offline_data.episodes.fields import Key
    from offline_data.store.reader import DatasetReader


@dataclass(frozen=True, eq=False)
class Specs:
    """TorchRL specs of the leaves of a batch, without its batch dimension.

    Each accepts batches, as TorchRL's do: `specs.action.is_in(batch["action"])`.
    """

    observation: Any
    """Of `batch["observation"]` and `batch["next", "observation"]`; a `Composite` if nested, and by
    name where the source has other ones (`pixels`); None if there is none, as in text."""
    action: Any
    """Of `batch["action"]`, likewise."""
    reward: Any
    """Of `batch["next", "reward"]`."""
    done: Any
    """`Composite` of `done`, `terminated` and `truncated`, as `batch["next"]` has them."""
    batch: Any
    """`Composite` of all of these as a batch has them; of text, of its tokens."""
    spaces: Mapping[str, LeafSpace]
    """Bounds of each leaf, and where they are from (`origin`)."""

    def is_in(self, batch: Any) -> bool:
        """Return True if all values of a batch are within; leaves that it lacks are an error."""
        return bool(self.batch.is_in(batch))

    def __repr__(self) -> str:
        rows = (f"  {key}: {space} ({space.origin})" for key, space in self.spaces.items())
        return "\n".join(["Specs", *rows])


def specs_of(reader: DatasetReader) -> Specs:
    """Return the specs of a dataset; reads leaves without known bounds once.

    Raises:
        MissingDependencyError: torchrl is not installed.
        FormatError: A declared space cannot be read.
    """
    if find_spec("torchrl") is None:
        raise MissingDependencyError(
            "specs are TorchRL's, which is not installed",
            hint="pip install torchrl; observation_space and action_space are Gymnasium's",
        )
    spaces = {**known_spaces(reader)}
    spaces |= _spaces_of_data(reader, [k for k in leaves_with_space(reader) if k not in spaces])
    to_composite = import_module("offline_data.buffers.bridges.torchrl").to_composite
    leaves = leaves_with_space(reader)
    typed = {key: (space, leaves[key].dtype) for key, space in spaces.items()}
    flags = {key: typed[key] for key in (TERMINATED, TRUNCATED)} | {DONE: typed[TERMINATED]}
    seen = {key: typed[key] for key in observed_leaves(reader) if key in typed}
    after = {next_of(key): one for key, one in seen.items()}
    batch = to_composite({**typed, **after, **flags})
    return Specs(
        batch.get("observation", None) or (to_composite(seen) if seen else None),
        batch.get("action", None),
        batch["next", "reward"],
        to_composite({key[1:]: one for key, one in flags.items()}),
        batch,
        {join_key(key): spaces[key] for key in sorted(spaces)},
    )


def _spaces_of_data(reader: DatasetReader, keys: list[Key]) -> dict[Key, LeafSpace]:
    """Return the smallest and largest value of each feature of some leaves, in bounded memory.

    NaN where one is in the data, which no bound contains.
    """
    leaves = leaves_with_space(reader)
    found: dict[Key, LeafSpace] = {}
    for key in keys:
        leaf = leaves[key]
        if "complex" in leaf.dtype:
            continue
        parts = [block.extremes(key) for block in blocks(reader, [leaf], BLOCK_ITEMS)]
        low = np.minimum.reduce([part[0] for part in parts])
        high = np.maximum.reduce([part[1] for part in parts])
        found[key] = LeafSpace("Box", leaf.dtype, low, high, "data")
    return found
