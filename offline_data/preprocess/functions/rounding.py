"""Which operations give each value to the bit, however many rows they are done on at once.

Sums, products of matrices and most functions of analysis do not: they are added up, or
approximated, otherwise where there are more values (measured: for 2 to 100 % of values, or for
none). Others do, but for rare values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOVING = {
    "alias", "arange", "as_strided", "cat", "clone", "constant_pad_nd", "copy", "detach",
    "diagonal", "empty", "empty_like", "empty_strided", "expand", "eye", "fill", "flip", "full",
    "full_like", "gather", "index", "index_select", "lift", "lift_fresh", "lift_fresh_copy",
    "masked_fill", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros",
    "ones", "ones_like", "permute", "pixel_shuffle", "repeat", "resolve_conj", "roll",
    "scalar_tensor", "scatter", "select", "select_backward", "slice", "slice_scatter", "sort",
    "split", "split_with_sizes", "squeeze", "stack", "t", "transpose", "tril", "triu", "unbind",
    "unfold", "unsqueeze", "view", "where", "zero", "zeros", "zeros_like", "_reshape_alias",
    "_unsafe_index", "_unsafe_view",
}  # fmt: skip
"""Operations that move values."""

_CORRECT = {
    "abs", "add", "amax", "amin", "ceil", "clamp", "clamp_max", "clamp_min", "copysign", "div",
    "floor", "hardtanh", "heaviside", "max", "maximum", "min", "minimum", "mul", "nan_to_num",
    "neg", "reciprocal", "relu", "round", "rsub", "sgn", "sign", "sqrt", "sub", "threshold",
    "trunc", "_to_copy",
}  # fmt: skip
"""Operations whose results IEEE 754 rounds in one way only, of real numbers."""

_UNEQUAL = {"fmod", "remainder", "floor_divide"}
"""Operations of two tensors that are wrong for rare values in vectors, and right for one alone."""

_WIDE = {torch.uint32, torch.uint64}
"""Types to which numbers that they cannot hold are cast otherwise in vectors."""


class Rounding(TorchDispatchMode):
    """Notes operations whose results may be rounded otherwise for many rows than for one.

    Example:
        >>> rounding = Rounding()
        >>> with rounding:
        ...     _ = torch.ones(3).sum() + 1
        >>> rounding.found, rounding.unequal
        ({'sum'}, set())
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[str] = set()
        """Names of operations that are to be looked at closely."""
        self.unequal: set[str] = set()
        """Names of those that give something else for rare values."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Do an operation."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name.partition("::")[2].rstrip("_")
        if _is_unequal(name, args, kwargs):
            self.unequal.add(name)
        elif not _is_exact(name, func._overloadname, out, kwargs):
            self.found.add(name)
        return out


def _is_exact(name: str, variant: str, out: Any, kwargs: dict[str, Any]) -> bool:
    results = list(_tensors(out))
    if not any(one.is_floating_point() or one.is_complex() for one in results):
        return True
    if kwargs.get("alpha", 1) != 1 or kwargs.get("decimals") or kwargs.get("rounding_mode"):
        return False
    if name in _MOVING:
        return "reduce" not in variant
    return name in _CORRECT and not any(one.is_complex() for one in results)


def _is_unequal(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    floats = [one for one in _tensors(args) if one.is_floating_point()]
    if name in {"_to_copy", "copy"}:
        return bool(floats) and kwargs.get("dtype", args[0].dtype) in _WIDE
    two = name in _UNEQUAL or (name == "div" and bool(kwargs.get("rounding_mode")))
    return two and len(floats) > 1


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)
