"""A manifest that breaks a rule, and a file that is elsewhere, are refused and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_data.base.errors import ManifestError
from offline_data.store.layout import MANIFEST
from offline_data.store.manifest import read_manifest
from offline_data.store.reader import open_reader
from offline_data.testing.toy import toy_batch, write_toy
from tests.pictures import encoded_batch

STEP, SEEN = "schema/steps/leaves", "schema/observations/leaves"
RULES: list[tuple[str, Any, str]] = [
    ("format_version", 0, "format_version is 0"),
    ("revision", 3, "revision is 3; expected text"),
    ("layout", "wide", "layout is 'wide'"),
    ("licence", [], "licence is"),
    ("dropped", [{"key": "a"}], "dropped[0] is {'key': 'a'}; expected an object of key and reason"),
    ("non_finite", {"a": {"nan": -1}}, "non_finite.a.nan is -1; expected a whole number"),
    ("files", [{"size": "9"}], "files[0].size is '9'; expected"),
    ("two_copies", [["a/b"]], "two_copies[0] is"),
    ("two_copies", [["x"] * 65], "expected a list of names"),
    ("history", [{"id": "a:b@1"}], "history[0].action is missing"),
    ("history", [{"action": "x", "id": "a:b", "recipe": [{}]}], "history[0].recipe[0].step is"),
    ("converter", {"options": {"recipe": [{}]}}, "converter.options.recipe[0].step is missing"),
    ("counts/episodes", 0, "counts are 5 transitions in 0 episodes"),
    ("counts/valid_transitions", 6, "do not add up"),
    ("counts/terminated", 6, "6 of 5 transitions are terminated"),
    ("digests/steps~1rows.memmap/sha256", "0" * 63, "sha256 is '0000"),
    ("digests/manifest.json", {"size": 1, "sha256": "0" * 64}, "manifest.json itself"),
    ("digests/..~1x", {"size": 1, "sha256": "0" * 64}, "expected a path inside"),
    ("digests/steps~1rows.memmap/size", 8, "has 8 bytes, and 5 rows"),
    ("digests/text.json", None, "digests.'text.json' is None; expected an object"),
    ("schema/more", {"rows": 1, "leaves": []}, "schema has the tables"),
    ("schema/steps/rows", 4, "schema steps has 4 rows"),
    (f"{STEP}/0/key", ["action"], "is there twice"),
    (f"{STEP}/0/key", ["other"], "steps needs episode"),
    (f"{STEP}/0/dtype", "object", "expected one of bool"),
    (f"{STEP}/0/text", True, "is text of dtype"),
    (f"{STEP}/0/shape", [2**32], "has shape"),
    (f"{STEP}/0/offset", 1000, "ends at byte"),
    (f"{STEP}/0/offset", 8, "overlap"),
    (f"{STEP}/0/offset", 4, "not at a multiple of 8"),
    (f"{STEP}/0/file", "episodes/rows.memmap", "expected steps/….memmap"),
    (f"{STEP}/0/file", "steps/gone.memmap", "digests lack 'steps/gone.memmap'"),
    (f"{STEP}/1/shape", [0, 2**60], "has shape"),
    (f"{SEEN}/0/key", ["next", "x"], "a name of TED's own"),
    (f"{SEEN}/0/key", ["action"], "is in steps and in observations"),
    ("reward", "complex64", "a number a row"),
]


@pytest.mark.parametrize(("path", "value", "said"), RULES, ids=[f"{r[0]} {r[2]}" for r in RULES])
def test_a_broken_rule_is_named(path: str, value: Any, said: str, tmp_path: Path) -> None:
    write_toy(tmp_path, [toy_batch([3, 2], text=True)])
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    if path == "reward":
        leaves = enumerate(manifest["schema"]["steps"]["leaves"])
        number = next(i for i, leaf in leaves if leaf["key"] == ["next", "reward"])
        path = f"{STEP}/{number}/dtype"
    *above, last = (name.replace("~1", "/") for name in path.split("/"))
    holder = manifest
    for name in above:
        holder = holder[int(name) if isinstance(holder, list) else name]
    holder[last] = value
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ManifestError) as error:
        read_manifest(tmp_path)
    assert said in error.value.message


@pytest.mark.parametrize("field", ["key", "dtype", "shape", "file", "offset", "stride"])
@pytest.mark.parametrize("encoded", [False, True])
def test_a_leaf_without_a_field_is_named(encoded: bool, field: str, tmp_path: Path) -> None:
    write_toy(tmp_path, [encoded_batch()])
    manifest = read_manifest(tmp_path).to_json()
    leaves = manifest["schema"]["observations"]["leaves"]
    del next(leaf for leaf in leaves if encoded == ("encoding" in leaf))[field]
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ManifestError, match=rf"manifest\.json is damaged: .*\b{field}\b"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["steps", "steps/rows.memmap"])
def test_links_may_lead_elsewhere_in_the_directory_but_not_out(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write_toy(folder, [toy_batch([3, 2])])
    (folder / name).rename(folder / "aside")
    (folder / name).symlink_to(folder / "aside")
    open_reader(folder)
    (folder / name).unlink()
    (folder / "aside").rename(tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(ManifestError, match="is a link that leads out"):
        open_reader(folder)


@pytest.mark.parametrize(
    ("folder", "step"),
    [("local/door/1", "offline-data convert PATH door"), ("local/d4rl/door/1", "download ID")],
    ids=["a dataset of the user", "a root of this name"],
)
def test_how_to_replace_a_damaged_dataset(tmp_path: Path, folder: str, step: str) -> None:
    path = tmp_path / folder
    path.mkdir(parents=True)
    (path / MANIFEST).write_text("{}")
    with pytest.raises(ManifestError) as caught:
        read_manifest(path)
    assert step in str(caught.value.shell_hint)
