"""Leaves of several members in one batch: renamed, compared and merged, or stacked as they are."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_non_tensor
from torch.utils import _pytree as pytree

from offline_data.buffers.gather.assemble import assemble, level, tree_of
from offline_data.buffers.keys import KeyLike, as_key, select_keys
from offline_data.buffers.views.rows import DATASET_EPISODE, DATASET_INDEX
from offline_data.episodes.fields import Key, join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from torch import Tensor

INDEX, MEMBER = "index", "buffer_ids"
"""Leaves below `index` of an ensemble's batches, as in TorchRL: the row, and its member."""
INDEX_KEY: Key = (INDEX,)
SOURCE_KEY: Key = ("source",)

Rename: TypeAlias = "Mapping[Any, KeyLike]"
"""`{key in the mixture: key in the member}`, leaves or parents of leaves."""


class MemberLeaves(NamedTuple):
    """Where a member's batches have the leaves of a mixture."""

    keys: tuple[Key, ...]  # all of the batch
    positions: tuple[int, ...]  # among them, of each leaf of the mixture
    dtypes: tuple[torch.dtype, ...]  # there, of each leaf of the mixture


class Agreement:
    """The leaves of a mixture's batches, and how each member's batches have them.

    Args:
        probes: A batch of each member that has rows, by its number.
        keys: Leaves that batches have, a parent standing for all below it; None: all.
        renames: New names of a member's leaves, by its number.
        firsts: Number that `source` has for the first buffer of each member.
        nested: Members that are mixtures, whose own `source` says which buffer it was.
        cast: Whether dtypes may differ.

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
        self._firsts, self.nested = firsts, nested
        found = {member: flat(batch, member) for member, batch in probes.items()}
        for member, (own, _) in found.items():
            _select(own, (renames[member] or {}).values(), member)
        names = {m: renamed(own, renames[m], m) for m, (own, _) in found.items()}
        taken = {m: _taken(names[m], keys, m, nested=m in nested) for m in names}
        self.keys = [INDEX_KEY, *_common(taken)]
        columns = [
            {m: leaves[names[m][key]] for m, (_, leaves) in found.items()} for key in self.keys
        ]
        rows = [_row_of(*one, cast=cast) for one in zip(self.keys, columns, strict=True)]
        self._shapes, self.dtypes = zip(*rows, strict=True)
        self.members: dict[int, MemberLeaves] = {}
        for m, (own, leaves) in found.items():
            positions = tuple(names[m][key] for key in self.keys)
            dtypes = tuple(leaves[position].dtype for position in positions)
            self.members[m] = MemberLeaves(own, positions, dtypes)
        dims = {tuple(batch.batch_size[1:]) for batch in probes.values()}
        self._dims = dims.pop() if len(dims) == 1 else ()
        devices = {m: leaf.device for m, leaf in columns[0].items()}
        if len({*devices.values()}) > 1:
            told = ", ".join(f"member {member} on {device}" for member, device in devices.items())
            raise UsageError(f"Members give batches on different devices: {told}")
        self._device = next(iter(devices.values()))
        self._tree = tree_of({key: slot for slot, key in enumerate([*self.keys, SOURCE_KEY])})

    def of_stored(
        self, number: int, leaves: list[Tensor], slots: Mapping[Key, int]
    ) -> list[Tensor]:
        """Return the mixture's leaves, each `[n, …]`, of those that a member's storage gave."""
        keys, positions, _ = self.members[number]
        return self._converted([leaves[slots[keys[p]]] for p in positions], number, 0)

    def of_batch(self, number: int, batch: Any, rows: int) -> list[Tensor]:
        """Return the mixture's leaves, each `[n, …]`, of a member's batch, which may have changed."""
        keys, leaves = flat(batch, number)
        known, positions, dtypes = self.members[number]
        if keys != known:
            changed = ", ".join(sorted(map(join_key, {*keys} ^ {*known})))
            raise UsageError(f"Some leaves of member {number} come and go: {changed}")
        inner = leaves[keys.index(SOURCE_KEY)] if number in self.nested else 0
        leaves = [leaves[position] for position in positions]
        for key, leaf, dtype, shape in zip(self.keys, leaves, dtypes, self._shapes, strict=True):
            if leaf.shape != (rows, *shape) or leaf.dtype is not dtype:
                raise UsageError(
                    f"Member {number} gave {join_key(key)!r} as {leaf.dtype} "
                    f"{list(leaf.shape)}; expected {dtype} {[rows, *shape]}"
                )
        return self._converted(leaves, number, inner)

    def _converted(self, leaves: list[Tensor], number: int, inner: Tensor | int) -> list[Tensor]:
        """Return leaves in the mixture's dtypes; if mixtures are members, with their source."""
        if self.members[number].dtypes != self.dtypes:
            leaves = [leaf.to(dtype) for leaf, dtype in zip(leaves, self.dtypes, strict=True)]
        if self.nested:
            zeros = torch.zeros(len(leaves[0]), dtype=torch.int64, device=leaves[0].device)
            leaves.append(zeros + self._firsts[number] + inner)
        return leaves

    def assemble(self, leaves: list[Tensor], source: Tensor) -> TensorDict:
        """Build the batch of its leaves and the member of each row, int64 `[B]`."""
        if not self.nested:
            leaves.append(source.to(self._device))
        size = torch.Size([len(source), *self._dims])
        return assemble(self._tree, leaves, size, self._device)


