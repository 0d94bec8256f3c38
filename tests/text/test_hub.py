"""Text datasets of the hub: files of a split and a configuration, revisions, presets, shards."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from tokenizers import Tokenizer

from offline_data import api, load_dataset
from offline_data.base.config import Settings
from offline_data.base.errors import (
    FormatError,
    LockError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)
from offline_data.base.ids import parse_id
from offline_data.formats.options import ROLES, TextOptions
from offline_data.pipeline.ingest import Options, Stored, download
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.project.lockfile import read_lock
from offline_data.store.reader import DatasetReader
from offline_data.text.forms import PRESETS
from offline_data.text.source import HubText
from offline_data.text.tokenizer import pin_tokenizer
from tests.pipeline.jobs.processes.waiting import wait_for_end, wait_until
from tests.toys.servers import Answer, HubServer, Request

Get = Callable[..., Stored]
REPO = "someone/stories"


def rows(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture
def published(tmp_path: Path) -> Path:
    folder = tmp_path / "published"
    for n in range(3):
        rows(folder / f"data/train-0000{n}-of-00003.jsonl", [f"the cat {n}", f"a dog {n}"])
    rows(folder / "data/validation-00000-of-00001.jsonl", ["the moon"])
    (folder / "README.md").write_text("a card")
    return folder


@pytest.fixture
def server(published: Path) -> Iterator[HubServer]:
    with HubServer({REPO: published}, lfs_size=1 << 30) as running:
        yield running


@pytest.fixture
def get(
    server: HubServer, tmp_path: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Get:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))

    def got(
        name: str = f"hf:{REPO}", root: str = "root", workers: int = 1, **options: object
    ) -> Stored:
        settings = Settings(tmp_path / root, hub_endpoint=server.url, workers=workers)
        text = pin_tokenizer(TextOptions(str(tokenizer_file), keep_text=True, **options))  # type: ignore[arg-type]
        executor = InProcess() if workers == 1 else None
        return download(parse_id(name), settings, Options(text=text), executor=executor)

    return got


def texts(stored: Stored) -> list[str]:
    reader = DatasetReader(stored.path)
    found = reader.as_text(("text",), np.asarray(reader.episodes["text",]), "episodes")
    return [str(one) for one in found]


def test_a_split(get: Get) -> None:
    stored = get()
    assert texts(stored) == [f"{what} {n}" for n in range(3) for what in ("the cat", "a dog")]
    assert texts(get(split="valid")) == ["the moon"]
    assert texts(get(split="")) == [*texts(stored), "the moon"]
    with pytest.raises(NotFoundError, match="no split 'test'; it has train, validation"):
        get(split="test")


def test_options_have_datasets_of_their_own(get: Get) -> None:
    first, cut = get(), get(max_length=2)
    assert first.id.revision != cut.id.revision
    assert get().existed
    assert get(max_length=2).path == cut.path
    assert DatasetReader(cut.path).lengths.max() == 2


def test_processes_give_the_same_bytes(get: Get) -> None:
    here, there = get(), get(root="other", workers=2)
    digests = [stored.manifest.digests for stored in (here, there)]
    assert digests[0] == digests[1]
    assert here.id == there.id


def test_configurations(get: Get, server: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "several"
    for config in ("en", "de"):
        rows(folder / config / "train.jsonl", [f"the {config}"])
    server.commit("someone/several", folder)
    assert texts(get("hf:someone/several:de")) == ["the de"]
    assert str(get("hf:someone/several/de").id).startswith("hf:someone/several/de@")
    with pytest.raises(NotFoundError, match="no configuration 'fr'") as caught:
        get("hf:someone/several:fr")
    assert caught.value.hint == "it has de, en"


def test_revisions(get: Get, server: HubServer, published: Path) -> None:
    before = get()
    rows(published / "data/train-00000-of-00003.jsonl", ["another"])
    commit = server.commit(REPO, published)
    assert get().existed
    after = get(f"hf:{REPO}@{commit}")
    assert texts(after)[0] == "another"
    assert before.id.revision != after.id.revision


def test_a_preset(get: Get, server: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "gsm"
    folder.joinpath("main").mkdir(parents=True)
    row = {"question": "why?", "answer": "the moon"}
    (folder / "main" / "train.jsonl").write_text(json.dumps(row))
    (folder / "socratic.jsonl").write_text("{}")
    server.commit("openai/gsm8k", folder)
    stored = get("hf:openai/gsm8k")
    assert texts(stored) == ["why?\nthe moon"]
    assert stored.manifest.about["text"] == {
        "form": "prompt",
        "columns": {"prompt": "question", "completion": "answer"},
        "separator": "\n",
        "eos": None,
    }


def test_presets_are_listed_and_whole() -> None:
    assert [entry.name for entry in HubText().catalog()] == sorted(PRESETS)
    assert len(PRESETS) >= 12
    for preset in PRESETS.values():
        assert set(preset.columns) <= set(ROLES[preset.form])


def test_an_error_names_the_dataset_and_the_file_in_it(get: Get, tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        get(columns={"text": "zz"})
    said = caught.value.message
    assert re.match(rf"hf:{REPO}@\S+: data/train-00000-of-00003.jsonl has no column 'zz'", said)
    assert str(tmp_path) not in said


def test_without_a_tokenizer_nothing_is_fetched(server: HubServer, online: Settings) -> None:
    with pytest.raises(UsageError, match="no tokenizer was named"):
        api.download(f"hf:{REPO}", settings=online, progress=False)
    assert not [one.path for one in server.requests if "/resolve/" in one.path]


def test_a_script_is_not_run(get: Get, server: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "script"
    folder.mkdir()
    (folder / "old.py").write_text("raise SystemExit")
    server.commit("someone/old", folder)
    with pytest.raises(
        FormatError, match=r"hf:someone/old is a script \(old.py\), which is not run"
    ):
        get("hf:someone/old")


@pytest.mark.parametrize("name", ["hf:someone", "hf:a/b/c/d", "hf:someone/nothing"])
def test_unknown_names(get: Get, name: str) -> None:
    with pytest.raises(NotFoundError):
        get(name)


def test_other_sources_take_no_tokenizer(get: Get) -> None:
    with pytest.raises(UsageError, match="Datasets of d4rl are not text"):
        get("d4rl:pen-human-v1")


@pytest.fixture
def online(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return Settings(tmp_path / "root", hub_endpoint=server.url, workers=1)


@pytest.fixture
def project(tmp_path: Path, tokenizer_file: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(tokenizer_file, folder / "tok.json")
    file = folder / "datasets.toml"
    file.write_text(
        f'[datasets]\ntold = {{ id = "hf:{REPO}", text = {{ tokenizer = "./tok.json", '
        'max_length = 4, columns = { text = "text" } } }\n'
    )
    return file


def test_a_lock_file_says_how_text_is_tokenized(
    online: Settings, project: Path, tmp_path: Path
) -> None:
    api.lock(project, settings=online, progress=False)
    (one,) = read_lock(project.with_suffix(".lock")).values()
    assert one.options.text is not None
    known = pin_tokenizer(TextOptions(str(project.parent / "tok.json")))
    assert one.options.text.tokenizer == "./tok.json"
    assert one.options.text.tokenizer_sha256 == known.tokenizer_sha256
    assert str(tmp_path) not in project.with_suffix(".lock").read_text()
    assert api.lock(project, settings=online, progress=False).changes == ()
    elsewhere = replace(online, root=tmp_path / "elsewhere")
    (done,) = api.sync(project, settings=elsewhere, locked=True, progress=False)
    place = done.path.relative_to(elsewhere.root)
    here, there = DatasetReader(done.path), DatasetReader(online.root / place)
    assert (done.action, here.transitions) == ("download", there.transitions)
    assert here.step(("input_ids",)).tobytes() == there.step(("input_ids",)).tobytes()
    (again,) = api.sync(project, settings=elsewhere, locked=True, progress=False)
    assert again.action == "none"

    project.write_text(project.read_text().replace("max_length = 4", "max_length = 5"))
    with pytest.raises(LockError, match=r"told has text .*'max_length': 5"):
        api.sync(project, settings=elsewhere, locked=True, progress=False)


def test_a_lock_file_without_an_end_of_text_keeps_its_content(
    online: Settings, project: Path, tmp_path: Path
) -> None:
    """A lock file that was written before documents had one; `datasets.toml` does not name it."""
    backend = Tokenizer.from_file(str(project.parent / "tok.json"))
    backend.add_special_tokens(["</s>"])
    backend.save(str(project.parent / "tok.json"))
    asked = project.read_text().replace("max_length = 4", "max_length = 9")
    project.write_text(asked.replace("max_length", 'eos = "no", max_length'))
    api.lock(project, settings=online, progress=False)
    lock = project.with_suffix(".lock")
    lock.write_text(lock.read_text().replace(', eos = "no"', ""))
    assert "eos" not in lock.read_text()
    project.write_text(asked)
    (done,) = api.sync(project, settings=online, locked=True, progress=False)
    assert 297 not in np.asarray(DatasetReader(done.path).step(("input_ids",)))
    project.write_text(asked.replace("max_length", 'eos = "yes", max_length'))
    with pytest.raises(LockError, match="'eos': 'yes'"):
        api.sync(project, settings=online, locked=True, progress=False)
    project.write_text(asked)
    api.lock(project, upgrade=True, settings=online, progress=False)
    (done,) = api.sync(project, settings=online, locked=True, progress=False)
    assert 297 in np.asarray(DatasetReader(done.path).step(("input_ids",)))


@pytest.mark.slow
def test_another_tokenizer_than_the_locked_one_is_refused(
    online: Settings, project: Path, tmp_path: Path
) -> None:
    api.lock(project, settings=online, progress=False)
    file = project.parent / "tok.json"
    changed = json.loads(file.read_text())
    changed["model"]["merges"] = changed["model"]["merges"][:-1]
    file.write_text(json.dumps(changed))
    elsewhere = replace(online, root=tmp_path / "elsewhere")
    with pytest.raises(OfflineDataError, match=r"told: .*tok.json.* has sha256 .*locked"):
        api.sync(project, settings=elsewhere, locked=True, progress=False)
    assert not list((tmp_path / "elsewhere").glob("hf/**/manifest.json"))


@pytest.mark.slow
def test_load_dataset_downloads_and_tokenizes(
    online: Settings,
    tokenizer_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: None,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", str(online.hub_endpoint))
    options = TextOptions(str(tokenizer_file), max_length=4)
    ds = load_dataset(f"hf:{REPO}", text=options, root=tmp_path / "root", progress=False)
    expected = Tokenizer.from_file(str(tokenizer_file)).encode("the cat 0").ids[:4]
    assert ds[ds.episodes.rows(0)]["input_ids"].tolist() == expected
    for again in (
        load_dataset(f"hf:{REPO}", text=options, root=tmp_path / "root", download=False),
        load_dataset(f"hf:{REPO}", root=tmp_path / "root", download=False),
        load_dataset(ds.data_path, text=options),
    ):
        assert again.data_path == ds.data_path
    other = replace(options, max_length=3)
    with pytest.raises(NotFoundError, match="tokenized with these options, is not on") as caught:
        load_dataset(f"hf:{REPO}", text=other, root=tmp_path / "root", download=False)
    assert "the one here was tokenized with others" in str(caught.value.hint)
    with pytest.raises(UsageError, match="tokenized with other options"):
        load_dataset(ds.data_path, text=other)

    monkeypatch.setenv("OFFLINE_DATA_OFFLINE", "1")
    moved = shutil.copy(tokenizer_file, tmp_path / "moved.json")  # the same one, called otherwise
    same = replace(options, tokenizer=str(moved))
    assert load_dataset(f"hf:{REPO}", text=same, root=tmp_path / "root").data_path == ds.data_path


def test_a_dataset_of_this_machine_with_other_options(tmp_path: Path, tokenizer_file: Path) -> None:
    (tmp_path / "x.txt").write_text("the cat\n")
    options, root = TextOptions(str(tokenizer_file)), tmp_path / "root"
    api.convert(tmp_path / "x.txt", "mine", source="text", text=options, root=root, progress=False)
    for download_it in (True, False):
        assert len(load_dataset("local:mine", text=options, root=root, download=download_it)) == 2
        other = replace(options, max_length=1)
        with pytest.raises(NotFoundError, match="local:mine, tokenized with these") as caught:
            load_dataset("local:mine", text=other, root=root, download=download_it)
        assert "the one here was tokenized with others" in str(caught.value.hint)
    with pytest.raises(UsageError, match="has no observations") as usage:
        api.load_arrays("local:mine", root=root)
    assert "Documents" in str(usage.value.hint)


@pytest.mark.slow
def test_one_dataset_with_two_tokenizers(online: Settings, project: Path, processes: None) -> None:
    changed = json.loads((project.parent / "tok.json").read_text())
    changed["model"]["merges"] = changed["model"]["merges"][:-1]
    (project.parent / "other.json").write_text(json.dumps(changed))
    lines = (
        f'{name} = {{ id = "hf:{REPO}", text = {{ tokenizer = "{name}.json" }} }}\n'
        for name in ("tok", "other")
    )
    project.write_text("[datasets]\n" + "".join(lines))
    api.lock(project, settings=online, progress=False)
    paths = [one.path for one in api.sync(project, settings=online, locked=True, progress=False)]
    assert len({*paths}) == 2
    locked = read_lock(project.with_suffix(".lock"))
    tokenizers = [one.options.text.tokenizer for one in locked.values() if one.options.text]
    assert tokenizers == ["other.json", "tok.json"]


@pytest.mark.parametrize("text", ["", ', text = { form = "text" }'])
def test_a_project_without_a_tokenizer(online: Settings, project: Path, text: str) -> None:
    project.write_text(f'[datasets]\ntold = {{ id = "hf:{REPO}"{text} }}\n')
    with pytest.raises(OfflineDataError, match="no tokenizer was named") as caught:
        api.lock(project, settings=online, progress=False)
    assert 'in datasets.toml, text = { tokenizer = "gpt2" }' in str(caught.value.hint)


class HoldingHub(HubServer):
    """Does not answer for the last file before `go_on`: nothing is finished before it is killed."""

    go_on = threading.Event()

    def answer(self, request: Request) -> Answer:
        if request.path.endswith(HELD):
            while not self.go_on.is_set() and not self.closing.wait(0.05):
                pass
        return super().answer(request)


HELD = "train-00007-of-00008.jsonl"


@pytest.mark.slow
def test_it_goes_on_after_being_killed(
    published: Path, tmp_path: Path, tokenizer_file: Path
) -> None:
    shutil.rmtree(published / "data")
    for n in range(8):
        rows(published / f"data/train-0000{n}-of-00008.jsonl", [f"the cat {n} {i}" for i in range(50)])  # fmt: skip
    root = tmp_path / "root"
    with HoldingHub({REPO: published}, lfs_size=1 << 30) as server:
        environ = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf")}
        command = [sys.executable, "-c", "from offline_data_cli.main import run; run()", "download"]
        command += [f"hf:{REPO}", "--tokenizer", str(tokenizer_file), "--root", str(root)]
        program = subprocess.Popen([*command, "--workers", "2"], env=environ)
        wait_until(lambda: len(list(root.glob(".staging/*.shards/*/finished/[0-9]*.record"))) >= 3)
        family = psutil.Process(program.pid).children(recursive=True)
        program.kill()
        program.wait(60)
        wait_for_end([one.pid for one in family])
        assert not list(root.glob("hf/**/manifest.json"))
        server.go_on.set()
        before = len(server.requests)
        subprocess.run([*command, "--workers", "2"], env=environ, check=True)
        gets = {one.path for one in server.requests[before:] if one.method == "GET"}
        assert len([path for path in gets if "resolve" in path]) < 8
        subprocess.run([*command[:-1], str(tmp_path / "once"), "--workers", "1"], env=environ, check=True)  # fmt: skip
    found = [json.loads(next(one.glob("hf/**/manifest.json")).read_text()) for one in (root, tmp_path / "once")]  # fmt: skip
    assert found[0]["digests"] == found[1]["digests"]
    assert found[0]["counts"]["episodes"] == 400
