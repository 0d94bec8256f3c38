"""`decode` and `encode`, and recipes that let encoded leaves pass: bytes and pixels after the disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offline_data
from offline_data.base.errors import StepError
from offline_data.pipeline.preprocess.steps.registry import parse_step
from offline_data.store.chunk import read_transitions
from offline_data.store.layout import OBSERVATIONS, STEPS
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.chunks import toy_chunk, with_leaves
from offline_data.testing.toy import write_toy
from offline_data_cli.main import main
from tests.pictures import (
    JPEG,
    LENGTHS,
    NEXT,
    PIXELS,
    ROWS,
    WRIST,
    Kind,
    encoded_batch,
    images_on_disk,
    pictures,
    raw,
    read,
    write,
)


@pytest.fixture(autouse=True)
def _each_episode_is_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline_data.pipeline.preprocess.plan.GROUP_BYTES", 1)


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A dataset of raw images."""
    return write(tmp_path / "raw", raw(encoded_batch()))


@pytest.fixture
def encoded(tmp_path: Path) -> Path:
    """The same as PNG."""
    return write(tmp_path / "png")


def made(folder: Path, *stages: Any, **options: Any) -> Path:
    dest = folder.with_name(f"made {len(list(folder.parent.iterdir()))}")
    options = {"num_chunks": 4, "audit": "all", **options}
    offline_data.open_dataset(folder).preprocess(list(stages), dest=dest, **options)
    assert verify(dest) == ()
    return dest


def rows_of(folder: Path) -> Any:
    return offline_data.open_dataset(folder)[:]


def encodings(folder: Path) -> tuple[str | None, str | None]:
    tables = open_reader(folder).manifest.tables
    return tables[OBSERVATIONS][PIXELS].encoding, tables[STEPS][WRIST].encoding


class TestEncode:
    def test_png_is_exact_by_an_independent_reader(self, parent: Path) -> None:
        folder = made(parent, "encode")
        for key, first in ((PIXELS, 0), (WRIST, 500)):
            images = images_on_disk(folder, key)
            expected = pictures(len(images), first=first)
            np.testing.assert_array_equal(np.stack([read(image) for image in images]), expected)
        assert torch.equal(rows_of(folder)[PIXELS], rows_of(parent)[PIXELS])
        assert not [note for note in open_reader(folder).manifest.notes if "lossy" in note]
        alone = made(parent, "encode", num_chunks=1)
        assert open_reader(alone).manifest.digests == open_reader(folder).manifest.digests

    def test_jpeg_says_that_it_is_lossy(self, tmp_path: Path) -> None:
        parent = write(tmp_path / "raw", raw(encoded_batch(kind=JPEG)))
        folder = made(parent, "encode:observation.pixels,format=jpeg,quality=90")
        assert encodings(folder) == ("jpeg", None)
        theirs = np.stack([read(image) for image in images_on_disk(folder)])
        reader = open_reader(folder)
        np.testing.assert_array_equal(np.asarray(reader.leaf(OBSERVATIONS, PIXELS)), theirs)
        before = np.asarray(open_reader(parent).leaf(OBSERVATIONS, PIXELS)).astype(int)
        assert 0 < np.abs(theirs - before).mean() < 20
        note = "Images of observation.pixels were encoded as JPEG of quality 90, which is lossy"
        assert note in reader.manifest.notes

    @pytest.mark.parametrize(
        ("text", "encoding"), [("encode:format=jpeg", "png"), ("encode:eye,format=jpeg", "jpeg")]
    )
    def test_only_named_leaves_change_their_format(self, text: str, encoding: str) -> None:
        eye = {"eye": np.full((3, 8, 8, 3), 51, np.uint8)}
        chunk = parse_step("encode").apply(with_leaves(toy_chunk([2]), observations=eye))
        column: Any = parse_step(text).apply(chunk).batch.observations["eye",]
        assert column.encoding == encoding

    def test_grey_depth_and_alpha(self, tmp_path: Path) -> None:
        kinds: dict[Any, Kind] = {
            ("observation", "grey"): ("png", "uint8", (9, 8)),
            ("observation", "depth"): ("png", "uint16", (9, 8)),
            ("observation", "alpha"): ("png", "uint8", (9, 8, 4)),
        }
        batch, leaves = encoded_batch(), {key: pictures(ROWS, kind) for key, kind in kinds.items()}
        observations: dict[Any, Any] = {**batch.observations, **leaves}
        write_toy(tmp_path / "d", [replace(batch, observations=observations)])
        folder = made(tmp_path / "d", "encode", "encode:observation.depth")
        for key, values in leaves.items():
            found: Any = open_reader(folder).leaf(OBSERVATIONS, key)
            assert found.encoding == "png"
            np.testing.assert_array_equal(np.asarray(found), values)


