"""Prefetching: batches are drawn in order, built by threads, and returned in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from offline_data.base.pickles import pickled_by_name
from offline_data.rows import fields


@pickled_by_name
class Draw(NamedTuple):
    """One batch of a sampler: rows int64 `[B]`, features by key, whether an epoch ends."""

    rows: Tensor
    info: dict[Any, Tensor]
    last: bool

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `draw_of`."""
        return self._asdict()


def draw_of(state: Any, count: int) -> Draw:
    """Return the draw in a state, a copy; raises `IntegrityError` unless its rows are below `count`."""
    expected = {"rows": fields.row_numbers(count), "info": fields.TABLE, "last": fields.FLAG}
    fields.check(state, "a prefetched batch", expected, _rules(state))
    info = {key: leaf.clone() for key, leaf in state["info"].items()}
    return Draw(state["rows"].clone(), info, state["last"])


def _rules(state: Any) -> Iterator[fields.Rule]:
    rows = state["rows"]
    yield "rows", len(rows), "one row or more"
    for key, leaf in state["info"].items():
        names = key if isinstance(key, tuple) else (key,)
        fits = names and all(isinstance(name, str) for name in names)
        fits = fits and isinstance(leaf, torch.Tensor) and leaf.shape[:1] == rows.shape
        yield "info", fits, f"features of {len(rows)} rows"


class _Draws(fields.StateField):
    """The draws whose batches were not returned yet, of an object that draws ahead."""

    def get(self, own: Any, name: str) -> Any:  # noqa: ARG002
        return [draw.state_dict() for draw in own._ahead.drawn()]

    def check(self, own: Any, name: str, state: Any, where: str) -> None:
        super().check(own, name, state, where)
        for draw in state[name]:
            own._draw_of(draw, state)

    def put(self, own: Any, name: str, state: Any) -> None:
        own._restore([own._draw_of(draw, state) for draw in state[name]])


DRAWS = _Draws("a list", fields.LIST.holds)


Make: TypeAlias = "Callable[[Draw], Any]"
"""Builds the batch of a draw; called concurrently by several threads."""


@pickled_by_name
class Prefetcher:
    """Draws batches in the calling thread and builds them ahead in worker threads.

    Threads start on first use, also in a forked process, and end with the prefetcher, which
    references neither the buffer nor its sampler. `depth` is the number of batches and of threads;
    0: no threads, and batches are built on request.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._queue: deque[tuple[Draw, Future[Any] | None]] = deque()
        self._leaving: set[Future[Any]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def __len__(self) -> int:
        return len(self._queue)

    def take(self, draw: Callable[[], Draw], make: Make) -> tuple[Draw, Future[Any] | None]:
        """Return the next draw with the future of its batch, or None if the caller must build it."""
        if not self._depth:
            return self._queue.popleft() if self._queue else (draw(), None)
        self._recover(make)
        while len(self._queue) <= self._depth:
            self._submit(draw(), make)
        following, future = self._queue.popleft()
        if future is not None:  # another thread may write before this one reads the result
            self._leaving.add(future)
            future.add_done_callback(self._leaving.discard)
        return following, future

    def drawn(self) -> list[Draw]:
        """Return the draws whose batches were not returned yet, in order."""
        return [draw for draw, _ in self._queue]

    def restore(self, draws: Iterable[Draw], make: Make) -> None:
        """Replace all pending draws by `draws`."""
        self.settle()
        self._queue.clear()
        for draw in draws:
            self._submit(draw, make)

    def settle(self) -> None:
        """Wait until no thread is building a batch."""
        if self._process == os.getpid():
            waiting = [future for _, future in self._queue if future is not None]
            wait([*waiting, *self._leaving])

    def remake(
        self, stale: Callable[[Draw], bool], make: Make, again: Callable[[Draw], Draw | None]
    ) -> None:
        """Replace stale draws by the results of `again`; None: drop the draw."""
        waiting, self._queue = self._queue, deque()
        for draw, future in waiting:
            if not stale(draw):
                self._queue.append((draw, future))
            elif (instead := again(draw)) is not None:
                self._submit(instead, make)

    def __getstate__(self) -> dict[str, Any]:
        queue = deque((draw, None) for draw, _ in self._queue)
        return {**vars(self), "_queue": queue, "_leaving": set(), "_threads": None, "_process": -1}

    def _submit(self, draw: Draw, make: Make) -> None:
        if not self._depth:
            self._queue.append((draw, None))
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._depth, thread_name_prefix="offline-data")
        self._queue.append((draw, self._threads.submit(make, draw)))

    def _recover(self, make: Make) -> None:
        """Restart after a fork, or after being unpickled in another process."""
        if self._process != os.getpid():
            self._process, self._threads, self._leaving = os.getpid(), None, set()
            waiting, self._queue = self._queue, deque()
            for draw, _ in waiting:
                self._submit(draw, make)