def flat(batch: Any, member: int) -> tuple[tuple[Key, ...], list[Tensor]]:
    """Return the keys and the tensors of a batch; `UsageError` if it has other things."""
    if not isinstance(batch, TensorDictBase):
        raise UsageError(
            f"The batches of member {member} are {type(batch).__name__}s; a mixture takes "
            "TensorDicts",
            hint="give what changes the kind of batches to the mixture: transform=…",
        )
    keys: list[Key] = []
    leaves: list[Tensor] = []

    def flatten(inner: TensorDictBase, above: Key) -> None:
        for name, value in inner.items():
            key = (*above, name)
            if isinstance(value, torch.Tensor):
                keys.append(key)
                leaves.append(value)
            elif isinstance(value, TensorDictBase) and not is_non_tensor(value):
                flatten(value, key)
            else:
                raise UsageError(
                    f"The leaf {join_key(key)!r} of member {member} is not a tensor",
                    hint="leave out decode_text and decode=False, or the leaf: keys=[…] of the member",
                )

    flatten(batch, ())
    return tuple(keys), leaves


def renamed(keys: Iterable[Key], rename: Rename | None, member: int) -> dict[Key, int]:
    """Return the names that a mixture has for a member's leaves, each with its number.

    A renaming of a root leaf holds below `next` too, unless that has one of its own.

    Example:
        >>> renamed([("obs",), ("next", "obs")], {"state": "obs"}, 0)
        {('state',): 0, ('next', 'state'): 1}
    """
    pairs = [(as_key(old), as_key(new)) for new, old in (rename or {}).items()]
    heads = {("next", *old): ("next", *new) for old, new in reversed(pairs)} | dict(pairs)
    names: dict[Key, int] = {}
    for number, key in enumerate(keys):
        lengths = (length for length in range(len(key), 0, -1) if key[:length] in heads)
        length = next(lengths, 0)
        name = heads[key[:length]] + key[length:] if length else key
        if name in names:
            raise UsageError(f"Two leaves of member {member} are called {join_key(name)!r}")
        names[name] = number
    return names


def _select(known: Sequence[Key], wanted: Iterable[KeyLike], member: int) -> list[Key]:
    try:
        return select_keys(known, wanted)
    except UsageError as error:
        raise UsageError(f"Member {member}: {error.message}", hint=error.shell_hint) from error


def _taken(
    names: Mapping[Key, int], keys: Sequence[Key] | None, member: int, *, nested: bool
) -> list[Key]:
    """Return the names of a member's leaves that the mixture takes, without `index` and `source`."""
    every = list(names) if keys is None else _select(list(names), keys, member)
    if INDEX_KEY not in names:
        raise UsageError(f"The batches of member {member} have no leaf 'index'")
    if SOURCE_KEY in every and not nested:
        raise UsageError(
            f"Member {member} has a leaf 'source', where a mixture says which member a row is from",
            hint='keys=[…] leaves it out; rename=[{"other": "source"}, …] gives it another name',
        )
    return [key for key in every if key not in (INDEX_KEY, SOURCE_KEY)]


def _common(taken: Mapping[int, Sequence[Key]]) -> list[Key]:
    """Return the leaves of all members; what only views have may be missing, else `UsageError`."""
    common = [
        key for key in next(iter(taken.values())) if all(key in own for own in taken.values())
    ]
    known = {*common, DATASET_INDEX, DATASET_EPISODE}
    extra = {m: [join_key(key) for key in own if key not in known] for m, own in taken.items()}
    if any(extra.values()):
        told = "; ".join(f"member {m} has {', '.join(keys)}" for m, keys in extra.items() if keys)
        raise UsageError(
            f"Some leaves are not in all members: {told}",
            hint="keys=[…] takes those named, rename=[…] gives a member's leaves other names",
        )
    return common


def _row_of(
    key: Key, column: Mapping[int, Tensor], *, cast: bool
) -> tuple[torch.Size, torch.dtype]:
    """Return shape and dtype of a row of a leaf; `UsageError` if members differ, in dtype without `cast`."""
    shapes = {f"member {m} {tuple(leaf.shape[1:])}": leaf.shape[1:] for m, leaf in column.items()}
    if len({*shapes.values()}) > 1:
        raise UsageError(
            f"The leaf {join_key(key)!r} has rows of different shapes: {', '.join(shapes)}",
            hint="leave it out by keys=[…], or bring it to one shape by a member's transform",
        )
    dtypes = {f"member {m} {str(leaf.dtype)[6:]}": leaf.dtype for m, leaf in column.items()}
    dtype = reduce(torch.promote_types, dtypes.values())
    if len({*dtypes.values()}) > 1 and not cast:
        raise UsageError(
            f"The leaf {join_key(key)!r} has different item types: {', '.join(dtypes)}",
            hint=f"cast=True makes it {str(dtype)[6:]}",
        )
    return next(iter(shapes.values())), dtype


