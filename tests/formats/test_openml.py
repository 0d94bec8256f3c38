"""OpenML: what TorchRL's names give, tables as published, real tables, downloads, bad input."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data import OpenMLExperienceReplay
from offline_data.base.config import Settings
from offline_data.base.ids import parse_id
from offline_data.formats.base import Release
from offline_data.formats.catalogues.openml import read_table
from offline_data.formats.openml import source as openml
from offline_data.formats.openml.description import parse_description
from offline_data.formats.openml.source import OpenML
from offline_data.pipeline.ingest import Options, convert, download
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.sources import SourceCase, SourceContract
from tests.refusals import Refusals
from tests.toys.openml import HOST, ToyTable, toy_of_torchrl, toy_table
from tests.toys.servers import Answer, Fault, FileServer

REFUSALS = Refusals.beside(__file__)
LEVELS = {"low": 0.0, "middle": 1.0, "high": 2.0, None: np.nan}


RAWS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "published": ("61", lambda to: toy_table().write(to)),
    "standardised": ("adult_onehot", lambda to: toy_of_torchrl("adult_onehot").write(to)),
    "parquet": ("61", lambda to: write_parquet(to)),
}


class TestTables(SourceContract):
    @pytest.fixture(params=RAWS)
    def case(self, tmp_path: Path, request: pytest.FixtureRequest) -> SourceCase:
        name, write = RAWS[request.param]
        return SourceCase(OpenML(), Release(name, "file-6100"), write(tmp_path / "raw"))


def write_parquet(folder: Path) -> Path:
    """Write the toy table as a folder with a Parquet file."""
    toy_table().write(folder)
    (folder / "data.arff").unlink()
    toy_table().parquet(folder / "data.pq")
    return folder


def refused(
    name: str,
    call: Callable[[], object],
    folder: Path | None = None,
    names: dict[object, str] | None = None,
) -> None:
    REFUSALS.check("one", name, call, names or ({} if folder is None else {folder: "FOLDER"}))


@pytest.fixture
def online(server: FileServer, tmp_path: Path) -> Settings:
    return Settings(tmp_path / "root", mirrors=((HOST, server.url),), workers=1)


def leaves(raw: Path, settings: Settings, name: str = "mine") -> dict[tuple[str, ...], Any]:
    """Convert, and read every step leaf from the disk; text as strings."""
    return on_disk(convert(raw, name, settings, Options(audit="all")).path)


def on_disk(path: Path) -> dict[tuple[str, ...], Any]:
    reader = open_reader(path)
    assert not verify(path)
    assert not reader.observation_leaves
    assert (reader.lengths == 1).all()
    assert not reader.episodes["final_observation",].any()
    return {key: reader.as_text(key, np.array(reader.step(key))) for key in reader.step_leaves}


def check_bandit(found: dict[tuple[str, ...], Any]) -> None:
    """Compare what follows from `y` alone."""
    assert np.array_equal(found["action",], found["y",])
    assert (found["next", "reward"] == 1).all()
    assert found["next", "terminated"].all()
    assert not found["next", "truncated"].any()


@pytest.mark.parametrize("kind", ["dense", "sparse", "parquet"])
def test_a_table_as_published(tmp_path: Path, settings: Settings, kind: str) -> None:
    toy, raw = toy_table(), tmp_path / "raw"
    write_parquet(raw) if kind == "parquet" else toy.write(raw, sparse=kind == "sparse")
    found = leaves(raw, settings)
    assert set(found) == {("X",), ("y",), ("text", "remark"), ("action",), ("episode",)} | {
        ("next", name) for name in ("reward", "terminated", "truncated")
    }
    check_bandit(found)
    words = next(words for name, words, _ in toy.columns if name == "odd, name") or ()
    levels, odd, labels = LEVELS, {word: n for n, word in enumerate(words)}, {"yes": 0, "no": 1}
    if kind == "parquet":  # has no declared order
        levels = {"high": 0.0, "low": 1.0, "middle": 2.0, None: np.nan}
        odd = {word: n for n, word in enumerate(sorted(words))}
        labels = {"no": 0, "yes": 1}
    level = [levels[word] for word in toy.values("level")]
    odds = [odd[word] for word in toy.values("odd, name")]
    height = [np.nan if value is None else value for value in toy.values("height")]
    expected = np.array([toy.values("width"), level, odds, height]).T
    assert np.array_equal(found["X",], expected, equal_nan=True)
    assert found["X",].dtype == np.float64
    assert found["y",].tolist() == [labels[word] for word in toy.values("class")]
    assert found["text", "remark"].tolist() == list(toy.values("remark"))


def expected_of(toy: ToyTable, name: str) -> tuple[Any, Any]:
    """Compute X and y as TorchRL does, value by value."""
    target, encoding = read_table()[name].target or "class", read_table()[name].encoding
    inputs = [(c, w, v) for c, w, v in toy.columns if c not in {target, "class"}]
    rows = list(range(toy.rows))
    if read_table()[name].missing == "drop":
        used = [values for _, _, values in inputs] + [toy.values(target)]
        rows = [row for row in rows if all(values[row] is not None for values in used)]
    numeric, categories = [], []
    for _, words, values in inputs:
        kept = [values[row] for row in rows]
        if words is not None:
            order = sorted({value for value in kept if value is not None})
            codes = {value: code for code, value in enumerate([*order, None])}
            kept = [codes[value] for value in kept]
            if encoding == "onehot":
                categories += [[float(one == code) for one in kept] for code in sorted({*kept})]
                continue
        column = np.array(kept, float)
        numeric.append((column - column.mean()) / (column.std() or 1.0))
    targets = [toy.values(target)[row] for row in rows]
    labels = sorted({*targets})
    return np.array([*numeric, *categories]).T, [labels.index(one) for one in targets]


@pytest.mark.parametrize("name", list(read_table()))
def test_torchrls_names(online: Settings, server: FileServer, name: str) -> None:
    toy = toy_of_torchrl(name, 97)
    server.files.update(toy.served())
    stored = download(parse_id(f"openml:{name}"), online, Options(audit="all"))
    found, (X, y) = on_disk(stored.path), expected_of(toy, name)  # noqa: N806 -- as TorchRL says
    check_bandit(found)
    np.testing.assert_allclose(found["X",], X, rtol=1e-12, atol=1e-12)
    assert found["y",].tolist() == y
    assert len(y) < 97 if name.startswith("adult") else len(y) == 97
    manifest = stored.manifest
    assert (stored.id.revision, manifest.licence) == (f"file-{toy.did}00", "Public")
    assert manifest.about["openml"]["id"] == toy.did
    assert sum(len(one.get("categories", "1")) for one in manifest.about["X"]) >= X.shape[1]
    again = OpenMLExperienceReplay(name, 5, root=online.root)
    assert again.max_outcome_val == max(y)
    seen = np.concatenate([batch["y"].numpy() for batch in again])
    assert sorted(seen.tolist()) == sorted(y)
    assert again[:]["X"].numpy().tolist() == found["X",].tolist()


def test_codes_and_names_are_in_the_manifest(tmp_path: Path, settings: Settings) -> None:
    about = convert(toy_table().write(tmp_path / "raw"), "mine", settings, Options()).manifest.about
    assert [one["name"] for one in about["X"]] == ["width", "level", "odd, name", "height"]
    words = ["low", "middle", "high"]
    assert about["X"][1] == {"name": "level", "type": "nominal", "categories": words}
    assert about["y"] == [{"name": "class", "type": "nominal", "categories": ["yes", "no"]}]
    mushroom = toy_of_torchrl("mushroom_num").write(tmp_path / "mushroom")
    info = OpenML().open(Release("mushroom_num", "file-1"), mushroom).info
    root, veil = info.about["X"][1:]
    assert root["categories"] == ["b", "c", "e", None]
    assert root["scale"] > 0
    assert (veil["categories"], veil["mean"], veil["scale"]) == (["p"], 0.0, 1.0)
    assert "A missing value is one more category, the last one." in info.notes


def test_an_encoding_of_any_table(tmp_path: Path) -> None:
    raw = toy_table().write(tmp_path / "raw")
    for name, width in (("61/num", 4), ("61/onehot", 1 + 1 + 3 + 6)):
        dataset = OpenML().open(Release(name, "file-6100"), raw)
        (batch,) = dataset.read(dataset.shards()[0])
        assert batch.steps["X",].shape == (18, width)  # 4 without a level, 1 without a height
        assert [item.key for item in dataset.info.dropped] == ["remark"]
        assert "5 rows have a missing value." in dataset.info.notes
    columns = (("a", None, (None,) * 4), *toy_table(4).columns)
    gone = replace(toy_table(4), columns=columns).write(tmp_path / "gone")
    refused("missing values", lambda: OpenML().open(Release("61/num", "file-6100"), gone), tmp_path)


def test_several_targets_numbers_and_none(tmp_path: Path) -> None:
    def read(folder: str, **facts: Any) -> Any:
        raw = toy_table(**facts).write(tmp_path / folder)
        return OpenML().open(Release("61", "file-6100"), raw)

    both = read("both", target="class,level")
    (batch,) = both.read(both.shards()[0])
    levels = [int(LEVELS[word]) if word else -1 for word in toy_table().values("level")]
    assert batch.steps["y",].dtype == np.int64
    assert batch.steps["y",][:, 1].tolist() == levels
    number = read("number", target="width", ignored="height, level")
    (batch,) = number.read(number.shards()[0])
    assert batch.steps["y",].tolist() == list(toy_table().values("width"))
    assert [one["name"] for one in number.info.about["X"]] == ["odd, name", "class"]
    assert any("'row id', 'level', 'height'" in note for note in number.info.notes)
    none = read("none", target="")
    (batch,) = none.read(none.shards()[0])
    assert ("y",) not in batch.steps
    assert not batch.steps["next", "reward"].any()
    text = read("text", target="remark")
    (batch,) = text.read(text.shards()[0])
    remarks = toy_table().values("remark")
    words = sorted({word for word in remarks if word})
    assert batch.steps["y",].tolist() == [words.index(one) if one else -1 for one in remarks]
    refused("no such target", lambda: read("wrong", target="klass"), tmp_path)


# ---- real tables ------------------------------------------------------------------------------


def real(realdata: Path, did: int, tmp_path: Path) -> Path:
    """Unpack scikit-learn's copy of a table and its description."""
    folder, packed = tmp_path / str(did), realdata / "openml_sklearn" / f"id_{did}"
    folder.mkdir()
    (file,) = packed.glob("data-*.arff.gz")
    (folder / "data.arff").write_bytes(gzip.decompress(file.read_bytes()))
    (about,) = packed.glob(f"api-v1-jd-{did}.json.gz")
    (folder / "description.json").write_bytes(gzip.decompress(about.read_bytes()))
    return folder


