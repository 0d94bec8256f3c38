"""Leaves of a mixture's batches, agreed on by its members before the first one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.assemble import assemble, tree_of
from offline_data.buffers.mixture.leaves import (
    INDEX,
    SOURCE,
    Leaf,
    Recipe,
    agreed,
    check_common,
    check_rename,
    chosen,
    flat,
    renamed,
    without_some,
)
from offline_data.buffers.mixture.members import make_from, rows_drawn
from offline_data.buffers.mixture.merge import merge, places_of
from offline_data.buffers.mixture.together import gather_together, stored_rows
from offline_data.buffers.views.storage import DATASET_EPISODE, DATASET_INDEX
from offline_data.episodes.fields import join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.buffers.mixture.leaves import Rename
    from offline_data.buffers.mixture.members import Parts
    from offline_data.episodes import Key


class Agreement:
    """The leaves of a mixture's batches, and how each member's batches have them.

    Args:
        probes: A batch of each member that has rows, by its number.
        keys: Leaves that batches have, a parent standing for all below it; None: all.
        renames: New names of a member's leaves, by its number.
        firsts: Number that `source` has for the first buffer of each member.
        nested: Members that are mixtures, whose own `source` says which buffer it was.
        cast: Whether item types may differ.

    Raises:
        UsageError: Members that do not agree.
    """

    def __init__(
        self,
        probes: Mapping[int, Any],
        *,
        keys: Sequence[Key] | None,
        renames: Sequence[Rename | None],
        firsts: Sequence[int],
        nested: frozenset[int],
        cast: bool,
    ) -> None:
        self._firsts, self._nested = firsts, nested
        leaves = {member: flat(batch, member) for member, batch in probes.items()}
        for m, (own, _) in leaves.items():
            check_rename(own, renames[m], m)
        names = {m: renamed(own, renames[m], m) for m, (own, _) in leaves.items()}
        taken = {m: _taken(names[m], keys, m, nested=m in nested) for m in names}
        taken = without_some(taken, (DATASET_INDEX, DATASET_EPISODE))
        check_common(taken)
        order = [INDEX, *next(iter(taken.values()))]
        self._leaves = [
            agreed(key, {m: leaves[m][1][names[m][key]] for m in names}, cast=cast) for key in order
        ]
        self._recipes = {m: _recipe(*leaves[m], names[m], self._leaves) for m in names}
        self._dims = _dims_of(probes)
        self._device = _device_of({m: leaves[m][1][names[m][INDEX]] for m in names})
        if nested:
            self._leaves.append(Leaf(SOURCE, torch.int64, torch.Size()))
        self._tree = tree_of({key: slot for slot, key in enumerate([*order, SOURCE])})

    @property
    def members(self) -> set[int]:
        """Members that have agreed."""
        return set(self._recipes)

    @property
    def keys(self) -> set[Key]:
        """Leaves of the mixture."""
        return {leaf.key for leaf in self._leaves}

    def leaves(self, members: Sequence[Any], parts: Parts, *, shuffled: bool) -> list[Tensor]:
        """Make the leaves of a batch, each `[B, *shape]`; raises what `_part` raises."""
        places = places_of(parts.source) if shuffled else None
        recipes = [self._recipes[number] for number, _ in parts.draws]
        if not self._nested and not any(recipe.casts for recipe in recipes):
            together = gather_together(members, parts.draws, parts.source, places)
            if together is not None:
                found, slots = together
                return [found[slots[key]] for key in recipes[0].own]
        return merge([self._part(members[m], m, draw) for m, draw in parts.draws], places)

    def _part(self, member: Any, number: int, draw: Any) -> list[Tensor]:
        """Make a member's part of a batch: the mixture's leaves, each `[n, *shape]`.

        Args:
            member: The buffer.
            number: Its number.
            draw: Rows drawn from it.

        Raises:
            UsageError: It has other rows than were drawn, or is not what it was before.
        """
        recipe = self._recipes[number]
        stored = stored_rows(member, draw)
        if stored is not None:
            storage, rows = stored
            leaves = storage.leaves(rows)
            found = [leaves[storage.slots[key]] for key in recipe.own]
            return self._cast(found, recipe, number, 0)
        keys, found = flat(make_from(member, draw), number)
        if keys != recipe.keys:
            changed = ", ".join(sorted(map(join_key, {*keys} ^ {*recipe.keys})))
            raise UsageError(f"Some leaves of member {number} come and go: {changed}")
        inner = found[keys.index(SOURCE)] if number in self._nested else 0
        found = [found[position] for position in recipe.positions]
        self._check(found, recipe, number, rows_drawn(draw))
        return self._cast(found, recipe, number, inner)

    def _check(self, found: Sequence[Tensor], recipe: Recipe, number: int, rows: int) -> None:
        for leaf, tensor, dtype in zip(self._leaves, found, recipe.dtypes, strict=False):
            if tensor.shape != (rows, *leaf.shape) or tensor.dtype is not dtype:
                raise UsageError(
                    f"Member {number} gave {join_key(leaf.key)!r} as {tensor.dtype} "
                    f"{list(tensor.shape)}; expected {dtype} {[rows, *leaf.shape]}"
                )

    def _cast(
        self, found: list[Tensor], recipe: Recipe, number: int, inner: Tensor | int
    ) -> list[Tensor]:
        """Return leaves in the mixture's types; where mixtures are members, with their source."""
        if recipe.casts:
            pairs = zip(found, self._leaves, strict=False)
            found = [tensor.to(leaf.dtype) for tensor, leaf in pairs]
        if self._nested:
            zeros = torch.zeros(len(found[0]), dtype=torch.int64, device=found[0].device)
            found.append(zeros + self._firsts[number] + inner)
        return found

    def assemble(self, leaves: list[Tensor], source: Tensor) -> TensorDict:
        """Build the batch of its leaves and the member of each row, which becomes one."""
        if not self._nested:
            leaves.append(source.to(self._device))
        size = torch.Size([len(source), *self._dims])
        return assemble(self._tree, leaves, size, self._device)


