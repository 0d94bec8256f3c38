"""Nothing is replaced that is not a dataset, that a dataset is made of, or that was not named."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from offline_data.config import Settings
from offline_data.errors import AccessError, ManifestError, UsageError
from offline_data.preprocess.existing import check_same, is_there, older, refuse_itself
from offline_data.preprocess.options import Options, Target, target_of
from offline_data.store.library import entry_at
from tests.preprocess.runs import make, write_plain

CLIP = "clip:action,low=-5000"
OTHER = "clip:action,low=-6000"


def target(dest: Path, settings: Settings) -> Target:
    return target_of(None, dest, "r", settings)


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    return write_plain(tmp_path / "toy")


def test_the_same_dataset_is_there(parent: Path, tmp_path: Path, settings: Settings) -> None:
    found = make(parent, [CLIP], tmp_path / "out", settings)
    made_of = found.manifest.converter["options"]["fingerprint"]
    place = target(tmp_path / "out", settings)
    assert is_there(place, made_of, None)
    assert is_there(place, made_of, "compact")
    with pytest.raises(UsageError, match="another dataset"):
        is_there(place, made_of, "ted")
    with pytest.raises(UsageError, match="another dataset"):
        is_there(place, "0" * 64, None)
    assert not is_there(target(tmp_path / "none", settings), made_of, None)


def test_a_place_that_may_not_be_looked_at(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = target(tmp_path / "closed", settings)

    def refuse(path: Path, **_: Any) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as closed:
        for name in ("stat", "lstat"):
            closed.setattr(Path, name, refuse)
        with pytest.raises(AccessError, match="closed cannot be read: Permission denied"):
            is_there(place, "0" * 64, None)


def test_another_recipe_needs_force(parent: Path, tmp_path: Path, settings: Settings) -> None:
    make(parent, [CLIP], tmp_path / "out", settings)
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    with pytest.raises(UsageError, match="another dataset"):
        make(parent, [OTHER], tmp_path / "out", settings)
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before
    found = make(parent, [OTHER], tmp_path / "out", settings, force=True)
    assert found.manifest.converter["options"]["recipe"][0]["low"] == -6000


@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_dataset_stays(
    parent: Path, tmp_path: Path, settings: Settings, force: bool
) -> None:
    """`force` replaces datasets, not somebody's documents."""
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    (tmp_path / "file").write_text("more")
    for name in ("thesis", "file"):
        with pytest.raises(UsageError, match="is no dataset"):
            make(parent, [CLIP], tmp_path / name, settings, force=force)
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"
    assert (tmp_path / "file").read_text() == "more"


@pytest.mark.parametrize("force", [False, True])
def test_the_parent_stays(parent: Path, tmp_path: Path, settings: Settings, force: bool) -> None:
    link = tmp_path / "link"
    link.symlink_to(parent)
    for dest in (parent, link, tmp_path / "x" / ".." / "toy"):
        with pytest.raises(UsageError, match="cannot be replaced by what is made of it"):
            make(parent, [CLIP], dest, settings, force=force)
    with pytest.raises(UsageError, match="cannot be replaced"):
        make(link, [CLIP], parent, settings, force=force)
    with pytest.raises(UsageError, match="is inside the dataset"):
        make(parent, [CLIP], parent / "steps" / "new", settings, force=force)
    assert entry_at(parent).manifest.name == "toy"


@pytest.mark.parametrize("force", [False, True])
def test_a_dataset_does_not_take_the_name_of_its_parent(
    tmp_path: Path, settings: Settings, force: bool
) -> None:
    home = settings.root / "local" / "mine"
    write_plain(home / "1")
    place = target_of("mine", None, "2", settings)
    with pytest.raises(UsageError, match="cannot be replaced"):
        refuse_itself(entry_at(home / "1"), place)
    elsewhere = write_plain(tmp_path / "elsewhere")
    refuse_itself(entry_at(elsewhere), place)
    assert (older(place, settings.root, force=True) or entry_at(elsewhere)).path == home / "1"
    with pytest.raises(UsageError, match="already exists and was made by another recipe"):
        older(place, settings.root, force=False)


def test_a_damaged_dataset_can_be_replaced(settings: Settings) -> None:
    home = settings.root / "local" / "mine"
    (home / "2").mkdir(parents=True)
    (home / "2" / "manifest.json").write_text("{")
    place = target_of("mine", None, "2", settings)
    with pytest.raises(ManifestError):
        older(place, settings.root, force=False)
    assert older(place, settings.root, force=True) is None


def test_nothing_older(tmp_path: Path, settings: Settings) -> None:
    assert older(target_of("mine", None, "2", settings), settings.root, force=False) is None
    write_plain(settings.root / "local" / "mine" / "2")
    assert older(target_of("mine", None, "2", settings), settings.root, force=False) is None
    assert older(target(tmp_path / "mine", settings), settings.root, force=False) is None


def test_an_empty_folder_is_taken(parent: Path, tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "empty").mkdir()
    make(parent, [CLIP], tmp_path / "empty", settings)
    assert entry_at(tmp_path / "empty").id.name == "empty"


def test_a_link_to_an_empty_folder_stays_a_link(
    parent: Path, tmp_path: Path, settings: Settings
) -> None:
    (tmp_path / "big" / "disk").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "big" / "disk")
    found = make(parent, [CLIP], tmp_path / "link", settings)
    assert found.path == tmp_path / "big" / "disk"
    assert (tmp_path / "link").is_symlink()
    assert entry_at(tmp_path / "link").id.name == "disk"


def test_folders_that_cannot_be_replaced(
    parent: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UsageError, match="is in use"):
        make(parent, [CLIP], Path(), settings)
    make(parent, [CLIP], Path("below"), settings)
    assert (tmp_path / "here" / "below" / "manifest.json").exists()
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda _: True)
    monkeypatch.setattr(Path, "is_mount", lambda _: True)
    with pytest.raises(UsageError, match="is in use"):
        make(parent, [CLIP], tmp_path / "disk", settings)


def test_what_a_stopped_run_wrote_must_fit() -> None:
    saved: dict[str, Any] = {"layout": "ted", "in_place": True}
    check_same(saved, Options(), shares_files=True)
    check_same(saved, Options(layout="ted"), shares_files=True)
    check_same({**saved, "in_place": False}, Options(), shares_files=False)
    with pytest.raises(UsageError, match="writes layout 'ted', not 'compact'"):
        check_same(saved, Options(layout="compact"), shares_files=True)
    with pytest.raises(UsageError, match="cannot go on on several"):
        check_same(saved, Options(), shares_files=False)


def test_a_parent_that_is_gone(parent: Path, tmp_path: Path, settings: Settings) -> None:
    from offline_data.errors import NotFoundError

    shutil.rmtree(parent)
    with pytest.raises(NotFoundError):
        make(parent, [CLIP], tmp_path / "out", settings)
