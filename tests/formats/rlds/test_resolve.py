"""Open X-Embodiment by name: the catalogue, and downloads from a bucket of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from offline_data import StreamingDataset
from offline_data.base.config import Settings
from offline_data.base.errors import AuthError, NotFoundError, OfflineError
from offline_data.base.ids import parse_id
from offline_data.base.progress import SILENT
from offline_data.fetch import gcs
from offline_data.formats.catalogues.openx import NOTES, read_table
from offline_data.formats.registry import source_accepting
from offline_data.formats.rlds.source import ALIASES, OpenX
from offline_data.pipeline.ingest import Options, download
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.store.reader import open_reader
from tests.toys.rlds import toy_record, write_rlds
from tests.toys.servers import Answer, Fault, FileServer, GcsServer

FOLDER = "robotics/viola/0.1.0/"


@pytest.fixture
def objects(tmp_path: Path) -> dict[str, bytes]:
    records = [toy_record(e, 1 + e % 3) for e in range(7)]
    splits = {"test": [records[5:]], "train": [records[:3], records[3:5]]}
    folder = write_rlds(tmp_path / "published", splits, name="viola")
    return {FOLDER + path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def bucket(objects: dict[str, bytes]) -> Iterator[GcsServer]:
    with GcsServer({"gresearch": objects}) as server:
        yield server


@pytest.fixture
def online(bucket: GcsServer, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings with a network that has one host."""
    monkeypatch.setattr(gcs, "HOST", bucket.url)
    return replace(settings, offline=False)


def test_the_catalogue() -> None:
    torchrl = 55  # datasets in the list of its class, all of them here
    assert len(read_table()) == 93
    assert len(OpenX().catalog()) == 72 > torchrl
    assert {note for one in read_table().values() for note in one.notes} == set(NOTES.values())
    assert all(read_table()[name].version for name in ALIASES.values())
    viola = next(entry for entry in OpenX().catalog() if entry.name == "viola")
    assert (viola.episodes, viola.bytes) == (150, 11_166_914_969)
    assert viola.summary.endswith("(train 135, test 15)")


def test_files_of_a_version_with_sizes_digests_and_both_buckets(online: Settings) -> None:
    release = OpenX().resolve("viola", None, online)
    assert (release.name, release.revision, release.shards) == ("viola", "0.1.0", 3)
    assert release.opening == ("dataset_info.json", "features.json", "steps-label.labels.txt")
    assert [file.path for file in release.files[3:]] == [
        "viola-train.tfrecord-00000-of-00002",
        "viola-train.tfrecord-00001-of-00002",
        "viola-test.tfrecord-00000-of-00001",
    ]
    for file in release.files:
        assert file.size
        assert str(file.digest).startswith("md5:")
        assert [url.split("/")[3] for url in file.urls] == [
            "gresearch", "gdm-robotics-open-x-embodiment",
        ]  # fmt: skip
    only = OpenX().resolve("viola/test", "0.1.0", online)
    assert [file.path for file in only.files[3:]] == ["viola-test.tfrecord-00000-of-00001"]


def test_a_bucket_that_lists_nothing(online: Settings, bucket: GcsServer) -> None:
    bucket.always("/storage/v1/b/gresearch/o", Fault(Answer(b"", 403)))
    release = OpenX().resolve("viola", None, online)
    assert {(file.size, file.digest) for file in release.files} == {(None, None)}
    assert release.opening == ("dataset_info.json", "features.json")


def test_the_other_bucket(online: Settings, bucket: GcsServer, objects: dict[str, bytes]) -> None:
    moved = {name.removeprefix("robotics/"): content for name, content in objects.items()}
    bucket.buckets = {"gdm-robotics-open-x-embodiment": moved}
    release = OpenX().resolve("viola", None, online)
    assert "gdm-robotics-open-x-embodiment" in release.files[0].urls[0]
    assert release.files[0].size


def test_the_host_of_bridge(settings: Settings, tmp_path: Path) -> None:
    folder = write_rlds(tmp_path / "b", {"train": [[toy_record(1, 2)]]}, name="bridge_dataset")
    place = "/datasets/bridge_release/data/tfds/bridge_dataset/1.0.0/"
    with FileServer({place + path.name: path.read_bytes() for path in folder.iterdir()}) as server:
        mirror = ("https://rail.eecs.berkeley.edu", server.url)
        online = replace(settings, offline=False, mirrors=(mirror,))
        release = OpenX().resolve("bridge_dataset", None, online)
    assert release.revision == "1.0.0"
    assert [len(file.urls) for file in release.files] == [1, 1, 1]


