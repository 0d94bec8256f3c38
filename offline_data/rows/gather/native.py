"""Gathering by the compiled extension, if it was built: all features of a batch in one call."""

from __future__ import annotations

import math
import struct
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import dlpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from offline_data.rows.gather.plan import Gather, GatherPlan

_ROWS, _ZEROS, _EITHER = -1, -2, -3
_MAX_DIMS = 8
_INT, _UINT, _FLOAT, _COMPLEX, _BOOL = 0, 1, 2, 5, 6

_SIGNED_IN_DLPACK = {torch.uint16, torch.uint32, torch.uint64}
"""Dtypes missing from DLPack in older torch: passed as signed, then viewed."""

# The public function tries a protocol first; the private one takes a capsule directly.
_from_capsule = getattr(torch._C, "_from_dlpack", dlpack.from_dlpack)
# Torch since 2.10 has C functions for DLPack, which create tensors without capsules.
_exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)


def extension(name: str) -> Any:
    """Import a compiled module by its full name; None if it was not built."""
    try:
        return import_module(name)
    except ImportError:  # no C compiler at installation: use the Python fallback
        return None


compiled = extension("offline_data.rows.gather._gather")  # the extension module, or None


class NativeGather:
    """Gathers into CPU memory, one allocation per feature.

    Features are not views of one block: creating a view takes torch longer than creating a tensor
    over given memory, and each view would keep, pickle and share the whole block. `maps` are the
    files of the plan's gathers, as words `[rows, words]`.
    """

    def __init__(self, plan: GatherPlan, maps: Sequence[Tensor]) -> None:
        leaves = {0: _leaf(_ROWS, 0, 0, torch.int64, ())}
        sources, self._views = [], []
        episode_source, episode_offset = -1, 0
        for number, (gather, words) in enumerate(zip(plan.gathers, maps, strict=True)):
            sources.append(_source(gather, words))
            if gather.episode is not None:
                episode_source, episode_offset = number, gather.episode * words.itemsize
            for place in gather.places:
                leaves[place.slot] = _leaf(number, place.offset, 0, place.dtype, place.shape)
                if place.dtype in _SIGNED_IN_DLPACK:
                    self._views.append((place.slot, place.dtype))
        for slot in plan.flags:
            leaves[slot] = _leaf(_ZEROS, 0, 0, torch.bool, (1,))
        if plan.done is not None:
            done, terminated, truncated = plan.done
            leaves[done] = _leaf(_EITHER, terminated, truncated, torch.bool, (1,))
        table = b"".join(leaves[slot] for slot in range(plan.count))
        self._finished = _exchange is not None and not self._views
        self._gather = compiled.gather
        self._plan = compiled.plan(
            b"".join(sources), table, episode_source, episode_offset, list(maps), _exchange
        )

    def __call__(self, rows: Tensor) -> list[Tensor]:
        """Return the features of `rows` `[B]` by slot; raises `IndexError`."""
        if rows.dtype is not torch.int64 or not rows.is_contiguous():
            rows = rows.to(dtype=torch.int64).contiguous()
        threads = torch.get_num_threads()
        made = self._gather(self._plan, rows.data_ptr(), rows.numel(), threads)
        return made if self._finished else _leaves(made, self._views)


def gather_groups(gathers: Sequence[NativeGather], rows: Tensor) -> list[Tensor] | None:
    """Gather rows int64 `[K, n]` of `K` datasets into features `[K, n, …]`, by slot.

    Returns None if the datasets have different features; raises `IndexError` for an invalid row.
    """
    rows = rows.to(dtype=torch.int64).contiguous()
    return _together(gathers, compiled.gather_groups, rows.data_ptr(), rows.shape[1])


def gather_mixed(
    gathers: Sequence[NativeGather], source: Tensor, rows: Tensor
) -> list[Tensor] | None:
    """Gather row `rows[i]` of dataset `source[i]` into features `[B, …]`, by slot.

    Both are int64 `[B]`, contiguous. Returns None if the datasets' features differ in layout;
    raises `IndexError` for an invalid row.
    """
    pointers = source.data_ptr(), rows.data_ptr(), rows.shape[0]
    return _together(gathers, compiled.gather_mixed, *pointers)


def _together(
    gathers: Sequence[NativeGather], gather: Callable[..., Any], *arguments: int
) -> list[Tensor] | None:
    views = gathers[0]._views
    if any(other._views != views for other in gathers):
        return None
    results = gather([other._plan for other in gathers], *arguments, torch.get_num_threads())
    return None if results is None else _leaves(results, views)


def fits(plan: GatherPlan) -> bool:
    """Return True if the compiled gather is available and supports the plan's shapes."""
    places = [place for gather in plan.gathers for place in gather.places]
    return compiled is not None and all(len(place.shape) <= _MAX_DIMS for place in places)


def _leaves(results: list[Any], views: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
    """Return the extension's results as tensors; with older torch they are DLPack capsules."""
    if results and not isinstance(results[0], torch.Tensor):
        results = [_from_capsule(capsule) for capsule in results]
    for slot, dtype in views:
        results[slot] = results[slot].view(dtype)
    return results


def _source(gather: Gather, words: Tensor) -> bytes:
    """Pack a `Source` of `_gather.c`; the next observation's map starts one row later."""
    later = int(gather.at == "next")
    return struct.pack(
        "=5q",
        words.data_ptr() + later * gather.stride,
        gather.rows - later,
        gather.stride,
        gather.width * words.itemsize,
        int(gather.at != "step"),
    )


def _leaf(source: int, offset: int, other: int, dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    """Pack a `Leaf` of `_gather.c`."""
    code = _UINT if dtype == torch.uint8 else _INT
    if dtype == torch.bool:
        code = _BOOL
    elif dtype.is_complex or dtype.is_floating_point:
        code = _COMPLEX if dtype.is_complex else _FLOAT
    size, padding = dtype.itemsize * math.prod(shape), [0] * (_MAX_DIMS - len(shape))
    kind = size, code, dtype.itemsize * 8, len(shape), *shape, *padding
    return struct.pack(f"={7 + _MAX_DIMS}q", source, offset, other, *kind)
