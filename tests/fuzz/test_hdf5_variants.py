"""No hostile HDF5 file crashes, hangs, fills the memory, or brings in bytes of another file."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from offline_data.base.errors import FormatError
from offline_data.formats.base import RandomAccess
from offline_data.pipeline.ingest.conversion import Conversion, open_release
from offline_data.pipeline.ingest.reading import parsed
from offline_data.pipeline.jobs.processes import Child, ChildDiedError
from tests.fuzz import hdf5_variants as variants

pytestmark = pytest.mark.slow

MEMORY = 3 << 30

CASES = [("d4rl", name) for name in variants.D4RL] + [("minari", name) for name in variants.MINARI]


def write(source: str, name: str, folder: Path) -> Path:
    """Write a variant, and return what `convert` is given."""
    folder.mkdir(parents=True)
    if source == "minari":
        variants.write_minari(folder / "set-v0", name)
        return folder / "set-v0"
    variants.D4RL[name](folder / "flat.hdf5")
    return folder / "flat.hdf5"


def parse(request: tuple[str, Path]) -> tuple[int, float]:
    """Open and read a file: number of steps, and the largest number anywhere. In the child."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, limit))
    name, path = request
    _, release = Conversion(path).describe(name, "mine")
    raw = parsed(path, partial(open_release, name, release))
    assert isinstance(raw, RandomAccess)
    steps, largest = 0, 0.0
    for part in raw.parts(1000):
        batch = raw.read_part(part)
        steps += int(batch.lengths.sum())
        columns = [*batch.steps.values(), *batch.observations.values()]
        numbers = [column for column in columns if column.dtype.kind in "biuf" and column.size]
        largest = max(largest, *(np.nanmax(column.astype(float)) for column in numbers))
    assert str(variants.SECRET) not in json.dumps(raw.info.about)
    return steps, largest


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with Child(parse) as process:
        yield process


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS")
@pytest.mark.parametrize(("source", "name"), CASES)
def test_parsing_gives_right_data_or_an_error(
    tmp_path: Path, child: Child, source: str, name: str
) -> None:
    path = write(source, name, tmp_path / "raw")
    found: tuple[int, float] | FormatError
    try:
        found = child.ask((source, path))
    except ChildDiedError:
        child.close()
        child.start()
        raise
    except FormatError as error:
        found = error
    if isinstance(found, FormatError):
        assert (source, name) not in variants.SOUND | variants.LEFT_OUT
        assert str(tmp_path) in found.message or name == "names_like_paths"
        assert "\n" not in found.message
    else:
        steps, largest = found
        assert (source, name) in variants.SOUND | variants.LEFT_OUT | variants.OTHERS
        assert steps == variants.ROWS + variants.LENGTH * (name == "episode_twice")
        assert largest < variants.SECRET / 2
