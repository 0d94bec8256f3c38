"""Assembly of nested TensorDicts: the tree of keys is planned once and filled per batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

from offline_data.base.pickles import pickled_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from offline_data.episode import Key


@pickled_by_name
@dataclass(frozen=True)
class Node:
    """One level of a nested TensorDict: slots of features by name, and sub-levels by name."""

    leaves: tuple[tuple[str, int], ...]
    children: tuple[tuple[str, Node], ...]


def tree_of(slots: Mapping[Key, int]) -> Node:
    """Return nested keys as a tree."""
    below: dict[str, dict[Key, int]] = {}
    for key, slot in slots.items():
        if len(key) > 1:
            below.setdefault(key[0], {})[key[1:]] = slot
    return Node(
        tuple((key[0], slot) for key, slot in slots.items() if len(key) == 1),
        tuple((name, tree_of(inner)) for name, inner in below.items()),
    )


def assemble(
    node: Node, leaves: Sequence[Tensor], size: torch.Size, device: torch.device
) -> TensorDict:
    """Return a TensorDict of batch size `size` with the features of the slots."""
    content: dict[str, Any] = {}
    for name, slot in node.leaves:
        content[name] = leaves[slot]
    for name, child in node.children:
        content[name] = assemble(child, leaves, size, device)
    return level(content, size, device)


def _with_checks(
    content: dict[str, Any], size: torch.Size, device: torch.device | None
) -> TensorDict:
    return TensorDict(content, batch_size=size, device=device)


def _without_checks(
    content: dict[str, Any], size: torch.Size, device: torch.device | None
) -> TensorDict:
    # Sets what tensordict's unchecked constructor sets. Checking shapes, types and devices, which
    # are correct, or even calling that constructor, takes longer than gathering a small batch.
    built = object.__new__(TensorDict)
    built._tensordict = content
    built._batch_size = size
    built._device = device
    built._td_dim_names = None
    return built


def _fastest() -> Callable[[dict[str, Any], torch.Size, torch.device | None], TensorDict]:
    """Return the unchecked constructor if its results equal those of the public one."""
    size, device = torch.Size((2,)), torch.device("cpu")

    def build(construct: Callable[..., Any]) -> Any:
        inner = construct({"b": torch.arange(2)}, size, device)
        return construct({"a": torch.arange(2) + 5, "n": inner}, size, device)

    try:
        built, expected = build(_without_checks), build(_with_checks)
        state = {name for batch in (expected, expected["n"]) for name in vars(batch)}
        same = (
            state - {"_has_mps_val"} == set(vars(built)) - {"_has_mps_val"}
            and built.batch_size == built["n"].batch_size == size
            and built.device == built["n"].device == device
            and bool((built == expected).all())
            and bool((built[1].clone() == expected[1]).all())
        )
    except Exception:  # noqa: BLE001 - private names may change: use the public constructor
        same = False
    return _without_checks if same else _with_checks


level = _fastest()
"""Builds one level of a TensorDict from content that has this batch size and device."""
