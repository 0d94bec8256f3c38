"""The face of a buffer that is saved: state in memory, on disk, and in pickles."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.buffers.prefetch import Draw
from offline_data.buffers.state import load_tree, owned, save_tree
from offline_data.buffers.storages import GrowingStorage
from offline_data.buffers.writing import Writing
from offline_data.errors import UsageError

if TYPE_CHECKING:
    import os


class Saving(Writing):
    """Saving and resuming a buffer; `ReplayBuffer` describes the parts."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume from here, elsewhere or later.

        The batches after `load_state_dict` are those that would have come: the state has the draws
        of batches that are under way. Its sampler's randomness is in it if the sampler has a seed,
        or the buffer a `generator`; torch's global generator is saved by `torch.get_rng_state()`.
        Of a dataset the id is in it and no rows; rows of a storage that grows are not copied.
        """
        with self._lock:
            draws = [draw._asdict() for draw in self._ahead.drawn()]
            return {
                "kinds": self._kinds(),
                "storage": self._storage_state(),
                "sampler": self._sampler.state_dict(),
                "writer": self._writer.state_dict(),
                "transforms": self._chain.state_dict(),
                "batch_size": self._batch_size,
                "draws": draws,
                "ended": self._ended,
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` returned; the parts must be of the same kinds.

        Raises:
            UsageError: Another sampler or writer, other transforms, another dataset, or rows that
                do not fit. If the kinds or the dataset differ, nothing has changed.
        """
        if state["kinds"] != self._kinds():
            raise UsageError(f"The state is of {state['kinds']}; this buffer has {self._kinds()}")
        with self._lock:
            self._drop_drawn()
            if isinstance(self._storage, GrowingStorage):
                self._storage.load_state_dict(state["storage"])
            self._writer.load_state_dict(state["writer"])
            self._sampler.load_state_dict(state["sampler"])
            self._chain.load_state_dict(state["transforms"])
            self._batch_size, self._ended = state["batch_size"], state["ended"]
            self._ahead.restore([_draw(one) for one in state["draws"]], self._make)

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict()` to a folder, whole or not at all.

        Nothing in it is executed when it is read: it is JSON, and the bytes of tensors.

        Args:
            path: Absent, an empty folder, or one that was written before, which is replaced.

        Raises:
            UsageError: Other files in the folder; rows, or a sampler's state, that only a pickle
                could hold.
            NoSpaceError, AccessError: The disk.
        """
        with self._lock:
            save_tree(self.state_dict(), Path(path))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Go on from what `dumps` wrote.

        Raises:
            NotFoundError, IntegrityError: There is no state, or it cannot be read.
            UsageError: It is not of such a buffer; see `load_state_dict`.
        """
        state = load_tree(Path(path))
        parts = {name: part if name == "storage" else owned(part) for name, part in state.items()}
        self.load_state_dict(parts)

    def __getstate__(self) -> dict[str, Any]:
        """Leave threads behind, and take along what they were told to draw."""
        with self._lock:
            return {**vars(self), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = self._new_lock()

    def _new_lock(self) -> Any:
        """Make what keeps reading and writing apart; a dataset needs nothing."""
        return threading.RLock() if self._grows else nullcontext()

    def _storage_state(self) -> dict[str, Any]:
        if isinstance(self._storage, GrowingStorage):
            return self._storage.state_dict()
        return {}

    def _kinds(self) -> dict[str, Any]:
        """Name what a state must be of to fit this buffer."""
        kinds: dict[str, Any] = {
            "sampler": type(self._sampler).__name__,
            "writer": type(self._writer).__name__,
        }
        return kinds if self._grows else {**kinds, **self._origin()}

    def _origin(self) -> dict[str, Any]:
        """Tell which rows these are, of a storage that never changes."""
        return {"rows": len(self)}


def _draw(state: dict[str, Any]) -> Draw:
    return Draw(state["rows"].clone(), state["info"], state["last"])
