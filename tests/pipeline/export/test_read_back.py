"""Exports to Parquet, `datasets` and npz are formats of `convert`: they come back without a mapping, and as they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_data.api.export import export
from offline_data.base.config import Settings
from offline_data.base.errors import FormatError
from offline_data.episode.fields import Key
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.content import digest_of
from offline_data.store.library import entry_at
from offline_data.store.reader import open_reader
from offline_data.testing.toy import toy_batch, write_toy
from tests.pipeline.export.conftest import BATCHES, LENGTHS, flat_batch

Store = Callable[[str], Path]
TARGETS = ("parquet", "hf", "npz")


def there_and_back(path: Path, to: str, settings: Settings, folder: Path) -> Any:
    """Export a dataset and convert the export; return both digests, the losses, and the dataset."""
    out = folder / ("out.npz" if to == "npz" else "out")
    done = export(path, out, to=to, settings=settings, progress=False)
    back = convert(out, f"back-{to}", settings, Options(audit="all"))
    assert back.manifest.converter["adapter"] == "files"
    digests = [digest_of(entry_at(one), settings.root) for one in (path, back.path)]
    return digests, done.losses, open_reader(back.path)


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("to", TARGETS)
def test_the_content_is_the_same(
    to: str, name: str, stored: Store, settings: Settings, tmp_path: Path
) -> None:
    (before, after), losses, reader = there_and_back(stored(name), to, settings, tmp_path)
    assert (before == after) == (not losses)
    original = open_reader(stored(name))
    lost = {loss.leaf for loss in losses}
    rows = np.arange(original.transitions)
    found = reader.transitions_at(rows)
    for key, values in original.transitions_at(rows).items():
        if not lost & {"/".join(key), "/".join(key[1:])}:
            np.testing.assert_array_equal(np.asarray(found[key]), np.asarray(values), str(key))


@pytest.mark.parametrize("to", TARGETS)
def test_names_with_dots_and_columns_of_episodes(
    to: str, settings: Settings, tmp_path: Path
) -> None:
    batch = toy_batch(LENGTHS)
    rows = batch.transitions
    odd: dict[Key, Any] = {
        ("extra", "v1.0"): np.arange(rows) * 1.5,
        ("extra", 'a "b=>.c'): np.arange(rows),
        ("v1.0",): np.arange(rows) + 0.5,
    }
    facts: dict[Key, Any] = {
        ("id",): np.array(["a", "b", "c", "é"], object),
        ("seed",): np.arange(4),
        ("v2.0",): np.arange(4) + 0.5,
    }
    whole = replace(batch, steps={**batch.steps, **odd}, episodes={**batch.episodes, **facts})
    path = tmp_path / "odd"
    write_toy(path, [whole], dataset="local:odd@1")
    (before, after), losses, reader = there_and_back(path, to, settings, tmp_path)
    assert (before, losses) == (after, ())
    for key, values in odd.items():
        np.testing.assert_array_equal(reader.step(key), values)


def test_an_export_of_an_earlier_version(stored: Store, settings: Settings, tmp_path: Path) -> None:
    """Without metadata the names of columns say what they are."""
    export(stored("flat"), out := tmp_path / "out", to="parquet", settings=settings, progress=False)
    for file in out.rglob("*.parquet"):
        pq.write_table(pq.read_table(file).replace_schema_metadata(None), file)
    back = convert(out, "back", settings, Options(audit="all"))
    digests = [digest_of(entry_at(one), settings.root) for one in (stored("flat"), back.path)]
    assert digests[0] == digests[1]


def change(file: Path, edit: Callable[[pa.Table], pa.Table]) -> None:
    table = edit(pq.read_table(file))
    pq.write_table(table, file)


def drop(name: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.drop_columns([name])


def put(name: str, values: Any) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(
        table.schema.get_field_index(name), name, pa.array(values)
    )


DAMAGE: dict[str, tuple[str, Any, str]] = {
    "a length too many": ("episodes", put("length", [4, 1, 5, 2]), "11 rows, expected 12 by length"),
    "a length of 0": ("episodes", put("length", [3, 0, 6, 2]), "by length"),
    "a missing length": ("episodes", put("length", [3, None, 5, 2]), "'length' has rows without a value"),
    "lengths as text": ("episodes", put("length", ["3", "1", "5", "2"]), "'length' of whole numbers"),
    "no final observations": ("episodes", drop("final_observation"), "Cannot tell what"),
    "no episodes": ("episodes", lambda t: t.slice(0, 0), "by length"),
    "another final": ("episodes", put("final.observation", [1.0, 2.0, 3.0, 4.0]), "differ in type or shape"),
    "ragged rows": ("data", put("action", [[1.0] * (1 + n % 2) for n in range(11)]), "rows differ in length"),
    "metadata": ("data", lambda t: t.replace_schema_metadata({b"offline_data": b'{"action": {"key": 3}}'}), "expected a list"),
    "a reserved name": ("data", lambda t: t.replace_schema_metadata({b"offline_data": b'{"action": {"key": ["..", "x"]}}'}), "cannot be a file name"),
    "text that is not JSON": ("data", lambda t: t.replace_schema_metadata({b"offline_data": b"{"}), "JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_tables(name: str, settings: Settings, tmp_path: Path) -> None:
    folder, edit, message = DAMAGE[name]
    write_toy(path := tmp_path / "flat", [flat_batch()], dataset="local:flat@1")
    export(path, out := tmp_path / "out", to="parquet", settings=settings, progress=False)
    (file,) = (out / folder).iterdir()
    change(file, edit)
    with pytest.raises(FormatError, match=message):
        convert(out, "back", settings, Options())
    assert not list((settings.root / "local").glob("back/*"))


@pytest.mark.parametrize(
    ("folder", "rows", "said"), [("data", 5, "by length"), ("episodes", 1, "by length")]
)
def test_other_row_groups(
    folder: str, rows: int, said: str, settings: Settings, tmp_path: Path
) -> None:
    write_toy(path := tmp_path / "flat", [flat_batch()], dataset="local:flat@1")
    export(path, out := tmp_path / "out", to="parquet", settings=settings, progress=False)
    (file,) = (out / folder).iterdir()
    pq.write_table(pq.read_table(file), file, row_group_size=rows)
    with pytest.raises(FormatError, match=said):
        convert(out, "back", settings, Options())


def test_a_file_of_rows_that_no_episode_has(settings: Settings, tmp_path: Path) -> None:
    write_toy(path := tmp_path / "flat", [flat_batch()], dataset="local:flat@1")
    export(path, out := tmp_path / "out", to="parquet", settings=settings, progress=False)
    (file,) = (out / "data").iterdir()
    pq.write_table(pq.read_table(file), file.with_name("train-00001-of-00002.parquet"))
    with pytest.raises(FormatError, match="more row groups than the table of episodes"):
        convert(out, "back", settings, Options())


LEAVES: dict[str, tuple[Any, str]] = {
    "no such feature": ({"steps/x": {"key": ["x"], "table": "steps"}}, "not among the features"),
    "another table": ({"steps/observation": {"key": ["observation"], "table": "steps"}}, "it is in observations"),
    "no action": ({"steps/action": {"key": ["action"], "table": "observations"}}, "'action'"),
    "a reserved name": ({"steps/action": {"key": ["..", "x"], "table": "steps"}}, "cannot be a file name"),
    "a flag": ({"steps/action": {"key": ["done"], "table": "steps"}}, "action"),
    "one leaf twice": ({"steps/action": {"key": ["a"], "table": "steps"}, "steps/reward": {"key": ["a"], "table": "steps"}}, "twice"),
    "no table": ({"steps/action": {"key": ["action"]}}, "table"),
    "a list": ([], "expected"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEAVES)
def test_damaged_leaves_of_rlds(name: str, settings: Settings, tmp_path: Path) -> None:
    leaves, message = LEAVES[name]
    write_toy(path := tmp_path / "flat", [flat_batch()], dataset="local:flat@1")
    export(path, out := tmp_path / "out", to="rlds", settings=settings, progress=False)
    (out / "offline_data.json").write_text(json.dumps({"leaves": leaves}))
    with pytest.raises(FormatError, match=message):
        convert(out, "back", settings, Options())
    assert not list((settings.root / "local").glob("back/*"))
