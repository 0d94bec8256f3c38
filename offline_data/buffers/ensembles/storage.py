"""The storages of members as one: rows are numbered in each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from offline_data.buffers.arguments import as_storage
from offline_data.buffers.ensembles.indexing import is_all, members_at, split_index
from offline_data.buffers.ensembles.stacking import INDEX, MEMBER, stacked
from offline_data.buffers.ensembles.together import gather_together
from offline_data.buffers.indexing import rows_of
from offline_data.buffers.storages import GrowingStorage
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensordict import TensorDict

    from offline_data.buffers.chain import Transform
    from offline_data.buffers.indexing import Index
    from offline_data.buffers.keys import KeyLike
    from offline_data.buffers.storage import Storage


class StorageEnsemble:
    """The storages of the members of a `ReplayBufferEnsemble`.

    As in TorchRL its length is the number of storages, and it is not written to. It has no rows of
    its own: a row is a member and a row of its storage, as a `SamplerEnsemble` draws them.

    Args:
        storages: One for each member, in order.
        transforms: Transform of the batches of each member; None: nothing, also as an item.

    Attributes:
        storages: As given.
        transforms: As given; a list of None where nothing was.

    Raises:
        UsageError: No storage, something that is none, or not as many transforms.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from offline_data.buffers.storages import TensorStorage
        >>> few = TensorStorage(TensorDict({"action": torch.arange(3)}, [3]))
        >>> many = TensorStorage(TensorDict({"action": torch.arange(10, 20)}, [10]))
        >>> storage = StorageEnsemble(few, many)
        >>> len(storage), storage[1, -1]["action"], [batch["action"] for batch in storage[:, 2]]
        (2, tensor(19), [tensor(2), tensor(12)])
    """

    def __init__(
        self, *storages: Storage, transforms: Sequence[Transform | None] | None = None
    ) -> None:
        if not storages:
            raise UsageError("A StorageEnsemble has one storage or more; none was given")
        self.storages = [as_storage(storage) for storage in storages]
        self.transforms = [None] * len(storages) if transforms is None else list(transforms)
        if len(self.transforms) != len(storages):
            raise UsageError(
                f"There are {len(self.transforms)} transforms for {len(storages)} storages",
                hint="transforms=[None, …] has an item for each storage",
            )

    def get(self, rows: TensorDict) -> list[tuple[int, Any]]:
        """Return the sub-batches of rows, each with the number of its member.

        Args:
            rows: `[K]`, as `SamplerEnsemble.sample` gives them: `buffer_ids` int64 `[K]`, and
                `index` int64 `[K, n]`.
        """
        return [
            (number, self._transformed(number, self.storages[number].gather(index.clone())))
            for number, index in zip(rows[MEMBER].tolist(), rows[INDEX].unbind(0), strict=True)
        ]

    def gather(self, rows: TensorDict) -> Any:
        """Return the sub-batches of rows as one batch `[K, n]`; see `get` and `stacked`."""
        members = rows[MEMBER]
        if all(transform is None for transform in self.transforms):
            batch = gather_together(self.storages, members, rows[INDEX])
            if batch is not None:
                return batch
        return stacked([batch for _, batch in self.get(rows)], members)

    def only(self, keys: Iterable[KeyLike]) -> StorageEnsemble:
        """Return the same rows with some of the leaves; see `Storage`."""
        wanted = list(keys)
        storages = [storage.only(wanted) for storage in self.storages]
        return StorageEnsemble(*storages, transforms=self.transforms)

    def rows(self, *, valid_only: bool) -> NoReturn:  # noqa: ARG002 - the contract's signature
        """Raise `UsageError`: see the class."""
        raise _no_rows("one sampler draws from it")

    def runs(self) -> NoReturn:
        """Raise `UsageError`: see the class."""
        raise _no_rows("its rows follow each other")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each storage, by its number; of a dataset there is none."""
        return {
            str(number): storage.state_dict() if isinstance(storage, GrowingStorage) else {}
            for number, storage in enumerate(self.storages)
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned; see `GrowingStorage.load_state_dict`."""
        for number, storage in enumerate(self.storages):
            if isinstance(storage, GrowingStorage):
                storage.load_state_dict(state[str(number)])

    def __len__(self) -> int:
        """Return the number of storages."""
        return len(self.storages)

    def __getitem__(self, index: Any) -> Any:
        """Return storages, or rows of them without any transform.

        Args:
            index: `i`: a storage; `i, rows`: rows of it. `members`, a slice or several numbers: an
                ensemble of these; `members, rows`: a list, the rows of each.

        Raises:
            IndexError: A storage, or a row, that is not there.
            UsageError: Something that is no index.
        """
        which, rows = split_index(index)
        if is_all(which) and not rows:
            return self
        numbers = members_at(which, len(self))
        if isinstance(numbers, int):
            return _rows_in(self.storages[numbers], *rows)
        if rows:
            return [_rows_in(self.storages[number], *rows) for number in numbers]
        return StorageEnsemble(
            *(self.storages[number] for number in numbers),
            transforms=[self.transforms[number] for number in numbers],
        )

    def __repr__(self) -> str:
        return f"StorageEnsemble({', '.join(map(repr, self.storages))})"

    def _transformed(self, number: int, batch: Any) -> Any:
        transform = self.transforms[number]
        return batch if transform is None else transform(batch)


def _rows_in(storage: Storage, *index: Index) -> Any:
    """Return rows of a storage, in the shape of the index; the storage where there is none."""
    if not index:
        return storage
    if isinstance(storage, GrowingStorage):
        return storage.get(index[0])
    rows = rows_of(index[0], len(storage))
    batch = storage.gather(rows.reshape(-1))
    return batch.reshape(rows.shape + batch.shape[1:])


def _no_rows(what: str) -> UsageError:
    return UsageError(
        f"A StorageEnsemble has no rows of its own, so it is undefined how {what}",
        hint="ReplayBufferEnsemble(storages=…, samplers=SamplerEnsemble(…)) draws from each member",
    )
