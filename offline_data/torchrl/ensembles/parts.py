"""The parts of a `ReplayBufferEnsemble`: ensembles of samplers, storages and writers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from offline_data.base.errors import ImmutableError, UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.buffers.arguments import as_sampler
from offline_data.buffers.mixtures.allocation import Probabilities, probabilities
from offline_data.buffers.mixtures.leaves import INDEX, INDEX_KEY, MEMBER, stack_parts, with_member
from offline_data.buffers.mixtures.members import GatherMany
from offline_data.buffers.writers import Writer, refusing
from offline_data.rows import fields
from offline_data.rows.gather.assemble import Node, assemble
from offline_data.rows.indexing import Index, positive, rows_of
from offline_data.rows.keys import KeyLike
from offline_data.rows.samplers import Sampler
from offline_data.rows.samplers.base import Sampleable
from offline_data.rows.state import Saves, check_part, load_part, part_state
from offline_data.rows.storage import Storage
from offline_data.rows.transforms import Transform
from offline_data.torchrl.parts import as_storage
from offline_data.torchrl.storages import GrowingStorage

if TYPE_CHECKING:
    from tensordict import TensorDict


_ROWS = Node(((MEMBER, 0), (INDEX, 1)), ())
_CPU = torch.device("cpu")


def member_index(
    index: Any, count: int, *, rows: bool = True
) -> tuple[int | list[int] | None, tuple[Any, ...]]:
    """Split an index of an ensemble into members, and rows of each if `rows` is True.

    The members are an int, a list, or None for the whole ensemble.
    """
    given = index if isinstance(index, tuple) else (index,)
    if not 1 <= len(given) <= 1 + int(rows):
        raise UsageError(
            f"An ensemble is indexed by its members{' and their rows' if rows else ''}, and "
            f"{len(given)} indices were given"
        )
    which, *others = given
    every = isinstance(which, slice) and which == slice(None, None, None)
    if (every or isinstance(which, EllipsisType)) and not others:
        return None, ()
    no_index = UsageError(
        f"{which!r} is not an index of members; expected an int, a slice, or a list, array or "
        "tensor of one dimension with one number or more",
        hint="rows of members follow after a comma: ensemble[:, 3], ensemble[0, [1, 2]]",
    )
    try:
        numbers = rows_of(which, count)
    except IndexError as error:
        raise IndexError(
            f"The ensemble has {plural(count, 'member')}; found the index {which!r}"
        ) from error
    except UsageError as error:
        raise no_index from error
    if numbers.ndim > 1 or not numbers.numel():
        raise no_index
    return numbers.tolist(), tuple(others)


@pickled_by_name
class Parts(Saves):
    """One part per member, in order."""

    def __init__(self, parts: list[Any]) -> None:
        if not parts:
            raise UsageError(f"A {type(self).__name__} has one part or more; none was given")
        self._parts = parts

    def state_dict(self) -> dict[str, Any]:
        return {
            **dict(zip(self._numbers, part_state(self._parts), strict=True)),
            **super().state_dict(),
        }

    def check_state(self, state: Any, above: Any = None) -> None:
        fields.check(state, type(self).__name__, dict.fromkeys(self._numbers, fields.ANY))
        super().check_state(state, above)
        check_part(self._parts, [state[number] for number in self._numbers])

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state(state)
        load_part(self._parts, [state[number] for number in self._numbers])

    @property
    def _numbers(self) -> list[str]:
        return [*map(str, range(len(self)))]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: Any) -> Any:
        numbers, _ = member_index(index, len(self), rows=False)
        if numbers is None:
            return self
        return self._parts[numbers] if isinstance(numbers, int) else self._some(numbers)

    def _some(self, numbers: list[int]) -> Any:
        return type(self)(*(self._parts[number] for number in numbers))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._parts))})"


def read_only(action: str) -> Any:
    """Return a method that raises `ImmutableError` for `action` on an ensemble."""
    return refusing(
        ImmutableError,
        f"An ensemble is read only: for {action} the member is ambiguous",
        "ensemble[0].extend(data) writes to the first member, if it is a growing buffer",
    )


class StorageEnsemble(Parts):
    """The storages of a `ReplayBufferEnsemble`'s members; read-only.

    Its length is the number of storages. A row is a member and a row of its storage.

    Args:
        storages: One per member, in order, at least one. Also an attribute, like the next.
        transforms: Transform of each member's batches, or None.

    Example:
        >>> from tensordict import TensorDict
        >>> from offline_data.torchrl.storages import TensorStorage
        >>> few = TensorStorage(TensorDict({"action": torch.arange(3)}, [3]))
        >>> many = TensorStorage(TensorDict({"action": torch.arange(10, 20)}, [10]))
        >>> storage = StorageEnsemble(few, many)
        >>> len(storage), storage[1, -1]["action"], [batch["action"] for batch in storage[:, 2]]
        (2, tensor(19), [tensor(2), tensor(12)])
    """

    def __init__(
        self, *storages: Storage, transforms: Sequence[Transform | None] | None = None
    ) -> None:
        self.storages: list[Storage] = [as_storage(storage) for storage in storages]
        super().__init__(self.storages)
        self.transforms = [None] * len(storages) if transforms is None else list(transforms)
        if len(self.transforms) != len(storages):
            raise UsageError(
                f"transforms has {plural(len(self.transforms), 'item')} for {plural(len(storages), 'storage')}",
                hint="transforms=[None, …] has an item for each storage",
            )
        self._many = GatherMany()

    def get(self, rows: TensorDict) -> list[tuple[int, Any]]:
        """Return the sub-batches of rows `[K]` from `SamplerEnsemble.sample` with their members."""
        found = []
        for number, index in zip(rows[MEMBER].tolist(), rows[INDEX].unbind(0), strict=True):
            batch, transform = self.storages[number].gather(index.clone()), self.transforms[number]
            found.append((number, batch if transform is None else transform(batch)))
        return found

    def gather(self, rows: TensorDict) -> Any:
        """Return the sub-batches of rows as one batch `[K, n]`; see `get` and `stack_parts`."""
        members, index = rows[MEMBER], rows[INDEX]
        bare = all(transform is None for transform in self.transforms)
        batch = self.gather_stored(members, index) if bare else None
        if batch is not None:
            return batch
        return stack_parts([part for _, part in self.get(rows)], members)

    def gather_stored(self, members: Tensor, index: Tensor) -> TensorDict | None:
        """Gather stored rows at once, without transforms; None if impossible."""
        found = self._many(self.storages, members.tolist(), index, members)
        if found is None:
            return None
        leaves, slots, tree = found
        leaves[slots[INDEX_KEY]] = with_member(members, leaves[slots[INDEX_KEY]], _CPU)
        return assemble(tree, leaves, index.shape, _CPU)

    def only(self, keys: Iterable[KeyLike]) -> StorageEnsemble:
        wanted = list(keys)
        some = (storage.only(wanted) for storage in self.storages)
        return StorageEnsemble(*some, transforms=self.transforms)

    rows: Any = refusing(
        UsageError,
        "A StorageEnsemble cannot be sampled by a single sampler",
        "ReplayBufferEnsemble(storages=…, samplers=SamplerEnsemble(…)) draws from each",
    )
    runs = rows

    def __getitem__(self, index: Any) -> Any:
        numbers, rows = member_index(index, len(self))
        if not rows:
            return super().__getitem__(index if numbers is None else numbers)
        if isinstance(numbers, int):
            return _rows_in(self.storages[numbers], rows[0])
        return [_rows_in(self.storages[number], rows[0]) for number in numbers or ()]

    def _some(self, numbers: list[int]) -> StorageEnsemble:
        transforms = [self.transforms[number] for number in numbers]
        return StorageEnsemble(*(self.storages[n] for n in numbers), transforms=transforms)


def _rows_in(storage: Storage, index: Index) -> Any:
    if isinstance(storage, GrowingStorage):
        return storage.get(index)
    rows = rows_of(index, len(storage))
    batch = storage.gather(rows.reshape(-1))
    return batch.reshape(rows.shape + batch.shape[1:])


class SamplerEnsemble(Parts, Sampler):
    """Draws members, then rows of each: a batch of `B` rows is `K` sub-batches of `B / K`.

    As in TorchRL **whole sub-batches** come from one member, drawn independently with replacement:
    a batch may have several sub-batches of one member and none of another. Without `p` all members
    are equally likely, whatever their size; see also `offline_data.DatasetMixture`.

    Each sub-batch is a separate draw (TorchRL cuts one draw for all sub-batches of a member, so
    that with `num_slices` slices get longer the more there are). If an epoch of a sampler without
    replacement ends within a sub-batch, the next one begins in it.

    Args:
        samplers: One per member, in order, at least one. Also an attribute.
        p: Weights of the members, non-negative, not all 0. Or `"sampleable"`: the current number of
            rows, or of slice starts, that each can draw from. None: equal.
        sample_from_all: One sub-batch of each member, in order; excludes `p`.
        num_buffer_sampled: `K`, unless `sample_from_all`; None: the number of members.
        seed: Seed of the generator that draws members; None: torch's global generator.

    Example:
        >>> from offline_data.rows.samplers import RandomSampler
        >>> samplers = SamplerEnsemble(RandomSampler(), RandomSampler(), p=[1, 3])
        >>> samplers.p, samplers.num_buffer_sampled, samplers[0]
        (tensor([0.2500, 0.7500]), 2, RandomSampler(seed=None, valid_only=True))
    """

    STATE: ClassVar = {**Sampler.STATE}

    def __init__(
        self,
        *samplers: Sampler,
        p: Probabilities = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.samplers: list[Sampler] = [as_sampler(sampler) for sampler in samplers]
        super().__init__(self.samplers)
        self.sample_from_all = sample_from_all
        if num_buffer_sampled is not None:
            positive(num_buffer_sampled, "num_buffer_sampled")
        self._count = num_buffer_sampled
        self.p = p
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    @property
    def p(self) -> Any:
        """Weights that sum to 1, `"sampleable"`, or None; can be changed."""
        return self._p

    @p.setter
    def p(self, p: Any) -> None:
        if p is not None and self.sample_from_all:
            raise UsageError(
                "p cannot be combined with sample_from_all, which samples every member"
            )
        self._p = probabilities(p, len(self.samplers))

    @property
    def num_buffer_sampled(self) -> int:
        """Number of sub-batches in a batch."""
        if self._count is None or self.sample_from_all:
            return len(self.samplers)
        return self._count

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """Draw a batch of `B` rows, a multiple of `K`, from a `StorageEnsemble` of equal length.

        Returns a TensorDict `[K]`, with `buffer_ids` int64 `[K]` and `index` int64 `[K, B / K]`;
        and the features of each sub-batch's sampler, if any, by its number. Raises `UsageError` for
        another size or storage, or a sampler that returns too few rows.
        """
        if not isinstance(storage, StorageEnsemble) or len(storage) != len(self):
            raise UsageError(
                f"A SamplerEnsemble of {plural(len(self), 'sampler')} draws from a StorageEnsemble of as "
                f"many storages; found {storage!r}"
            )
        count = self.num_buffer_sampled
        if batch_size % count:
            raise UsageError(
                f"A batch of {batch_size} cannot be cut into {count} sub-batches of the same size",
                hint=f"{max(batch_size // count, 1) * count} can; offline_data.DatasetMixture "
                "takes any size",
            )
        size = batch_size // count
        members = self._draw_members(storage.storages, size)
        draws = [self._draw(number, storage.storages[number], size) for number in members.tolist()]
        index = torch.stack([rows for rows, _ in draws])
        rows: TensorDict = assemble(_ROWS, [members, index], members.shape, _CPU)
        return rows, {number: leaves for number, (_, leaves) in enumerate(draws) if leaves}

    def set_rng(self, generator: torch.Generator) -> None:
        self._generator = generator
        for sampler in self.samplers:
            sampler.set_rng(generator)

    def _some(self, numbers: list[int]) -> SamplerEnsemble:
        """Return the ensemble of some samplers; keeps `K` if it was given, `p` and the generator."""
        part = SamplerEnsemble(
            *(self.samplers[number] for number in numbers),
            p=self._p[numbers] if isinstance(self._p, torch.Tensor) else self._p,
            sample_from_all=self.sample_from_all,
            num_buffer_sampled=self._count,
        )
        part._generator = self._generator
        return part

    def __repr__(self) -> str:
        p = self._p.tolist() if isinstance(self._p, torch.Tensor) else self._p
        return (
            f"SamplerEnsemble({', '.join(map(repr, self.samplers))}, p={p!r}, "
            f"sample_from_all={self.sample_from_all}, num_buffer_sampled={self.num_buffer_sampled})"
        )

    def _draw_members(self, storages: Sequence[Any], size: int) -> Tensor:
        if self.sample_from_all:
            return torch.arange(len(self.samplers))
        count, generator, p = self.num_buffer_sampled, self._generator, self._p
        if p is None:
            return torch.randint(len(self.samplers), (count,), generator=generator)
        if isinstance(p, str):
            pairs = zip(self.samplers, storages, strict=True)
            counts = [sampler.sampleable(storage, size) for sampler, storage in pairs]
            if not any(counts):
                raise UsageError(
                    f"No member of the ensemble can draw a sub-batch of {plural(size, 'row')} now"
                )
            p = torch.tensor(counts, dtype=torch.float64)
        return torch.multinomial(p, count, replacement=True, generator=generator)

    def _draw(self, number: int, storage: Any, size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """Draw `size` rows of a member; if an epoch ends, the rest from the next one."""
        sampler = self.samplers[number]
        cuts = (
            getattr(sampler, "num_slices", None) is not None
        )  # the rest would have shorter slices
        draws: list[tuple[Tensor, dict[Any, Tensor]]] = []
        found = 0
        try:
            while not draws or (0 < found < size and sampler.ran_out and not cuts):
                draws.append(sampler.sample(storage, size - found))
                found += len(draws[-1][0])
        except UsageError as error:
            raise UsageError(f"Member {number}: {error.message}", hint=error.shell_hint) from error
        if found != size:
            raise UsageError(
                f"Member {number}: {sampler!r} gave {plural(found, 'row')} of the {size} of a "
                "sub-batch",
                hint="slices: slice_len=… and not num_slices=…, and drop_last=True or pad_output=True",
            )
        if len(draws) == 1:
            return draws[0]
        leaves = {key: torch.cat([some[key] for _, some in draws]) for key in draws[0][1]}
        return torch.cat([rows for rows, _ in draws]), leaves


class WriterEnsemble(Parts, Writer):
    """The writers of a `ReplayBufferEnsemble`'s members, in order."""

    STATE: ClassVar = {}
    add: Any = read_only("add")
    extend: Any = read_only("extend")

    def __init__(self, *writers: Writer) -> None:
        if not all(isinstance(writer, Writer) for writer in writers):
            raise UsageError(f"A WriterEnsemble has writers; found {writers}")
        self.writers: list[Writer] = list(writers)
        super().__init__(self.writers)

    @property
    def write_count(self) -> int:  # type: ignore[override]
        return sum(writer.write_count for writer in self.writers)

    def register_storage(self, storage: StorageEnsemble) -> None:
        if len(storage) != len(self.writers):
            raise UsageError(
                f"writers has {plural(len(self.writers), 'item')} for {plural(len(storage), 'storage')}"
            )
        for writer, member in zip(self.writers, storage.storages, strict=True):
            writer.register_storage(member)

    def empty(self, empty_write_count: bool = True) -> None:
        for writer in self.writers:
            writer.empty(empty_write_count)
