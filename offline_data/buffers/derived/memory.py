"""Results that are computed once: while a storage exists, or for good."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, MutableMapping

    from offline_data.buffers.storage import Storage
    from offline_data.episodes import Key

T = TypeVar("T")

_locks: dict[int, threading.RLock] = {}


class Memory:
    """Cache of one derived leaf for each storage that it was used on.

    It goes with the storage, and stays behind where the leaf is pickled or copied deeply.
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Storage, dict[Hashable, Any]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        return Memory, ()

    def recall(self, storage: Storage, name: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` gave for this storage and name, called once, by one thread."""
        return once(self._known.setdefault(storage, {}), name, make)

    def recall_written(self, storage: Storage, name: Hashable, make: Callable[[], T]) -> T:
        """Return the same, made again where the storage was written to since.

        A storage tells so by giving another object as `runs()`.
        """
        known = self._known.setdefault(storage, {})
        found = known.get(name)
        if found is None or found[0] is not storage.runs():
            with _lock():
                found, runs = known.get(name), storage.runs()
                if found is None or found[0] is not runs:
                    found = known[name] = (runs, make())
        made: T = found[1]
        return made

    def only(self, storage: Storage, keys: tuple[Key, ...]) -> Storage:
        """Return the storage with these leaves, whose files are mapped once."""
        return self.recall(storage, keys, lambda: storage.only(keys))


def once(known: MutableMapping[Any, Any], name: Hashable, make: Callable[[], T]) -> T:
    """Return `known[name]`, which `make` gives where it is not there; one thread calls it."""
    found = known.get(name)
    if found is None:
        with _lock():
            found = known.get(name)
            if found is None:
                found = known[name] = make()
    made: T = found
    return made


def _lock() -> threading.RLock:
    """Return this process's lock: one that a thread held during a fork would stay locked."""
    return _locks.setdefault(os.getpid(), threading.RLock())
