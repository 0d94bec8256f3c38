"""What holds for every format: leaves are written or listed as lost, nothing is left half-written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import NoSpaceError, UsageError
from offline_data.episode.fields import TERMINATED, TRUNCATED, join_key
from offline_data.formats.writing.base import TARGETS, get_target
from offline_data.pipeline.export import run
from tests.pipeline.export.conftest import BATCHES
from tests.slow import slow_but

Store = Callable[[str], Path]
QUICK = {"d4rl", "parquet", "rlds"}
"""A file, a folder, and a folder of several files of rows."""


def destination(folder: Path, to: str) -> Path:
    """Return a place for an export."""
    return folder / f"out-v0{get_target(to).suffix}"


def export(path: Path, dest: Path, to: str, settings: Settings, **options: Any) -> Any:
    """Export with an observation chosen where the format holds one."""
    nested = not get_target(to).holds.nested and "nested" in path.name
    observation = "observation/state" if nested or "some" in path.name else None
    if get_target(to).holds.nested:
        observation = None
    return offline_data.export(
        path, dest, to=to, observation=observation, settings=settings, progress=False, **options
    )


@pytest.mark.parametrize(
    ("to", "name"),
    slow_but(
        lambda to, name: ([*TARGETS].index(to) + [*BATCHES].index(name)) % 3 == 0, TARGETS, BATCHES
    ),
)
def test_every_leaf_is_written_or_listed_as_lost(
    to: str, name: str, stored: Store, settings: Settings, tmp_path: Path
) -> None:
    path, dest = stored(name), destination(tmp_path, to)
    try:
        planned = export(path, dest, to, settings, dry_run=True)
    except UsageError as error:
        assert "needs rewards" in str(error), error  # noqa: PT017 - other errors are raised below
        assert get_target(to).holds.rewards == "required"
        return
    assert not dest.exists()
    done = export(path, dest, to, settings)
    assert done.losses == planned.losses
    assert done.compared > 0
    batch = BATCHES[name]()
    leaves = {*batch.steps, *batch.observations} - {TERMINATED, TRUNCATED}
    said = " ".join(loss.leaf for loss in done.losses)
    target = get_target(to)
    read = target.read(dest, _job(path, to))
    found = [one for shard in read.shards() for one in read.read(shard)]
    there = sum(len(one.lengths) for one in found)
    assert there == len(batch.lengths)
    lost = sum(join_key(key) in said for key in leaves)
    columns = {key for one in found for key in (*one.steps, *one.observations)}
    assert (
        len(columns - {TERMINATED, TRUNCATED} - ({k for _, k in target.added} - leaves))
        >= len(leaves) - lost
    )


def _job(path: Path, to: str) -> Any:
    from offline_data.formats.writing.base import ExportOptions
    from offline_data.formats.writing.episodes import ExportedEpisodes, ExportMember
    from offline_data.formats.writing.plan import plan_export
    from offline_data.store.reader import open_reader

    reader = open_reader(path)
    one = (
        ("observation", "state") if ("observation", "state") in reader.observation_leaves else None
    )
    options = ExportOptions(observation=None if get_target(to).holds.nested else one)
    return plan_export(
        ExportedEpisodes((ExportMember.of(reader),)), get_target(to), options, Path("out-v0")
    )[0]


@pytest.mark.parametrize("to", slow_but(QUICK.__contains__, TARGETS))
def test_a_second_export_of_the_same_data_writes_nothing(
    to: str, stored: Store, settings: Settings, tmp_path: Path
) -> None:
    path, dest = stored("flat"), destination(tmp_path, to)
    export(path, dest, to, settings)
    files = dest.rglob("*") if dest.is_dir() else [dest]
    before = {file: file.stat().st_mtime_ns for file in files}
    again = export(path, dest, to, settings)
    assert again.existed
    assert before == {file: file.stat().st_mtime_ns for file in before}
    other = export(stored("odd ends"), dest, to, settings)
    assert not other.existed


@pytest.mark.parametrize("to", slow_but(QUICK.__contains__, TARGETS))
def test_a_receipt_has_the_digests_of_all_files(
    to: str, stored: Store, settings: Settings, tmp_path: Path, processes: None
) -> None:
    import hashlib

    path, dest = stored("flat"), destination(tmp_path, to)
    export(path, dest, to, settings)
    place = dest / "export.json" if dest.is_dir() else dest.with_name(f"{dest.name}.export.json")
    receipt = json.loads(place.read_text())
    folder = dest if dest.is_dir() else dest.parent
    for name, entry in receipt["files"].items():
        content = (folder / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (
            entry["size"],
            entry["sha256"],
        )
    if dest.is_dir():
        there = {file.relative_to(dest).as_posix() for file in dest.rglob("*") if file.is_file()}
        assert there == {*receipt["files"], "export.json"}
    assert receipt["of"]["datasets"][0]["id"] == "local:flat@1"
    assert receipt["of"]["datasets"][0]["content"].startswith("sha256:")


@pytest.mark.parametrize("to", TARGETS)
def test_a_full_disk_leaves_the_older_export(
    to: str, stored: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest = destination(tmp_path, to)
    export(stored("flat"), dest, to, settings)
    before = {one: one.read_bytes() for one in tmp_path.rglob("out*") if one.is_file()}

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run, "prove", full)
    with pytest.raises(NoSpaceError):
        export(stored("odd ends"), dest, to, settings)
    assert before == {one: one.read_bytes() for one in tmp_path.rglob("out*") if one.is_file()}
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".out")]


@pytest.mark.parametrize("to", TARGETS)
def test_strict_refuses_what_would_be_lost(
    to: str, stored: Store, settings: Settings, tmp_path: Path
) -> None:
    path, dest = stored("nested"), destination(tmp_path, to)
    if not export(path, dest, to, settings, dry_run=True).losses:
        export(path, dest, to, settings, strict=True)
        return
    with pytest.raises(UsageError, match="cannot hold all of"):
        export(path, dest, to, settings, strict=True)
    assert not dest.exists()


@pytest.mark.parametrize("to", TARGETS)
def test_other_files_and_links_are_not_replaced(
    to: str, stored: Store, settings: Settings, tmp_path: Path
) -> None:
    path, dest = stored("flat"), destination(tmp_path, to)
    other = tmp_path / "other"
    other.mkdir()
    dest.symlink_to(other)
    with pytest.raises(UsageError, match="is a link"):
        export(path, dest, to, settings)
    dest.unlink()
    if get_target(to).suffix:
        dest.write_text("mine")
    else:
        dest.mkdir()
        (dest / "mine").write_text("mine")
    with pytest.raises(UsageError, match="was not written by `export`"):
        export(path, dest, to, settings)
    assert (dest if dest.is_file() else dest / "mine").read_text() == "mine"


def test_names_of_formats_and_files(stored: Store, settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a format of `export`") as caught:
        offline_data.export(stored("flat"), tmp_path / "x", to="d4lr", settings=settings)
    assert caught.value.hint == "did you mean d4rl?"
    with pytest.raises(UsageError, match=r"does not end in \.hdf5") as caught:
        offline_data.export(stored("flat"), tmp_path / "x.h5", to="d4rl", settings=settings)
    assert caught.value.hint == "name it x.hdf5"


def test_an_option_of_another_format_is_refused(
    stored: Store, settings: Settings, tmp_path: Path
) -> None:
    for name, value in (("fps", 3.0), ("video", "none"), ("observation", "observation")):
        given: Any = {name: value}
        with pytest.raises(UsageError, match=f"parquet has no option --{name}"):
            offline_data.export(
                stored("flat"), tmp_path / "x", to="parquet", settings=settings, **given
            )
    assert not (tmp_path / "x").exists()


def test_the_root_and_folders_with_files_of_others_are_not_written_to(
    stored: Store, settings: Settings, tmp_path: Path
) -> None:
    path = stored("flat")
    (tmp_path / "up").symlink_to(settings.root)
    for dest in (settings.root, settings.root / "local" / "new", tmp_path / "up" / "new"):
        with pytest.raises(UsageError, match="is in the root, where the datasets are"):
            export(path, dest, "parquet", settings)
    with pytest.raises(UsageError, match="cannot be replaced"):
        export(path, Path("/"), "parquet", settings)
    dest = tmp_path / "out"
    export(path, dest, "parquet", settings)
    (dest / "mine").write_text("mine")
    assert export(path, dest, "parquet", settings).existed
    with pytest.raises(UsageError, match="has files that are not of its export, such as mine"):
        export(stored("odd ends"), dest, "parquet", settings)
    assert (dest / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    "files",
    [{"/etc/passwd": {"size": 1, "sha256": "0" * 64}}, {"../x": 3}, [], {"x": {"size": -1}}],
)
def test_a_receipt_of_a_stranger(
    files: Any, stored: Store, settings: Settings, tmp_path: Path
) -> None:
    path, dest = stored("flat"), tmp_path / "out"
    export(path, dest, "parquet", settings)
    receipt = json.loads((dest / "export.json").read_text())
    (dest / "export.json").write_text(json.dumps({**receipt, "files": files}))
    with pytest.raises(UsageError, match="was not written by `export`"):
        export(path, dest, "parquet", settings)


def test_a_receipt_has_the_step_of_a_saved_view(
    stored: Store, settings: Settings, tmp_path: Path
) -> None:
    path = stored("flat")
    ds = offline_data.open_dataset(path)
    ds.filter("length > 2").save("long", recipe=[{"step": "filter", "where": "length > 2"}])
    loaded = ds.saved_view("long")
    for data, name in ((path, "long"), (loaded, None)):
        dest = tmp_path / str(name)
        offline_data.export(data, dest, to="parquet", view=name, settings=settings, progress=False)
        steps = json.loads((dest / "export.json").read_text())["history"][0]
        assert [(step["action"], step["id"]) for step in steps] == [
            ("convert", "local:flat@1"),
            ("view", "long"),
        ]
        assert steps[-1]["recipe"] == [{"step": "filter", "where": "length > 2"}]


def test_several_observations_must_be_chosen_from(
    stored: Store, settings: Settings, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="has 3 features: observation/image, observation/mission"):
        offline_data.export(stored("nested"), tmp_path / "x.hdf5", to="d4rl", settings=settings)


def test_a_view_is_exported_with_its_pieces_cut(
    stored: Store, settings: Settings, tmp_path: Path
) -> None:
    ds = offline_data.open_dataset(stored("flat"))
    view = ds.subset(range(5, 9))  # rows 1 to 4 of the episode that begins at row 4
    dest = tmp_path / "view.hdf5"
    done = offline_data.export(view, dest, to="d4rl", settings=settings, progress=False)
    assert (done.transitions, done.episodes) == (4, 1)
    with h5py.File(dest) as file:
        np.testing.assert_array_equal(file["observations"][:, 0], [3002.0, 3003, 3004, 3005])
        np.testing.assert_array_equal(file["next_observations"][:, 0], [3003.0, 3004, 3005, 3006])
        assert file["terminals"][:].tolist() == [False, False, False, True]
    with pytest.raises(UsageError, match="The view is empty"):
        offline_data.export(ds.episodes_at([]), dest, to="d4rl", settings=settings, force=True)


def test_a_mixture_is_exported_as_the_episodes_of_its_members_once(
    stored: Store, settings: Settings, tmp_path: Path
) -> None:
    one = offline_data.open_dataset(stored("flat"))
    other = offline_data.open_dataset(stored("odd ends"))
    mixture = offline_data.DatasetMixture(one, other, batch_size=4)
    dest = tmp_path / "mixed.hdf5"
    done = offline_data.export(mixture, dest, to="d4rl", settings=settings, progress=False)
    assert (done.transitions, done.episodes) == (22, 8)
    with h5py.File(dest) as file:
        np.testing.assert_array_equal(file["actions"][:11], file["actions"][11:])


def test_datasets_of_different_leaves_are_refused(
    stored: Store, settings: Settings, tmp_path: Path
) -> None:
    members = [offline_data.open_dataset(stored(name)) for name in ("flat", "discrete")]
    ensemble = offline_data.ReplayBufferEnsemble(*members, batch_size=4)
    with pytest.raises(UsageError, match=r"differ in feature 'action': float32.1. and int64"):
        offline_data.export(ensemble, tmp_path / "x.hdf5", to="d4rl", settings=settings)
