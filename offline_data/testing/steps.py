"""The contract of a step as tests: a step's own test is a subclass and a fixture.

Needs pytest. A subclass overrides `step`, and `chunk` where the toy episodes do not do:

```python
class TestClipContract(StepContract):
    @pytest.fixture(params=["clip:action,high=2", "clip:observation,low=-1,high=1"])
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)
```
"""

from __future__ import annotations

import json
import pickle
from copy import deepcopy
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from offline_data.preprocess.steps.base import MeasuredStep, Selection, Step, episode_columns
from offline_data.testing.chunks import (
    as_stored,
    assert_same_chunk,
    episodes_of,
    joined,
    toy_chunk,
    transitions_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from offline_data.episodes import Key
    from offline_data.preprocess.chunk import EpisodeChunk


class StepContract:
    """What every step passes; `step` must be overridden."""

    @pytest.fixture
    def step(self) -> Step:
        """Give the step as it is parsed or built: nothing is learnt yet."""
        raise NotImplementedError("a subclass of StepContract overrides the fixture `step`")

    @pytest.fixture
    def chunk(self) -> EpisodeChunk:
        """Give at least three whole episodes that the step can be done on."""
        return toy_chunk([3, 1, 4, 2], first_episode=1, unknown_final=[3])

    @pytest.fixture
    def ready(self, step: Step, chunk: EpisodeChunk) -> Step:
        """Give the step after it met single transitions, and all data where it measures."""
        return prepared(step, chunk)

    def test_example_is_read(self, step: Step) -> None:
        """`example` starts with the name and is what the class itself reads."""
        example = getattr(step, "example", None)
        if example is not None:
            name, _, arguments = example.partition(":")
            assert name == step.name
            assert type(step).parse(arguments).name == step.name

    def test_is_a_value(self, step: Any) -> None:
        """A frozen dataclass: equal to its copy, and not to be changed."""
        assert replace(step) == step
        assert is_dataclass(step)
        with pytest.raises(AttributeError):
            setattr(step, "anything", 1)  # noqa: B010

    def test_describes_itself_as_json(self, step: Any, ready: Step) -> None:
        """Parameters alone, whatever was learnt; equal steps describe equally."""
        told = step.describe()
        assert json.loads(json.dumps(told, allow_nan=False)) == told
        assert told["step"] == step.name
        assert replace(step).describe() == ready.describe() == told
        assert all(isinstance(note, str) and note for note in ready.notes())

    def test_pickling_keeps_it(self, step: Step, ready: Step, chunk: EpisodeChunk) -> None:
        """It travels to other processes, before and after it learnt."""
        for one in (step, ready):
            again = pickle.loads(pickle.dumps(one))  # noqa: S301 -- our own bytes
            assert again == one
            assert (again.describe(), again.state()) == (one.describe(), one.state())
        assert_same_chunk(again.apply(chunk), ready.apply(chunk))

    def test_state_goes_through_json(self, step: Step, ready: Step, chunk: EpisodeChunk) -> None:
        """What was learnt can be put into a manifest and back."""
        state = json.loads(json.dumps(ready.state()))
        again = step.with_state(state)
        assert again == ready
        assert again.state() == ready.state()
        assert_same_chunk(again.apply(chunk), ready.apply(chunk))

    def test_input_stays_as_it_was(self, ready: Step, chunk: EpisodeChunk) -> None:
        """Nothing is written into the arrays of the input, which may be views of files."""
        before = _bytes(chunk)
        result = ready.apply(chunk)
        assert _bytes(chunk) == before
        stored = as_stored(chunk)
        assert_same_chunk(ready.apply(stored), result)
        assert _bytes(stored) == before

    def test_same_input_same_result(self, ready: Step, chunk: EpisodeChunk) -> None:
        """Nothing is remembered from one call to the next."""
        first = ready.apply(chunk)
        for one in episodes_of(chunk):
            ready.apply(one)
        assert_same_chunk(ready.apply(chunk), first)

    def test_other_episodes_do_not_matter(self, ready: Step, chunk: EpisodeChunk) -> None:
        """All at once, one by one, and in two parts."""
        whole, alone = ready.apply(chunk), episodes_of(chunk)
        assert_same_chunk(joined([ready.apply(one) for one in alone]), whole)
        parts = [joined(alone[:1]), joined(alone[1:])]
        assert_same_chunk(joined([ready.apply(part) for part in parts]), whole)

    def test_single_transitions_have_the_same_schema(
        self, ready: Step, chunk: EpisodeChunk
    ) -> None:
        """What is learnt from single transitions holds for whole episodes."""
        apart = transitions_of(chunk)
        assert schema(ready.apply(apart)) == schema(ready.apply(chunk))
        assert schema(ready.apply(episodes_of(apart)[0])) == schema(ready.apply(chunk))

    def test_episodes_stay_themselves(self, ready: Step, chunk: EpisodeChunk) -> None:
        """Columns of the episode table follow their episode; places only go with `keeps_rows`."""
        result = ready.apply(chunk)
        kept = [chunk.episodes.tolist().index(number) for number in result.episodes.tolist()]
        for key, column in chunk.batch.episodes.items():
            np.testing.assert_array_equal(result.batch.episodes[key], column[kept])
        if ready.keeps_rows:
            assert kept == list(range(len(chunk.episodes)))
            for what in ("episodes", "rows", "steps"):
                np.testing.assert_array_equal(getattr(result, what), getattr(chunk, what))
            for what in ("lengths", "final_observation"):
                one, two = (getattr(each.batch, what) for each in (result, chunk))
                np.testing.assert_array_equal(one, two)

    def test_what_is_measured(self, step: Step, chunk: EpisodeChunk) -> None:
        """Measures leave the input alone, travel, and give the same step twice."""
        if isinstance(step, MeasuredStep):
            before, stored = _bytes(chunk), as_stored(chunk)
            settled = step.settled(transitions_of(chunk))
            measures = [settled.measure(one) for one in episodes_of(stored)]
            assert _bytes(stored) == before
            again = pickle.loads(pickle.dumps(measures))  # noqa: S301 -- our own bytes
            assert settled.fitted(again) == settled.fitted(measures)

    def test_what_is_chosen(self, ready: Step, chunk: EpisodeChunk) -> None:
        """A choice is one flag an episode; what it looks at does not depend on grouping."""
        if isinstance(ready, Selection):
            assert ready.apply(chunk) is chunk
            whole = ready.measure(as_stored(chunk))
            parts = [ready.measure(one) for one in episodes_of(chunk)]
            assert set(whole) == set(parts[0])
            for key, column in whole.items():
                np.testing.assert_array_equal(column, np.concatenate([part[key] for part in parts]))
            np.testing.assert_array_equal(whole["number",], chunk.episodes)
            table = {**episode_columns(chunk), **whole}
            first, again = (ready.choose(table, chunk.words) for _ in range(2))
            assert (first.dtype, first.shape) == (np.dtype(bool), (len(chunk.episodes),))
            np.testing.assert_array_equal(first, again)


def prepared(step: Step, chunk: EpisodeChunk) -> Step:
    """Return the step ready to be applied: settled on single transitions, fitted on all episodes.

    Example:
        >>> from offline_data.preprocess.steps.registry import parse_step
        >>> clip = parse_step("clip:action,high=2")
        >>> prepared(clip, toy_chunk([2])) == clip
        True
    """
    chunk = deepcopy(chunk)  # a wrong step may write into it
    settled = step.settled(transitions_of(chunk))
    if isinstance(settled, MeasuredStep):
        return settled.fitted([settled.measure(one) for one in episodes_of(chunk)])
    return settled


def schema(chunk: EpisodeChunk) -> dict[str, Any]:
    """Return what is alike in all chunks of a dataset: keys, dtypes, shapes of a row, words."""

    def of(columns: Mapping[Key, NDArray[Any]]) -> dict[Key, tuple[str, tuple[int, ...]]]:
        return {key: (column.dtype.str, column.shape[1:]) for key, column in columns.items()}

    batch = chunk.batch
    return {
        "steps": of(batch.steps),
        "observations": of(batch.observations),
        "episodes": of(batch.episodes),
        "words": {key: list(words) for key, words in chunk.words.items()},
    }


def _bytes(chunk: EpisodeChunk) -> dict[tuple[str, Key], bytes]:
    return {
        (table, key): column.tobytes()
        for table in ("steps", "observations", "episodes")
        for key, column in getattr(chunk.batch, table).items()
    }
