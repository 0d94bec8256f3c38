"""No hostile HDF5 file crashes, hangs, fills the memory, or brings in bytes of another file."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from offline_data.errors import FormatError
from offline_data.ingest.parsing import Parser
from offline_data.processes import Child, ChildDiedError
from offline_data.sources.registry import get_source
from tests.fuzz import hdf5_variants as variants

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = 3 << 30

CASES = [("d4rl", name) for name in variants.D4RL] + [("minari", name) for name in variants.MINARI]

SOUND = {
    ("d4rl", "never_written_gzip"),
    ("minari", "never_written_gzip"),
    ("d4rl", "shuffle_by_another_size"),
    ("minari", "shuffle_by_another_size"),
    ("minari", "seed_array_of_one"),
    ("minari", "attribute_text_not_utf8"),
}
"""What is not hostile after all."""

LEFT_OUT = {
    ("d4rl", "ring"),
    ("d4rl", "fan_of_soft_links"),
    ("d4rl", "named_type"),
    ("minari", "names_like_paths"),
    ("d4rl", "virtual_scalar"),
    ("d4rl", "virtual_scalar_over_another_file"),
    ("d4rl", "scalar_in_external_storage"),
    ("minari", "seed_float"),
    ("minari", "seed_nan"),
}
"""What is hostile where it can be left out: in infos, single values, seeds that are no integers."""

OTHERS = {
    *(("d4rl", "odd_float"), ("minari", "odd_float")),
    *(("d4rl", "long_name"), ("minari", "long_name")),
    ("minari", "episode_twice"),
}
"""What other tests decide on: here, either way."""

NAMES = {"names_like_paths", "long_name"}
"""What is refused where the name of a leaf is checked, which knows no file."""

COMMANDS = [
    ("d4rl", "virtual_scalar_over_another_file"),
    ("d4rl", "short_chunk_by_much"),
    ("d4rl", "all_columns_declared_only"),
    ("minari", "infos_out_of_another_file"),
    ("minari", "seed_array"),
    ("minari", "virtual_of_variable_length"),
    ("minari", "large_chunks"),
]
"""Those that were worst, and are also given to the command in the default run."""


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
    parser, source = Parser(path), get_source(name)
    _, release = parser(("describe", source, "mine"))
    parser(("open", source, release))
    steps, largest = 0, 0.0
    for part in parser(("parts", 1000)):
        batch = parser(("read", part))
        steps += int(batch.lengths.sum())
        columns = [*batch.steps.values(), *batch.observations.values()]
        numbers = [column for column in columns if column.dtype.kind in "biuf" and column.size]
        largest = max(largest, *(np.nanmax(column.astype(float)) for column in numbers))
    assert parser.raw is not None
    assert str(variants.SECRET) not in json.dumps(parser.raw.info.about)
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
        assert (source, name) not in SOUND | LEFT_OUT
        assert str(tmp_path) in found.message or name in NAMES
        assert "\n" not in found.message
    else:
        steps, largest = found
        assert (source, name) in SOUND | LEFT_OUT | OTHERS
        assert steps == variants.ROWS + variants.LENGTH * (name == "episode_twice")
        assert largest < variants.SECRET / 2


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS")
@pytest.mark.parametrize(
    ("source", "name"),
    [
        pytest.param(*case, marks=[] if case in COMMANDS else pytest.mark.slow, id="-".join(case))
        for case in CASES
    ],
)
def test_the_command_ends_with_a_sentence(tmp_path: Path, source: str, name: str) -> None:
    path = write(source, name, tmp_path / "raw")
    root = tmp_path / "root"
    program = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))\n"
        "from offline_data_cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    arguments = ["convert", str(path), "x", "--from", source, "--root", str(root)]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    written = [file for file in root.rglob("*") if file.is_file() and file.stat().st_size]
    if done.returncode == 0:
        assert (source, name) in SOUND | LEFT_OUT | OTHERS
        secret = np.float64(variants.SECRET).tobytes()
        assert not any(secret in file.read_bytes() for file in written)
    else:
        assert done.returncode == 5
        assert written == []
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert "unexpected" not in errors[0]
        assert str(tmp_path) in errors[0] or name in NAMES