def words_of(member: Any, rename: Rename | None, number: int) -> dict[Key, list[str]]:
    """Return the vocabularies of a member's text leaves by the mixture's keys, as far as known."""
    words = getattr(member, "_words", {})
    return dict(zip(renamed(words, rename, number), words.values(), strict=True))


def differing_texts(
    members: Sequence[Any], renames: Sequence[Rename | None]
) -> dict[Key, tuple[int, int]]:
    """Find text leaves of which members have different vocabularies, with two such members."""
    known: dict[Key, tuple[int, list[str]]] = {}
    found: dict[Key, tuple[int, int]] = {}
    for number, (member, rename) in enumerate(zip(members, renames, strict=True)):
        for key, words in words_of(member, rename, number).items():
            first, before = known.setdefault(key, (number, words))
            if words != before:
                found.setdefault(key, (first, number))
    return found


def check_texts(differing: Mapping[Key, tuple[int, int]], keys: Container[Key]) -> None:
    """Raise `UsageError` if one of `keys` has codes that mean different texts in two members."""
    for key, (first, second) in differing.items():
        if key in keys:
            raise UsageError(
                f"The text leaf {join_key(key)!r} has codes of different vocabularies in "
                f"members {first} and {second}",
                hint="leave it out: keys=[…]",
            )


def stacked(parts: Sequence[Any], members: Tensor) -> Any:
    """Stack `K` sub-batches, of the members `[K]`, as a TensorDict `[K, n]` in memory of its own.

    The leaf `index` becomes two: `("index", "index")` as it was, and `("index", "buffer_ids")`, the
    members that rows are from; both int64 `[K, n]`. Sub-batches that differ in leaves, shapes or
    dtypes make a `LazyStackedTensorDict`; other things than TensorDicts, a stack of their tensors.

    Example:
        >>> few = TensorDict({"action": torch.tensor([7.0]), "index": torch.tensor([3])}, [1])
        >>> many = TensorDict({"action": torch.tensor([8.0]), "index": torch.tensor([9])}, [1])
        >>> batch = stacked([few, many], torch.tensor([1, 0]))
        >>> batch["action"].tolist(), batch["index", "buffer_ids"].tolist()
        ([[7.0], [8.0]], [[1], [0]])
    """
    batches = all(isinstance(part, TensorDictBase) for part in parts)
    if batches:
        for (key,) in (DATASET_INDEX, DATASET_EPISODE):  # which only views have
            having = [part for part in parts if key in part.keys()]  # noqa: SIM118
            for part in having if len(having) < len(parts) else ():
                part.pop(key)
        batch = _dense(parts, members)
        if batch is not None:
            return batch
        parts = [labelled(part, one) for part, one in zip(parts, members.tolist(), strict=True)]
    try:
        if batches:
            return LazyStackedTensorDict.lazy_stack(parts, 0)
        return pytree.tree_map(lambda *leaves: torch.stack(leaves), *parts)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"The sub-batches of the members cannot be stacked: {error}",
            hint="collate_fn=… of the ensemble gets the list of them and makes a batch of it",
        ) from error


def labelled(part: Any, member: int) -> Any:
    """Set in the leaf `index` of a sub-batch which member it is from, in place; see `stacked`."""
    index = part.get(INDEX, None) if isinstance(part, TensorDictBase) else None
    if isinstance(index, torch.Tensor):
        own = {INDEX: index.clone(), MEMBER: torch.full_like(index, member)}
        part.set(INDEX, TensorDict(own, batch_size=index.shape, device=part.device))
    return part


def with_member(members: Tensor, index: Tensor, device: torch.device | None) -> TensorDict:
    """Return the leaf `index` of a batch: rows `[K, …]`, with the member `[K]` of each."""
    of_part = members.to(index.device).reshape(-1, *[1] * (index.ndim - 1))
    own = {MEMBER: of_part.expand(index.shape).contiguous(), INDEX: index}
    return level(own, index.shape, device)


def _dense(parts: Sequence[Any], members: Tensor | None = None) -> Any:
    """Stack tensors, or plain TensorDicts leaf by leaf; None if they differ in kind or shape."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        for part in parts:
            if not isinstance(part, torch.Tensor) or part.dtype is not first.dtype:
                return None
            if part.shape != first.shape:
                return None
        return torch.stack([*parts])
    for part in parts:
        if type(part) is not TensorDict or part.batch_size != first.batch_size:
            return None
        if part.device != first.device:
            return None
    contents = [dict(part.items()) for part in parts]
    if any(content.keys() != contents[0].keys() for content in contents):
        return None
    stacks = {name: _dense([content[name] for content in contents]) for name in contents[0]}
    if any(stack is None for stack in stacks.values()):
        return None
    if members is not None and isinstance(stacks.get(INDEX), torch.Tensor):
        stacks[INDEX] = with_member(members, stacks[INDEX], first.device)
    return level(stacks, torch.Size((len(parts), *first.batch_size)), first.device)
