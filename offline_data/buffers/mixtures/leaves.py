"""Features of several members in one batch: renamed, compared and merged, or stacked."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor
from torch.utils import _pytree as pytree

from offline_data.base.errors import UsageError
from offline_data.base.exact import changes
from offline_data.base.pickles import pickled_by_name
from offline_data.buffers.specs import common_dtype
from offline_data.episode.fields import Key, join_key
from offline_data.rows.gather.assemble import assemble, level, tree_of
from offline_data.rows.keys import KeyLike, as_key, select_keys
from offline_data.rows.selection import DATASET_EPISODE, DATASET_INDEX
from offline_data.rows.transforms import spread

INDEX, MEMBER = "index", "buffer_ids"
"""Features under `index` in an ensemble's batches, as in TorchRL: the row and its member."""
INDEX_KEY: Key = (INDEX,)
SOURCE_KEY: Key = ("source",)

Rename: TypeAlias = "Mapping[Any, KeyLike]"
"""`{key in the mixture: key in the member}`, for features or parents of features."""


@pickled_by_name
class MemberLeaves(NamedTuple):
    """Mapping from a mixture's features to those of a member's batches."""

    keys: tuple[Key, ...]  # all leaves of the batch
    positions: tuple[int, ...]  # position in `keys` of each leaf of the mixture
    dtypes: tuple[torch.dtype, ...]  # the member's dtype of each leaf of the mixture


@pickled_by_name
class Agreement:
    """The features common to a mixture's members, mapped to each of them; else `UsageError`.

    `probes` has a batch of each member with rows, and `renames` new names of features, both by
    member; `firsts` the number in `source` of each member's first buffer; `nested` the members that
    are mixtures, which have their own `source`.
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
        names = {m: rename_keys(own, renames[m], m) for m, (own, _) in found.items()}
        used = {m: _used_names(names[m], keys, m, nested=m in nested) for m in names}
        self.keys = [INDEX_KEY, *_common(used)]
        columns = [
            {m: leaves[names[m][key]] for m, (_, leaves) in found.items()} for key in self.keys
        ]
        rows = [_row_of(*column, cast=cast) for column in zip(self.keys, columns, strict=True)]
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
            text = ", ".join(f"member {member} on {device}" for member, device in devices.items())
            raise UsageError(f"Members give batches on different devices: {text}")
        self._device = next(iter(devices.values()))
        self._tree = tree_of({key: slot for slot, key in enumerate([*self.keys, SOURCE_KEY])})

    def of_stored(
        self, number: int, leaves: list[Tensor], slots: Mapping[Key, int]
    ) -> list[Tensor]:
        """Return the mixture's features, each `[n, …]`, from those of a member's storage."""
        keys, positions, _ = self.members[number]
        return self._cast_leaves([leaves[slots[keys[p]]] for p in positions], number, 0)

    def of_batch(self, number: int, batch: Any, rows: int) -> list[Tensor]:
        """Return the mixture's features, each `[n, …]`, from a member's batch; checks its schema."""
        keys, leaves = flat(batch, number)
        known, positions, dtypes = self.members[number]
        if keys != known:
            changed = ", ".join(sorted(map(join_key, {*keys} ^ {*known})))
            raise UsageError(f"Some features of member {number} come and go: {changed}")
        inner = leaves[keys.index(SOURCE_KEY)] if number in self.nested else 0
        leaves = [leaves[position] for position in positions]
        for key, leaf, dtype, shape in zip(self.keys, leaves, dtypes, self._shapes, strict=True):
            if leaf.shape != (rows, *shape) or leaf.dtype is not dtype:
                raise UsageError(
                    f"Member {number} gave {join_key(key)!r} as {leaf.dtype} "
                    f"{list(leaf.shape)}; expected {dtype} {[rows, *shape]}"
                )
        return self._cast_leaves(leaves, number, inner)

    def _cast_leaves(self, leaves: list[Tensor], number: int, inner: Tensor | int) -> list[Tensor]:
        if self.members[number].dtypes != self.dtypes:
            leaves = [
                leaf if leaf.dtype is dtype else cast_exactly(key, leaf, dtype, number)
                for key, leaf, dtype in zip(self.keys, leaves, self.dtypes, strict=True)
            ]
        if self.nested:
            zeros = torch.zeros(len(leaves[0]), dtype=torch.int64, device=leaves[0].device)
            leaves.append(zeros + self._firsts[number] + inner)
        return leaves

    def assemble(self, leaves: list[Tensor], source: Tensor) -> TensorDict:
        """Return the batch of the features, with the member of each row, int64 `[B]`."""
        if not self.nested:
            leaves.append(source.to(self._device))
        size = torch.Size([len(source), *self._dims])
        return assemble(self._tree, leaves, size, self._device)


def flat(batch: Any, member: int) -> tuple[tuple[Key, ...], list[Tensor]]:
    """Return the keys and tensors of a batch; raises `UsageError` for anything else in it."""
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
                    f"The feature {join_key(key)!r} of member {member} is not a tensor",
                    hint="leave out decode_text and decode=False, or the feature: keys=[…] of the member",
                )

    flatten(batch, ())
    return tuple(keys), leaves


def rename_keys(keys: Iterable[Key], rename: Rename | None, member: int) -> dict[Key, int]:
    """Return a mixture's names of a member's features, with their positions.

    Renaming a root feature also renames it under `next`, unless that is renamed separately.

    Example:
        >>> rename_keys([("obs",), ("next", "obs")], {"state": "obs"}, 0)
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
            raise UsageError(f"Two features of member {member} are called {join_key(name)!r}")
        names[name] = number
    return names