@pytest.mark.parametrize(
    "did", [1, 2, 3, 61, 62, 561, 1119, 1590, 40589, 40675, 40945, 42074, 42585]
)
def test_real_tables(realdata: Path, tmp_path: Path, settings: Settings, did: int) -> None:
    raw = real(realdata, did, tmp_path)
    found = leaves(raw, settings)
    manifest = convert(raw, "mine", settings, Options()).manifest
    rows = cells_of(raw / "data.arff")
    (features,) = (realdata / "openml_sklearn" / f"id_{did}").glob("api-v1-jdf-*.json.gz")
    said = json.loads(gzip.decompress(features.read_bytes()))["data_features"]["feature"]
    kept = [f for f in said if "true" not in {f["is_ignore"], f["is_row_identifier"]}]
    inputs = [f for f in kept if f["is_target"] != "true"]
    numbers = [f for f in inputs if f["data_type"] in {"numeric", "nominal"}]
    assert [one["name"] for one in manifest.about["X"]] == [f["name"] for f in numbers]
    targets = [f["name"] for f in said if f["is_target"] == "true"]
    assert [one["name"] for one in manifest.about["y"]] == targets

    def value(one: dict[str, Any], cell: str) -> float:
        if cell == "?":
            return np.nan if one in manifest.about["X"] else -1
        return one["categories"].index(cell) if "categories" in one else float(cell)

    place = {f["name"]: int(f["index"]) for f in said}
    for leaf in ("X", "y"):
        columns = manifest.about[leaf]
        expected = [[value(one, row[place[one["name"]]]) for one in columns] for row in rows]
        if columns:
            values = found[leaf,].reshape(len(rows), -1)
            assert np.array_equal(values, np.array(expected, float), equal_nan=True)
    for key in found:
        if key[0] == "text":
            cells = [row[place[key[1]]] for row in rows]
            assert found[key].tolist() == [None if cell == "?" else cell for cell in cells]


