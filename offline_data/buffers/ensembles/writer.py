"""The writers of members as one: it refuses, because the member is ambiguous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from offline_data.buffers.ensembles.indexing import is_all, members_at, split_index
from offline_data.buffers.writers import Writer
from offline_data.errors import ImmutableError, UsageError

if TYPE_CHECKING:
    from offline_data.buffers.ensembles.storage import StorageEnsemble


class WriterEnsemble(Writer):
    """The writers of the members of a `ReplayBufferEnsemble`, each for its own member.

    Args:
        writers: One for each member, in order.

    Attributes:
        writers: As given.

    Raises:
        UsageError: No writer, or something that is none.

    Example:
        >>> from offline_data.buffers.writers import RoundRobinWriter
        >>> writers = WriterEnsemble(RoundRobinWriter(), RoundRobinWriter())
        >>> len(writers), writers[0], len(writers[:1])
        (2, RoundRobinWriter(write_count=0), 1)
    """

    def __init__(self, *writers: Writer) -> None:
        if not writers or not all(isinstance(writer, Writer) for writer in writers):
            raise UsageError(f"A WriterEnsemble has one writer or more; found {writers}")
        self.writers = list(writers)

    @property
    def write_count(self) -> int:  # type: ignore[override]
        """How many rows were written by all of them."""
        return sum(writer.write_count for writer in self.writers)

    def register_storage(self, storage: StorageEnsemble) -> None:  # type: ignore[override]
        """Let each writer write to the storage of its member from now on."""
        if len(storage) != len(self.writers):
            raise UsageError(f"There are {len(self.writers)} writers for {len(storage)} storages")
        for writer, member in zip(self.writers, storage.storages, strict=True):
            writer.register_storage(member)  # type: ignore[arg-type]

    def add(self, data: Any) -> NoReturn:  # noqa: ARG002 - the contract's signature
        """Raise `ImmutableError`."""
        raise not_written("add")

    def extend(self, data: Any) -> NoReturn:  # noqa: ARG002
        """Raise `ImmutableError`."""
        raise not_written("extend")

    def empty(self, empty_write_count: bool = True) -> None:
        """Let all of them begin again at row 0; see `Writer`."""
        for writer in self.writers:
            writer.empty(empty_write_count)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each writer, by its number."""
        return {str(number): writer.state_dict() for number, writer in enumerate(self.writers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave; see `Writer`."""
        for number, writer in enumerate(self.writers):
            writer.load_state_dict(state[str(number)])

    def __len__(self) -> int:
        """Return the number of writers."""
        return len(self.writers)

    def __getitem__(self, index: Any) -> Any:
        """Return a writer, or an ensemble of some; see `members_at`."""
        which, _ = split_index(index, rows=False)
        if is_all(which):
            return self
        numbers = members_at(which, len(self))
        if isinstance(numbers, int):
            return self.writers[numbers]
        return WriterEnsemble(*(self.writers[number] for number in numbers))

    def __repr__(self) -> str:
        return f"WriterEnsemble({', '.join(map(repr, self.writers))})"


def not_written(what: str) -> ImmutableError:
    """Make the error for an attempt to change an ensemble by `what`."""
    return ImmutableError(
        f"An ensemble is read only: for {what} it cannot know which member is meant",
        hint="ensemble[0].extend(data) writes to the first member, if it is a buffer that grows",
    )