def _select(known: Sequence[Key], wanted: Iterable[KeyLike], member: int) -> list[Key]:
    try:
        return select_keys(known, wanted)
    except UsageError as error:
        raise UsageError(f"Member {member}: {error.message}", hint=error.shell_hint) from error


def _used_names(
    names: Mapping[Key, int], keys: Sequence[Key] | None, member: int, *, nested: bool
) -> list[Key]:
    every = list(names) if keys is None else _select(list(names), keys, member)
    if INDEX_KEY not in names:
        raise UsageError(f"The batches of member {member} have no feature 'index'")
    if SOURCE_KEY in every and not nested:
        raise UsageError(
            f"Member {member} has a feature 'source', where a mixture says which member a row is from",
            hint='keys=[…] leaves it out; rename=[{"other": "source"}, …] gives it another name',
        )
    return [key for key in every if key not in (INDEX_KEY, SOURCE_KEY)]


def _common(used: Mapping[int, Sequence[Key]]) -> list[Key]:
    """Return all members' features; raises `UsageError` if others than a view's are missing."""
    common = [key for key in next(iter(used.values())) if all(key in own for own in used.values())]
    known = {*common, DATASET_INDEX, DATASET_EPISODE}
    extra = {m: [join_key(key) for key in own if key not in known] for m, own in used.items()}
    if any(extra.values()):
        text = "; ".join(f"member {m} has {', '.join(keys)}" for m, keys in extra.items() if keys)
        raise UsageError(
            f"Some features are not in all members: {text}",
            hint="keys=[…] takes those named, rename=[…] gives a member's features other names",
        )
    return common


def _row_of(
    key: Key, column: Mapping[int, Tensor], *, cast: bool
) -> tuple[torch.Size, torch.dtype]:
    shapes = {f"member {m} {tuple(leaf.shape[1:])}": leaf.shape[1:] for m, leaf in column.items()}
    if len({*shapes.values()}) > 1:
        raise UsageError(
            f"The feature {join_key(key)!r} has rows of different shapes: {', '.join(shapes)}",
            hint="leave it out by keys=[…], or bring it to one shape by a member's transform",
        )
    dtypes = {f"member {m} {str(leaf.dtype)[6:]}": leaf.dtype for m, leaf in column.items()}
    dtype = common_dtype(key, dtypes.values())
    if len({*dtypes.values()}) > 1 and not cast:
        raise UsageError(
            f"The feature {join_key(key)!r} has different item types: {', '.join(dtypes)}",
            hint=f"cast=True makes it {str(dtype)[6:]}",
        )
    return next(iter(shapes.values())), dtype


