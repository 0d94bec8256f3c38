from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.base import Selection, Step
from offline_data.preprocess.steps.episodes import Split
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.steps import StepContract
from offline_data.testing.toy import toy_batch, write_toy

SHARES = "train=0.7,val=0.2,test=0.1,seed=3"


class TestContract(StepContract):
    @pytest.fixture(params=["split:a,a=0.5,b=0.5", "split:b,a=0.5,b=0.25,seed=7"])
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)


def chosen(text: str, count: int) -> Any:
    step = parse_step(text)
    assert isinstance(step, Selection)
    found = step.choose({("length",): np.ones(count, np.int64)}, {})
    assert (found.dtype, found.shape) == (np.dtype(bool), (count,))
    return found.nonzero()[0].tolist()


def test_parts_are_disjoint_and_cover() -> None:
    parts = [chosen(f"split:{name},{SHARES}", 43) for name in ("train", "val", "test")]
    assert [len(part) for part in parts] == [30, 9, 4]
    assert sorted(itertools.chain(*parts)) == list(range(43))


def test_shares_that_leave_some_out() -> None:
    one, two = (chosen(f"split:{name},a=0.3,b=0.3", 10) for name in "ab")
    assert len(set(one) | set(two)) == 6


def test_the_seed_counts_and_is_0_if_not_given() -> None:
    texts = [f"split:a,a=0.5,b=0.5{seed}" for seed in ("", ",seed=0", ",seed=1")]
    none, zero, one = (chosen(text, 40) for text in texts)
    assert none == zero != one
    assert none != list(range(20))


def test_it_has_the_episodes_of_the_view(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch([1 + e % 3 for e in range(23)])])
    ds = BaseDatasetExperienceReplay(tmp_path / "toy")
    views = ds.split(train=0.7, val=0.2, test=0.1, seed=3)
    for name, view in views.items():
        assert chosen(f"split:{name},{SHARES}", 23) == view.episodes.numbers.tolist()


def test_values() -> None:
    step = parse_step(f"split: val , {SHARES}")
    assert step == Split("val", (("train", 0.7), ("val", 0.2), ("test", 0.1)), 3)
    assert step.describe() == {
        "step": "split",
        "part": "val",
        "shares": [["train", 0.7], ["val", 0.2], ["test", 0.1]],
        "seed": 3,
    }
    turned = parse_step("split:val,val=0.2,train=0.7,test=0.1,seed=3")
    assert turned != step  # the order of shares decides who gets which episodes
    assert chosen("split:val,val=0.2,train=0.7,test=0.1,seed=3", 43) != chosen(
        f"split:val,{SHARES}", 43
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "0 parts to keep"),
        ("train=0.5", "0 parts to keep"),
        ("train,val,train=0.5", "2 parts to keep"),
        ("train", "needs a pair"),
        ("train,train=", "takes pairs like a=b, and 'train=' is none"),
        ("train,seed=3", "no shares"),
        ("tain,train=0.9,val=0.1", "'tain' is none of the shares; did you mean 'train'"),
        ("train,train=0", "expected shares above 0"),
        ("train,train=1.5", "expected shares above 0, at most 1"),
        ("train,train=much", "expected shares above 0"),
        ("train,train=true", "expected shares above 0"),
        ("train,train=0.9,val=0.2", "sum to 1 or less"),
        ("train,train=0.5,train=0.4", "different names"),
        ("train,train=0.5,seed=-1", "has seed=-1; expected a whole number, 0 or more"),
        ("train,train=0.5,seed=x", "has seed=x; expected a whole number, 0 or more"),
        ("train,train=0.5,seed=1.5", r"has seed=1\.5; expected a whole number, 0 or more"),
        ("train,train=0.5,seed=1,seed=2", "is given seed twice"),
    ],
)
def test_arguments_that_cannot_be_meant(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        parse_step(f"split:{text}")
    assert f"for example --step {Split.example}" == caught.value.hint


def test_shares_of_thirds_sum_to_one() -> None:
    parts = [chosen(f"split:{name},a=0.1,b=0.2,c=0.7", 10) for name in "abc"]
    assert sorted(itertools.chain(*parts)) == list(range(10))


def test_a_part_without_an_episode() -> None:
    with pytest.raises(StepError, match=r"Step 'split': val=0\.01 of 5 episodes is no episode"):
        chosen("split:train,train=0.99,val=0.01", 5)
