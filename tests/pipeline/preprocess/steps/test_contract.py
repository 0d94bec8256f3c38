"""Every built-in step holds to the contract of steps, and says what is wrong with its arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from offline_data.base.errors import StepError, UsageError
from offline_data.pipeline.preprocess.steps.base import Step
from offline_data.pipeline.preprocess.steps.registry import parse_step, step_class, step_names
from offline_data.store.chunk import EpisodeChunk
from offline_data.testing.chunks import toy_chunk, with_leaves
from offline_data.testing.steps import StepContract
from tests.remedy import assert_none

TEXTS = [
    "cast:info=int32,action=float64,reward=float16",
    "cast:terminated=bool,obs.position=complex64",
    "clip:obs,reward,low=-1,high=1001.5",
    "concat:obs.position,obs.velocity→observation",
    "concat:reward,next.terminated→next.all,keep=true",
    "crop:8,9,observation.pixels,top=1,left=0",
    "dedupe",
    "encode:observation.pixels,format=jpeg,quality=80",
    "exclude:info,obs.velocity",
    "filter:return >= percentile(return, 50) and not (terminated or number == 4)",
    "flatten:extra,mission",
    "grayscale",
    "normalize:action,observation.velocity,eps=0",
    "normalize_return:100",
    "rename:obs.position=observation.velocity,obs.velocity=observation.position",
    "resize:10,9,mode=area",
    "resize:10,9,mode=bilinear",
    "resample:10,source_fps=25,action=sum,mission=last",
    "return_to_go:0.9,next.sum",
    "reward_clip:low=-1,high=125.2",
    "reward_scale:scale=-3",
    "reward_shift:0.3",
    "select:action,info",
    "split:b,a=0.5,b=0.25,seed=7",
    "subsample:0.5",
    "to_chw:observation.pixels,scale=true,format=hwc",
    "trim:start=1,idle=5,key=obs.velocity,least=2,inside=true",
    "trim:end=1",
    "shift:action,by=1",
    "shift:next/reward,obs.velocity,by=-1",
]


def test_every_built_in_step_is_here() -> None:
    built_in = {n for n in step_names() if step_class(n).__module__.startswith("offline_data.")}
    apart = {
        "decode",
        "label",
    }  # of encoded columns, and of files: see test_encoded.py, test_label.py
    assert_none(
        ({text.partition(":")[0] for text in TEXTS} | apart) ^ built_in,
        "each built-in step has a text in TEXTS of this file, which the contract is tested with",
    )


class TestContract(StepContract):
    @pytest.fixture(params=TEXTS)
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)

    @pytest.fixture
    def chunk(self, step: Step) -> EpisodeChunk:
        """Give episodes with what the step is for."""
        chunk = toy_chunk([3, 1, 4, 2], first_episode=1, unknown_final=[3])
        if step.name in {"crop", "encode", "grayscale", "resize", "to_chw"}:
            values = np.arange(14 * 21 * 17 * 3).reshape(14, 21, 17, 3) % 251 + 1
            images = {"observation.pixels": values.astype(np.uint8)}
            return with_leaves(chunk, observations={**images, "observation.map": values / 251})
        if step.name == "flatten":
            grid = (np.arange(14 * 6) + 1).reshape(14, 2, 3)
            return with_leaves(
                chunk,
                steps={"extra": np.arange(40).reshape(10, 2, 2)},
                observations={"observation.grid": np.asfortranarray(grid)},
            )
        return chunk


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cast:", "needs a pair"),
        ("cast:observation=float23", "knows no type 'float23'; did you mean 'float32'?"),
        ("cast:observation=half", "knows no type 'half'; there are bool, uint8"),
        ("clip:action", "expected one bound or two"),
        ("clip:action,low=2,high=1", "has low=2, high=1; expected one bound or two, low <= high"),
        ("clip:low=1", "needs keys"),
        ("clip:action,low=1e999", "has low=1e999"),
        ("concat:a,b", "needs leaves, one arrow"),
        ("concat:a,b→", "needs leaves and what they become"),
        ("concat:a→b,c", "one arrow"),
        ("crop", "needs height"),
        ("crop:0", "has height=0; expected a whole number, 1 or more"),
        ("crop:8,top=-1", "has top=-1; expected a whole number, 0 or more"),
        ("crop:8,format=whc", "has format=whc; expected hwc or chw or hw"),
        ("filter:  ", "needs an expression"),
        ("grayscale:channels=2", "has channels=2; expected 0, 1 or 3"),
        ("grayscale:format=hw", "has format=hw; expected hwc or chw"),
        ("normalize:eps=-1", "eps=-1"),
        ("normalize_return:scale=0", "has scale=0"),
        ("rename:a.b=c,a/b=d", "each old name once"),
        ("resize:8,mode=lanczos", "has mode=lanczos; expected bilinear, bicubic, area, nearest"),
        ("resample:10", "needs a rule for actions, as action=hold"),
        ("resample:action=sum", "needs fps"),
        ("resample:0,action=sum", "has fps=0; expected a number above 0"),
        ("resample:10,action=sum,source_fps=-1", "has source_fps=-1; expected a number above 0"),
        (
            "resample:10,action=sum,source_fps=5",
            "has fps=10; expected at most the 5 of the dataset",
        ),
        ("resample:10,action=first", "has action=first; expected one of hold, last, mean, sum"),
        ("resample:10,20,30,action=sum", "has no use for '30'"),
        ("return_to_go:gamma=1.5", "has gamma=1.5; expected a number from 0 to 1"),
        ("reward_scale:NaN", "has scale=NaN; expected a number"),
        ("reward_clip", "expected one bound or two"),
        ("split:train=0.5", "0 parts to keep"),
        ("split:train,val,train=0.5", "2 parts to keep"),
        ("split:train,seed=3", "has shares=(); expected NAME=SHARE, each above 0"),
        ("split:tain,train=0.9,val=0.1", "has part=tain; expected one of the shares: train, val"),
        ("split:train,train=1.5", "expected NAME=SHARE, each above 0, at most 1"),
        ("split:train,train=0.9,val=0.2", "sum to 1 or less"),
        ("split:train,train=0.5,train=0.4", "different names"),
        ("split:train,train=0.5,seed=1.5", "has seed=1.5; expected a whole number, 0 or more"),
        ("split:train,train=0.5,seed=1,seed=2", "is given seed twice"),
        ("subsample", "needs one of fraction, every, episodes; found none"),
        ("subsample:fraction=0.5,every=3", "found fraction=0.5, every=3"),
        ("subsample:fraction=0", "has fraction=0; expected a number above 0"),
        ("subsample:every=0", "has every=0; expected a whole number, 1 or more"),
        ("trim", "needs start, end or idle"),
        ("shift:action,by=0", "has by=0; expected a whole number from -1000 to 1000, not 0"),
        ("shift:by=1", "needs keys"),
        ("trim:start=-1", "has start=-1; expected a whole number, 0 or more"),
        ("trim:idle=-1", "has idle=-1; expected a number, 0 or more"),
        ("trim:idle=1,least=0", "has least=0; expected a whole number, 1 or more"),
        ("trim:start=1,inside=true", "has least or inside without idle"),
        ("trim:idle=1,inside=2", "has inside=2; expected true or false"),
        ("subsample:every=2,seed=-1", "has seed=-1; expected a whole number, 0 or more"),
    ],
)
def test_arguments_that_are_wrong(text: str, message: str) -> None:
    name = text.partition(":")[0]
    with pytest.raises(UsageError) as caught:
        parse_step(text)
    assert caught.value.message.startswith(f"Step {name!r} ")
    assert message in caught.value.message
    assert str(caught.value.shell_hint).replace("'", "").startswith(f"for example --step {name}")


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("cast", {"types": ()}, "needs a pair"),
        ("clip", {"keys": ("action",), "high": math.nan}, "has high=nan; expected a finite number"),
        ("clip", {"keys": ("action",), "high": "1"}, "has high=1; expected a finite number"),
        ("concat", {"sources": ("a",), "target": ""}, "needs leaves"),
        ("crop", {"height": None}, "has height=None; expected a whole number, 1 or more"),
        ("crop", {"height": True}, "has height=True; expected a whole number, 1 or more"),
        ("crop", {"height": 8, "keys": "obs"}, "has keys=obs; expected a tuple of names"),
        ("encode", {"keys": "obs"}, "has keys=obs; expected a tuple of names"),
        ("normalize", {"keys": ()}, "expected some leaves"),
        ("normalize", {"eps": math.inf}, "eps=inf; expected a finite number"),
        ("normalize", {"std": 1}, "std=1; expected true or false"),
        ("rename", {"names": ()}, "needs pairs"),
        ("reward_scale", {"scale": 10**400}, "expected a finite number"),
        ("reward_shift", {"shift": None}, "expected a finite number"),
        ("subsample", {"fraction": True}, "fraction=True; expected a number above 0, at most 1"),
        ("subsample", {"every": 2.5}, "expected a whole number"),
        ("to_chw", {"scale": 1}, "has scale=1; expected true or false"),
    ],
)
def test_fields_that_are_wrong(name: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        step_class(name)(**fields)


@pytest.mark.parametrize(
    "text",
    ["cast:{}=float16", "clip:{},low=1", "concat:{}→x", "exclude:{}", "flatten:{}", "normalize:{}",
     "rename:{}=x", "resample:1,source_fps=1,action=hold,{}=hold", "resize:8,{}", "select:{}", "to_chw:{}",
     "trim:idle=0,key={}"],
)  # fmt: skip
def test_a_leaf_that_is_not_there(text: str) -> None:
    with pytest.raises(StepError, match="No leaf is called 'observation") as caught:
        parse_step(text.format("observation.positoin")).settled(toy_chunk([1]))
    assert caught.value.shell_hint == "did you mean 'observation/position'?"
