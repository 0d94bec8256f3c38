"""Base classes of steps: mapping episodes, selecting episodes, and measuring before mapping."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from typing_extensions import Self

from offline_data.base.pickles import pickled_by_name
from offline_data.episode.fields import TERMINATED, TRUNCATED, Key
from offline_data.pipeline.preprocess.steps.parse import (
    parameters,
    read_arguments,
    usage_error,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from offline_data.store.chunk import EpisodeChunk
    from offline_data.store.reader import DatasetReader

    Columns: TypeAlias = Mapping[Key, NDArray[Any]]
    Words: TypeAlias = Mapping[Key, Sequence[str]]
    """Vocabularies of text columns."""


@pickled_by_name
class Step:
    """A step of a recipe: a frozen dataclass whose fields are its parameters.

    Subclasses set `name` (`class Cast(Step, name="cast")`) and override `apply`. Steps are values:
    they are pickled, compared, and written to the manifest. Fields with `metadata={"state": True}`
    are not parameters but state learnt from the data.
    """

    name: ClassVar[str]
    """Name on the command line."""
    example: ClassVar[str]
    """Example argument of `--step`, shown in error messages; may be missing."""
    brings_torch: ClassVar[bool] = False
    """Whether it imports torch, which takes several seconds in a new process."""
    keeps_rows: ClassVar[bool] = True
    """Whether every episode is kept with its length."""
    adds_columns: ClassVar[bool] = False
    """Whether it adds columns to the episode table, or replaces some."""

    def __init_subclass__(cls, *, name: str | None = None, example: str | None = None) -> None:
        if name:
            cls.name = name
        if example:
            cls.example = example

    def __post_init__(self) -> None:
        for name, (_, kinds, check) in parameters(type(self)).items():
            value = getattr(self, name)
            if check and not check.holds(value) and not (value is None and NoneType in kinds):
                raise usage_error(type(self), f"has {name}={value}; expected {check.expected}")
        for problem in self._problems():
            raise usage_error(type(self), problem)

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong with parameters of which each is valid alone."""
        yield from ()

    @property
    def per_row(self) -> bool:
        """Whether it calls Python for every row, so that it is CPU-bound."""
        return False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the step for the text after `NAME:` on the command line.

        Raises:
            UsageError: A missing, unknown or malformed argument; the hint shows an example.
        """
        return cls(**read_arguments(cls, text))

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        """Return the processed episodes; each result depends on its own episode only.

        Args:
            chunk: Whole episodes, or single transitions when a schema is inferred.

        Raises:
            StepError: The step fails; the message names the feature, and the row if there is one.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return the parameters as JSON values, for the manifest and to compare recipes."""
        values: dict[str, Any] = {name: getattr(self, name) for name in parameters(type(self))}
        return {"step": self.name, **json.loads(json.dumps(values))}

    def bind(self, reader: DatasetReader, before: Sequence[Step]) -> Self:
        """Return the step with what it takes from the description of the dataset.

        Args:
            reader: The dataset that the recipe is applied to.
            before: The steps before this one.

        Raises:
            StepError: The step does not fit the dataset.
        """
        return self

    def update_about(self, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `Manifest.about` as it is after the step."""
        return about

    def episode_words(self, words: Words) -> Words:
        """Return the vocabularies of text columns of the episode table, given those before it."""
        return words

    def settled(self, probe: EpisodeChunk) -> Self:
        """Return the step with what it learns from a few transitions or episodes.

        Raises:
            StepError: The step does not match the data, for example a feature is missing.
        """
        self.apply(probe)
        return self

    def state(self) -> dict[str, Any]:
        """Return the state learnt from the data, as JSON values."""
        return {}

    def with_state(self, state: Mapping[str, Any]) -> Self:
        """Return the step with a state returned by `state`."""
        return self

    def notes(self) -> tuple[str, ...]:
        """Return sentences for the manifest about applied rules, once the step is settled."""
        return ()


class MeasuredStep(Step):
    """A step that needs a first pass over all data, for example for a mean."""

    def measure(self, chunk: EpisodeChunk) -> Any:
        """Return a measurement of some episodes: small and picklable."""
        raise NotImplementedError

    def condense(self, measures: Sequence[Any]) -> list[Any]:
        """Return fewer measurements that `fitted` treats alike.

        Called with the result of the last call and the next measurements, so that not all of them
        are in memory; the result must not depend on where that happens.
        """
        return list(measures)

    def fitted(self, measures: Sequence[Any]) -> Self:
        """Return the step ready to `apply`.

        Args:
            measures: Measurements of all data, in order. Chunk boundaries do not depend on the
                number of workers.
        """
        raise NotImplementedError


class Selection(Step):
    """A step that selects episodes; their rows are unchanged.

    `measure` is called on all data only if `needs_data`, or if an earlier step may have changed
    what it uses (see `by_values`); else the episode tables are sufficient.
    """

    needs_data: ClassVar[bool] = False
    """Whether it uses more than the columns of the episode table."""

    @property
    def by_values(self) -> bool:
        """Whether it uses columns derived from rewards or flags, not only from lengths."""
        return True

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        return chunk

    def measure(self, chunk: EpisodeChunk) -> dict[Key, NDArray[Any]]:
        """Return `[E, …]` columns of the episodes of a chunk for `choose`.

        `("number",)`, the number in the parent, is required: some episodes may be missing.
        """
        return episode_columns(chunk)

    def choose(self, table: Columns, words: Words) -> NDArray[np.bool_]:
        """Return which episodes to keep, `[E]`.

        Args:
            table: `[E, …]` columns of all episodes at this point, from `episode_columns`; or the
                concatenated results of `measure`.
            words: Vocabularies of text columns.

        Raises:
            StepError: A missing column, or no episode is left.
        """
        raise NotImplementedError


def episode_columns(chunk: EpisodeChunk) -> dict[Key, NDArray[Any]]:
    """Return `[E, …]` columns of the episodes of a chunk: the source's and computed ones.

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


class Revision(Exception):  # noqa: N818 - a finding, not an error
    """Raised when the data show that a step needs another state; results so far are discarded.

    `state` is the new state, `reason` for the user, `number` the step's position in the recipe.
    """

    def __init__(self, state: dict[str, Any], reason: str, number: int = 0) -> None:
        super().__init__(state, reason, number)
        self.state, self.reason, self.number = state, reason, number
