"""What a dataset says of itself, and what its methods share with functions and commands."""

from __future__ import annotations

import json
import pickle
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import numpy as np
import pytest
from numpy.typing import NDArray

import offline_data
from offline_data import Dataset
from offline_data.episode.fields import Key
from offline_data.errors import NotFoundError
from offline_data.testing.toy import toy_batch, write_toy

STATE = [1001.0, 1002, 1003, 2001, 3001, 3002]
"""Observations before the six actions of `toys([3, 1, 2])`."""


@pytest.fixture
def ds(toys: Callable[..., Path]) -> Dataset:
    return Dataset(toys([3, 1, 2]), 4)


def test_it_shows_id_steps_and_features(ds: Dataset) -> None:
    assert repr(ds).splitlines() == [
        f"Dataset local:toy@1 in {ds.data_path}",
        "6 steps in 3 episodes",
        "features: observation/state, info/code, action, next/reward and 2 more",
    ]
    view = ds.subset([0, 1, 5])
    assert repr(view).splitlines()[:2] == [
        f"DatasetView local:toy@1 in {ds.data_path}",
        "3 steps in 2 episodes",
    ]
    some = Dataset(ds.data_path, keys=["action"], split_trajs=True)
    assert repr(some).splitlines()[1:] == ["6 steps in 3 episodes", "features: action"]


def test_a_line_of_features_has_80_columns(tmp_path: Path) -> None:
    batch = toy_batch([2])
    more: dict[Key, Any] = {("info", f"feature {n}"): batch.steps["action",] for n in range(99)}
    write_toy(
        tmp_path / "toy", [replace(batch, steps={**batch.steps, **more})], dataset="minari:toy@1"
    )
    first, _, last = repr(Dataset(tmp_path / "toy")).splitlines()
    assert first == "Dataset minari:toy@1"
    assert len(last) <= 80
    assert last.endswith(" more")
    shown, others = last.removeprefix("features: ").removesuffix(" more").rsplit(" and ", 1)
    assert len(shown.split(", ")) + int(others) == 99 + 6


def test_torchrls_name_is_the_same_class(ds: Dataset) -> None:
    assert offline_data.BaseDatasetExperienceReplay is Dataset

    class Mine(offline_data.BaseDatasetExperienceReplay):
        pass

    mine = Mine(ds.data_path, 2)
    assert isinstance(mine, Dataset)
    assert repr(mine).startswith("Mine local:toy@1")
    copied = pickle.loads(pickle.dumps(ds))  # noqa: S301
    assert type(copied) is Dataset
    assert b"BaseDatasetExperienceReplay" not in pickle.dumps(ds)
    assert (copied["action"] == ds["action"]).all()


def test_statistics_are_those_of_the_rows(ds: Dataset) -> None:
    found = ds.stats()
    assert found["action"].mean == pytest.approx(-np.mean(STATE))  # type: ignore[union-attr]
    assert (found.transitions, found.episodes) == (6, 3)
    assert repr(found) == repr(ds.describe())
    part = ds.episodes_at([2]).stats(chunk=2)
    assert part["action"].mean == -3001.5  # type: ignore[union-attr]
    assert part.actions is not None
    assert part.actions.rows == 2


def test_statistics_answer_torchrls_keys_with_a_warning(ds: Dataset) -> None:
    growing = offline_data.TensorDictReplayBuffer(storage=offline_data.LazyTensorStorage(10))
    growing.extend(ds[:4])
    assert growing.stats() == {**growing.stats(), "size": 4, "capacity": 10, "utilization": 0.4}
    found = pickle.loads(pickle.dumps(ds.stats()))  # noqa: S301
    for key in growing.stats():
        with pytest.warns(DeprecationWarning, match=re.escape(f"ds.stats()[{key!r}]")):
            value = found[key]
        expected = {"size": 6, "capacity": 6, "utilization": 1.0, "write_count": 0}
        others = {"prefetch_queue_size": 0, "initialized": True}
        assert value == {**expected, **others}[key]
    with pytest.raises(NotFoundError, match="There is no feature 'sizes'"):
        _ = found["sizes"]


def test_checks_and_alignment_are_those_of_the_functions(ds: Dataset) -> None:
    every = ds.check()
    assert every == offline_data.check(ds.data_path, progress=False)
    code = every[0].code
    assert {finding.code for finding in ds.check(select=[code])} == {code}
    assert {finding.code for finding in ds.check(ignore=[code])} == {f.code for f in every} - {code}
    assert repr(ds.align(rows=5)) == repr(offline_data.align(ds.data_path, rows=5))
    assert ds.align(seed=3).shifts == {}


def test_the_first_transitions(ds: Dataset) -> None:
    def states(found: list[dict[str, Any]]) -> list[float]:
        return [one["values"]["observation/state"][0] for one in found]

    assert states(ds.head(20)) == STATE
    assert states(ds.head(2, episode=-1)) == STATE[4:]
    assert states(ds.head(1, episode=0)) == STATE[:1]
    view = ds.subset([5, 0, 1, 3])
    found = view.head(3)
    assert states(found) == [STATE[row] for row in (5, 0, 1)]
    assert [(one["index"], one["episode"], one["step"]) for one in found] == [
        *[(5, 2, 1), (0, 0, 0), (1, 0, 1)]
    ]
    assert states(view.head(episode=0)) == [STATE[5]]
    assert states(Dataset(ds.data_path, split_trajs=True).head(4)) == STATE[:4]
    with pytest.raises(IndexError, match="no episode 3"):
        ds.head(episode=3)
    shown = repr(ds.head(2)).splitlines()
    assert shown[0] == "episode 0, step 0, index 0"
    assert "next/reward 100.2" in [" ".join(line.split()) for line in shown]
    assert "<dd>100.2</dd>" in ds.head(1)._repr_html_()