def cells_of(path: Path) -> list[list[str]]:
    """Read dense rows with the csv module, with the quote that the file uses."""
    lines = path.read_text("utf-8").splitlines()
    begin = next(n for n, line in enumerate(lines) if line.lower().startswith("@data"))
    rows = [line for line in lines[begin + 1 :] if line.strip() and not line.startswith("%")]
    quote = "'" if any(line.startswith("'") or ",'" in line for line in rows) else '"'
    read = csv.reader(rows, quotechar=quote, escapechar="\\", skipinitialspace=True)
    return [[cell.strip() if cell.strip() == "?" else cell for cell in row] for row in read]


def test_a_real_sparse_table(realdata: Path, tmp_path: Path, settings: Settings) -> None:
    raw = tmp_path / "292"
    raw.mkdir()
    (file,) = (realdata / "openml_sklearn" / "id_292").glob("data-*.arff.gz")
    shutil.copy(file, raw / "data.arff.gz")
    found = leaves(raw / "data.arff.gz", settings)
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    rows = [
        dict(pair.split() for pair in line[1:-1].split(",")) for line in lines if line[:1] == "{"
    ]
    columns = [line.split()[1] for line in lines if line.lower().startswith("@attribute")]
    assert found["y",].tolist() == [float(row.get(str(len(columns) - 1), 0)) for row in rows]
    expected = [[row.get(str(n), "0") for n in range(1, len(columns) - 1)] for row in rows]
    assert np.array_equal(found["X",][:, 1:], np.array(expected, float))
    assert found["X",][:, 0].tolist() == [["1", "-1"].index(row.get("0", "1")) for row in rows]