def test_what_is_not_there(online: Settings, bucket: GcsServer, settings: Settings) -> None:
    with pytest.raises(NotFoundError, match="no openx:violla") as caught:
        OpenX().resolve("violla", None, online)
    assert "openx:viola" in str(caught.value.hint)
    with pytest.raises(NotFoundError, match=r"there are 0\.1\.0"):
        OpenX().resolve("viola", "9.9.9", online)
    with pytest.raises(NotFoundError, match="there are train, test"):
        OpenX().resolve("viola/val", None, online)
    with pytest.raises(NotFoundError) as caught:
        OpenX().resolve("bridge_orig", None, online)
    assert caught.value.hint == "openx:bridge_dataset is it"
    with pytest.raises(NotFoundError, match="in no bucket") as caught:
        OpenX().resolve("rh20t", None, online)
    assert "--from openx" in str(caught.value.shell_hint)
    with pytest.raises(OfflineError) as offline:
        OpenX().resolve("viola/train[:2]", None, settings)
    assert "offline-data download 'openx:viola/train[:2]'" in str(offline.value.shell_hint)


def test_a_folder_that_is_a_mirror_is_read_offline(
    settings: Settings, objects: dict[str, bytes], tmp_path: Path
) -> None:
    """In place of the second bucket, whose listings no folder has."""
    folder = tmp_path / "mirror/robotics/viola/0.1.0"
    folder.parent.mkdir(parents=True)
    (tmp_path / "published").rename(folder)
    mirror = (f"{gcs.HOST}/gresearch/", f"{(tmp_path / 'mirror').as_uri()}/")
    offline = replace(settings, offline=True, mirrors=(mirror,))
    release = OpenX().resolve("viola", None, offline)
    assert release.opening == ("dataset_info.json", "features.json", "steps-label.labels.txt")
    with StreamingDataset("openx:viola", 3, settings=offline) as stream:
        streamed = sum(len(batch) for batch in stream)
    stored = download(parse_id("openx:viola"), offline, Options(), SILENT, executor=InProcess())
    assert (stored.episodes, stored.transitions) == (7, 13)
    assert streamed == 13 - len(open_reader(stored.path).invalid_rows)


def test_a_bucket_that_refuses(online: Settings, bucket: GcsServer) -> None:
    for folder in ("gresearch/robotics", "gdm-robotics-open-x-embodiment"):
        bucket.always(f"/{folder}/viola/0.1.0/dataset_info.json", Fault(Answer(b"", 403)))
    with pytest.raises(AuthError) as caught:
        OpenX().resolve("viola", None, online)
    assert "convert DIR NAME --from openx" in str(caught.value.shell_hint)


def test_a_download_of_slices(online: Settings) -> None:
    name, codes = "viola/test[1:]+train[20%:80%]", [6, 1, 2, 3]
    stored = download(
        parse_id(f"openx:{name}"), online, Options(audit="all"), SILENT, executor=InProcess()
    )
    reader = open_reader(stored.path)
    batch = reader.episode_batch(0, reader.episode_count)
    assert batch.episodes["episode_metadata", "id"].tolist() == codes
    assert batch.episodes[("split",)].tolist() == ["test", "train", "train", "train"]
    first = np.asarray(batch.observations["observation", "state"])[batch.root_rows[batch.starts], 0]
    assert first.tolist() == [1000 * e + 1 for e in codes]
    manifest = stored.manifest
    assert (manifest.licence, str(stored.id)) == ("CC-BY-4.0", f"openx:{name}@0.1.0")
    assert "2310.08864" in str(manifest.citation)
    again = download(parse_id(f"openx:{name}"), replace(online, offline=True), Options(), SILENT)
    assert again.path == stored.path


def test_a_folder_is_taken_by_one_source(tmp_path: Path) -> None:
    folder = write_rlds(tmp_path / "mine", {"train": [[toy_record(1, 2)]]})
    assert source_accepting(folder).name == "openx"
    (folder / "features.json").unlink()
    assert not OpenX().accepts(folder)
