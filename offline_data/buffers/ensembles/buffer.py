"""`ReplayBufferEnsemble`: several buffers that are sampled as one, in TorchRL's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.buffers.ensembles.changing import EnsembleChanging
from offline_data.buffers.ensembles.members import check_members, members_of, sampling_of
from offline_data.buffers.ensembles.storage import StorageEnsemble
from offline_data.buffers.ensembles.writer import WriterEnsemble
from offline_data.buffers.refusals import refuse
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from offline_data.buffers.buffer import ReplayBuffer
    from offline_data.buffers.chain import Transform
    from offline_data.buffers.ensembles.sampler import SamplerEnsemble
    from offline_data.buffers.ensembles.shares import Shares

_TORCHRL = (
    "checkpointer compilable consume_after_n_samples delayed_init dim_extend routing_dim "
    "routing_key sample_unit service_backend service_backend_options shared transport "
    "transport_options"
)


class ReplayBufferEnsemble(EnsembleChanging):
    """Several buffers, datasets and buffers that grow among them, as one that is sampled.

    A batch of `B` rows is `K` sub-batches of `B / K` rows of one member each, below each other:
    a TensorDict `[K, B / K]`. Each sub-batch is as its member would give it, with what the member
    derives, collates and transforms. `batch["index", "buffer_ids"]` has the members and
    `batch["index", "index"]` what the leaf `index` was in the sub-batch, both int64 `[K, B / K]`.

    Which members they are is TorchRL's law, see `SamplerEnsemble`: whole sub-batches, and without
    `p` the same share for a member of 10 rows as for one of a million. `offline_data.DatasetMixture`
    mixes rows one by one, in batches `[B]` of any size.

    If sub-batches have the same leaves, of the same shapes and types, a batch has one tensor a
    leaf; otherwise it is a `LazyStackedTensorDict`, see `stacked`.

    Codes of a text leaf mean something in one vocabulary only: batches that would have codes of
    different ones are refused. Members opened with `decode_text=True` give strings.

    `len(ensemble)` is the number of members, and what stands between brackets begins with them:

    ```
    ensemble[0]  ensemble[-1]                     a member
    ensemble[:2]  ensemble[[0, 2]]                an ensemble of some, with their shares of p
    ensemble[0, 5]  ensemble[0, [1, 2]]           rows of a member, as ensemble[0][5] gives them
    ensemble[:, 5]                                row 5 of every member, [K]
    ensemble[:, [1, 2]]  ensemble[[0, 1], 1:3]    those rows of each, [K, 2]
    ensemble[[0, 1], [[1, 2], [3, 4]]]            all four rows of both, [2, 2, 2]
    ```

    It is read only: `ensemble[0].extend(…)` writes to a member. Iteration never ends, for epochs of
    members end at different times. With `prefetch`, rows that are written to a member, and changes
    of them, are in batches drawn later.

    Unlike TorchRL's, batches of members with a `SliceSampler` are `[K, B / K]` too (there
    `[K, B / K, 1]`, and an error beside a member with another sampler); members of different types
    are not cast to one (there int64 beside float32 becomes float32); an epoch that ends in a
    sub-batch goes on (there an error with `sample_from_all`); rows by index are transformed as
    those of a single buffer are, and have `index`; an ensemble of some members keeps the
    generator, and has as many sub-batches as it has members; a mask chooses members (there it
    reads as numbers 0 and 1); `ensemble[..., rows]` is `ensemble[:, rows]`; and shares that do not
    fit the members are refused when they are given.

    Args:
        rbs: The members. Or none, and:
        storages: Their storages, with their transforms.
        samplers: Their samplers, and which members are drawn; None: a `RandomSampler` for each.
        writers: Their writers; None: as `ReplayBuffer` chooses them.
        transform: Called with every batch; more can be appended.
        batch_size: `B`, where `sample` is not told.
        collate_fn: Called with the list of sub-batches, instead of stacking them.
        collate_fns: One for each member, called with its sub-batches, after whatever the member
            does to them itself (TorchRL: instead of the member's own collate function).
        p: See `SamplerEnsemble`; also the next two.
        sample_from_all: One sub-batch of each member.
        num_buffer_sampled: `K`.
        generator: Random generator, also of the members' samplers.
        prefetch: See `ReplayBuffer`; also the next two. Batches that members prefetch are not used.
        pin_memory: Whether batches are put into page-locked memory.
        transform_factory: Makes the transform, instead.
        torchrl: Other arguments of TorchRL's signature, with their defaults.

    Attributes:
        members: The buffers, in order.

    Raises:
        UsageError: Invalid or unsupported arguments.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from offline_data.buffers.buffer import ReplayBuffer
        >>> from offline_data.buffers.storages import LazyTensorStorage
        >>> few = ReplayBuffer(LazyTensorStorage(10))
        >>> many = ReplayBuffer(LazyTensorStorage(1000))
        >>> _ = few.extend(TensorDict({"action": torch.arange(3)}, [3]))
        >>> _ = many.extend(TensorDict({"action": torch.arange(100)}, [100]))
        >>> ensemble = ReplayBufferEnsemble(few, many, p=[0.3, 0.7], batch_size=10)
        >>> ensemble.sample()["action"].shape, ensemble[:, -1]["action"]
        (torch.Size([2, 5]), tensor([ 2, 99]))
    """

    def __init__(
        self,
        *rbs: ReplayBuffer,
        storages: StorageEnsemble | None = None,
        samplers: SamplerEnsemble | None = None,
        writers: WriterEnsemble | None = None,
        transform: Transform | None = None,
        batch_size: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        collate_fns: Sequence[Callable[[Any], Any]] | None = None,
        p: Shares = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        generator: torch.Generator | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        transform_factory: Callable[[], Transform] | None = None,
        **torchrl: Any,
    ) -> None:
        refuse(type(self).__name__, torchrl, _TORCHRL)
        parts = (storages, samplers, writers)
        if rbs and any(part is not None for part in parts):
            raise UsageError("Members were given, and storages, samplers or writers beside them")
        self.members = check_members(rbs) if rbs else members_of(*parts)
        self._collate_fns = _per_member(collate_fns, len(self.members))
        super().__init__(
            storages or StorageEnsemble(*(member.storage for member in self.members)),
            sampler=sampling_of(self.members, samplers, p, sample_from_all, num_buffer_sampled),
            collate_fn=collate_fn,
            batch_size=batch_size,
            prefetch=prefetch,
            transform=transform,
            transform_factory=transform_factory,
            pin_memory=pin_memory,
            generator=generator,
        )
        self._writer = WriterEnsemble(*(member.writer for member in self.members))


def _per_member(
    collate_fns: Sequence[Callable[[Any], Any]] | None, count: int
) -> list[Callable[[Any], Any]] | None:
    if collate_fns is None:
        return None
    functions = list(collate_fns)
    if len(functions) != count or not all(map(callable, functions)):
        raise UsageError(
            f"collate_fns is {functions}; expected one function for each of {count} members"
        )
    return functions
