"""`cache_layout.md` says what the code does, and its example runs."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import PIL.Image
import pytest

from offline_data.store import layout
from offline_data.store.manifest import Manifest
from offline_data.testing.toy import toy_batch, write_toy
from tests.films import film_batch
from tests.pictures import pictures, write
from tests.remedy import assert_none

TEXT = (Path(__file__).parents[1] / "cache_layout.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def test_every_manifest_field_is_documented() -> None:
    documented = set(
        re.findall(
            r"`(\w+)`",
            "\n".join(re.findall(r"^\| (.*?) \|", section("`manifest.json`"), re.MULTILINE)),
        )
    )
    fields = set(Manifest.__dataclass_fields__) - {"tables", "extra"} | {"format_version", "schema"}
    assert_none(
        documented ^ fields,
        "cache_layout.md: the table of `manifest.json` has a row for each field",
    )


def test_every_leaf_field_is_documented() -> None:
    documented = set(
        re.findall(
            r"`(\w+)`", "\n".join(re.findall(r"^\| (.*?) \|", section("Files"), re.MULTILINE))
        )
    )
    fields = set(layout.LeafSpec.__dataclass_fields__)
    assert_none(
        documented ^ fields,
        "cache_layout.md: the table of Files has a row for each field of a feature",
    )


def test_names_and_numbers_are_the_codes() -> None:
    for name in (layout.MANIFEST, layout.TEXT, f"/{layout.ROWS}{layout.SUFFIX}"):
        assert name in TEXT
    for table in (layout.STEPS, layout.OBSERVATIONS, layout.EPISODES, layout.TED):
        assert f"| `{table}` |" in section("Rows")
    assert f"Format version {layout.FORMAT_VERSION}." in TEXT
    assert f"multiple of {layout.WORD} bytes" in TEXT
    assert f"A feature of {layout.BIG_LEAF}\nbytes" in TEXT


def test_the_example_reads_an_encoded_leaf(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    block = re.search(r"```python\n(.*?)```", section("Encoded features"), re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {"folder": folder, "np": np, "PIL": PIL, "io": io}
    exec(compile(block[1], "cache_layout.md", "exec"), names)  # noqa: S102 - our own document
    np.testing.assert_array_equal(names["image"], pictures(5)[4])


def test_the_example_reads_a_video(tmp_path: Path) -> None:
    batch, truth = film_batch(tmp_path)
    write_toy(tmp_path / "d", [batch])
    block = re.findall(r"```python\n(.*?)```", section("Encoded features"), re.DOTALL)[1]
    names: dict[str, Any] = {"folder": tmp_path / "d", "np": np, "av": av}
    exec(compile(block, "cache_layout.md", "exec"), names)  # noqa: S102 - our own document
    np.testing.assert_array_equal(names["image"], truth[4])


def test_the_example_reads_a_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = toy_batch([3, 1, 4])
    write_toy(tmp_path / "d", [batch])
    block = re.search(r"```python\n(.*?)```", section("Files"), re.DOTALL)
    assert block is not None
    code = block[1].replace('"DATASET"', repr(str(tmp_path / "d")))
    assert len(code.strip().splitlines()) <= 22
    exec(compile(code, "cache_layout.md", "exec"), {})  # noqa: S102 - our own document
    reward = batch.steps["next", "reward"][4]
    codes = batch.observations["info", "code"][6:8]
    assert capsys.readouterr().out == f"{np.array(reward)}\n{codes}\n"
    assert codes.tolist() == [3001, 3002]
