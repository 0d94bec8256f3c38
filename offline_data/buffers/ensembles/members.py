"""The members of an ensemble: buffers that are there, or made of the parts that were given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.buffers.buffer import ReplayBuffer
from offline_data.buffers.ensembles.sampler import SamplerEnsemble
from offline_data.buffers.ensembles.storage import StorageEnsemble
from offline_data.buffers.ensembles.writer import WriterEnsemble
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offline_data.buffers.ensembles.shares import Shares


def check_members(members: Sequence[Any]) -> list[ReplayBuffer]:
    """Return buffers as a list; raises `UsageError` where one cannot be a member."""
    for number, member in enumerate(members):
        if not isinstance(member, ReplayBuffer):
            raise UsageError(
                f"Member {number} is a {type(member).__name__}; expected a buffer of this package "
                "that has one storage and one sampler",
                hint="of TorchRL's buffers TorchRL makes ensembles; offline_data.DatasetMixture "
                "takes mixtures too",
            )
        if isinstance(member.storage, StorageEnsemble):
            raise UsageError(
                f"Member {number} is an ensemble itself",
                hint="ReplayBufferEnsemble(a, b, c, p=…) takes all members at once",
            )
    return list(members)


def members_of(
    storages: StorageEnsemble | None,
    samplers: SamplerEnsemble | None,
    writers: WriterEnsemble | None,
) -> list[ReplayBuffer]:
    """Make a buffer of each storage, with its sampler and its writer, or those by default.

    Raises:
        UsageError: No storages, parts of other kinds, or not as many of each.
    """
    if storages is None:
        raise UsageError(
            "An ensemble needs at least one member",
            hint="ReplayBufferEnsemble(buffer, other), or storages=StorageEnsemble(…)",
        )
    expected = {
        "storages": (storages, StorageEnsemble),
        "samplers": (samplers, SamplerEnsemble),
        "writers": (writers, WriterEnsemble),
    }
    for name, (part, kind) in expected.items():
        if part is not None and not isinstance(part, kind):
            raise UsageError(f"{name} is {part!r}; expected a {kind.__name__}")
        if part is not None and len(part) != len(storages):
            raise UsageError(f"There are {len(part)} {name} for {len(storages)} storages")
    return [
        ReplayBuffer(
            storage,
            sampler=None if samplers is None else samplers.samplers[number],
            writer=None if writers is None else writers.writers[number],
            transform=storages.transforms[number],
        )
        for number, storage in enumerate(storages.storages)
    ]


def sampling_of(
    members: Sequence[ReplayBuffer],
    samplers: SamplerEnsemble | None,
    p: Shares,
    sample_from_all: bool,
    num_buffer_sampled: int | None,
) -> SamplerEnsemble:
    """Return the samplers that were given, or those of the members by the other arguments.

    Raises:
        UsageError: Samplers, and arguments that are theirs.
    """
    if samplers is None:
        return SamplerEnsemble(
            *(member.sampler for member in members),
            p=p,
            sample_from_all=sample_from_all,
            num_buffer_sampled=num_buffer_sampled,
        )
    if p is not None or sample_from_all or num_buffer_sampled is not None:
        raise UsageError(
            "samplers=… was given beside p, sample_from_all or num_buffer_sampled, which it has",
            hint="SamplerEnsemble(…, p=…) takes them",
        )
    return samplers
