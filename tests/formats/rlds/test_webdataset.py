"""The hub's tar files of pickled episodes: every value as it was written, and nothing in them run."""

from __future__ import annotations

import os
import pickle
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.ids import parse_id
from offline_data.episode.joining import concatenate
from offline_data.formats.base import Release, RemoteFile
from offline_data.formats.rlds.source import OpenX
from offline_data.formats.rlds.webdataset import REPO
from offline_data.pipeline.ingest import Options, convert, download
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.raw.images import decode_jpeg, encode_image
from offline_data.store.encoded import EncodedColumn
from offline_data.store.reader import open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.refusals import Refusals
from tests.toys.servers import HubServer
from tests.toys.webdataset import (
    Flavour,
    toy_pixels,
    toy_steps,
    write_tar,
    write_webdataset,
)

REFUSALS = Refusals.beside(__file__)
LENGTHS = (3, 1, 4)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path / "root", minari_path=tmp_path)


class TestContract(SourceContract):
    @pytest.fixture(params=["local", "hub"])
    def case(self, tmp_path: Path, request: pytest.FixtureRequest) -> SourceCase:
        # long episodes: half of a small tar file is zeros behind its end
        raw = write_webdataset(tmp_path / "raw", "toy", "file", [[40, 1], [60]])
        release = OpenX().release_of(raw, "toy")
        if request.param == "hub":
            names = sorted(path.name for path in raw.iterdir())
            files = tuple(RemoteFile(one, (f"https://host.invalid/{one}",)) for one in names)
            release = Release("toy", "hub", files, opening=())
        return SourceCase(OpenX(), release, raw)


def stored(path: Path, settings: Settings, **options: Any) -> Any:
    return convert(path, "toy", settings, Options(**options), source="openx", executor=InProcess())


def episodes(path: Path) -> Any:
    reader = open_reader(path)
    return reader.episode_batch(0, reader.episode_count)


def check(found: Any, steps: list[list[dict[str, Any]]]) -> None:
    """Compare a dataset with what the pickles have: rows are all steps, the last observation twice."""
    assert found.lengths.tolist() == [len(one) for one in steps]
    assert not found.final_observation.any()
    every = [step for one in steps for step in one]
    seen = [step for one in steps for step in [*one, one[-1]]]
    np.testing.assert_array_equal(
        found.observations["observation", "state"],
        np.stack([step["observation"]["state"] for step in seen]),
    )
    for name, column in {
        ("next", "reward"): [[step["reward"]] for step in every],
        ("discount",): [step["discount"] for step in every],
        ("next", "terminated"): [[step["is_terminal"]] for step in every],
        ("next", "truncated"): [[step["is_last"] and not step["is_terminal"]] for step in every],
    }.items():
        np.testing.assert_array_equal(found.steps[name], np.array(column))
    action = [step["action"] for step in every]
    if isinstance(action[0], dict):
        for name in action[0]:
            expected = np.stack([one[name] for one in action])
            np.testing.assert_array_equal(found.steps["action", name], expected)
    else:
        np.testing.assert_array_equal(found.steps["action",], np.stack(action))


@pytest.mark.parametrize("flavour", ["array", "file", "bytes", "pil"])
def test_every_flavour_is_what_was_pickled(
    flavour: Flavour, tmp_path: Path, settings: Settings
) -> None:
    path = write_webdataset(tmp_path / "raw", "toy", flavour)
    found = episodes(stored(path, settings).path)
    check(found, [toy_steps(e, n, flavour) for e, n in enumerate(LENGTHS)])
    image: Any = found.observations["observation", "image"]
    assert isinstance(image, EncodedColumn) == (flavour in {"file", "bytes"})
    seen = [(e, min(t, n - 1)) for e, n in enumerate(LENGTHS) for t in range(n + 1)]
    pixels = [toy_pixels(e, t) for e, t in seen]
    if flavour == "bytes":
        pixels = [decode_jpeg(encode_image(one, "jpeg"), "it") for one in pixels]
    np.testing.assert_array_equal(np.asarray(image), np.stack(pixels))
    texts = found.steps["language_instruction",]
    assert texts.tolist() == [f"put the cup {e}" for e, n in enumerate(LENGTHS) for _ in range(n)]
    assert found.episodes["episode_metadata", "file_path"].tolist() == ["/x/0", "/x/1", "/x/2"]
    assert found.episodes["episode_metadata", "success"].tolist() == [True, False, True]
    assert found.episodes["key",].tolist() == [f"episode_{e:06d}" for e in range(3)]
    assert found.episodes["split",].tolist() == ["train"] * 3


