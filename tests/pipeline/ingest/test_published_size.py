"""A raw file of another size than its source publishes is refused, unless changes are accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from offline_data import api
from offline_data.analysis.info import entry_info
from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError
from offline_data.base.ids import parse_id
from offline_data.fetch.files import RemoteFile
from offline_data.pipeline.ingest import Options, download, plan_download
from offline_data.project.requests import read_requests
from offline_data.store.library import entry_at, list_datasets
from tests.toys.d4rl import write_d4rl_hdf5

HOST = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
HOPPER = parse_id("d4rl:hopper-medium-v2")
PUBLISHED = 152_756_557


@pytest.fixture
def mirrored(settings: Settings, tmp_path: Path) -> Settings:
    """Settings with a mirror that has small files under published names."""
    for name in ("gym_mujoco_v2/hopper_medium-v2", "maze2d/maze2d-umaze-sparse-v1"):
        file = tmp_path / "mirror" / f"{name}.hdf5"
        file.parent.mkdir(parents=True)
        write_d4rl_hdf5(file)
    return replace(settings, mirrors=((HOST, f"{(tmp_path / 'mirror').as_uri()}/"),))


@pytest.mark.published_size
def test_a_file_of_another_size_is_refused(mirrored: Settings) -> None:
    with pytest.raises(IntegrityError, match=rf"bytes; published for .*: {PUBLISHED:,}") as refused:
        download(HOPPER, mirrored, Options())
    assert "--allow-changed" in str(refused.value.shell_hint)
    assert "allow_changed=True" in str(refused.value.hint)
    assert list_datasets(mirrored.root) == []
    made = api.download(str(HOPPER), allow_changed=True, settings=mirrored, progress=False)
    (file,) = entry_info(entry_at(made.path)).files
    assert file["size"] != PUBLISHED
    assert file["compared"] == "nothing, as changes were accepted"
    with pytest.raises(IntegrityError, match=f"{PUBLISHED:,}"):
        download(HOPPER, mirrored, Options(force=True))


@pytest.mark.published_size
def test_the_size_of_the_catalogue_is_planned(mirrored: Settings) -> None:
    plan = plan_download(HOPPER, replace(mirrored, mirrors=()), Options()).fetch
    assert plan is not None
    assert plan.wanted == PUBLISHED


@pytest.mark.published_size
def test_a_file_of_which_nothing_is_published_is_taken(mirrored: Settings) -> None:
    made = download(parse_id("d4rl:maze2d-umaze-v1"), mirrored, Options())
    assert [file["compared"] for file in made.manifest.files] == [
        "nothing, as nothing is published"
    ]


@pytest.mark.parametrize(
    ("size", "digest", "compared"),
    [
        (9, f"sha256:{'0' * 64}", "size and sha256"),
        (9, None, "size"),
        (None, f"md5:{'0' * 32}", "md5"),
        (None, None, "nothing, as nothing is published"),
    ],
)
def test_what_is_compared_is_said(size: int | None, digest: str | None, compared: str) -> None:
    assert RemoteFile("a", ("http://a/a",), size, digest).compared == compared


def test_a_project_may_accept_changes(tmp_path: Path) -> None:
    file = tmp_path / "datasets.toml"
    file.write_text(f'[datasets]\nhop = {{ id = "{HOPPER}", allow_changed = true }}\n')
    assert read_requests(file)["hop"].options.allow_changed
