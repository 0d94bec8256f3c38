"""Minari datasets of a bucket: what their revisions are made of, and names that are no paths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offline_data.config import Settings
from offline_data.errors import IntegrityError
from offline_data.readers.hdf5 import MAGIC
from offline_data.sources.minari.bucket import list_datasets, list_files
from offline_data.testing.gcs_server import GcsServer

BUCKET, NAME = "minari-remote", "pen/human-v0"
OBJECTS = {
    f"{NAME}/data/": b"",
    f"{NAME}/data/1/part a": b"2001",
    f"{NAME}/data/main_data.hdf5": MAGIC + b" 1001",
    f"{NAME}/data/metadata.json": b'{"total_steps": 1001}',
}


@pytest.fixture
def online(settings: Settings) -> Settings:
    return replace(settings, offline=False)


def test_a_revision_stays_what_it_was(online: Settings) -> None:
    """The revision is part of the paths of datasets that were downloaded before."""
    with GcsServer({BUCKET: OBJECTS}, page_size=2) as server:
        at_bucket = replace(online, mirrors=(server.mirror,))
        revision, files = list_files(BUCKET, NAME, None, at_bucket)
        assert revision == "gcs-bef08d545b6e"
        assert [(file.path, file.magic) for file in files] == [
            ("data/1/part a", b""),
            ("data/main_data.hdf5", MAGIC),
            ("data/metadata.json", b""),
        ]
        assert list_datasets(BUCKET, at_bucket) == [NAME]


def test_a_composed_object_is_known_by_its_generation(online: Settings) -> None:
    name = f"{NAME}/data/1/part a"
    with GcsServer({BUCKET: OBJECTS}, composed={name}) as server:
        at_bucket = replace(online, mirrors=(server.mirror,))
        revision, files = list_files(BUCKET, NAME, None, at_bucket)
        assert str(files[0].digest).startswith("crc32c:")
        assert list_files(BUCKET, NAME, revision, at_bucket) == (revision, files)
        server.buckets = {BUCKET: {**OBJECTS, name: b"2002"}}
        assert list_files(BUCKET, NAME, None, at_bucket)[0] != revision


def test_a_name_that_leaves_its_folder(online: Settings) -> None:
    hostile = {f"{NAME}/data/../../../up": b"3001", **OBJECTS}
    with GcsServer({BUCKET: hostile}) as server, pytest.raises(IntegrityError, match="An object"):
        list_files(BUCKET, NAME, None, replace(online, mirrors=(server.mirror,)))
