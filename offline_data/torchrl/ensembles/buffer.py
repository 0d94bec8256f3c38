"""`ReplayBufferEnsemble`: several buffers sampled as one, as in TorchRL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy
from functools import cached_property
from textwrap import indent
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.plurals import plural
from offline_data.buffers.buffer import Buffer
from offline_data.buffers.mixtures.allocation import Probabilities
from offline_data.buffers.mixtures.leaves import (
    INDEX,
    MEMBER,
    check_texts,
    label_member,
    stack_parts,
    vocabularies,
)
from offline_data.buffers.mixtures.members import is_plain, members_and_rows, update_priorities
from offline_data.buffers.prefetch import Draw, Prefetcher
from offline_data.buffers.writers import immutable, refusing
from offline_data.episode import Key
from offline_data.rows import fields
from offline_data.rows.samplers import Sampler
from offline_data.rows.state import PART, Saves
from offline_data.rows.transforms import Transform
from offline_data.rows.unsupported import refuse
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.ensembles.parts import (
    SamplerEnsemble,
    StorageEnsemble,
    WriterEnsemble,
    member_index,
    read_only,
)
from offline_data.torchrl.storages import GrowingStorage

_TORCHRL = (
    "checkpointer compilable consume_after_n_samples delayed_init dim_extend routing_dim "
    "routing_key sample_unit service_backend service_backend_options shared transport "
    "transport_options"
)


def _of_member(method: str) -> Any:
    message = f"{method} is for one member, and this is an ensemble"
    return refusing(UsageError, message, f"ensemble[0].{method}(…)")


class _Own(fields.StateField):
    """The state of samplers, writers or storages without those of each, which the members have."""

    def get(self, own: Any, name: str) -> Any:
        return Saves.state_dict(super().get(own, name))

    def check(self, own: Any, name: str, state: Any, where: str) -> None:  # noqa: ARG002
        Saves.check_state(super().get(own, name), state[name])

    def put(self, own: Any, name: str, state: Any) -> None:
        Saves._set_state(super().get(own, name), state[name])


_OWN = _Own("a dict", fields.TABLE.holds)
_DRAW = {
    "rows": fields.StateField(
        f"a TensorDict of {MEMBER} and {INDEX}",
        lambda rows: isinstance(rows, TensorDictBase) and {*rows.keys()} == {MEMBER, INDEX},
    ),
    "info": fields.TABLE,
    "last": fields.FLAG,
}


class ReplayBufferEnsemble(ReplayBuffer):
    """Several buffers, of datasets or growing ones, sampled as one; read-only.

    A batch of `B` rows is a stack of `K` sub-batches of `B / K` rows of one member each: a
    TensorDict `[K, B / K]`. Each sub-batch is what its member returns. `batch["index",
    "buffer_ids"]` are the members and `batch["index", "index"]` the members' `index`, both int64
    `[K, B / K]`. If sub-batches differ in features, shapes or dtypes, the batch is a
    `LazyStackedTensorDict` with the common features, and `batch[k]` is sub-batch `k` with all of
    its own. Text of different vocabularies is refused, unless members have `decode_text=True`.

    Members are drawn as in TorchRL, whole sub-batches and whatever their sizes: see
    `SamplerEnsemble`. `offline_data.DatasetMixture` mixes single rows, in batches of any size.

    `len(ensemble)` is the number of members, and an index starts with members:

    ```
    ensemble[0]  ensemble[-1]                     a member
    ensemble[:2]  ensemble[[0, 2]]                an ensemble of some, with their weights of p
    ensemble[0, 5]  ensemble[0, [1, 2]]           rows of a member, like ensemble[0][5]
    ensemble[:, 5]                                row 5 of every member, [K]
    ensemble[:, [1, 2]]  ensemble[[0, 1], 1:3]    those rows of each, [K, 2]
    ensemble[[0, 1], [[1, 2], [3, 4]]]            all four rows of both, [2, 2, 2]
    ```

    `ensemble[0].extend(…)` writes to a member. Iteration never ends. The info of a sample is a
    TensorDict `[K, B / K]` with `batch["index"]` and the samplers' features.

    Unlike TorchRL's, batches of slices are `[K, B / K]` too; dtypes are kept; an epoch may end
    within a sub-batch; rows by index are transformed and have `index`; an ensemble of some members
    keeps the generator, and has as many sub-batches as members; a mask selects members.

    Args:
        rbs: The members. If none are given:
        storages: The members' storages, with their transforms.
        samplers: The members' samplers and the choice of members; None: a `RandomSampler` each.
        writers: The members' writers; None: the defaults of `ReplayBuffer`.
        transform: Called with every batch; more can be appended.
        batch_size: Default `B`.
        collate_fn: Called with the list of sub-batches, instead of stacking them.
        collate_fns: One per member, called with its sub-batches after the member's own functions
            (in TorchRL, instead of the member's collate function).
        p, sample_from_all, num_buffer_sampled: See `SamplerEnsemble`.
        generator: Random generator, also of the members' samplers.
        prefetch, pin_memory, transform_factory: See `ReplayBuffer`; batches prefetched by members
            are not used.
        torchrl: TorchRL's other arguments; only their default values are accepted.

    Attributes:
        members: The buffers, in order.

    Example:
        >>> from tensordict import TensorDict
        >>> from offline_data.torchrl.storages import LazyTensorStorage
        >>> few, many = (ReplayBuffer(LazyTensorStorage(1000)) for _ in range(2))
        >>> _ = few.extend(TensorDict({"action": torch.arange(3)}, [3]))
        >>> _ = many.extend(TensorDict({"action": torch.arange(100)}, [100]))
        >>> ensemble = ReplayBufferEnsemble(few, many, p=[0.3, 0.7], batch_size=10)
        >>> ensemble.sample()["action"].shape, ensemble[:, -1]["action"]
        (torch.Size([2, 5]), tensor([ 2, 99]))
    """

    STATE: ClassVar = {
        "members": PART,
        **ReplayBuffer.STATE,
        **{name: _OWN.at(f"_{name}") for name in ("storage", "sampler", "writer")},
    }
    storage: StorageEnsemble
    sampler: SamplerEnsemble
    writer: WriterEnsemble
    _storage: StorageEnsemble
    _sampler: SamplerEnsemble
    _writer: WriterEnsemble

    def __init__(
        self,
        *rbs: Buffer[Any],
        storages: StorageEnsemble | None = None,
        samplers: SamplerEnsemble | None = None,
        writers: WriterEnsemble | None = None,
        transform: Transform | None = None,
        batch_size: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        collate_fns: Sequence[Callable[[Any], Any]] | None = None,
        p: Probabilities = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        generator: torch.Generator | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        transform_factory: Callable[[], Transform] | None = None,
        **torchrl: Any,
    ) -> None:
        refuse(type(self).__name__, torchrl, _TORCHRL)
        if rbs and any(part is not None for part in (storages, samplers, writers)):
            raise UsageError("Members were given together with storages, samplers or writers")
        self.members: list[Buffer[Any]] = (
            [*rbs] if rbs else _members_of(storages, samplers, writers)
        )
        for number, member in enumerate(self.members):
            if not isinstance(member, Buffer) or isinstance(member, ReplayBufferEnsemble):
                raise UsageError(
                    f"Member {number} is a {type(member).__name__}; expected a buffer of this "
                    "package that has one storage and one sampler",
                    hint="give the members of an ensemble themselves; offline_data.DatasetMixture "
                    "takes mixtures too",
                )
        self._collate_fns = fns = None if collate_fns is None else [*collate_fns]
        count = len(self.members)
        if fns is not None and not (len(fns) == count and all(map(callable, fns))):
            raise UsageError(
                f"collate_fns is {fns}; expected one function for each of {plural(count, 'member')}"
            )
        if samplers is None:
            samplers = SamplerEnsemble(
                *(member.sampler for member in self.members),
                p=p,
                sample_from_all=sample_from_all,
                num_buffer_sampled=num_buffer_sampled,
            )
        elif p is not None or sample_from_all or num_buffer_sampled is not None:
            raise UsageError(
                "samplers=… was given with p, sample_from_all or num_buffer_sampled, which it has",
                hint="SamplerEnsemble(…, p=…) takes them",
            )
        super().__init__(
            storages or StorageEnsemble(*(member.storage for member in self.members)),
            sampler=samplers,
            collate_fn=collate_fn,
            batch_size=batch_size,
            prefetch=prefetch,
            transform=transform,
            transform_factory=transform_factory,
            pin_memory=pin_memory,
            generator=generator,
        )
        self._writer = WriterEnsemble(*(member.writer for member in self.members))

    @property
    def write_count(self) -> int:
        return sum(member.write_count for member in self.members)

    def __len__(self) -> int:
        return len(self.members)

    def _info(self, draw: Draw, batch: Any) -> Any:  # noqa: ARG002
        rows: Any = draw.rows
        leaves: Any = draw.info
        parts = [
            TensorDict({**leaves.get(number, {}), INDEX: index}, index.shape)
            for number, index in enumerate(rows[INDEX].unbind(0))
        ]
        return stack_parts(parts, rows[MEMBER])

    def __getitem__(self, index: Any) -> Any:
        numbers, rows = member_index(index, len(self))
        if numbers is None:
            return self
        if isinstance(numbers, int):
            return self.members[numbers][rows[0]] if rows else self.members[numbers]
        if rows:
            parts = [self.members[number][rows[0]] for number in numbers]
            return self._transform_batch(self._collate_parts(parts, torch.tensor(numbers)))
        part = copy(self)  # shares all else with this one
        part.members = [self.members[number] for number in numbers]
        part._storage, part._sampler = self._storage[numbers], self._sampler[numbers]
        part._writer = WriterEnsemble(*(member.writer for member in part.members))
        if self._collate_fns is not None:
            part._collate_fns = [self._collate_fns[number] for number in numbers]
        part._ahead, part._ended = Prefetcher(self._prefetch or 0), False
        vars(part).pop("_texts", None)
        return part

    def __repr__(self) -> str:
        members = "".join(f"\n{indent(repr(member), '    ')}," for member in self.members)
        return (
            f"{type(self).__name__}({members}\n    sampler={self._sampler!r},\n"
            f"    batch_size={self._batch_size},\n)"
        )

    def _draw(self, size: int) -> Draw:
        with ExitStack() as held:
            growing = [member for member in self.members if member._grows]
            for member in sorted(growing, key=id):  # always in the same order, to avoid deadlock
                held.enter_context(member._lock)
            for number, member in enumerate(self.members):  # may have been replaced
                self._storage.storages[number] = member.storage
                self._sampler.samplers[number] = member.sampler
            return super()._draw(size)

    def _gather(self, rows: Any, *, indexed: bool = False) -> None:
        """Return nothing: members gather under their own locks when their part is built."""

    def _finish(self, draw: Draw, batch: Any, *, indexed: bool = False) -> Any:  # noqa: ARG002
        rows: Any = draw.rows
        members, index = rows[MEMBER], rows[INDEX]
        bare = not (draw.info or self._collates or self._collate_fns or self._texts)
        if bare and all(map(is_plain, self.members)):
            batch = self._storage.gather_stored(members, index)
            if batch is not None:
                return self._transform_batch(batch)
        drawn = zip(members.tolist(), index.unbind(0), strict=True)
        parts = [
            self.members[number].batch_of(own, draw.info.get(part, {}))
            for part, (number, own) in enumerate(drawn)
        ]
        return self._transform_batch(self._collate_parts(parts, members))

    @cached_property
    def _texts(self) -> dict[Key, tuple[int, int]]:
        return vocabularies(self.members, [None] * len(self))[1]

    def _collate_parts(self, parts: list[Any], numbers: Tensor) -> Any:
        members = numbers.tolist()
        if self._collate_fns is not None:
            pairs = zip(members, parts, strict=True)
            parts = [self._collate_fns[number](part) for number, part in pairs]
        if self._collates:
            return [label_member(part, number) for part, number in zip(parts, members, strict=True)]
        batch = stack_parts(parts, numbers)
        if self._texts and isinstance(batch, TensorDictBase):
            coded = {key for key in self._texts if isinstance(batch.get(key, None), torch.Tensor)}
            check_texts(self._texts, coded)
        return batch

    add: Any = read_only("add")
    extend: Any = read_only("extend")
    __setitem__: Any = read_only("assigning rows")

    set_storage: Any = _of_member("set_storage")
    set_writer: Any = _of_member("set_writer")

    def set_sampler(self, sampler: Sampler) -> SamplerEnsemble:
        """Replace the members' samplers and the choice of members; returns the previous one."""
        if not isinstance(sampler, SamplerEnsemble) or len(sampler) != len(self):
            raise UsageError(
                f"{sampler!r} is not a SamplerEnsemble of {plural(len(self), 'sampler')}",
                hint="ensemble[0].set_sampler(…) is for the first member's alone",
            )
        for member, own in zip(self.members, sampler.samplers, strict=True):
            member.set_sampler(own)
        before: Any = super().set_sampler(sampler)
        return before  # type: ignore[no-any-return]

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all rows of all members; raises `ImmutableError` if one is a dataset."""
        if not all(isinstance(member.storage, GrowingStorage) for member in self.members):
            raise immutable("empty")
        self._drop_drawn()
        for member in self.members:
            member.empty(empty_write_count)

    def update_priority(self, index: Any, priority: Tensor | float) -> None:
        """Update priorities of rows `batch["index"]`, of any shape; one per row, in order, or one."""
        update_priorities(self.members, *members_and_rows(index), priority, warn=True)

    def _draw_of(self, draw: Any, state: Any) -> Draw:
        whose = "a prefetched batch"
        rows, info = (fields.check(draw, whose, _DRAW)[name] for name in ("rows", "info"))
        fields.check({MEMBER: rows[MEMBER]}, whose, {MEMBER: fields.row_numbers(len(self))})
        numbers: list[int] = rows[MEMBER].tolist()
        leaves: dict[Any, Any] = {}
        if getattr(rows[INDEX], "shape", ())[:1] != (len(numbers),):
            raise fields.wrong(draw, whose, "rows", f"rows of {len(numbers)} members")
        if not info.keys() <= {*range(len(numbers))}:
            raise fields.wrong(draw, whose, "info", "features by sub-batch")
        for part, (number, own) in enumerate(zip(numbers, rows[INDEX], strict=True)):
            one = {"rows": own, "info": info.get(part, {}), "last": draw["last"]}
            its_own = self.members[number]._draw_of(one, state["members"][number])
            leaves |= {part: its_own.info} if part in info else {}
        return Draw(rows.clone(), leaves, draw["last"])

    def _kinds(self) -> dict[str, Any]:
        members = [member._kinds() for member in self.members]
        return {**super()._kinds(), "members": members}


def _members_of(storages: Any, samplers: Any, writers: Any) -> list[Buffer[Any]]:
    if storages is None:
        raise UsageError(
            "An ensemble needs at least one member",
            hint="ReplayBufferEnsemble(buffer, other), or storages=StorageEnsemble(…)",
        )
    parts: list[tuple[str, Any, Any]] = [
        ("storages", StorageEnsemble, storages),
        ("samplers", SamplerEnsemble, samplers),
        ("writers", WriterEnsemble, writers),
    ]
    for name, kind, part in parts:
        if part is not None and not isinstance(part, kind):
            raise UsageError(f"{name} is {part!r}; expected a {kind.__name__}")
        if part is not None and len(part) != len(storages):
            raise UsageError(
                f"{name} has {plural(len(part), 'item')} for {plural(len(storages), 'storage')}"
            )
    return [
        ReplayBuffer(
            storage,
            sampler=None if samplers is None else samplers[number],
            writer=None if writers is None else writers[number],
            transform=storages.transforms[number],
        )
        for number, storage in enumerate(storages.storages)
    ]
