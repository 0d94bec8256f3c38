"""What is at an address is a stranger's: it is verified before it is a dataset, or there is none."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError, ManifestError, NotFoundError, OfflineDataError
from offline_data.project.share.push import push_dataset
from offline_data.store.library import Entry
from offline_data.store.manifest import dump_manifest
from tests.cli.conftest import (
    Cli,
    cli,  # noqa: F401 - a fixture
)
from tests.slow import every_second
from tests.toys.hub import TOKEN, WritableHub
from tests.toys.servers import Answer, Fault, FileServer

TO = "hf://me/toy"
MANIFEST = "/toy/manifest.json"


@pytest.fixture
def web(toy: Entry, here: Settings, tmp_path: Path) -> Iterator[FileServer]:
    """A static server of a folder with a push, which is gone afterwards."""
    folder = tmp_path / "web"
    push_dataset(toy, str(folder), here)
    files = {
        f"/toy/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    shutil.rmtree(folder)
    with FileServer(files) as server:
        yield server


def signed(manifest: dict[str, Any]) -> bytes:
    """Return a manifest with the digest of itself."""
    manifest.pop("sha256", None)
    text = json.dumps({**manifest, "sha256": "0" * 64}, indent=1, ensure_ascii=False) + "\n"
    before, _, after = text.rpartition("0" * 64)
    return (before + hashlib.sha256(text.encode()).hexdigest() + after).encode()


def _leave(manifest: dict[str, Any]) -> None:
    manifest["digests"]["../../../../outside"] = manifest["digests"]["steps/rows.memmap"]


def _leave_by_root(manifest: dict[str, Any]) -> None:
    manifest["digests"]["/outside"] = manifest["digests"]["steps/rows.memmap"]


def _lie_about_a_size(manifest: dict[str, Any]) -> None:
    manifest["digests"]["text.json"]["size"] += 1


def _claim_a_huge_file(manifest: dict[str, Any]) -> None:
    manifest["digests"]["text.json"]["size"] = 1 << 60


def _lie_about_a_digest(manifest: dict[str, Any]) -> None:
    manifest["digests"]["text.json"]["sha256"] = "0" * 64


def _name_a_missing_file(manifest: dict[str, Any]) -> None:
    manifest["digests"]["steps/extra.memmap"] = manifest["digests"]["text.json"]


def _miscount(manifest: dict[str, Any]) -> None:
    manifest["counts"]["terminated"] = manifest["counts"].get("terminated", 0) + 1


def _have_no_id(manifest: dict[str, Any]) -> None:
    manifest["id"] = "../../x"


def _exchange_rows(manifest: dict[str, Any]) -> None:
    reward = next(
        leaf
        for leaf in manifest["schema"]["steps"]["leaves"]
        if leaf["key"] == ["next", "terminated"]
    )
    other = next(
        leaf
        for leaf in manifest["schema"]["steps"]["leaves"]
        if leaf["key"] == ["next", "truncated"]
    )
    reward["offset"], other["offset"] = other["offset"], reward["offset"]


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (_leave, ManifestError),
        (_leave_by_root, ManifestError),
        (_lie_about_a_size, IntegrityError),
        (_claim_a_huge_file, OfflineDataError),
        (_lie_about_a_digest, IntegrityError),
        (_name_a_missing_file, NotFoundError),
        (_miscount, IntegrityError),
        (_have_no_id, ManifestError),
        (_exchange_rows, IntegrityError),
    ],
)
def test_a_hostile_manifest(
    web: FileServer,
    elsewhere: Settings,
    tmp_path: Path,
    spoil: Callable[[dict[str, Any]], None],
    error: type[OfflineDataError],
) -> None:
    manifest = json.loads(web.files[MANIFEST])
    assert signed(dict(manifest)) == web.files[MANIFEST]
    spoil(manifest)
    right, web.files[MANIFEST] = web.files[MANIFEST], signed(manifest)
    with pytest.raises(error) as caught:
        offline_data.download(web.at("/toy"), settings=elsewhere)
    assert len(caught.value.message) > 20
    assert not list(elsewhere.root.glob("shared/**/manifest.json"))
    assert not list(tmp_path.glob("**/outside"))
    web.files[MANIFEST] = right
    assert offline_data.download(web.at("/toy"), settings=elsewhere).transitions == 44


def test_a_manifest_that_was_changed_by_hand(web: FileServer, elsewhere: Settings) -> None:
    web.files[MANIFEST] = web.files[MANIFEST].replace(b"local:toy@1", b"local:joy@1")
    with pytest.raises(IntegrityError, match="changed since it was written"):
        offline_data.download(web.at("/toy"), settings=elsewhere)


@pytest.mark.parametrize("status", every_second([401, 403, 404, 500, "half", "other bytes"]))
def test_a_server_that_fails_in_the_middle(
    web: FileServer, elsewhere: Settings, no_waits: None, status: Any
) -> None:
    path = "/toy/steps/rows.memmap"
    size = len(web.files[path])
    fault = {"half": Fault(cut_after=7), "other bytes": Fault(Answer(b"x" * size))}
    web.always(path, fault.get(status) or Fault(Answer(b"", status)))
    with pytest.raises(OfflineDataError) as caught:
        offline_data.download(web.at("/toy"), settings=elsewhere)
    assert "rows.memmap" in caught.value.message
    assert not list(elsewhere.root.glob("shared/**/manifest.json"))
    web.clear_script()
    assert offline_data.download(web.at("/toy"), settings=elsewhere).transitions == 44


def test_a_new_push_is_a_new_revision(
    toy: Entry, hub: WritableHub, here: Settings, elsewhere: Settings, tmp_path: Path
) -> None:
    first = push_dataset(toy, TO, here)
    old = offline_data.download(TO, settings=elsewhere)
    again = replace(toy.manifest, notes=(*toy.manifest.notes, "changed"))
    (toy.path / "manifest.json").write_text(dump_manifest(again))
    second = push_dataset(replace(toy, manifest=again), TO, here)
    assert offline_data.download(TO, settings=elsewhere).path == old.path
    new = offline_data.download(TO, settings=elsewhere, force=True)
    assert (old.id.revision, new.id.revision) == (first.revision, second.revision)
    kept = offline_data.download(
        f"{TO}@{first.revision}", settings=replace(elsewhere, root=tmp_path / "r")
    )
    assert kept.manifest.notes == old.manifest.notes


def test_a_private_repository_needs_its_token(
    toy: Entry, here: Settings, elsewhere: Settings
) -> None:
    push_dataset(toy, TO, here)
    with pytest.raises(NotFoundError, match="hub has no"):
        offline_data.download(TO, settings=replace(elsewhere, hub_token=None))


def test_repositories_of_something_else(
    hub: WritableHub, here: Settings, elsewhere: Settings
) -> None:
    hub._put("me/words", {"data.parquet": b"PAR1"})
    with pytest.raises(NotFoundError, match="not a dataset that was pushed") as caught:
        offline_data.download("hf://me/words", settings=elsewhere)
    assert "hf:OWNER/NAME" in str(caught.value.hint)


@pytest.mark.parametrize("kind", ["hub", "web"])
def test_lock_and_sync(
    toy: Entry,
    web: FileServer,
    here: Settings,
    elsewhere: Settings,
    tmp_path: Path,
    kind: str,
) -> None:
    push_dataset(toy, TO, here)
    address = TO if kind == "hub" else web.at("/toy")
    file = tmp_path / "project/datasets.toml"
    file.parent.mkdir()
    file.write_text(f'[datasets]\ntoy = "{address}"\n')
    (locked,) = offline_data.lock(file, settings=here).datasets
    assert str(locked.id).startswith(f"shared:{address}@")
    assert {one.path for one in locked.files} == {*toy.manifest.digests, "manifest.json"}
    (synced,) = offline_data.sync(file, locked=True, settings=elsewhere)
    assert synced.action == "download"
    assert offline_data.verify(synced.path, settings=elsewhere)
    (same,) = offline_data.sync(file, locked=True, settings=replace(elsewhere, offline=True))
    assert same.action == "none"
    offline_data.remove(synced.path, settings=elsewhere)
    changed = replace(toy.manifest, notes=("changed",))
    if kind == "web":  # an address keeps only the newest
        web.files[MANIFEST] = dump_manifest(changed).encode()
        with pytest.raises(NotFoundError, match="at revision"):
            offline_data.sync(file, locked=True, settings=elsewhere)
    else:
        (toy.path / "manifest.json").write_text(dump_manifest(changed))
        push_dataset(replace(toy, manifest=changed), TO, here)
        (synced,) = offline_data.sync(file, locked=True, settings=elsewhere)
        assert synced.id == locked.id


def test_a_pulled_dataset_is_pushed_on(
    toy: Entry, hub: WritableHub, here: Settings, elsewhere: Settings, tmp_path: Path
) -> None:
    push_dataset(toy, TO, here)
    stored = offline_data.download(TO, settings=elsewhere)
    offline_data.push(TO, tmp_path / "web", settings=elsewhere)
    third = replace(elsewhere, root=tmp_path / "third")
    again = offline_data.download(tmp_path / "web", settings=third)
    assert list(again.manifest.parents) == [str(stored.id)]
    assert again.manifest.digests == toy.manifest.digests
    ted = offline_data.download(tmp_path / "web", layout="ted", settings=third)
    assert (ted.layout, ted.transitions) == ("ted", 44)


def test_the_command_line(
    toy: Entry,
    hub: WritableHub,
    here: Settings,
    tmp_path: Path,
    cli: Cli,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    root = ("--root", str(here.root))
    planned = cli("push", "toy", TO, "--dry-run", "--json", *root).json
    assert planned["dry_run"]
    assert "manifest.json" in planned["sent"]
    assert not hub.asked("create")
    refused = cli("push", "toy", TO, "--public", *root)
    assert (refused.code, "no licence" in refused.err) == (2, True)
    public = ("push", "toy", TO, "--public", "--licence", "MIT", *root)
    unasked = cli(*public)
    assert (unasked.code, "--yes" in unasked.err) == (2, True)
    assert not hub.asked("create")
    pushed = cli("push", "toy", TO, *root)
    assert pushed.code == 0, pushed.err
    assert TOKEN not in f"{pushed.out} {pushed.err}"
    again = cli("push", "toy", TO, "-q", *root)
    assert (again.out, again.code) == (f"{TO}\n", 0)
    assert "already" in cli("push", "toy", TO, *root).out
    assert hub.private == {"me/toy": True}
    assert cli(*public, "--yes").code == 0
    assert hub.private == {"me/toy": False}
    other = ("--root", str(tmp_path / "other"))
    got = cli("download", TO, "--json", *other)
    assert (got.code, got.json[0]["transitions"]) == (0, 44)
    assert cli("info", TO, "--json", *other).json["parents"] == ["local:toy@1"]
    folder = str(tmp_path / "web")
    assert cli("push", "toy", folder, *root).code == 0
    assert cli("download", folder, *other).code == 0
    assert cli("download", "./nothing", *other).code == 3
    monkeypatch.setenv("HF_TOKEN", "wrong")
    wrong = cli("push", "toy", "hf://me/other", *root)
    assert (wrong.code, "hf auth login" in wrong.err) == (4, True)
    assert cli("push", "toy", TO, "--offline", *root).code == 6