# ---- downloads ---------------------------------------------------------------------------------


def test_a_download_is_verified_and_described(online: Settings, server: FileServer) -> None:
    server.files.update(toy_table().served())
    release = OpenML().resolve("61", None, online)
    assert [file.path for file in release.files] == ["description.json", "data.arff"]
    assert (release.files[1].digest or "").startswith("md5:")
    stored = download(parse_id("openml:61@file-6100"), online, Options())
    assert [file["path"] for file in stored.manifest.files] == ["description.json", "data.arff"]
    assert stored.manifest.counts["transitions"] == 23
    asked = len(server.requests)
    assert download(parse_id("openml:61"), online, Options()).existed
    assert len(server.requests) == asked
    refused("another revision", lambda: download(parse_id("openml:61@file-1"), online, Options()))


@pytest.fixture
def direct(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings for which the server is OpenML itself: what it answers is final."""
    monkeypatch.setattr(openml, "API", f"{server.url}/api/v1/json/data")
    return Settings(tmp_path / "root", workers=1)


def test_wrong_bytes_and_pages(direct: Settings, server: FileServer) -> None:
    path = "/data/v1/download/6100/toy.arff"
    good = toy_table().served(url=server.url + path)
    server.files.update({**good, path: good[path][:-1]})

    def get() -> object:
        return download(parse_id("openml:61"), direct, Options())

    names: dict[object, str] = {server.url: "HOST", direct.root: "ROOT"}
    refused("cut", get, names=names)
    server.always(path, Fault(Answer(b"<html>", headers={"Content-Type": "text/html"})))
    refused("a page", get, names=names)
    server.always(path, Fault(Answer(b"", 403)))
    refused("403", get, names=names)
    assert not (direct.root / "openml").exists()


def test_names_that_openml_does_not_have(
    direct: Settings, server: FileServer, settings: Settings
) -> None:
    server.always("/api/v1/json/data/99", Fault(Answer(b"{}", 412)))
    server.always("/api/v1/json/data/98", Fault(Answer(b"{}", 400)))
    for name in ("99", "98", "0", "61/raw", "../61", "iris"):
        refused(name, partial(OpenML().resolve, name, None, direct), names={server.url: "HOST"})
    refused("offline", lambda: OpenML().resolve("61", None, settings), names={server.url: "HOST"})


DESCRIPTIONS: dict[str, dict[str, str]] = {
    "a file of this disk": {"url": "file:///etc/passwd"},
    "no URL": {"url": ""},
    "CSV": {"format": "CSV", "url": "https://x.org/a.csv"},
    "a number that leads out": {"file_id": "../6"},
    "no digest": {"md5_checksum": "zz"},
}


@REFUSALS.of("descriptions", DESCRIPTIONS)
def test_a_hostile_description(online: Settings, server: FileServer, name: str) -> None:
    server.files.update(toy_table().served(None, **DESCRIPTIONS[name]))

    def get() -> object:
        return download(parse_id("openml:61"), online, Options())

    REFUSALS.check("descriptions", name, get, {server.url: "HOST"})


def test_a_catalogue_that_is_wrong_is_noticed(online: Settings, server: FileServer) -> None:
    server.files.update(replace(toy_of_torchrl("magic"), version="2").served())
    refused("version 2", lambda: OpenML().resolve("magic", None, online))


def test_a_table_that_is_published_as_parquet_only(
    online: Settings, server: FileServer, tmp_path: Path
) -> None:
    about = toy_table().served(format="parquet", parquet_url=f"{HOST}/minio/61.pq", url="")
    pq = toy_table().parquet(tmp_path / "61.pq").read_bytes()
    server.files.update({**about, "/minio/61.pq": pq})
    stored = download(parse_id("openml:61"), online, Options(audit="all"))
    assert [file["path"] for file in stored.manifest.files] == ["description.json", "data.pq"]
    assert stored.manifest.counts["transitions"] == 23


# ---- files of the user's own -------------------------------------------------------------------


def test_only_its_own_files_are_taken(tmp_path: Path, realdata: Path) -> None:
    raw = toy_table().write(tmp_path / "raw")
    assert OpenML().accepts(raw / "data.arff")
    for other in ("minari_door_human_v2", "lerobot_v30_record-test", "rlds_octo_bridge"):
        assert not any(OpenML().accepts(one) for one in (realdata / other).rglob("*"))
    shutil.copy(raw / "data.arff", raw / "more.arff")
    assert not OpenML().accepts(raw)
    refused("two tables", lambda: OpenML().release_of(raw, "mine"), tmp_path)


def test_a_file_without_a_description(tmp_path: Path, settings: Settings) -> None:
    raw = toy_table().write(tmp_path / "raw") / "data.arff"
    manifest = convert(raw, "mine", settings, Options()).manifest
    assert any("'class' was taken for it" in note for note in manifest.notes)
    assert (manifest.citation, "openml" in manifest.about) == (None, False)


def test_bad_rows_are_left_out_and_listed(tmp_path: Path, settings: Settings) -> None:
    raw = toy_table().write(tmp_path / "raw")
    lines = (raw / "data.arff").read_bytes().splitlines(keepends=True)
    lines[14] = b"1,2\n"
    (raw / "data.arff").write_bytes(b"".join(lines))
    refused("two values", lambda: convert(raw, "mine", settings, Options()), tmp_path)
    manifest = convert(raw, "mine", settings, Options(skip_bad_episodes=True)).manifest
    assert manifest.counts["transitions"] == 22
    (skipped,) = manifest.skipped
    assert skipped["where"] == "data.arff, line 15"


def test_none_and_one_row(tmp_path: Path, settings: Settings) -> None:
    raw = toy_table(1).write(tmp_path / "raw")
    assert len(leaves(raw, settings)["y",]) == 1
    text = (raw / "data.arff").read_text("utf-8")
    (raw / "data.arff").write_text(text[: text.index("% the rows")], encoding="utf-8")
    refused("no rows", lambda: convert(raw, "none", settings, Options()), tmp_path)


BODIES = ["[]", "{}", '{"data_set_description": []}', "<html>"]


@REFUSALS.of("bodies", BODIES)
def test_what_is_no_description(name: str) -> None:
    REFUSALS.check("bodies", name, lambda: parse_description(name.encode(), "here"))
