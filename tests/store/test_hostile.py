"""Dataset directories of strangers: what was written, or one of our errors; never anything else."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest

from offline_data.base.errors import OfflineDataError
from offline_data.store.library import survey
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy
from tests.fuzz.manifest_variants import variants
from tests.pictures import encoded_batch


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cases"), [("compact", 40), ("ted", 40), ("encoded", 25)])
def test_every_variant_is_read_or_refused(kind: str, cases: int, tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "root" / "d"
    if kind == "encoded":
        write_toy(whole, [encoded_batch()])
    else:
        batch = toy_batch([3, 1, 4], text=True, images=True, unknown_final=(1,))
        write_toy(whole, [batch], layout="ted" if kind == "ted" else "compact")

    def read() -> None:
        reader = open_reader(folder)
        for values in reader.transitions_at(np.arange(reader.transitions)).values():
            np.asarray(values)
        reader.episode_batch(0, reader.episode_count)

    for name, mutate in itertools.islice(variants(np.random.default_rng(1)), cases):
        shutil.copytree(whole, folder)
        mutate(folder)
        for act in (lambda: survey(tmp_path / "root"), read, lambda: verify(folder)):
            try:
                act()
            except OfflineDataError:
                pass
            except BaseException as error:
                raise AssertionError(name) from error
        shutil.rmtree(tmp_path / "root")