def test_a_report_is_a_page_that_notebooks_show_in_a_frame(ds: Dataset, tmp_path: Path) -> None:
    page = ds.report(tmp_path / "new" / "report.html")
    assert (tmp_path / "new" / "report.html").read_text("utf-8") == page.html
    assert page.html.startswith("<!doctype html>")
    assert "local:toy@1" in page.html
    frame = page._repr_html_()
    assert re.findall(r"<(\w+)", frame) == ["iframe"]
    source = re.search(r'srcdoc="([^"]*)"', frame)
    assert source is not None
    assert unescape(source[1]) == page.html
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    assert page.save(tmp_path / "again.html").read_text("utf-8") == page.html
    assert re.fullmatch(r"Report of local:toy@1: a page of [\d.]+ .?iB; .*", repr(page))
    with pytest.raises(offline_data.errors.AccessError, match="cannot be written"):
        page.save(tmp_path)


@pytest.mark.parametrize("only", ["metadata", ["metadata", "features"]])
def test_a_report_has_the_parts_that_are_named(ds: Dataset, only: Any) -> None:
    sections = re.findall(r'<section id="(\w+)"', ds.report(only=only).html)
    assert sections == (["metadata"] if only == "metadata" else ["features", "metadata"])


@pytest.mark.slow
def test_a_page_that_is_not_written_has_2_mb_of_episodes(tmp_path: Path) -> None:
    batch, image = toy_batch([40] * 12, images=True), ("observation", "image")
    noise = np.random.default_rng(0).integers(0, 256, batch.observations[image].shape, np.uint8)
    noisy = replace(batch, observations={**batch.observations, image: noise})
    write_toy(tmp_path / "toy", [noisy], audit="none")
    ds = Dataset(tmp_path / "toy")
    inline, file = (len(ds.report(path).html) for path in (None, tmp_path / "whole.html"))
    assert 1 << 20 < inline < 2.5 * (1 << 20) < file


def test_an_episode_of_a_view_is_played_by_its_number_in_the_dataset(ds: Dataset) -> None:
    assert ds.view(0).title == "local:toy@1, episode 0"
    assert ds.view(-1).html == ds.view(2).html != ds.view(1).html
    view = ds.episodes_at([2, 0])
    assert view.view(0).html == ds.view(2).html
    assert view.view(-1).html == ds.view(0).html
    with pytest.raises(IndexError, match="no episode 2: there are 2"):
        view.view(2)


@pytest.mark.slow
def test_a_figure(ds: Dataset) -> None:
    pytest.importorskip("matplotlib")
    assert len(ds.plot().axes) == len(offline_data.plot(ds.data_path, progress=False).axes) > 3


def test_files_of_another_format(ds: Dataset, tmp_path: Path) -> None:
    def written(of: Dataset, name: str) -> NDArray[Any]:
        exported = of.export(tmp_path / name, to="npz", root=tmp_path / "root", progress=False)
        assert exported.path == tmp_path / name
        with np.load(tmp_path / name) as file:
            (key,) = (key for key in file if key.startswith("action"))
            return file[key][:, 0]  # type: ignore[no-any-return]

    assert written(ds, "all.npz").tolist() == [-value for value in STATE]
    assert written(ds.episodes_at([2]), "one.npz").tolist() == [-value for value in STATE[4:]]


def test_it_says_how_it_is_cited(ds: Dataset, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"local:toy@1 has no citation"):
        ds.cite()
    write_toy(tmp_path / "toy", [toy_batch([2])])
    file = tmp_path / "toy" / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "citation": "@misc{toy}"}))
    assert Dataset(tmp_path / "toy").cite() == "@misc{toy}"


def test_provenance_is_flat_and_the_same_in_both_layouts(
    ds: Dataset, toys: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = ds.provenance()
    assert json.loads(json.dumps(found)) == found
    digest = found.pop("content_digest")
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", str(digest))
    assert found == {
        "id": "local:toy@1",
        "revision": "1",
        "lock_digest": None,
        "recipe": None,
        "licence": None,
        "steps": 6,
        "episodes": 3,
        "view": None,
    }
    assert Dataset(toys([3, 1, 2], layout="ted")).provenance()["content_digest"] == digest
    assert Dataset(toys([3, 1, 3])).provenance()["content_digest"] != digest
    view, other = ds.episodes_at([2]).provenance(), ds.episodes_at([0]).provenance()
    assert (view["steps"], view["episodes"], view["content_digest"]) == (2, 1, digest)
    assert None is not view["view"] != other["view"]
    ds.preprocess("reward_scale:2", name="scaled", root=tmp_path / "root", progress=False)
    scaled = Dataset(next((tmp_path / "root").glob("**/scaled*/**/manifest.json")).parent)
    assert "reward_scale: scale=2" in str(scaled.provenance()["recipe"])


def test_pages_of_all_datasets_are_served_until_closed(tmp_path: Path) -> None:
    stored = offline_data.convert(
        [{"observations": np.eye(3), "actions": np.ones((2, 1)), "terminations": True}],
        "tiny",
        root=tmp_path,
        progress=False,
    )
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with offline_data.browse(open_browser=False, root=tmp_path) as pages:
        assert repr(pages) == f"Datasets of {tmp_path}: {pages.url}"
        assert f'href="{pages.url}"' in pages._repr_html_()
        opener.open(pages.url).close()  # it sets the cookie without which there is nothing to see
        assert stored.id.name in opener.open(urljoin(pages.url, "/")).read().decode()
    with pytest.raises(urllib.error.URLError):
        opener.open(pages.url)
