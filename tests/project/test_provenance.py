"""The lock file in what identifies the data of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.errors import NotFoundError, UsageError

HOPPER = "d4rl:hopper-medium-v2"


def test_the_digest_of_a_lock_file_that_locks_the_content(
    online: Settings, project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = project(f'hopper = "{HOPPER}"')
    offline_data.lock(file, settings=online, progress=False)
    lock = file.with_suffix(".lock")
    ds = offline_data.load_dataset(HOPPER, root=online.root, download=False)
    digest = f"sha256:{hashlib.sha256(lock.read_bytes()).hexdigest()}"

    found = ds.provenance(lock=lock)
    assert found["lock_digest"] == digest
    assert f'content = "{found["content_digest"]}"' in lock.read_text()
    assert str(found["revision"]) in lock.read_text()
    assert ds.provenance()["lock_digest"] is None  # not in this folder
    monkeypatch.chdir(lock.parent)
    assert ds.provenance()["lock_digest"] == digest

    locked = lock.read_text()
    content = str(found["content_digest"])
    lock.write_text(locked.replace(content, f"sha256:{'0' * 64}"))
    assert ds.provenance()["lock_digest"] is None  # of another content
    lock.write_text("version = ")
    with pytest.raises(UsageError, match=r"datasets\.lock"):
        ds.provenance()
    lock.unlink()
    with pytest.raises(NotFoundError, match=r"datasets\.lock"):
        ds.provenance(lock="datasets.lock")