@pytest.mark.slow
def test_decoding_gives_back_what_was_encoded(encoded: Path, parent: Path) -> None:
    folder = made(encoded, "decode")
    assert encodings(folder) == (None, None)
    found, expected = open_reader(folder).manifest.digests, open_reader(parent).manifest.digests
    assert all(found[name] == expected[name] for name in expected if "rows" in name)
    assert encodings(made(folder, "encode:observation.pixels")) == ("png", None)
    assert encodings(made(encoded, "decode:observation")) == (None, "png")
    ted = made(encoded, "decode", layout="ted")
    assert torch.equal(rows_of(ted)[NEXT], rows_of(encoded)[NEXT])
    with pytest.raises(StepError, match=r"Layout ted .* is encoded") as error:
        made(encoded, "decode:observation", layout="ted")
    assert "layout compact" in str(error.value.hint)


class TestWhatPasses:
    @pytest.mark.slow
    def test_bytes_stay_where_a_recipe_leaves_them_alone(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "d", encoded_batch(kind=JPEG))
        before = images_on_disk(folder)
        for stage in ("reward_scale:2", lambda td: td.set("action", td["action"] * 2)):
            assert images_on_disk(made(folder, stage)) == before
        kept = made(folder, "filter:length > 2", "rename:observation.pixels=observation.front")
        chosen = np.repeat(np.array(LENGTHS) > 2, np.array(LENGTHS) + 1)
        expected = [image for image, keep in zip(before, chosen, strict=True) if keep]
        assert images_on_disk(kept, ("observation", "front")) == expected
        view = offline_data.open_dataset(folder).episodes_at([4, 0])
        view.preprocess("reward_scale:2", dest=tmp_path / "view")
        assert images_on_disk(tmp_path / "view") == [*before[ROWS - 7 :], *before[:4]]

    def test_single_transitions_are_those_of_the_parent(self, encoded: Path, parent: Path) -> None:
        rows = np.array([0, 2, 3, 9])
        for reader in (open_reader(encoded), open_reader(parent)):
            found = read_transitions(reader, rows).batch.observations[PIXELS]
            before, after = np.asarray(found)[::2], np.asarray(found)[1::2]
            expected = rows_of(parent)
            np.testing.assert_array_equal(before, expected[PIXELS][rows])
            np.testing.assert_array_equal(after, expected[NEXT][rows])

    @pytest.mark.slow
    def test_steps_see_pixels(self, encoded: Path, parent: Path) -> None:
        for stages in (
            ["crop:8,observation.pixels"],
            ["grayscale:observation.pixels", "encode:observation.pixels"],
            ["normalize:observation.pixels", "dedupe"],
        ):
            found, expected = rows_of(made(encoded, *stages)), rows_of(made(parent, *stages))
            for key, leaf in expected.items(True, True):
                assert torch.equal(found[key], leaf), key

    def test_functions_see_pixels(self, encoded: Path, parent: Path) -> None:
        def darker(td: Any) -> Any:
            td[PIXELS], td[NEXT] = td[PIXELS] // 2, td[NEXT] // 2
            return td

        for stages, encoding in (([darker], None), ([darker, "encode:observation.pixels"], "png")):
            folder = made(encoded, *stages)
            assert encodings(folder) == (encoding, "png")
            assert torch.equal(rows_of(folder)[PIXELS], rows_of(parent)[PIXELS] // 2)


@pytest.mark.slow
def test_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(arguments) == code, capsys.readouterr().err
        return capsys.readouterr().out

    local = tmp_path / "root/local"
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(tmp_path / "root"))
    (local / "a").mkdir(parents=True)
    write(local / "a/1", raw(encoded_batch()))
    recipe = ("preprocess", "local:a", "--step", "encode:observation.pixels", "--out", "b")
    told = json.loads(run(*recipe, "--dry-run", "--json"))
    run(*recipe)
    schema = json.loads(run("info", "local:b", "--json"))["schema"]
    leaf = schema["observation/pixels"]
    assert (leaf["encoding"], leaf["dtype"], leaf["shape"]) == ("png", "uint8", [12, 17, 3])
    assert "encoding" not in schema["wrist"]
    assert "uint8 (png)" in run("info", "local:b")
    run("verify", "local:b")
    for command in (("head", "-n", "3"), ("stats",)):
        same = [json.loads(run(*command, name, "--json")) for name in ("local:a", "local:b")]
        values = [one["leaves"] if isinstance(one, dict) else one for one in same]
        assert values[0] == values[1]
    run("sample", "local:b", "--batch", "4")
    found = next(local.glob("b/*/manifest.json")).parent
    files = [path for table in ("steps", "observations") for path in found.glob(f"{table}/**/*.*")]
    size = sum(path.stat().st_size for path in files if path.suffix != ".json")
    assert abs(told["bytes"] / size - 1) < 0.1
    run("convert", str(found), "c", "--from", "local")
    assert images_on_disk(next(local.glob("c/*/manifest.json")).parent) == images_on_disk(found)
    run("convert", str(found), "d", "--from", "local", "--layout", "ted", code=5)