def test_image_bytes_stay_as_they_are(tmp_path: Path, settings: Settings) -> None:
    path = write_webdataset(tmp_path / "raw", "toy", "file")
    image: Any = episodes(stored(path, settings).path).observations["observation", "image"]
    written = [s["observation"]["image"]["bytes"] for s in toy_steps(0, 3, "file")]
    assert image.images()[:4] == [*written, written[-1]]


def test_a_last_step_with_nothing_but_an_observation_is_the_final_one(
    tmp_path: Path, settings: Settings
) -> None:
    steps = toy_steps(0, 3, "file", only_observation=True)
    write_tar(tmp_path / "x_00000.tar", [("a.data.pickle", pickle.dumps({"steps": steps}))])
    found = episodes(stored(tmp_path / "x_00000.tar", settings).path)
    assert found.lengths.tolist() == [2]
    assert found.final_observation.all()
    assert found.steps["next", "terminated"][:, 0].tolist() == [False, True]
    assert len(found.observations["observation", "state"]) == 3


def test_the_files_of_others(realdata: Path, settings: Settings) -> None:
    folder = realdata / "fixtures_generated" / "oxe_jxu124"
    for flavour in ("toy_array", "toy_bytes_dict", "toy_pil"):
        expected = []
        for path in sorted((folder / flavour).glob("*.tar")):
            with tarfile.open(path) as archive:
                for member in archive:
                    data: Any = archive.extractfile(member)
                    expected.append(pickle.load(data)["steps"])  # noqa: S301 - generated files of ours
        got = convert(folder / flavour, flavour, settings, Options(), executor=InProcess())
        found = episodes(got.path)
        assert found.lengths.sum() > 5
        last = [steps[-1] for steps in expected]
        ends = found.steps["next", "terminated"] | found.steps["next", "truncated"]
        assert ends.sum() == len(last)
        states = [s["observation"]["state"] for steps in expected for s in steps]
        kept = np.delete(
            found.observations["observation", "state"],
            found.lengths.cumsum() + np.arange(len(last)),
            axis=0,
        )
        whole = not found.final_observation.any()
        np.testing.assert_array_equal(kept, np.stack(states)) if whole else None
        images = [s["observation"]["image"] for s in expected[0]]
        pixels: Any = np.asarray(found.observations["observation", "image"][: len(images)])
        for image, one in zip(images, pixels, strict=True):
            if isinstance(image, dict):
                continue
            np.testing.assert_array_equal(one, np.asarray(image))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    write_webdataset(tmp_path / "repo" / "viola", "viola", "file")
    write_webdataset(tmp_path / "repo" / "viola_other", "viola_other", "file")
    with HubServer({REPO: tmp_path / "repo"}) as server:
        yield server


def test_download_from_the_hub(hub: HubServer, settings: Settings) -> None:
    online = Settings(settings.root, hub_endpoint=hub.url, minari_path=settings.root)
    got = download(parse_id("openx:viola@hub"), online, Options(), executor=InProcess())
    check(episodes(got.path), [toy_steps(e, n, "file") for e, n in enumerate(LENGTHS)])
    manifest = got.manifest
    assert manifest.licence == "CC-BY-4.0"
    assert manifest.id == "openx:viola@hub"
    assert [file["path"] for file in manifest.files] == [
        "viola/viola_00000.tar",
        "viola/viola_00001.tar",
    ]
    assert manifest.files[0]["url"].startswith(f"hf://datasets/{REPO}@")
    commit = manifest.files[0]["url"].partition("@")[2].partition("/")[0]
    pinned = OpenX().resolve("viola", f"hub-{commit}", online)
    assert [file.urls[0] for file in pinned.files] == [file["url"] for file in manifest.files]
    assert not list(settings.downloads.rglob("*.tar"))
    offline = Settings(settings.root, offline=True)
    for name, where in (("violas", online), ("viola", offline)):
        REFUSALS.check("names", name, partial(OpenX().resolve, name, "hub", where))


class _Runs:
    def __reduce__(self) -> Any:
        return os.mkdir, ("hacked",)


GOOD = pickle.dumps({"steps": toy_steps(0, 2, "file")})
FIRST = toy_steps(0, 1, "file")[0]
PNG = FIRST["observation"]["image"]["bytes"]


def _changed(**columns: Any) -> bytes:
    steps = toy_steps(0, 2, "file")
    for name, values in columns.items():
        for step, value in zip(steps, values, strict=True):
            step[name] = value
    return pickle.dumps({"steps": steps})


