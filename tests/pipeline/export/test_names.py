"""Names of leaves that a format gives to something else: refused with advice before anything is written, or kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import UsageError
from offline_data.episode.fields import Key
from offline_data.formats.writing.base import get_target
from offline_data.store.reader import open_reader
from offline_data.testing.toy import write_toy
from tests.pipeline.export.conftest import LENGTHS, flat_batch

ROWS = sum(LENGTHS)
STEPS, SEEN, FACTS = np.arange(ROWS) + 7, np.arange(ROWS + len(LENGTHS)) + 7, np.arange(4) + 7
IMAGES = np.zeros((len(SEEN), 32, 32, 3), np.uint8)
EXTRA = {
    "d4rl": ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts", "infos", "metadata", "virtual"),
    "robomimic": ("obs", "next_obs", "states", "actions", "rewards", "datagen_info", "initial_state"),
}  # fmt: skip
TAKEN: list[tuple[str, dict[Any, Any]]] = [
    *((to, {("extra", name): STEPS}) for to, names in EXTRA.items() for name in names),
    ("npz", {("episode_lengths",): STEPS}),
    ("npz", {("episodes", "seed"): STEPS, ("seed",): FACTS}),
    ("zarr", {("episode_ends",): FACTS}),
    ("zarr", {("observation", "a_b"): SEEN, ("observation", "a", "b"): SEEN}),
    ("zarr", {("observation", "action"): SEEN}),
    ("rlds", {("reward",): STEPS}),
    ("rlds", {("is_first",): STEPS}),
    *(
        ("ogbench", {("info", name): SEEN})
        for name in ("observations", "actions", "terminals", "rewards", "valids")
    ),
    ("ogbench", {("info", "a_b"): SEEN, ("info", "a", "b"): SEEN}),
    *(("lerobot", {(name,): STEPS}) for name in ("task", "frame_index", "task_index")),
    ("lerobot", {("observation", "images", "a"): IMAGES, ("observation", "a"): IMAGES}),
    ("parquet", {("a", "b.c"): STEPS, ("a.b", "c"): STEPS}),
]


def write(leaves: dict[Key, Any], folder: Path) -> Path:
    """Write a flat dataset with further leaves."""
    batch = flat_batch()
    tables: dict[str, dict[Key, Any]] = {
        "steps": {**batch.steps},
        "observations": {},
        "episodes": {},
    }
    if not any(key[0] == "observation" for key in leaves):
        tables["observations"] = {**batch.observations}
    for key, values in leaves.items():
        name = {ROWS: "steps", len(SEEN): "observations", len(FACTS): "episodes"}[len(values)]
        tables[name][key] = values
    changed: Any = tables
    write_toy(folder / "toy", [replace(batch, **changed)], dataset="local:toy@1")
    return folder / "toy"


def export(path: Path, to: str) -> Any:
    dest = path.parent / f"out-v0{get_target(to).suffix}"
    return offline_data.export(
        path, dest, to=to, settings=Settings(path.parent / "root"), progress=False
    )


@pytest.mark.parametrize(
    ("to", "leaves"), TAKEN, ids=[f"{to}-{'-'.join('/'.join(k) for k in ls)}" for to, ls in TAKEN]
)
def test_taken_names_are_refused(to: str, leaves: dict[Key, Any], tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=f" of local:toy@1 would be .* in {to}, (a|the) name "
    ) as caught:
        export(write(leaves, tmp_path), to)
    assert "rename it" in str(caught.value.hint)
    assert [one.name for one in tmp_path.iterdir()] == ["toy"]


@pytest.mark.parametrize("to", ["parquet", "hf", "ted", "npz"])
def test_names_of_columns_of_tables_are_kept(to: str, tmp_path: Path) -> None:
    """Also those that a table has for itself; a column of episodes may have the name of a leaf."""
    leaves: dict[Key, Any] = {
        ("episode_index",): FACTS,
        ("final", "x"): FACTS,
        ("step_index",): STEPS,
        ("seed",): FACTS,
        ("state",): SEEN,
    }
    done = export(write(leaves, tmp_path), to)
    assert done.losses == ()
    if to == "ted":
        return
    back = offline_data.convert(done.path, "back", root=tmp_path / "root", progress=False)
    reader = open_reader(back.path)
    for key, values in leaves.items():
        found = reader.episodes[key] if len(values) == len(FACTS) else reader.transitions_at(np.arange(ROWS))[key]  # fmt: skip
        np.testing.assert_array_equal(found, values if len(found) == len(values) else values[: len(found)] + np.repeat(np.arange(4), LENGTHS))  # fmt: skip


@pytest.mark.parametrize(("to", "taken"), [("npz", True), ("zarr", True), ("parquet", False)])
def test_actions_of_text(to: str, taken: bool, tmp_path: Path) -> None:
    path = write({("action",): STEPS.astype(str).astype(object)}, tmp_path)
    if not taken:
        assert export(path, to).compared
        return
    with pytest.raises(UsageError, match=f"{to} needs actions") as caught:
        export(path, to)
    assert "parquet" in str(caught.value.hint)
    assert [one.name for one in tmp_path.iterdir()] == ["toy"]


MARKUP = '"><img src=x>[a](b)`c`'


def test_cards_escape_names_and_messages_shorten_them(tmp_path: Path) -> None:
    long = "/".join(["x" * 200] * 3)
    leaves: dict[Key, Any] = {(MARKUP,): FACTS, ("extra", *long.split("/")): STEPS}
    done = export(write(leaves, tmp_path), "lerobot")
    card = (done.path / "README.md").read_text()
    (line,) = (line for line in card.splitlines() if line.startswith("- episodes/"))
    assert "&lt;img src=x&gt;\\[a\\]\\(b\\)\\`c\\`" in line
    with pytest.raises(UsageError, match="cannot hold all of") as caught:
        offline_data.export(
            tmp_path / "toy", tmp_path / "z", to="zarr", strict=True, progress=False
        )
    assert len(str(caught.value)) < 500
    assert "extra/xxx" in str(caught.value)
    assert any(loss.leaf == f"extra/{long}" for loss in offline_data.export(
        tmp_path / "toy", tmp_path / "z", to="zarr", dry_run=True, progress=False).losses)  # fmt: skip
