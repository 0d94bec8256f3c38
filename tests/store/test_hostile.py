"""Dataset directories of strangers: what was written, or one of our errors; never anything else."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest

from offline_data.errors import OfflineDataError
from offline_data.store.library import survey
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy
from tests.fuzz.manifest_variants import variants

CASES = 150


@pytest.fixture(scope="module", params=["compact", "ted"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid dataset to be changed."""
    folder = tmp_path_factory.mktemp("whole") / "d"
    batch = toy_batch([3, 1, 4], text=True, images=True, unknown_final=(1,))
    write_toy(folder, [batch], layout=request.param)
    return folder


def test_every_variant_is_read_or_refused(whole: Path, tmp_path: Path) -> None:
    for name, mutate in itertools.islice(variants(np.random.default_rng(1)), CASES):
        folder = tmp_path / "root" / "d"
        shutil.copytree(whole, folder)
        mutate(folder)
        survey(tmp_path / "root")
        try:
            reader = open_reader(folder)
            reader.transitions_at(np.arange(reader.transitions))
            reader.episode_batch(0, reader.episode_count)
        except OfflineDataError:
            pass
        except BaseException as error:
            raise AssertionError(name) from error
        try:
            verify(folder)
        except OfflineDataError:
            pass
        except BaseException as error:
            raise AssertionError(name) from error
        shutil.rmtree(tmp_path)