def _taken(
    names: Mapping[Key, int], keys: Sequence[Key] | None, member: int, *, nested: bool
) -> list[Key]:
    """Return the names of a member's leaves that the mixture takes, but `index` and `source`."""
    found = [key for key in chosen(names, keys, member) if key != INDEX]
    if INDEX not in names:
        raise UsageError(f"The batches of member {member} have no leaf 'index'")
    if nested:
        return [key for key in found if key != SOURCE]
    if SOURCE in found:
        raise UsageError(
            f"Member {member} has a leaf 'source', where a mixture says which member a row is from",
            hint='keys=[…] leaves it out; rename=[{"other": "source"}, …] gives it another name',
        )
    return found


def _recipe(
    keys: tuple[Key, ...], found: Sequence[Tensor], names: Mapping[Key, int], leaves: Sequence[Leaf]
) -> Recipe:
    positions = tuple(names[leaf.key] for leaf in leaves)
    dtypes = tuple(found[position].dtype for position in positions)
    own = tuple(keys[position] for position in positions)
    casts = any(leaf.dtype is not dtype for leaf, dtype in zip(leaves, dtypes, strict=True))
    return Recipe(keys, positions, own, dtypes, casts)


def _dims_of(probes: Mapping[int, Any]) -> tuple[int, ...]:
    """Return the batch dimensions behind the first one, where they are the same for all."""
    dims = {tuple(batch.batch_size[1:]) for batch in probes.values()}
    return dims.pop() if len(dims) == 1 else ()


def _device_of(index: Mapping[int, Tensor]) -> torch.device:
    devices = {member: tensor.device for member, tensor in index.items()}
    if len(set(devices.values())) > 1:
        told = ", ".join(f"member {member} on {device}" for member, device in devices.items())
        raise UsageError(f"Members give batches on different devices: {told}")
    return next(iter(devices.values()))
