"""All rules on real files: each finding is a defect that is there, and explained here."""

from __future__ import annotations

from pathlib import Path

import pytest

import offline_data
from offline_data.analysis.checks.registry import select_rules
from offline_data.analysis.checks.run import run_checks
from tests.pipeline.ingest.here import conversions_start_no_process, processes
from tests.remedy import assert_none

__all__ = ["conversions_start_no_process", "processes"]

UNSTATED = {"RL002", "RL003"}
"""Most of these files state neither licence nor citation."""

NO_LAST = "the source has no observation after the last action"
JPEG = "the source's cameras are JPEG"
COST = "the environment's reward is 1 for each step"
FAILED = "a random policy never reaches the goal"
FIRST = "stored with channels first"
CONTEXT = "the reward of the right label is 1"
CUT = "an excerpt of the table: columns are constant in it"
MISSING = "OpenML's tables have missing values"

EXPECTED: dict[str, dict[str, str]] = {
    "minari_door_human_v2/D4RL/door/human-v2": {},
    "minari_v043/cartpole-random-v0": {"RL041": COST},
    "minari_v043/pendulum-random-v0": {},
    "minari/classic/cartpole/random-hdf5-v0": {"RL041": COST},
    "minari/mujoco/hopper/random-hdf5-v0": {},
    "minari/mujoco/halfcheetah/random-parquet-v0": {},
    "minari/robotics/antmaze-umaze/random-hdf5-v0": {
        "RL021": "contact forces of a flying ant are 0",
        "RL022": "success is 0 throughout",
        "RL042": FAILED,
    },
    "minari/robotics/pointmaze-umaze/random-arrow-v0": {"RL042": FAILED},
    "minari/synth/dict/random-hdf5-v0": {},
    "minari/synth/img/random-hdf5-v0": {"RL053": "Minari compresses images as JPEG"},
    "minari/synth/imgchw/random-hdf5-v0": {"RL052": FIRST},
    "minari/synth/imgsmall/random-hdf5-v0": {"RL021": "grid cells: two of three channels unused"},
    "minari/synth/textdict/random-hdf5-v0": {"RL041": COST},
    "minari/toytext/frozenlake/random-hdf5-v0": {"RL042": FAILED},
    "minari/toytext/taxi/random-hdf5-v0": {},
    "fixtures_generated/d4rl/hopper_medium-v2.hdf5": {"RL005": "weights of the policy that acted"},
    "fixtures_generated/d4rl/hopper_medium_replay-v1.hdf5": {},
    "fixtures_generated/d4rl/hopper_mixed.hdf5": {"RL013": NO_LAST},
    "fixtures_generated/d4rl/door-human-v1.hdf5": {"RL013": NO_LAST},
    "fixtures_generated/d4rl/mini_kitchen_microwave_kettle_light_slider-v0.hdf5": {},
    "fixtures_generated/d4rl/minigrid4rooms_random.hdf5": {
        "RL022": "infos are not filled in",
        "RL042": FAILED,
    },
    "fixtures_generated/d4rl/maze2d-umaze-sparse-v1.hdf5": {
        "RL013": NO_LAST,
        "RL021": "one goal, and a wall that is never left",
    },
    "fixtures_generated/d4rl/"
    "Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse_fixed.hdf5": {
        "RL011": "the ant is at the goal when its time is over",
        "RL012": "terminals stay 1 while the ant is near the goal, and there is no reset",
        "RL013": NO_LAST,
    },
    "fixtures_generated/roboset/DKitchen_Sim_example-v3": {
        "RL005": "an empty array of the simulator",
        "RL022": "dense and sparse rewards are not filled in",
    },
    "fixtures_generated/gendgrl/bigfish.tar.xz": {"RL052": FIRST},
    "fixtures_generated/vd4rl/main/walker_walk/random/84px": {
        "RL021": "the discount is 1",
        "RL052": FIRST,
    },
    "atari_dqn_generated/Pong/1": {"RL013": NO_LAST},
    "rlds_tfds_generated/toy_robot": {
        "RL013": NO_LAST,
        "RL021": "the discount is 1, and an action is never taken",
        "RL053": JPEG,
    },
    "rlds_octo_bridge/bridge_dataset": {
        "RL013": NO_LAST,
        "RL021": "the discount is 1",
        "RL042": "demonstrations without a reward",
        "RL050": "image_3 is a camera that was not there",
        "RL053": JPEG,
        "RL060": "the excerpt has the same 25 episodes as train and as val",
    },
    "openml_sklearn/id_61/data-v1-dl-61.arff.gz": {"RL041": CONTEXT},
    "openml_sklearn/id_1/data-v1-dl-1.arff.gz": {"RL020": MISSING, "RL021": CUT, "RL041": CONTEXT},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_findings(realdata: Path, tmp_path: Path, name: str) -> None:
    split = "all" if name.startswith("rlds") else None
    stored = offline_data.convert(
        realdata / name, "real", root=tmp_path, progress=False, split=split
    )
    report = run_checks([stored.path], select_rules())
    found = {one.code for one in report.findings} - UNSTATED
    remedy = f"write true findings with their reason to EXPECTED[{name!r}], and remove others"
    assert_none(found ^ EXPECTED[name].keys(), remedy)
    if name.startswith(("minari", "fixtures_generated/d4rl/")) and "Ant_maze" not in name:
        assert report.at_least("error") == ()
    ds = offline_data.open_dataset(
        stored.path
    )  # no rule of spaces is expected anywhere: all is within
    assert ds.specs.is_in(ds[:])


def test_where_the_defects_of_bridge_are(realdata: Path, tmp_path: Path) -> None:
    path = realdata / "rlds_octo_bridge" / "bridge_dataset"
    stored = offline_data.convert(path, "bridge", root=tmp_path, progress=False, split="all")
    found = {one.code: one for one in run_checks([stored.path], select_rules()).findings}
    assert (found["RL050"].leaf, found["RL050"].severity) == ("observation/image_3", "error")
    assert (found["RL060"].episode, found["RL060"].count) == (25, 25)
