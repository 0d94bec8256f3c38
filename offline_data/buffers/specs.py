"""TorchRL specs of a dataset's batches, from declared spaces or from the data's own bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from offline_data.base.errors import MissingDependencyError, UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.episode.fields import DONE, REWARD, TERMINATED, TRUNCATED, Key, join_key, next_of
from offline_data.store.reader import DatasetReader
from offline_data.store.spaces import LeafSpace, known_spaces, leaves_with_space, observed_leaves


@pickled_by_name
@dataclass(frozen=True, eq=False)
class Specs:
    """TorchRL specs of the features of a batch, without its batch dimension.

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
    """Bounds of each feature, and where they are from (`origin`)."""

    def is_in(self, batch: Any) -> bool:
        """Return True if all values of a batch are within; features that it lacks are an error."""
        return bool(self.batch.is_in(batch))

    def __repr__(self) -> str:
        rows = (f"  {key}: {space} ({space.origin})" for key, space in self.spaces.items())
        return "\n".join(["Specs", *rows])


@pickled_by_name
@dataclass(frozen=True, eq=False)
class Spaces:
    """Bounds of features, before they are TorchRL specs."""

    leaves: Mapping[Key, tuple[LeafSpace, str]]  # bounds and stored dtype, by TED key
    observed: frozenset[Key]  # root keys of observations

    def rename(self, names: Mapping[Key, Key]) -> Spaces:
        """Return them by other names; `names` has all features."""
        leaves = {names[key]: leaf for key, leaf in self.leaves.items()}
        return Spaces(leaves, frozenset(names[key] for key in self.observed))

    @classmethod
    def union(cls, parts: Sequence[Spaces], *, keys: Sequence[Key] | None, cast: bool) -> Spaces:
        """Return bounds that contain the features of all parts, of those that all have.

        Raises `UsageError` for features of different shapes, or of different dtypes without `cast`.
        """
        common = [key for key in parts[0].leaves if all(key in part.leaves for part in parts)]
        heads = [()] if keys is None else keys
        leaves = {
            key: _union(key, [part.leaves[key] for part in parts], cast=cast)
            for key in common
            if any(key[: len(head)] == head for head in heads)
        }
        return cls(leaves, frozenset.intersection(*(part.observed for part in parts)))


def _union(
    key: Key, parts: Sequence[tuple[LeafSpace, str]], *, cast: bool
) -> tuple[LeafSpace, str]:
    shapes = {space.low.shape for space, _ in parts}
    dtypes = [np.dtype(dtype) for _, dtype in parts]
    if len(shapes) > 1 or (len({*dtypes}) > 1 and not cast):
        found = ", ".join(f"{dtype} {list(space.low.shape)}" for space, dtype in parts)
        raise UsageError(
            f"The feature {join_key(key)!r} differs between members: {found}",
            hint="keys=[…] leaves it out; cast=True promotes dtypes",
        )
    spaces = [space for space, _ in parts]
    kinds, origins = {space.kind for space in spaces}, {space.origin for space in spaces}
    dtype = parts[0][1]
    if len({*dtypes}) > 1:
        of_torch = [torch.from_numpy(np.zeros(0, dtype)).dtype for dtype in dtypes]
        dtype = str(common_dtype(key, of_torch)).removeprefix("torch.")
    union = LeafSpace(
        kinds.pop() if len(kinds) == 1 else "Box",
        spaces[0].dtype,
        np.minimum.reduce([space.low for space in spaces]),
        np.maximum.reduce([space.high for space in spaces]),
        origins.pop() if len(origins) == 1 else "data" if "data" in origins else "dtype",
    )
    return union, dtype


def common_dtype(key: Key, dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """Return `torch.promote_types` of several dtypes; raises `UsageError` if they have no common one."""
    every = dict.fromkeys(dtypes)
    try:
        return reduce(torch.promote_types, every)
    except RuntimeError as error:  # torch promotes uint16, uint32 and uint64 to floats alone
        found = " and ".join(str(dtype)[6:] for dtype in every)
        raise UsageError(
            f"The feature {join_key(key)!r} is {found} in different members, which have no common dtype",
            hint="keys=[…] leaves it out; `--step cast:…` of preprocess gives them one dtype",
        ) from error


def specs_of(reader: DatasetReader) -> Specs:
    """Return the specs of a dataset; see `spaces_of` and `specs_from`."""
    check_torchrl()
    return specs_from(spaces_of(reader))


def check_torchrl() -> None:
    """Raise `MissingDependencyError` if torchrl is not installed."""
    if find_spec("torchrl") is None:
        raise MissingDependencyError(
            "specs are TorchRL's, which is not installed",
            hint="pip install torchrl; observation_space and action_space are Gymnasium's",
        )


def spaces_of(reader: DatasetReader) -> Spaces:
    """Return the bounds of all features; raises `FormatError` for an invalid declared space."""
    spaces = {**known_spaces(reader)}
    spaces |= _spaces_of_data(reader, [k for k in leaves_with_space(reader) if k not in spaces])
    leaves = leaves_with_space(reader)
    typed = {key: (space, leaves[key].dtype) for key, space in spaces.items()}
    return Spaces(typed, frozenset(key for key in observed_leaves(reader) if key in typed))


def specs_from(spaces: Spaces) -> Specs:
    """Return the TorchRL specs of features; torchrl must be installed."""
    to_composite = import_module("offline_data.buffers.bridges.torchrl").to_composite
    typed = dict(spaces.leaves)
    flags = {key: typed[key] for key in (TERMINATED, TRUNCATED) if key in typed}
    if TERMINATED in flags:
        flags[DONE] = flags[TERMINATED]
    seen = {key: leaf for key, leaf in typed.items() if key in spaces.observed}
    after = {next_of(key): leaf for key, leaf in seen.items()}
    batch = to_composite({**typed, **after, **flags})
    return Specs(
        batch.get("observation", None) or (to_composite(seen) if seen else None),
        batch.get("action", None),
        batch.get(REWARD, None),
        to_composite({key[1:]: flag for key, flag in flags.items()}),
        batch,
        {join_key(key): typed[key][0] for key in sorted(typed)},
    )


def _spaces_of_data(reader: DatasetReader, keys: list[Key]) -> dict[Key, LeafSpace]:
    """Return the least and largest value of each component, NaN if it has one; in blocks."""
    from offline_data.analysis.checks.block import BLOCK_ITEMS, blocks

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
