"""`normalize`: leaves scaled to a dataset's mean 0 and standard deviation 1."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offline_data.buffers.derived.base import (
    Cached,
    check_rows,
    leaf_keys,
    process_lock,
    within,
)
from offline_data.buffers.keys import KeyLike, as_key, as_keys, select_keys
from offline_data.episodes.fields import Key, join_key, next_of
from offline_data.errors import UsageError
from offline_data.store.statistics import Moments, item_moments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.buffers.storage import Storage

CHUNK_ITEMS = 1 << 20
"""Number of values, over all leaves, per chunk when computing statistics."""


class Scale:
    """Mean and standard deviation of one leaf, float64, in shapes that broadcast to its rows."""

    def __init__(self, mean: Any, std: Any) -> None:
        self.mean = torch.as_tensor(mean, dtype=torch.float64, device="cpu").detach().clone()
        self.std = torch.as_tensor(std, dtype=torch.float64, device="cpu").detach().clone()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scale) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"({self.mean.tolist()}, {self.std.tolist()})"


def normalize(
    keys: Iterable[KeyLike] = ("observation",),
    statistics: Mapping[Any, tuple[Any, Any]] | None = None,
    eps: float = 1e-3,
) -> Normalizer:
    """Normalize leaves of a batch: `(x - mean) / (std + eps)`, float32.

    Mean and standard deviation are computed elementwise in float64 over the root leaves of all rows
    of a storage (each transition once, ignoring non-finite values); next leaves use the same
    statistics. They are computed in one pass over the first storage that is sampled or passed to
    `fit`, and are kept by this object, also in pickles: a second buffer, for validation or online
    training, uses those of the first.

    Must come after other functions that change the same leaves. Stacked frames and action chunks
    are normalized individually (but not frames joined by `cat_dim`).

    Args:
        keys: Root leaves; a parent selects the floating-point leaves below it. A string is one key.
        statistics: Mean and standard deviation by key, numbers or arrays that broadcast to a row of
            the leaf; None: those of the first storage.
        eps: Added to the standard deviation, as in CORL and d3rlpy; must be above 0 if one is 0.

    Raises:
        UsageError: Invalid argument; or, on the first batch, a leaf that is missing, does not match
            the shape of its statistics, or has no finite value.

    Example:
        >>> scaled = normalize(["observation"], {"observation": ([1.0, 2.0], [2.0, 4.0])}, eps=0)
        >>> scaled.normalized("observation", torch.tensor([[3.0, 2.0]]))
        tensor([[1., 0.]])
    """
    wanted = as_keys(keys)
    scales = None
    if statistics is not None:
        given = {as_key(key): Scale(mean, std) for key, (mean, std) in statistics.items()}
        select_keys(list(given), wanted)
        scales = tuple(given.items())
    return Normalizer(wanted, scales, within(eps, "eps", 0, math.inf))


@dataclass(frozen=True)
class Normalizer(Cached):
    """Result of `normalize`, which documents the fields."""

    keys: tuple[Key, ...]
    statistics: tuple[tuple[Key, Scale], ...] | None
    eps: float
    _fitted: dict[Key, Scale] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, batch: TensorDict, rows: Tensor, storage: Storage) -> TensorDict:  # noqa: ARG002
        """Normalize the leaves of the batch; see `Derived`."""
        self.fit(storage)
        for key in self._memory.recall(storage, "leaves", lambda: self._check(batch)):
            root = key[1:] if key[0] == "next" else key
            batch.set(key, self.normalized(root, batch.get(key)))
        return batch

    def fit(self, storage: Storage) -> Normalizer:
        """Compute the statistics of a storage unless they are known; returns this object."""
        if self.statistics is None and not self._fitted:
            with process_lock():
                if not self._fitted:
                    self._fitted.update(self._scales(storage))
        return self

    def normalized(self, key: KeyLike, values: Tensor) -> Tensor:
        """Normalize values of one leaf, such as an observation for a policy.

        Args:
            key: The root key of the leaf.
            values: `[…, *shape]`, with the leaf's `shape`.

        Returns:
            float32, in the shape of `values`, on their device.

        Raises:
            UsageError: No statistics of the leaf (yet), or another shape.
        """
        mean, scale = self._of(key, values)
        return ((values - mean) / scale).float()

    def denormalized(self, key: KeyLike, values: Tensor) -> Tensor:
        """Invert `normalized`, for example for an action of a policy."""
        mean, scale = self._of(key, values)
        return (values * scale + mean).float()

    def denormalize(self, batch: TensorDict) -> TensorDict:
        """Invert the normalization of all leaves of a batch in place."""
        known = leaf_keys(batch)
        for root in self._known():
            for key in (root, next_of(root)):
                if key in known:
                    batch.set(key, self.denormalized(root, batch.get(key)))
        return batch

    def _scales(self, storage: Storage) -> Mapping[Key, Scale]:
        """Compute mean and standard deviation in one pass over all rows, with bounded memory."""
        row = storage.gather(torch.arange(min(1, len(storage))))
        check_rows("normalize", row)
        keys = self._roots(row)
        stored, moments = storage.only(keys), dict.fromkeys(keys, Moments())
        width = sum(math.prod(row.get(key).shape[1:]) for key in keys)
        step = max(1, CHUNK_ITEMS // max(1, width))
        for begin in range(0, len(storage), step):
            rows = stored.gather(torch.arange(begin, min(begin + step, len(storage))))
            for key in keys:
                own = item_moments(rows.get(key).cpu().double().numpy())
                moments[key] = moments[key].merge(own)
        for key, found in moments.items():
            if not np.all(found.count):
                raise UsageError(
                    f"{join_key(key)!r} has no finite value",
                    hint="normalize(…, statistics={key: (mean, std)}) sets them",
                )
        return {key: Scale(found.mean, found.std) for key, found in moments.items()}

    def _roots(self, batch: TensorDict) -> list[Key]:
        """Return the selected root leaves."""
        known = [key for key in leaf_keys(batch) if key[0] != "next"]
        wanted = select_keys(known, self.keys)
        return [key for key in wanted if key in self.keys or batch.get(key).is_floating_point()]

    def _check(self, batch: TensorDict) -> list[Key]:
        """Return the leaves of the batch to normalize, including those under `next`."""
        check_rows("normalize", batch)
        roots = self._roots(batch)
        for key in roots:
            leaf = batch.get(key)
            mean, scale = self._of(key, leaf)
            for one in (mean, scale):
                _check_shape(key, one.shape, leaf.shape[1:])
        after = set(map(next_of, roots)) & set(leaf_keys(batch))
        return [*roots, *sorted(after)]

    def _known(self) -> Mapping[Key, Scale]:
        if self.statistics is not None:
            return dict(self.statistics)
        if not self._fitted:
            raise UsageError(
                "No statistics yet: they are computed from the first storage that is sampled",
                hint="fit(buffer.storage) computes them now",
            )
        return self._fitted

    def _of(self, key: KeyLike, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and scale of a leaf, in the dtype and on the device for computation."""
        known, name = self._known(), as_key(key)
        if name not in known:
            names = ", ".join(map(join_key, known))
            raise UsageError(f"No statistics of {join_key(name)!r}; available: {names}")
        found = known[name]
        _check_shape(name, found.mean.shape, values.shape)
        _check_shape(name, found.std.shape, values.shape)
        wide = values.dtype in {torch.float64, torch.int64}
        dtype, device = torch.float64 if wide else torch.float32, values.device
        return found.mean.to(device, dtype), found.std.to(device, dtype) + self.eps


def _check_shape(key: Key, found: torch.Size, values: torch.Size) -> None:
    pairs = zip(reversed(found), reversed(values), strict=False)
    if len(found) > len(values) or any(size not in {1, of} for size, of in pairs):
        raise UsageError(
            f"Statistics of {join_key(key)!r} have shape {list(found)}, which does not match {list(values)}"
        )
