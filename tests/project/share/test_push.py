"""What is pushed arrives byte by byte, only what is missing is sent, and nobody sees it unasked."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import (
    AuthError,
    IntegrityError,
    InvalidIdError,
    NetworkError,
    NotFoundError,
    OfflineDataError,
    OfflineError,
    UsageError,
)
from offline_data.project.share.push import push_dataset
from offline_data.store.history import history_of
from offline_data.store.library import Entry, entry_at, has_manifest
from offline_data.store.manifest import dump_manifest
from offline_data.store.reader import open_reader
from tests.slow import slow_but
from tests.toys.hub import TOKEN, WritableHub
from tests.toys.servers import Answer, Fault, FileServer

REPO = "me/toy"
TO = f"hf://{REPO}"
COMMIT = f"/api/datasets/{REPO}/commit/main"


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_same_data(pulled: Path, pushed: Path) -> None:
    """Assert equal bytes of all files, equal manifests but for id and files, and equal transitions."""
    mine, theirs = files_of(pushed), files_of(pulled)
    old, new = mine.pop("manifest.json"), theirs.pop("manifest.json")
    assert theirs == mine
    before, after = entry_at(pushed).manifest, entry_at(pulled).manifest
    assert old != new
    assert replace(
        after,
        **{name: getattr(before, name) for name in ("id", "source", "name", "revision", "files")},
        parents=before.parents,
        history=before.history,
        converter=before.converter,
        extra=before.extra,
    ) == replace(before)
    *earlier, last = after.history
    assert [(one.action, one.id) for one in earlier] == [
        (one.action, one.id) for one in history_of(before)
    ]
    assert (last.action, last.id, last.parents) == ("download", after.id, (before.id,))
    options = {"episodes", "checkpoints"}  # of the conversion: not of what is here
    kept = {k: v for k, v in before.converter.get("options", {}).items() if k not in options}
    assert {**after.converter, "options": kept} == {**before.converter, "options": kept}
    assert after.converter.get("options", {}) == kept
    rows = np.arange(before.counts["transitions"])
    wanted, found = (open_reader(path).transitions_at(rows) for path in (pushed, pulled))
    assert wanted.keys() == found.keys()
    for key, values in wanted.items():
        np.testing.assert_array_equal(np.asarray(found[key]), np.asarray(values))


def test_a_push_to_the_hub_is_private_and_comes_back(
    toy: Entry, hub: WritableHub, here: Settings, elsewhere: Settings
) -> None:
    pushed = push_dataset(toy, TO, here)
    assert hub.private == {REPO: True}
    there = dict(hub.files(REPO))
    assert there.pop(".gitattributes")
    card = there.pop("README.md").decode()
    assert there.pop("README.webp")[:4] == b"RIFF"
    assert "![Preview](README.webp)" in card
    assert there == files_of(toy.path)
    header = yaml.safe_load(card.split("---\n")[1])
    assert header["license"] == "unknown"
    assert f'load_dataset("{TO}")' in card
    assert pushed.revision == hub.head(REPO)
    assert (pushed.to, pushed.existed, pushed.public) == (TO, False, False)
    stored = offline_data.download(TO, settings=elsewhere)
    assert str(stored.id) == f"shared:{TO}@{pushed.revision}"
    assert_same_data(stored.path, toy.path)
    assert offline_data.verify(TO, settings=elsewhere)
    info = offline_data.info(TO, settings=elsewhere)
    assert list(info.parents) == ["local:toy@1"]  # type: ignore[union-attr]
    urls = {str(file["url"]) for file in info.files}  # type: ignore[union-attr]
    assert all(url.startswith(f"hf://datasets/{REPO}@{pushed.revision}/") for url in urls)
    asked = len(hub.requests)
    assert offline_data.download(TO, settings=replace(elsewhere, offline=True)).existed
    assert len(hub.requests) == asked
    for folder in (here.root, elsewhere.root):
        assert not any(TOKEN.encode() in content for content in files_of(folder).values())
    assert not any(TOKEN.encode() in content for content in hub.files(REPO).values())


def test_what_is_there_is_not_sent_again(toy: Entry, hub: WritableHub, here: Settings) -> None:
    first = push_dataset(toy, TO, here)
    hub.requests.clear()
    again = push_dataset(toy, TO, here)
    assert {request.method for request in hub.requests} == {"GET"}
    assert (again.existed, again.sent, again.bytes, again.revision) == (True, (), 0, first.revision)


def test_a_changed_dataset_sends_what_changed_and_removes_what_is_gone(
    toy: Entry, hub: WritableHub, here: Settings, elsewhere: Settings
) -> None:
    push_dataset(toy, TO, here)
    old, sent = set(hub.files(REPO)), len(hub.uploads)
    options: dict[str, Any] = {"settings": here, "progress": False}
    episode = {"observations": np.eye(3), "actions": np.ones((2, 1)), "terminations": True}
    stored = offline_data.convert([episode], "other", **options)
    plan = offline_data.push("local:other", TO, dry_run=True, **options)
    assert len(hub.uploads) == sent
    pushed = offline_data.push("local:other", TO, **options)
    assert pushed.sent == plan.sent
    gone = old - set(hub.files(REPO))
    assert "text.json" in gone
    assert not any(name.endswith(".memmap") and "pixels" in name for name in hub.files(REPO))
    assert {".gitattributes", "README.md"} <= set(hub.files(REPO))
    assert_same_data(offline_data.download(TO, settings=elsewhere).path, stored.path)


def test_an_interrupted_push_sends_only_what_is_missing(
    toy: Entry, hub: WritableHub, here: Settings
) -> None:
    large = [f"/upload/{d['sha256']}" for d in toy.manifest.digests.values() if d["size"] >= 256]
    hub.always(large[-1], Fault(Answer(b"", 500)))
    with pytest.raises(NetworkError, match="500") as caught:
        push_dataset(toy, TO, here)
    assert "hush" not in str(caught.value)
    before = len(hub.uploads)
    assert before
    assert "manifest.json" not in hub.files(REPO)
    hub.clear_script()
    push_dataset(toy, TO, here)
    assert len(hub.uploads) == len(set(hub.uploads))
    assert {name: hub.files(REPO)[name] for name in toy.manifest.digests} == {
        name: (toy.path / name).read_bytes() for name in toy.manifest.digests
    }


@pytest.mark.slow  # by default, the hub ends it
def test_a_killed_push_goes_on(toy: Entry, hub: WritableHub, here: Settings) -> None:
    held = max(toy.manifest.digests.values(), key=lambda digest: int(digest["size"]))
    hub.script(f"/upload/{held['sha256']}", Fault(stall_after=0, claimed_length=5))
    code = (
        "import sys; from offline_data_cli.main import main; "
        f"sys.exit(main(['push', 'local:toy', '{TO}', '--root', '{here.root}']))"
    )
    environ = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
    child = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", code],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    end = time.monotonic() + 60
    while not (asked := hub.asked(f"/upload/{held['sha256']}")) and time.monotonic() < end:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL if asked else signal.SIGABRT)  # which prints where it is
    said = child.communicate()[0].decode()
    if not asked:
        pytest.fail("\n".join([said, *(request.path for request in hub.requests)]))
    assert child.returncode == -signal.SIGKILL
    assert "manifest.json" not in hub.files(REPO)
    push_dataset(toy, TO, here)
    assert "manifest.json" in hub.files(REPO)
    assert offline_data.verify("local:toy", settings=here)


STATUSES: dict[Any, type[OfflineDataError]] = {
    401: AuthError,
    403: AuthError,
    404: NotFoundError,
    409: NetworkError,
    412: NetworkError,
    500: NetworkError,
}


ANSWERS = [*STATUSES, "half", "nonsense"]
PLACES = ["preupload/main", "commit/main", "batch", "", "create"]


def is_quick(where: str, status: Any) -> bool:
    """Whether it is run by default: each status and each place, and where another error is raised."""
    special = (where, status) in {("", 404), ("commit/main", "half")}
    return special or (PLACES.index(where) + ANSWERS.index(status)) % 3 == 0


@pytest.mark.parametrize(("where", "status"), slow_but(is_quick, PLACES, ANSWERS))
def test_a_hub_that_refuses(
    toy: Entry, hub: WritableHub, here: Settings, status: Any, where: str
) -> None:
    if where != "create":
        push_dataset(toy, TO, here)
        hub.objects.clear()
        toy = entry_at(shutil.copytree(toy.path, here.root / "local/toy/2"))
        changed = replace(toy.manifest, notes=("other",) * 40)
        (toy.path / "manifest.json").write_text(dump_manifest(changed))
        toy = entry_at(toy.path)
    head = hub.head(REPO) if where != "create" else None
    fault = {
        "half": Fault(cut_after=3),
        "nonsense": Fault(Answer(b'{"files": 3, "objects": [3]}')),
    }.get(status) or Fault(Answer(b'{"error": "no"}', status))
    path = {
        "batch": f"/datasets/{REPO}.git/info/lfs/objects/batch",
        "create": "/api/repos/create",
        "": f"/api/datasets/{REPO}",
    }.get(where, f"/api/datasets/{REPO}/{where}")
    hub.always(path, fault)
    expected: Any = STATUSES.get(status, OfflineDataError)
    if (where, status) == ("", 404):  # as if there were none: then it cannot be created
        expected = NetworkError
    if (where, status) == ("commit/main", "half"):  # it was made, and only the answer was lost
        assert push_dataset(toy, TO, here).revision == hub.head(REPO) != head
        return
    with pytest.raises(expected) as caught:
        push_dataset(toy, TO, here)
    assert len(caught.value.message) > 20
    assert TOKEN not in f"{caught.value} {caught.value.hint}"
    hub.clear_script()
    assert head is None or hub.head(REPO) == head
    push_dataset(toy, TO, here)
    assert hub.files(REPO)["manifest.json"] == (toy.path / "manifest.json").read_bytes()


def test_a_commit_of_somebody_else_is_not_overwritten(
    toy: Entry, hub: WritableHub, here: Settings, tmp_path: Path
) -> None:
    push_dataset(toy, TO, here)
    hub.files(REPO)  # somebody commits between the question and our commit
    (toy.path / "manifest.json").write_text(
        dump_manifest(replace(toy.manifest, notes=("changed",)))
    )

    def meanwhile(request: Any, answer: Answer) -> Any:
        del request
        yield (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n".encode()
            + answer.body
        )
        hub._put(REPO, {**hub.files(REPO), "theirs.txt": b"theirs"})

    hub.script(f"/api/datasets/{REPO}", Fault(wire=meanwhile))
    with pytest.raises(NetworkError, match="someone else"):
        push_dataset(entry_at(toy.path), TO, here)
    assert hub.files(REPO)["theirs.txt"] == b"theirs"


def test_public_needs_a_licence_that_allows_it(
    toy: Entry, hub: WritableHub, here: Settings
) -> None:
    for licence, message in (
        (None, "no licence"),
        ("CC-BY-ND-4.0", "redistribution"),
        ("ask the author", "redistribution"),
    ):
        with pytest.raises(UsageError, match=message):
            push_dataset(toy, TO, here, public=True, licence=licence)
    assert not hub.asked("create")
    pushed = push_dataset(toy, TO, here, public=True, licence="CC-BY-4.0")
    assert hub.private == {REPO: False}
    assert pushed.public
    assert b'"licence": "CC-BY-4.0"' in hub.files(REPO)["manifest.json"]
    assert b"license: cc-by-4.0" in hub.files(REPO)["README.md"]
    assert entry_at(toy.path).manifest.licence is None
    with pytest.raises(UsageError, match="is public"):  # not by accident into a public one
        push_dataset(toy, TO, here)
    assert push_dataset(toy, TO, here, public=True, licence="CC-BY-4.0").existed


def test_a_repository_becomes_public_after_the_commit(
    toy: Entry, hub: WritableHub, here: Settings
) -> None:
    hub.always(COMMIT, Fault(Answer(b"", 500)))
    with pytest.raises(NetworkError):
        push_dataset(toy, TO, here, public=True, licence="MIT")
    assert hub.private == {REPO: True}
    hub.clear_script()
    push_dataset(toy, TO, here, licence="MIT")
    assert hub.private == {REPO: True}
    push_dataset(toy, TO, here, public=True, licence="MIT")
    assert hub.private == {REPO: False}


def test_a_stated_licence_is_not_overruled(toy: Entry, hub: WritableHub, here: Settings) -> None:
    stated = replace(toy, manifest=replace(toy.manifest, licence="CC-BY-NC-ND-4.0"))
    with pytest.raises(UsageError, match="source states"):
        push_dataset(stated, TO, here, licence="MIT")
    assert not hub.requests


def test_damage_is_found_before_anything_is_sent(
    toy: Entry, hub: WritableHub, here: Settings, tmp_path: Path
) -> None:
    file = toy.path / "steps/rows.memmap"
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)
    for to in (TO, str(tmp_path / "out")):
        with pytest.raises(IntegrityError, match=r"rows\.memmap"):
            push_dataset(toy, to, here)
    assert not hub.asked("create")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["hf://me", "hf://a/b/c", "hf://../x", "hf://me/x@1"])
def test_what_is_no_repository(toy: Entry, hub: WritableHub, here: Settings, to: str) -> None:
    with pytest.raises(InvalidIdError):
        push_dataset(toy, to, here)
    assert not hub.requests


def test_names_that_look_like_those_of_minari(
    toy: Entry, here: Settings, elsewhere: Settings
) -> None:
    pushed = push_dataset(toy, "hf://me/toy-v1", here)
    assert pushed.to == "shared:hf://me/toy-v1"
    assert_same_data(offline_data.download(pushed.to, settings=elsewhere).path, toy.path)


def test_offline_and_web_servers(toy: Entry, hub: WritableHub, here: Settings) -> None:
    with pytest.raises(OfflineError):
        push_dataset(toy, TO, replace(here, offline=True))
    with pytest.raises(UsageError, match="cannot be written"):
        push_dataset(toy, "https://host/x", here)
    with pytest.raises(UsageError, match="public"):
        push_dataset(toy, "somewhere", here, public=True)


def test_a_folder_and_a_web_server(
    toy: Entry, here: Settings, elsewhere: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "web/toy"
    planned = push_dataset(toy, str(folder), here, dry_run=True)
    assert not folder.exists()
    pushed = push_dataset(toy, str(folder), here)
    assert pushed.to == str(folder)
    assert planned == replace(pushed, dry_run=True)
    found = files_of(folder)
    assert found.pop("README.md")
    assert found.pop("README.webp")
    assert found == files_of(toy.path)
    assert offline_data.verify(folder, settings=here)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert push_dataset(toy, str(folder), here).existed
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    with FileServer({f"/toy/{name}": data for name, data in files_of(folder).items()}) as server:
        stored = offline_data.download(server.at("/toy"), settings=elsewhere)
        assert_same_data(stored.path, toy.path)
        with pytest.raises(NotFoundError, match="at revision"):
            offline_data.download(f"{server.at('/toy')}@123", settings=elsewhere)
        with pytest.raises(NotFoundError, match=r"manifest\.json answered 404"):
            offline_data.download(server.at("/other"), settings=elsewhere)
    copied = offline_data.download(folder, settings=replace(elsewhere, offline=True))
    assert_same_data(copied.path, toy.path)
    assert not (copied.path / "steps/rows.memmap").samefile(folder / "steps/rows.memmap")
    part = offline_data.download(folder, episodes=(1, 3), settings=elsewhere)
    assert (part.episodes, part.transitions) == (2, 41)
    np.testing.assert_array_equal(
        open_reader(part.path).step(("action",)), open_reader(toy.path).step(("action",))[3:]
    )


def test_a_folder_is_replaced_as_a_whole(toy: Entry, here: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "web"
    push_dataset(toy, str(folder), here)
    (folder / "index.html").write_text("mine")
    (folder / "README.md.kept").write_text("mine, too")
    leftover = tmp_path / ".web.pushing"
    (leftover / "steps").mkdir(parents=True)  # of a push that was killed
    push_dataset(toy, str(folder), here, licence="MIT")
    assert entry_at(folder).manifest.licence == "MIT"
    assert (folder / "index.html").read_text() == "mine"
    assert (folder / "README.md.kept").read_text() == "mine, too"
    assert "license: mit" in (folder / "README.md").read_text()
    assert sorted(path.name for path in tmp_path.glob("*web*")) == ["web"]
    for other in (toy.path, here.root / "x"):
        with pytest.raises(UsageError, match="in the root"):
            push_dataset(toy, str(other), here)
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="other files"):
        push_dataset(toy, str(strange), here)
    assert files_of(strange) == {"thesis.tex": b"mine"}
    link = tmp_path / "link"
    link.symlink_to(strange)
    with pytest.raises(UsageError, match="a link"):
        push_dataset(toy, str(link), here)


def test_a_name_as_of_a_repository(
    toy: Entry, here: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^me/pen may be a repository") as caught:
        offline_data.push(toy.path, "me/pen", root=here.root)
    assert caught.value.hint == "write hf://me/pen or ./me/pen"
    assert not Path("me").exists()
    for to in ("./me/pen", "me/other", Path("you/pen")):  # the folder me is there by then
        offline_data.push(toy.path, to, root=here.root)
        assert has_manifest(tmp_path / to)