BAD = {
    "runs code": pickle.dumps(_Runs()),
    "no episode": pickle.dumps([1, 2]),
    "no steps": pickle.dumps({"steps": []}),
    "a step is missing a leaf": pickle.dumps({"steps": [FIRST, {"reward": 1.0}]}),
    "shapes change": _changed(action=[np.zeros(3), np.zeros(4)]),
    "an image is another": _changed(extra=[PNG, None]),
    "a cut image": _changed(extra=[b"\x89PNG\r\n\x1a\n"] * 2),
    "no text": _changed(language_instruction=[b"\xff\xfe", "x"]),
    "names that lead out": _changed(**{"../x": [1, 2]}),
    "numbers as keys": _changed(extra=[{1: 2}, {1: 2}]),
    "no reward": _changed(reward=["a", "b"]),
    "cut": GOOD[:-9],
    "other leaves": _changed(extra=[1, 2]),
}


@REFUSALS.of("episodes", BAD)
def test_bad_episodes_are_named_or_left_out(
    name: str, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    members = [("a.data.pickle", GOOD), ("b.data.pickle", BAD[name]), ("c.data.pickle", GOOD)]
    write_tar(tmp_path / "raw" / "x_00000.tar", members)
    call = partial(stored, tmp_path / "raw", settings)
    REFUSALS.check("episodes", name, call, {tmp_path: "FOLDER"})
    assert not (tmp_path / "hacked").exists()
    assert not list(settings.root.glob("local/*/*/manifest.json"))
    got = call(skip_bad_episodes=True)
    assert episodes(got.path).episodes["key",].tolist() == ["a", "c"]
    assert len(got.manifest.skipped) == 1


A, B = ("a.data.pickle", GOOD), ("b.data.pickle", GOOD)


def cut(folder: Path) -> None:
    write_tar(folder / "x_00000.tar", [A, B])
    whole = (folder / "x_00000.tar").read_bytes()
    (folder / "x_00000.tar").write_bytes(whole[: len(GOOD) + 1800])


def second(content: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        write_tar(folder / "x_00000.tar", [A])
        (folder / "x_00001.tar").write_text(content)

    return write


def gap(folder: Path) -> None:
    for number in (0, 2):
        write_tar(folder / f"x_0000{number}.tar", [A])


ARCHIVES: dict[str, Callable[[Path], object]] = {
    "a member that leads out": lambda to: write_tar(to / "x_00000.tar", [("../../a.data.pickle", GOOD)]),
    "one twice": lambda to: write_tar(to / "x_00000.tar", [A, A]),
    "cut": cut,
    "a gap": gap,
    "a pointer": second("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
    "a page": second("<html>no</html>"),
    "empty": second(""),
}  # fmt: skip


@REFUSALS.of("archives", ARCHIVES)
def test_bad_archives(name: str, tmp_path: Path, settings: Settings) -> None:
    ARCHIVES[name](tmp_path / "raw")
    call = partial(stored, tmp_path / "raw", settings)
    REFUSALS.check("archives", name, call, {tmp_path: "FOLDER"})


def test_members_of_other_kinds_are_dropped(tmp_path: Path, settings: Settings) -> None:
    write_tar(tmp_path / "raw" / "x_00000.tar", [A, ("a.json", b"{}"), B])
    dropped = stored(tmp_path / "raw", settings).manifest.dropped
    assert [one["key"] for one in dropped] == [".json"]


def test_accepts_its_own_files_only(tmp_path: Path, realdata: Path) -> None:
    path = write_webdataset(tmp_path / "raw", "toy", "file")
    assert OpenX().accepts(path / "toy_00000.tar")
    (tmp_path / "odd.tar").write_bytes(b"no tar")
    write_tar(tmp_path / "other" / "x.tar", [("a.npy", b"")])
    for odd in (tmp_path / "odd.tar", tmp_path / "other", tmp_path):
        assert not OpenX().accepts(odd)
    for one in (realdata / "fixtures_generated" / "gendgrl").iterdir():
        assert not OpenX().accepts(one)


def test_reading_a_shard_needs_no_other(tmp_path: Path) -> None:
    path = write_webdataset(tmp_path / "raw", "toy", "file")
    raw = OpenX().open(OpenX().release_of(path, "toy"), path)
    (path / "toy_00000.tar").unlink()
    batch = concatenate(list(raw.read(raw.shards()[1])))
    assert batch.lengths.tolist() == [4]
