"""Questions about files that a proposed mapping leaves open, and their answers in Python."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.base.errors import UsageError
from offline_data.formats.files.mapping import MappingQuestionError
from offline_data.pipeline.ingest.inspection import Inspection
from offline_data.store.reader import open_reader
from tests.formats.test_file_ends import CLEAN, vector_log
from tests.toys.files import write_npz

LENGTHS = [5, 4, 3]
ROWS = np.arange(sum(LENGTHS))
TRIAL = np.repeat([3, 5, 9], LENGTHS)
LAST = np.isin(ROWS, np.cumsum(LENGTHS) - 1)
KNOWN: dict[str, Any] = {"obs": ROWS[:, None] * np.ones(2), "act": ROWS[:, None], "reward": ROWS}
COMPLETE = {"final_observation": "missing", "ends": "truncated"}


def inspected(folder: Path, **arrays: Any) -> Inspection:
    return offline_data.inspect_files(write_npz(folder / "lab.npz", arrays))


def lengths_of(found: Inspection, mapping: Any, root: Path) -> list[int]:
    stored = offline_data.convert(found.path, "lab", mapping=mapping, root=root, progress=False)
    reader = open_reader(stored.path)
    actions = reader.transitions_at(np.arange(reader.transitions))["action",][:, 0]
    assert actions.tolist() == (ROWS if reader.transitions == len(ROWS) else ROWS[~LAST]).tolist()
    return list(reader.lengths.tolist())


def test_questions_are_a_table(tmp_path: Path) -> None:
    found = inspected(tmp_path, **KNOWN, trial=TRIAL, hit=LAST)
    assert [one.name for one in found.questions] == ["final_observation", "episode", "ends"]
    lines = repr(found).splitlines()
    assert lines[0].split() == ["NAME", "SHAPE", "DTYPE", "MIN", "MAX", "LOOKS", "LIKE"]
    (line,) = [one for one in lines if "'trial'" in one]
    assert line.split("  ")[-1].strip() == "number of the episode: 3 of 3 to 5 rows"
    page = found._repr_html_()
    assert page.count("<table>") == 2
    assert "flags of last rows: 3 episodes" in page
    assert "<td>episode</td><td>&#x27;trial&#x27;</td>" in page


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("trial", LENGTHS), ("hit", LENGTHS), ("episodes", [sum(LENGTHS)])],
)
def test_answers_give_the_mapping(tmp_path: Path, answer: str, expected: list[int]) -> None:
    found = inspected(tmp_path, **KNOWN, trial=TRIAL, hit=LAST)
    mapping = found.answer(episode=answer, **COMPLETE)
    assert lengths_of(found, mapping, tmp_path / "root") == expected
    assert mapping.ends.otherwise == "truncated"


def test_arrays_without_telling_names(tmp_path: Path) -> None:
    found = inspected(tmp_path, p=ROWS, q=-ROWS, m=ROWS[:, None], trial=TRIAL)
    assert [one.name for one in found.questions] == ["observation", "action"]
    mapping = found.answer(observation=["p", "q"], action="m", episode="trial", **COMPLETE)
    assert mapping.leaves == {"observation": ("p", "q"), "action": "m"}
    assert lengths_of(found, mapping, tmp_path / "root") == LENGTHS


def test_an_answer_may_raise_another_question(tmp_path: Path) -> None:
    found = inspected(tmp_path, **KNOWN, trial=TRIAL)
    states = {**COMPLETE, "episode": "trial", "final_observation": "last_row"}
    with pytest.raises(UsageError, match=r"1 question has no answer: reward_of: .*'row_before'"):
        found.answer(**states)
    mapping = found.answer(**states, reward_of="row_before")
    assert lengths_of(found, mapping, tmp_path / "root") == [length - 1 for length in LENGTHS]


@pytest.mark.parametrize(
    ("answers", "said", "hint"),
    [
        ({}, "3 questions have no answer: final_observation: .*; episode: .*; ends: ", None),
        ({"ends": "truncated"}, "2 questions have no answer", None),
        ({"ends": "truncatd"}, "ends is 'truncatd'; expected one of 'terminated', 'truncated'", "did you mean truncated?"),
        ({"episode": "act"}, "episode is 'act'; expected one of 'trial', 'hit', 'episodes'", None),
        ({"episode": ["trial", "hit"]}, r"episode is \['trial', 'hit'\]; expected one of ", None),
        ({"ends": None}, "ends is None; expected one of", None),
        ({"endz": "truncated"}, "There is no question 'endz' about these files; the questions are ", "did you mean ends?"),
    ],
)  # fmt: skip
def test_what_is_not_an_answer(
    tmp_path: Path, answers: dict[str, Any], said: str, hint: str | None
) -> None:
    found = inspected(tmp_path, **KNOWN, trial=TRIAL, hit=LAST)
    with pytest.raises(UsageError, match=said) as caught:
        found.answer(**answers)
    assert caught.value.hint == hint


def test_a_wrong_array_is_named(tmp_path: Path) -> None:
    found = inspected(tmp_path, p=ROWS, q=-ROWS, m=ROWS)
    with pytest.raises(UsageError, match="action is 'n'; expected one of 'q', 'm'"):
        found.answer(observation="p", action="n")


def test_rows_of_resets_are_an_optional_question(tmp_path: Path) -> None:
    log = vector_log("next_step", CLEAN)
    found = inspected(tmp_path, **log)
    (question,) = [one for one in found.questions if one.name == "autoreset"]
    assert question.optional
    answers = {one.name: "missing" for one in found.questions if one.name != "autoreset"}
    assert found.answer(**answers).autoreset is None
    assert found.answer(**answers, autoreset=None).autoreset is None
    assert found.answer(**answers, autoreset="next_step").autoreset == "next_step"


def columns(**arrays: Any) -> dict[str, Any]:
    return {name: np.asarray(values) for name, values in arrays.items()}


@pytest.mark.parametrize(
    ("arrays", "choices", "likely"),
    [
        ({"run": TRIAL}, {"run": "number of the episode: 3 of 3 to 5 rows"}, None),
        ({"run": np.repeat([0, 1, 2], 4)}, {"run": "number of the episode: 3 of 4 rows"}, "run"),
        ({"hit": LAST}, {"hit": "flags of last rows: 3 episodes"}, "hit"),
        ({"hit": np.roll(LAST, 1)}, {"hit": "flags of last rows: 3 episodes"}, None),
        ({"run": np.repeat([0, 1, 2], 4), "hit": LAST}, {"run": "number of the episode: 3 of 4 rows", "hit": "flags of last rows: 3 episodes"}, "run"),
        ({"a": LAST, "b": ROWS == 11}, {"a": "flags of last rows: 3 episodes", "b": "flags of last rows: 1 episode"}, None),
        ({"half": ROWS >= 6}, {}, None),  # two flags in a row, one number only of bool
        ({"env": ROWS % 3}, {}, None),  # alternates
        ({"env": np.repeat([0, 1, 0, 1], 3)}, {}, None),  # comes again
        ({"count": ROWS}, {}, None),  # a number for each row
        ({"same": ROWS * 0}, {}, None),
        ({"mean": ROWS * 0.5}, {}, None),
        ({"few": np.arange(3)}, {}, None),  # a row for each episode
    ],
)  # fmt: skip
def test_arrays_that_may_say_where_episodes_end(
    tmp_path: Path, arrays: dict[str, Any], choices: dict[str, str], likely: str | None
) -> None:
    found = inspected(tmp_path, **KNOWN, **columns(**arrays))
    question = next(one for one in found.questions if one.name in {"episode", "parts"})
    assert question.name == ("episode" if choices else "parts")
    assert question.choices == {**choices, "episodes": "the file is one episode"}
    assert question.likely == likely
    for line, name in zip(question.lines, question.choices, strict=True):
        field = {"run": "ends.episode", "episodes": "parts"}.get(name, "ends.done")
        assert line.startswith(f'{field} = "{name}" ')


def test_questions_survive_pickling() -> None:
    asked = MappingQuestionError("ends.episode", "where?", {"a": "x"}, {"a": "ends.done"}, "a")
    again = pickle.loads(pickle.dumps(asked))  # noqa: S301 -- our own
    assert vars(again) == vars(asked)
