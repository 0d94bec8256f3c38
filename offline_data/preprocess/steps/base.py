"""A step of a recipe: it maps episodes, chooses among them, or measures all data and then maps."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from offline_data.episodes.fields import TERMINATED, TRUNCATED
from offline_data.preprocess.steps.parse import read_arguments, usage_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from offline_data.episodes.fields import Key
    from offline_data.preprocess.chunk import EpisodeChunk


class Step:
    """One step: a frozen dataclass whose fields are its parameters.

    Subclasses set `name` (`class Cast(Step, name="cast")`) and override `apply`. Steps are values:
    they are pickled, compared, and written into the manifest. Fields with
    `metadata={"state": True}` are no parameters, but what the step learnt from the data.
    """

    name: ClassVar[str]
    """What the command line calls it."""
    example: ClassVar[str]
    """What to write after `--step`, shown where it is called wrongly; may be missing."""
    brings_torch: ClassVar[bool] = False
    """Whether it imports torch, which takes a new process some seconds."""
    keeps_rows: ClassVar[bool] = True
    """Whether every episode keeps its length; else it may change, or the episode may go."""

    def __init_subclass__(cls, *, name: str | None = None, example: str | None = None) -> None:
        if name:
            cls.name = name
        if example:
            cls.example = example

    @property
    def per_row(self) -> bool:
        """Whether it calls Python for every row, so that its time, not the disk's, counts."""
        return False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Build the step from what follows `NAME:` on the command line.

        Raises:
            UsageError: An argument is missing, unknown or malformed; the hint shows an example.
        """
        return cls(**read_arguments(cls, text))

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        """Return the episodes with this step done; the result depends on no other episode.

        Args:
            chunk: Whole episodes, or single transitions where a schema is learnt.

        Raises:
            StepError: It cannot be done; names the leaf, and the row where one is at fault.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return the parameters as JSON values, for the manifest and to tell recipes apart."""
        own = [f.name for f in fields(self) if not f.metadata.get("state")]  # type: ignore[arg-type]
        return {"step": self.name, **{name: _as_json(getattr(self, name)) for name in own}}

    def settled(self, probe: EpisodeChunk) -> Self:
        """Return the step with what it learns from a few transitions or episodes.

        Raises:
            StepError: It does not fit the data, for example a leaf is not there.
        """
        self.apply(probe)
        return self

    def state(self) -> dict[str, Any]:
        """Return what was learnt from the data, as JSON values."""
        return {}

    def with_state(self, state: Mapping[str, Any]) -> Self:  # noqa: ARG002
        """Return the step as it was when `state` gave this."""
        return self

    def notes(self) -> tuple[str, ...]:
        """Return sentences for the manifest: rules that were applied, once the step is settled."""
        return ()

    def _expect(self, name: str, expected: str, *, fits: bool) -> None:
        """Raise `UsageError` unless a parameter fits."""
        if not fits:
            raise usage_error(type(self), f"has {name}={getattr(self, name)}; expected {expected}")


class MeasuredStep(Step):
    """A step that needs a first pass over all data, for example for a mean."""

    def measure(self, chunk: EpisodeChunk) -> Any:
        """Return what is to be known of some episodes: small, and can be pickled."""
        raise NotImplementedError

    def fitted(self, measures: Sequence[Any]) -> Self:
        """Return the step ready to `apply`.

        Args:
            measures: Those of all data, in order. How the data were cut into chunks does not
                depend on the number of workers.
        """
        raise NotImplementedError


class Selection(Step):
    """A step that chooses episodes; rows of chosen ones stay as they are.

    `measure` is called on all data only where `needs_data`, or where a step before it may have
    changed what it looks at (see `by_values`); else episode tables are enough.
    """

    needs_data: ClassVar[bool] = False
    """Whether it looks at more than the columns of the episode table."""

    @property
    def by_values(self) -> bool:
        """Whether it looks at columns that follow from rewards or flags, not from lengths alone."""
        return True

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        """Return the chunk as it is: the choice is made before data pass through."""
        return chunk

    def measure(self, chunk: EpisodeChunk) -> dict[Key, NDArray[Any]]:
        """Return `[E, …]` columns of the episodes of a chunk for `choose`.

        `("number",)`, the number in the parent, must be one: not all episodes may be there.
        """
        return episode_columns(chunk)

    def choose(
        self, table: Mapping[Key, NDArray[Any]], words: Mapping[Key, Sequence[str]]
    ) -> NDArray[np.bool_]:
        """Return `[E]` which episodes stay.

        Args:
            table: `[E, …]` columns of all episodes there are at this point, as `episode_columns`
                gives them; or what `measure` gave, joined in order.
            words: Vocabularies of text columns.

        Raises:
            StepError: A column is not there, or nothing is left.
        """
        raise NotImplementedError


def episode_columns(chunk: EpisodeChunk) -> dict[Key, NDArray[Any]]:
    """Return `[E, …]` columns of the episodes of a chunk: the source's own, and computed ones.

    `number` (in the parent), `length`, `return`, `terminated` and `truncated` (of the last
    transition), `final_observation`, and the source's (`id`, `seed`, …; text as codes).
    """
    batch = chunk.batch
    return {
        **batch.episodes,
        ("number",): chunk.episodes,
        ("length",): batch.lengths,
        ("return",): batch.returns,
        ("terminated",): batch.steps[TERMINATED][batch.last_rows, 0].astype(bool),
        ("truncated",): batch.steps[TRUNCATED][batch.last_rows, 0].astype(bool),
        ("final_observation",): batch.final_observation,
    }


def _as_json(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_json(one) for one in value]
    return {str(k): _as_json(v) for k, v in value.items()} if isinstance(value, dict) else value


class Revised(Exception):  # noqa: N818 - a finding, not an error
    """The data show that a step must be done otherwise; what was made so far does not count.

    Attributes:
        state: State of the step from now on.
        reason: For the user.
        number: Which step of the recipe.
    """

    def __init__(self, state: dict[str, Any], reason: str, number: int = 0) -> None:
        super().__init__(state, reason, number)
        self.state = state
        self.reason = reason
        self.number = number

    def __str__(self) -> str:
        return self.reason
