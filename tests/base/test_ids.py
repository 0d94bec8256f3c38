"""Ids parse to themselves, and none leaves its folder; `test_refusals` has what is no id."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_data.base.errors import InvalidIdError, UnknownNameError
from offline_data.base.ids import (
    DatasetId,
    did_you_mean,
    looks_like_path,
    nearest,
    parse_id,
    unknown,
)

GOOD = [
    "minari:D4RL/door/human-v2",
    "d4rl:halfcheetah-medium-v2",
    "openx:bridge@0.1.0",
    "openx:bridge/train[10%:20%]+test[:-5]@0.1.0",
    "roboset:FK1-v4(expert)/FK1_MicroOpenRandom_v2d-v4",
    "vd4rl:main/walker_walk/random/64px",
    "minari:hf://user/ns/name-v0",
    "minari:x/y-v0@local-0123456789ab+episodes-0-10",
]


@pytest.mark.parametrize("text", GOOD)
def test_good_ids_come_back(text: str) -> None:
    assert str(parse_id(text)) == text
    assert not looks_like_path(text)


@given(st.text(max_size=60))
def test_no_text_leaves_the_root(text: str) -> None:
    for candidate in (text, f"d4rl:{text}", f"minari:hf://{text}", f"d4rl:a@{text}"):
        try:
            dataset = parse_id(candidate)
        except InvalidIdError:
            continue
        root = Path("/root/of/all")
        path = (root / dataset.folder / (dataset.revision or "x")).resolve()
        assert path.is_relative_to(root)
        assert len(path.parts) > len(root.parts) + 2
        assert parse_id(str(dataset)) == dataset


def test_what_a_text_is_taken_for() -> None:
    assert DatasetId("d4rl", "a").at("1").revision == "1"
    assert parse_id("D4RL/door/human-v2", default_source="minari").source == "minari"
    assert all(map(looks_like_path, ["/a", "./a", "../a", "~/a", "."]))


def test_an_unknown_name_is_answered_with_the_similar_ones() -> None:
    known = ["hopper-medium-v2", "hopper-medium-v0", "pen-human-v1"]
    assert nearest("HOPPER-medum-v2", known)[0] == "hopper-medium-v2"
    assert nearest("zzz", known) == []
    assert did_you_mean("hoper-medium-v2", known, count=2, shown=repr) == (
        "did you mean 'hopper-medium-v2' or 'hopper-medium-v0'?"
    )
    assert did_you_mean("zzz", known, count=3) is None
    error = unknown(UnknownNameError, "No dataset is called", "zzz", known, hint="look")
    assert type(error) is UnknownNameError
    assert str(error) == f"No dataset is called 'zzz'; there are {', '.join(known)}"
    assert error.hint == "look"
    assert unknown(
        UnknownNameError, "No pen is called", "Pen-human-v1", known, hint="look"
    ).hint == ("did you mean pen-human-v1?")
    quoted = unknown(UnknownNameError, "No pen is", "pen-v1", known, shown=repr, listed=False)
    assert (str(quoted), quoted.hint) == ("No pen is 'pen-v1'", "did you mean 'pen-human-v1'?")
    assert str(unknown(UnknownNameError, "It has no", "x", ())) == "It has no 'x'; there are none"
