"""Functions through `ds.preprocess`: what lands on the disk is what a plain loop gives."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchrl.envs.transforms import (
    CatTensors,
    Compose,
    DoubleToFloat,
    ObservationNorm,
    RewardScaling,
    ToTensorImage,
)

import offline_data
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions import vectorize
from offline_data.testing.toy import toy_batch, write_toy

LENGTHS = [30, 1, 25, 7]


@pytest.fixture
def ds(tmp_path: Path) -> Any:
    write_toy(tmp_path / "toy", [toy_batch(LENGTHS, images=True, unknown_final=[2])])
    return offline_data.open_dataset(tmp_path / "toy")


def made(ds: Any, fn: Any, **calling: Any) -> Any:
    """Preprocess, and open what was written."""
    place = ds.data_path.parent / f"made-{len(list(ds.data_path.parent.iterdir()))}"
    ds.preprocess(fn, dest=place, **calling)
    return offline_data.open_dataset(place)


def how(found: Any) -> dict[str, Any]:
    """Return what the manifest says of the only step."""
    (step,) = found.manifest.converter["options"]["recipe"]
    return dict(step)


def assert_same_as_loop(fn: Any, ds: Any, found: Any) -> None:
    """Compare with what the function gives for every row of the dataset, to the bit."""
    rows, expected = found[:], [fn(ds[i].clone()) for i in range(len(ds))]
    for i, one in enumerate(expected):
        for key, value in one.items(include_nested=True, leaves_only=True):
            if key not in {"index", "episode"}:
                assert rows[i][key].dtype == value.dtype
                assert torch.equal(rows[i][key], value), (i, key)
    assert len(found) == len(ds)


def test_a_compose_of_torchrl(ds: Any) -> None:
    """As TorchRL's documentation has it; the transforms see the roots they are told of."""
    fn = Compose(
        RewardScaling(loc=0.25, scale=0.5, in_keys=[("next", "reward")]),
        DoubleToFloat(in_keys=[("next", "reward")]),
        ObservationNorm(
            loc=1.5, scale=2.0, in_keys=[("observation", "state")], standard_normal=True
        ),
        ObservationNorm(
            loc=1.5, scale=2.0, in_keys=[("next", "observation", "state")], standard_normal=True
        ),
        CatTensors(in_keys=[("observation", "state"), "action"], out_key="seen", del_keys=False),
        ToTensorImage(in_keys=[("observation", "image"), ("next", "observation", "image")]),
    )
    found = made(ds, fn)
    told = how(found)
    assert (told["name"], told["run"], told["unsteady"]) == ("Compose", "vectorised", "")
    assert told["two_copies"] == []
    assert_same_as_loop(fn, ds, found)


def test_cat_tensors_of_both(ds: Any) -> None:
    """The example of TorchRL's documentation: one copy of what it makes."""

    def fn(td: Any) -> Any:
        for root in (td, td["next"]):
            cat = CatTensors(
                in_keys=[("observation", "state"), ("info", "code")], out_key="all", sort=False
            )
            root["info", "code"] = root["info", "code"].reshape(1).float()
            cat(root)
        return td

    found = made(ds, fn)
    assert ("all",) in {leaf.key for leaf in found.manifest.tables["observations"].leaves}
    assert how(found)["two_copies"] == []
    assert_same_as_loop(fn, ds, found)


def test_it_starts_over_where_a_late_row_asks_for_it(
    ds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaves that are told apart in one row alone are stored twice in all of them."""
    monkeypatch.setattr(vectorize, "BLOCK", 1)

    def fn(td: Any) -> Any:
        after = td["next", "observation", "state"]
        code = td["next", "observation", "state"][0] == 3021  # next to the end of an episode
        td["next", "observation", "state"] = torch.where(code, after + 0.5, after)
        return td

    for layout in ("compact", "ted"):
        found = made(ds, fn, layout=layout)
        assert how(found)["two_copies"] == ["observation/state"]
        assert found.manifest.two_copies == (("observation", "state"),)
        assert any("observation/state: stored before and after" in x for x in found.manifest.notes)
        assert_same_as_loop(fn, ds, found)


def test_what_the_manifest_says(ds: Any) -> None:
    number = itertools.count(1)
    found = made(ds, lambda td: td.set("n", torch.tensor(next(number))))
    assert how(found)["run"] == "rows"
    assert any("may depend on the order of calls" in note for note in found.manifest.notes)
    found = made(ds, lambda td: {"x": td["action"] * 2})
    assert any("kept as they were" in note for note in found.manifest.notes)
    found = made(ds, lambda td: td.set("x", torch.tensor(bool(td["action"][0] < 0))))
    assert how(found)["why"] == "it looks at values to decide what to do"


def test_episodes(ds: Any) -> None:
    def fn(td: Any) -> Any:
        return td[1:-1].set("ago", torch.arange(1, len(td) - 1)) if len(td) > 10 else None

    found = made(ds, fn, by="episode")
    assert [len(found.episodes), len(found)] == [2, 51]
    rows = found[:]
    old = np.concatenate([np.arange(1, 29), np.arange(32, 55)])
    assert torch.equal(rows["observation", "state"], ds[:]["observation", "state"][old])
    assert torch.equal(
        rows["next", "observation", "image"], ds[:]["next", "observation", "image"][old]
    )
    assert rows["ago"].tolist() == [*range(1, 29), *range(1, 24)]
    assert rows["next", "truncated"].ravel().nonzero().ravel().tolist() == [27, 50]
    assert found.episodes["final_observation"].tolist() == [True, True]
    with pytest.raises(Exception, match="leaves no episode"):
        made(ds, lambda _: None, by="episode")


def test_workers_and_chunks_do_not_matter(ds: Any) -> None:
    def noisy(td: Any) -> Any:
        return td.set("action", td["action"] + torch.rand(1))

    expected = made(ds, noisy, seed=3)[:]["action"]
    for asked in ({"chunksize": 1}, {"chunksize": 9}, {"num_chunks": 2}, {"layout": "ted"}):
        assert torch.equal(made(ds, noisy, seed=3, **asked)[:]["action"], expected)
    assert not torch.equal(made(ds, noisy, seed=4)[:]["action"], expected)


def test_a_row_that_fails(ds: Any, tmp_path: Path) -> None:
    def fn(td: Any) -> Any:
        assert td["index"] != 40, "not this one"
        return td

    with pytest.raises(StepError) as error:
        made(ds, fn)
    assert error.value.message.startswith(
        "The function failed on row 40 (episode 2, step 9): AssertionError: not this one\nTraceback"
    )


def test_a_function_of_a_file(ds: Any, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "import torch\ndef double(td):\n    return td.set('action', torch.add(td['action'], td['action']))\n"
    )
    found = made(ds, f"fn:{tmp_path / 'torch.py'}:double")
    assert how(found)["name"] == "double"
    assert torch.equal(found[:]["action"], ds[:]["action"] * 2)
