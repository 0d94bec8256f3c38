"""`rename`: other names for leaves or for whole branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import Self

from offline_data.episodes.fields import Key, join_key, split_key
from offline_data.errors import FormatError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.arguments import read_pairs, usage_error
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.leaves import below, meant
from offline_data.preprocess.steps.naming import check_names, check_required

if TYPE_CHECKING:
    from offline_data.preprocess.piece import Piece


@dataclass(frozen=True)
class Rename(Step):
    """Give leaves other names, all at once, so that two may swap theirs; values stay as they are.

    `a=b` calls the leaf `a` `b`; where `a` is the beginning of several keys, that beginning becomes
    `b`. An observation leaf keeps its values before and after the action: it becomes `b` and
    `next/b`. New names are taken as they are written: short ones (`obs`) stand for old ones only.

    Raises:
        UsageError: No pair, or one leaf twice.
        StepError: A leaf that is not there; a name that another leaf has or begins with, or that
            has a meaning of its own; no reward, flag or action leaf would be left. Another leaf may
            become the reward if it fits: `reward=next.old,next.shaped=next.reward`.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> renamed = Rename((("info.code", "state"), ("mission", "goal"))).apply(toy_piece([1]))
        >>> ("state",) in renamed.batch.observations, [*renamed.words]
        (True, [('goal',)])
    """

    name: ClassVar[str] = "rename"
    example: ClassVar[str] = "rename:observation.position=state,info=extra"

    names: tuple[tuple[str, str], ...]
    """Pairs of an old and a new name."""

    def __post_init__(self) -> None:
        old = [split_key(pair[0]) for pair in self.names]
        if not old or len(set(old)) < len(old):
            raise usage_error(type(self), "needs pairs like a=b, each old name once")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `old=new[,old=new…]`; see `Step.parse`."""
        return cls(read_pairs(cls, text))

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes with leaves called otherwise."""
        new = self._names(piece)
        steps = [new.get(key, key) for key in piece.batch.steps]
        observations = [new.get(key, key) for key in piece.batch.observations]
        check_required(steps, self.name)
        check_names(new.values(), steps, observations, self.name)
        try:
            return piece.having(
                steps=dict(zip(steps, piece.batch.steps.values(), strict=True)),
                observations=dict(
                    zip(observations, piece.batch.observations.values(), strict=True)
                ),
                words={new.get(key, key): words for key, words in piece.words.items()},
            )
        except FormatError as error:  # another leaf as the reward or a flag, of the wrong shape
            raise StepError(f"Step 'rename': {error.message}") from error

    def _names(self, piece: Piece) -> dict[Key, Key]:
        """Map the leaves that change their name to the new one."""
        new: dict[Key, Key] = {}
        for old, name in self.names:
            beginning = meant(piece, old)
            for key in below(piece, beginning):
                if key in new:
                    raise StepError(f"Step 'rename' has two new names for {join_key(key)!r}")
                new[key] = (*split_key(name), *key[len(beginning) :])
        return {key: name for key, name in new.items() if key != name}
