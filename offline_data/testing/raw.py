"""Raw data that need no files: for tests of what happens between a source and a dataset."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offline_data.errors import FormatError
from offline_data.sources.base import Part, SourceInfo
from offline_data.testing.toy import toy_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offline_data.episodes import EpisodeBatch


@dataclass(frozen=True)
class ToyRaw:
    """Episodes of `toy_batch`, a fixed number in each part.

    Args:
        lengths: Transitions of each episode.
        per_part: Episodes a part.
        seconds: Time that reading a part takes.
        fails_at: Episode that cannot be read.
        dies_at: Episode at which the process that reads it ends at once, unless it is `parent`.
        parent: Process that never dies.
        info: What it says of itself.
        threaded: Whether it claims to keep all cores busy.
    """

    lengths: tuple[int, ...]
    per_part: int = 2
    seconds: float = 0.0
    fails_at: int | None = None
    dies_at: int | None = None
    parent: int | None = None
    info: SourceInfo = field(default_factory=SourceInfo)
    threaded: bool = False

    def parts(self, budget: int) -> Sequence[Part]:  # noqa: ARG002 - the number is what counts here
        """Cut into parts of `per_part` episodes."""
        ends = range(self.per_part, len(self.lengths) + self.per_part, self.per_part)
        return [Part(end - self.per_part, min(end, len(self.lengths))) for end in ends]

    def read(self, part: Part) -> EpisodeBatch:
        """Make the part's episodes."""
        time.sleep(self.seconds)
        if self.fails_at is not None and part.first <= self.fails_at < part.stop:
            raise FormatError(f"episode {self.fails_at} is broken", hint="look at it")
        dies = self.dies_at is not None and part.first <= self.dies_at < part.stop
        if dies and os.getpid() != self.parent:
            os._exit(9)
        return toy_batch(self.lengths[part.first : part.stop], first_episode=part.first, text=True)