def cast_exactly(key: Key, leaf: Tensor, dtype: torch.dtype, member: int) -> Tensor:
    """Return a feature of a member in the mixture's dtype, a promotion of its own.

    Raises `UsageError` for an integer that a floating-point dtype does not hold.
    """
    cast = leaf.to(dtype)
    whole = not (leaf.dtype is torch.bool or leaf.is_floating_point() or leaf.is_complex())
    floats = dtype.is_floating_point or dtype.is_complex
    if not whole or not floats or torch.iinfo(leaf.dtype).max <= 2 / torch.finfo(dtype).eps:
        return cast
    wide = torch.complex128 if dtype.is_complex else torch.float64
    wrong = changes(leaf.numpy(force=True), cast.to(wide).numpy(force=True))
    if wrong.any():
        value = leaf.cpu()[torch.from_numpy(wrong)][0].item()
        raise UsageError(
            f"The feature {join_key(key)!r} is {str(leaf.dtype)[6:]} in member {member} and "
            f"{str(dtype)[6:]} in the mixture, which does not hold {value}",
            hint="leave it out by keys=[…], or cast it by a member's transform",
        )
    return cast


def vocabularies(
    members: Sequence[Any], renames: Sequence[Rename | None]
) -> tuple[dict[Key, list[str]], dict[Key, tuple[int, int]]]:
    """Return text vocabularies by the mixture's keys, and two members that differ in one."""
    found, first, differing = dict[Key, list[str]](), dict[Key, int](), dict[Key, tuple[int, int]]()
    for number, (member, rename) in enumerate(zip(members, renames, strict=True)):
        words = getattr(member, "_words", {})
        for key, own in zip(rename_keys(words, rename, number), words.values(), strict=True):
            first.setdefault(key, number)
            if own != found.setdefault(key, own):
                differing.setdefault(key, (first[key], number))
    return found, differing


def check_texts(differing: Mapping[Key, tuple[int, int]], keys: Container[Key]) -> None:
    """Raise `UsageError` if codes of one of `keys` differ between two members."""
    for key, (first, second) in differing.items():
        if key in keys:
            raise UsageError(
                f"The text feature {join_key(key)!r} has codes of different vocabularies in "
                f"members {first} and {second}",
                hint="leave it out: keys=[…]",
            )


def stack_parts(parts: Sequence[Any], members: Tensor) -> Any:
    """Stack `K` sub-batches of the members `[K]` to a new TensorDict `[K, n]`.

    The feature `index` becomes `("index", "index")`, and `("index", "buffer_ids")` the members of
    the rows; both int64 `[K, n]`. Sub-batches that differ in features, shapes or dtypes become a
    `LazyStackedTensorDict`, and those that are not TensorDicts a stack of their tensors.

    Example:
        >>> few = TensorDict({"action": torch.tensor([7.0]), "index": torch.tensor([3])}, [1])
        >>> many = TensorDict({"action": torch.tensor([8.0]), "index": torch.tensor([9])}, [1])
        >>> batch = stack_parts([few, many], torch.tensor([1, 0]))
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
        parts = [label_member(part, m) for part, m in zip(parts, members.tolist(), strict=True)]
    try:
        if batches:
            return LazyStackedTensorDict.lazy_stack(parts, 0)
        return pytree.tree_map(lambda *leaves: torch.stack(leaves), *parts)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"The sub-batches of the members cannot be stacked: {error}",
            hint="collate_fn=… of the ensemble gets the list of them and makes a batch of it",
        ) from error


def label_member(part: Any, member: int) -> Any:
    """Add the member to the feature `index` of a sub-batch in place; see `stack_parts`."""
    index = part.get(INDEX, None) if isinstance(part, TensorDictBase) else None
    if isinstance(index, torch.Tensor):
        part.set(INDEX, with_member(member, index.clone(), part.device))
    return part


def with_member(members: Tensor | int, index: Tensor, device: torch.device | None) -> TensorDict:
    """Return `index` of a batch: rows and their member; rows `[K, …]` and members `[K]`."""
    if isinstance(members, int):
        number = torch.full_like(index, members)
    else:
        number = spread(members.to(index.device), index.shape)
    return level({MEMBER: number, INDEX: index}, index.shape, device)


def _dense(parts: Sequence[Any], members: Tensor | None = None) -> Any:
    """Stack tensors, or TensorDicts by feature; None if they differ in type or shape."""
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
