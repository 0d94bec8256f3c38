"""Every built-in step holds to the contract of steps, and says what is wrong with its arguments."""

from __future__ import annotations

import numpy as np
import pytest

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
    "encode:observation.pixels,format=h264,keyframes=3",
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
