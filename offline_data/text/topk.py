"""A transform that writes only the best of several answers to each prompt."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from itertools import pairwise
from typing import Any

import offline_data.rows  # noqa: F401 # isort: skip # an error of ours without torch
import torch
from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.rows.indexing import positive
from offline_data.rows.keys import NestedKey

_log = logging.getLogger("offline_data")

try:  # TorchRL's buffers write through transforms of its own class only
    from offline_data.buffers.bridges.torchrl import Transform
except ImportError:

    class Transform:  # type: ignore[no-redef]
        """The interface of TorchRL's class of that name, as far as buffers use it."""

        def __call__(self: Any, batch: Any) -> Any:
            """Return `forward(batch)`."""
            return self.forward(batch)

        def inv(self: Any, data: Any) -> Any:
            """Return rows to write; None: nothing."""
            return self._inv_call(data)


@pickled_by_name
class TopKRewardSelector(Transform):  # type: ignore[misc]
    """Writes the best dialogs of each prompt, when enough of them have come; TorchRL's class.

    `buffer.append_transform(TopKRewardSelector(…))`, of this package's buffers or TorchRL's. Each
    `extend` gets whole dialogs: rows in order of time, each dialog ended by a True `done_key`. A
    dialog's score is the mean of its rewards. Dialogs wait until there are `total_dialog_turns` of
    their prompt; then at most `topk_size` are written, best first, of those above the median. The
    last `total_dialog_turns` stay: each further dialog of the prompt selects among them again, as in
    TorchRL. Batches are returned as they are.

    Waiting dialogs are kept in memory, `total_dialog_turns` for each prompt, and are not part of a
    buffer's state. Unlike TorchRL's, it takes dialogs of several rows, too.

    Args:
        total_dialog_turns: Number of dialogs of a prompt to choose from.
        topk_size: Most dialogs to write of them.
        prompt_key: Feature with the prompt, a string, in the first row of each dialog.
        rewards_key: Feature with the rewards, of any shape; shapes may differ in a lazy stack.
        done_key: Feature that is True in the last row of each dialog.
        verbose: Whether to log each selection (`logging.getLogger("offline_data")`).

    Raises:
        UsageError: `topk_size` is greater than `total_dialog_turns`, or one is not positive.

    Example:
        >>> from tensordict import TensorDict, lazy_stack
        >>> from offline_data import ListStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=ListStorage(100), collate_fn=list)
        >>> _ = buffer.append_transform(TopKRewardSelector(3, 1, "text", verbose=False))
        >>> for score in (1.0, 5.0, 3.0):
        ...     row = {"text": "why?", "next": {"reward": torch.tensor([score])}}
        ...     row["next"]["done"] = torch.tensor([True])
        ...     _ = buffer.extend(lazy_stack([TensorDict(row)]))
        >>> [row["next", "reward"].item() for row in buffer[:]]
        [5.0]
    """

    def __init__(
        self,
        total_dialog_turns: int,
        topk_size: int,
        prompt_key: NestedKey = ("text", "prompt"),
        rewards_key: NestedKey = ("next", "reward"),
        done_key: NestedKey = ("next", "done"),
        verbose: bool = True,
    ) -> None:
        super().__init__()
        positive(topk_size, "topk_size")
        if topk_size > total_dialog_turns:
            raise UsageError(
                f"topk_size is {topk_size}; expected at most total_dialog_turns, {total_dialog_turns}"
            )
        self.total_dialog_turns, self.topk_size = total_dialog_turns, topk_size
        self.prompt_key, self.rewards_key, self.done_key = prompt_key, rewards_key, done_key
        self.in_keys = [prompt_key, rewards_key, done_key]
        self.verbose = verbose
        self.queues: dict[str, deque[TensorDictBase]] = defaultdict(
            lambda: deque(maxlen=total_dialog_turns)
        )

    def forward(self, batch: Any) -> Any:
        """Return a batch as it is."""
        return batch

    def _inv_call(self, data: TensorDictBase) -> TensorDictBase | None:
        """Return the rows to write after `data`, `[…, T]` with whole dialogs, have come."""
        if data.ndim == 0:
            raise UsageError("A single row is not a dialog", hint="write whole dialogs with extend")
        rows = data if data.ndim == 1 else data.flatten(0, -1)
        last = torch.tensor([bool(done.any()) for done in _leaves(rows, self.done_key)])
        if not len(last) or not last[-1]:
            raise UsageError(
                f"The last dialog has no end: {self.done_key} is not True in the last of "
                f"{plural(len(last), 'row')}",
                hint="write whole dialogs at once",
            )
        ends = [0, *(last.nonzero()[:, 0] + 1).tolist()]
        chosen = [one for begin, end in pairwise(ends) for one in self._take_best(rows[begin:end])]
        return torch.cat(chosen) if chosen else None

    def _take_best(self, dialog: TensorDictBase) -> list[TensorDictBase]:
        """Let a dialog wait; return those to write, best first."""
        prompt = dialog[0][self.prompt_key]
        if not isinstance(prompt, str):
            raise UsageError(f"{self.prompt_key} is {type(prompt).__name__}; expected a string")
        queue = self.queues[prompt]
        queue.append(dialog)
        if len(queue) < self.total_dialog_turns:
            return []
        scores = torch.stack([self._score(one) for one in queue])
        above = (scores > scores.median()).nonzero()[:, 0]
        best = above[scores[above].topk(min(self.topk_size, len(above))).indices].tolist()
        if self.verbose:
            _log.info("%d of %d dialogs are written; prompt: %.80s", len(best), len(queue), prompt)
        return [queue[place] for place in best]

    def _score(self, dialog: TensorDictBase) -> Tensor:
        rewards = torch.cat([one.reshape(-1) for one in _leaves(dialog, self.rewards_key)])
        return rewards.to(torch.promote_types(rewards.dtype, torch.float32)).mean()


def _leaves(rows: TensorDictBase, key: NestedKey) -> list[Tensor]:
    """Return a leaf of each row; those of a lazy stack may differ in shape."""
    if isinstance(rows, LazyStackedTensorDict):
        return [row.get(key) for row in rows.unbind(0)]
    return list(rows.get(key))
