"""`concat`: leaves joined into one along the last axis, as TorchRL's `CatTensors` does."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import Self

from offline_data.episodes.fields import Key, join_key, split_key
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.arguments import read_arguments, usage_error
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.leaves import column, numbers, place
from offline_data.preprocess.steps.naming import REQUIRED, check_names, check_required
from offline_data.preprocess.steps.narrowing import first_lost, lost, put

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.preprocess.piece import Piece


@dataclass(frozen=True)
class Concat(Step):
    """Join leaves into one along the last axis, in the order given; the sources are dropped.

    Rows of one number count as `[1]`; all other axes must be equal. Sources are observation leaves,
    and the result is one, joined before and after the action alike; or all step leaves under
    `next`, and the result is there; or all other step leaves.

    Types are joined as `torch.cat` does: a floating-point type wins over every integer type
    (`int64` with `float32` is `float32`, rounded), a wider one over a narrower one.

    Raises:
        UsageError: No source or no target.
        StepError: A leaf that is not there, is text, comes twice, or does not go with the others;
            a target that another leaf has or begins with; a number the joined type cannot hold;
            reward, a flag or the last action leaf would be no more.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> step = Concat.parse("observation.position,observation.velocity→observation")
        >>> step.apply(toy_piece([1])).batch.observations["observation",].tolist()
        [[1.0, -1.0, 1.5], [2.0, -2.0, 2.5]]
    """

    name: ClassVar[str] = "concat"
    example: ClassVar[str] = "concat:observation.position,observation.velocity→observation.state"

    sources: tuple[str, ...] = field(metadata={"many": True})
    """Leaves; the beginning of a key stands for all leaves of numbers below it, in the order of
    their names."""
    target: str
    """What the new leaf is called; may be the beginning of the sources' keys."""
    keep: bool = False
    """Whether the sources stay."""

    def __post_init__(self) -> None:
        if not self.sources or not self.target:
            raise usage_error(type(self), "needs leaves and what they become")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `leaf,leaf…→target[,keep=true]`, also with `->`; see `Step.parse`."""
        sources, *rest = (part.strip() for part in re.split("→|->", text))
        _, *options = "".join(rest).split(",")
        if len(rest) != 1 or not sources or not all("=" in option for option in options):
            what = (
                "needs leaves, one arrow → and one name that they get; in a shell, -> wants quotes"
            )
            raise usage_error(cls, what)
        return cls(**read_arguments(cls, f"{sources},target={rest[0]}"))

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes with the leaves joined."""
        sources, target = self._sources(piece), split_key(self.target)
        gone = () if self.keep else sources
        steps = [(key, c) for key, c in piece.batch.steps.items() if key not in gone]
        observations = [(key, c) for key, c in piece.batch.observations.items() if key not in gone]
        table = observations if _observed(piece, sources, target) else steps
        table.append((target, _joined(piece, sources)))
        names = [key for key, _ in steps], [key for key, _ in observations]
        check_required(names[0], self.name)
        check_names([target], *names, self.name)
        return piece.having(steps=dict(steps), observations=dict(observations))

    def _sources(self, piece: Piece) -> list[Key]:
        keys = [key for name in self.sources for key in sorted(numbers(piece, [name], "biufc"))]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice:
            raise StepError(f"Step 'concat' is given {join_key(twice)!r} twice")
        if not self.keep and not {*REQUIRED}.isdisjoint(keys):
            check_required([key for key in piece.batch.steps if key not in keys], self.name)
        return keys


def _observed(piece: Piece, sources: list[Key], target: Key) -> bool:
    """Say whether the sources are observation leaves; a `StepError` where sides are mixed."""
    if all(key in piece.batch.observations for key in sources):
        return True
    after = {key[0] == "next" for key in [*sources, target]}
    if len(after) > 1 or any(key in piece.batch.observations for key in sources):
        raise StepError(
            f"Step 'concat' cannot join {', '.join(map(join_key, sources))} into "
            f"{join_key(target)!r}: they must be all observation leaves, all step leaves under "
            "'next', or all other step leaves"
        )
    return False


def _joined(piece: Piece, sources: list[Key]) -> NDArray[Any]:
    found = [column(piece, key) for key in sources]
    parts = [part[:, None] if part.ndim == 1 else part for part in found]
    if len({part.shape[1:-1] for part in parts}) > 1:
        told = [f"{join_key(k)} {list(p.shape[1:])}" for k, p in zip(sources, found, strict=True)]
        raise StepError(f"Step 'concat' cannot join rows of these shapes: {', '.join(told)}")
    width = sum(part.shape[-1] for part in parts)
    joined = np.empty((*parts[0].shape[:-1], width), _joined_type(sources, parts))
    end = 0
    for key, part in zip(sources, parts, strict=True):
        begin, end = end, end + part.shape[-1]
        put(part, joined[..., begin:end])
        _check_kept(piece, key, part, joined[..., begin:end])
    return joined


def _joined_type(sources: list[Key], parts: list[NDArray[Any]]) -> np.dtype[Any]:
    """Return the type `torch.cat` gives."""
    types = [part.dtype for part in parts]
    dtype = np.result_type(*([one for one in types if one.kind in "fc"] or types))
    if dtype.kind in "fc" and not any(one.kind in "fc" for one in types):
        told = [f"{join_key(k)} {one}" for k, one in zip(sources, types, strict=True)]
        raise StepError(
            f"Step 'concat' finds no integer type for all of {', '.join(told)}",
            hint=f"cast them first: --step cast:{join_key(sources[0])}=float64",
        )
    return dtype


def _check_kept(piece: Piece, key: Key, part: NDArray[Any], joined: NDArray[Any]) -> None:
    if not np.can_cast(part.dtype, joined.dtype, "safe") and lost(part, joined).any():
        row, value = first_lost(part, joined.dtype)
        raise StepError(
            f"Step 'concat': {join_key(key)!r} is {value} in {place(piece, key, row)}, "
            f"which {joined.dtype}, the type of the others, cannot hold"
        )
