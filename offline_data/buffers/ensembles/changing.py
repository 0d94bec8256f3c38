"""The face of an ensemble that changes: it refuses what a member must be named for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from offline_data.buffers.ensembles.reading import EnsembleReading
from offline_data.buffers.ensembles.sampler import SamplerEnsemble
from offline_data.buffers.ensembles.stacking import INDEX, MEMBER
from offline_data.buffers.ensembles.writer import WriterEnsemble, not_written
from offline_data.buffers.storages import GrowingStorage
from offline_data.buffers.writers import immutable
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from offline_data.buffers.samplers import Sampler


class EnsembleChanging(EnsembleReading):
    """Methods that change an ensemble or its members; `ReplayBufferEnsemble` describes the parts."""

    _writer: WriterEnsemble

    @property
    def writer(self) -> WriterEnsemble:
        """The writers of the members."""
        return self._writer

    @property
    def write_count(self) -> int:
        """How many rows were written to all members."""
        return sum(member.write_count for member in self.members)

    def add(self, data: Any) -> NoReturn:  # noqa: ARG002 - the signature of what it refuses
        """Raise `ImmutableError`."""
        raise not_written("add")

    def extend(self, data: Any, **options: Any) -> NoReturn:  # noqa: ARG002
        """Raise `ImmutableError`."""
        raise not_written("extend")

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        """Raise `ImmutableError`."""
        raise not_written("assigning rows")

    def set_storage(self, storage: Any, collate_fn: Any = None) -> NoReturn:  # noqa: ARG002
        """Raise `UsageError`."""
        raise _of_member("set_storage")

    def set_writer(self, writer: Any) -> NoReturn:  # noqa: ARG002
        """Raise `UsageError`."""
        raise _of_member("set_writer")

    def set_sampler(self, sampler: Sampler) -> SamplerEnsemble:
        """Give the members other samplers, and choose among them otherwise, from now on.

        Args:
            sampler: A `SamplerEnsemble` with a sampler for each member.

        Returns:
            The one before.

        Raises:
            UsageError: Another sampler.
        """
        if not isinstance(sampler, SamplerEnsemble) or len(sampler) != len(self):
            raise UsageError(
                f"{sampler!r} is not a SamplerEnsemble of {len(self)} samplers",
                hint="ensemble[0].set_sampler(…) is for the first member's alone",
            )
        for member, one in zip(self.members, sampler.samplers, strict=True):
            member.set_sampler(one)
        before: Any = super().set_sampler(sampler)
        kept: SamplerEnsemble = before
        return kept

    def empty(self, empty_write_count: bool = True) -> None:
        """Drop all rows of all members; see `ReplayBuffer.empty`.

        Raises:
            ImmutableError: A member is a dataset; no member has been emptied.
        """
        if not all(isinstance(member.storage, GrowingStorage) for member in self.members):
            raise immutable("empty")
        self._drop_drawn()
        for member in self.members:
            member.empty(empty_write_count)

    def update_priority(self, index: Any, priority: Tensor | float) -> None:
        """Tell the samplers of the members new priorities.

        Args:
            index: `batch["index"]` of any shape: a TensorDict of members and rows.
            priority: One for each row, in their order, or one for all.

        Raises:
            UsageError: Another index, or not as many priorities as rows.
        """
        members, rows = _members_and_rows(index)
        values = torch.as_tensor(priority).detach().reshape(-1)
        if len(values) not in {1, len(rows)}:
            raise UsageError(f"There are {len(values)} priorities for {len(rows)} rows")
        values = values.expand(len(rows))
        for number in torch.unique(members).tolist():
            own = members == number
            self.members[number].update_priority(rows[own], values[own.to(values.device)])

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume from here; see `ReplayBuffer.state_dict`.

        The states of the members are in it, so that it need not be saved by them too.
        """
        states = [member.state_dict() for member in self.members]
        own = super().state_dict()
        of_members = {str(number) for number in range(len(self))}
        for part in ("writer", "sampler"):
            own[part] = {key: one for key, one in own[part].items() if key not in of_members}
        return {**own, "members": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` returned, the members too.

        Raises:
            UsageError: It is of other members, or of other transforms. If the kinds of members,
                or their datasets, differ, nothing has changed.
        """
        if state["kinds"] != self._kinds():
            raise UsageError(f"The state is of {state['kinds']}; this ensemble has {self._kinds()}")
        self._drop_drawn()
        states = state["members"]
        for member, one in zip(self.members, states, strict=True):
            member.load_state_dict(one)
        writers = {str(number): one["writer"] for number, one in enumerate(states)}
        samplers = {str(number): one["sampler"] for number, one in enumerate(states)}
        samplers |= state["sampler"]
        super().load_state_dict({**state, "writer": writers, "sampler": samplers})

    def _kinds(self) -> dict[str, Any]:
        members = [member._kinds() for member in self.members]
        return {**super()._kinds(), "members": members}


def _members_and_rows(index: Any) -> tuple[Tensor, Tensor]:
    try:
        members, rows = index[MEMBER], index[INDEX]
    except (KeyError, IndexError, TypeError) as error:
        raise UsageError(
            "A row of an ensemble is a member and a row of it; expected batch['index'], a "
            f"TensorDict with {MEMBER} and {INDEX}, and found {index!r}"
        ) from error
    return members.reshape(-1).cpu(), rows.reshape(-1).cpu()


def _of_member(what: str) -> UsageError:
    return UsageError(
        f"{what} is for one member, and this is an ensemble", hint=f"ensemble[0].{what}(…)"
    )
