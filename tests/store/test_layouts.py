"""What goes into a dataset directory comes out, in both layouts, and damage is named."""

from __future__ import annotations

import json
import resource
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.base.errors import FormatError, ManifestError
from offline_data.episode import EpisodeBatch, Key
from offline_data.episode.fields import DONE, TERMINATED, TRUNCATED, next_of
from offline_data.episode.joining import concatenate
from offline_data.formats.local import StoredEpisodes
from offline_data.store.layout import EPISODE, LAYOUTS, MANIFEST, LayoutName
from offline_data.store.reader import open_reader
from offline_data.store.tables import Column, pack
from offline_data.store.verify import verify
from offline_data.testing.toy import assert_same_batch, toy_batch, write_toy

LENGTHS = ([3, 1, 4], [1], [2, 5, 1, 1])
UNKNOWN = (1, 4)


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> LayoutName:
    name: LayoutName = request.param
    return name


@pytest.fixture
def batches() -> list[EpisodeBatch]:
    """Text, images and unknown final rows."""
    firsts = np.cumsum([0, *map(len, LENGTHS)]).tolist()
    return [
        toy_batch(lengths, first_episode=first, text=True, images=True, unknown_final=UNKNOWN)
        for lengths, first in zip(LENGTHS, firsts, strict=False)
    ]


@pytest.fixture
def folder(tmp_path: Path, batches: list[EpisodeBatch], layout: LayoutName) -> Path:
    write_toy(tmp_path / "toy", batches, layout=layout)
    return tmp_path / "toy"


def test_batches_come_back_as_they_went_in(folder: Path, batches: list[EpisodeBatch]) -> None:
    reader, whole = open_reader(folder), concatenate(batches)
    assert_same_batch(reader.episode_batch(0, reader.episode_count), whole)
    single = [reader.episode_batch(e, e + 1) for e in range(reader.episode_count)]
    assert_same_batch(concatenate(single), whole)
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["format_version"] == 1
    assert "encoding" not in str(manifest["schema"])


def test_every_transition_is_the_sources(folder: Path, batches: list[EpisodeBatch]) -> None:
    reader, whole = open_reader(folder), concatenate(batches)
    rows = np.random.default_rng(0).permutation(reader.transitions)
    found = reader.transitions_at(rows)
    for i, row in enumerate(rows):
        episode = int(np.searchsorted(np.cumsum(whole.lengths), row, side="right"))
        assert found[EPISODE][i] == episode
        for key, values in whole.steps.items():
            np.testing.assert_array_equal(found[key][i], values[row])
        for key, values in whole.observations.items():
            if values.dtype != object:
                np.testing.assert_array_equal(found[key][i], values[row + episode])
                np.testing.assert_array_equal(found[next_of(key)][i], values[row + episode + 1])
    np.testing.assert_array_equal(found[DONE], found[TERMINATED] | found[TRUNCATED])
    assert not any(found[(flag,)].any() for flag in ("done", "terminated", "truncated"))


def test_episode_table(folder: Path, batches: list[EpisodeBatch]) -> None:
    reader, whole = open_reader(folder), concatenate(batches)
    np.testing.assert_array_equal(reader.lengths, whole.lengths)
    np.testing.assert_array_equal(reader.starts, whole.starts)
    np.testing.assert_array_equal(reader.episodes[("id",)], np.arange(len(whole.lengths)))
    rewards = np.split(whole.steps[("next", "reward")][:, 0], whole.starts[1:])
    returns = np.asarray(reader.episodes[("return",)], dtype=np.float64)
    np.testing.assert_allclose(returns, [r.astype(np.float64).sum() for r in rewards])


def test_rows_without_a_known_next_are_listed(folder: Path, batches: list[EpisodeBatch]) -> None:
    reader, whole = open_reader(folder), concatenate(batches)
    expected = [whole.last_rows[e] for e in UNKNOWN if e % 2 == 1]
    assert reader.invalid_rows.tolist() == expected
    counts = reader.manifest.counts
    assert counts["valid_transitions"] == whole.transitions - len(expected)
    assert counts["without_final_observation"] == len(UNKNOWN)


def test_other_layout_and_back_loses_nothing(
    folder: Path, tmp_path: Path, layout: LayoutName
) -> None:
    other: LayoutName = "ted" if layout == "compact" else "compact"
    once = StoredEpisodes(folder)
    write_toy(tmp_path / "b", [once.read_part(p) for p in once.parts(1)], layout=other)
    twice = StoredEpisodes(tmp_path / "b")
    write_toy(tmp_path / "c", [twice.read_part(p) for p in twice.parts(10**9)], layout=layout)
    digests = [open_reader(path).manifest.digests for path in (folder, tmp_path / "c")]
    assert digests[0] == digests[1]


def test_verify_names_what_is_damaged(folder: Path) -> None:
    assert verify(folder) == ()
    names = sorted(open_reader(folder).manifest.digests)[:3]
    flipped, short, missing = (folder / name for name in names)
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    short.write_bytes(short.read_bytes()[:-1])
    missing.unlink()
    (folder / "stranger").write_text("?")
    found = [problem.file for problem in verify(folder)]
    assert found == sorted([*names, "stranger"])


def test_opening_a_damaged_directory_says_what_to_run(folder: Path) -> None:
    name = max(open_reader(folder).manifest.digests)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-8])
    for _ in ("short", "missing"):
        with pytest.raises(ManifestError, match=name) as caught:
            open_reader(folder)
        assert "verify" in str(caught.value.hint)
        (folder / name).unlink(missing_ok=True)


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


def test_no_leaf_is_written_to(folder: Path) -> None:
    reader = open_reader(folder)
    with pytest.raises(ValueError, match="read-only"):
        reader.step(TRUNCATED)[0] = True


DTYPES = ("bool", "uint8", "int16", "int64", "float16", "float32", "float64", "uint32")
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
leaves = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")),
    st.tuples(st.sampled_from(DTYPES), shapes),
    max_size=4,
)


def random_batch(
    lengths: list[int], seen: dict[tuple[str, str], tuple[str, tuple[int, ...]]], seed: int
) -> EpisodeBatch:
    rng = np.random.default_rng(seed)
    toy = toy_batch(lengths, first_episode=seed)
    rows = toy.transitions + len(lengths)
    observations: dict[Key, np.ndarray] = dict(toy.observations)
    for (group, leaf), (dtype, shape) in seen.items():
        values = rng.integers(0, 256, (rows, *shape, np.dtype(dtype).itemsize), np.uint8)
        raw = np.ascontiguousarray(values).view(dtype)[..., 0]
        observations["info", group, leaf] = raw if dtype != "bool" else values[..., 0] > 127
    return replace(toy, observations=observations)


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=3),
    seen=leaves,
    layout=st.sampled_from(LAYOUTS),
)
def test_any_shapes_lengths_and_dtypes_come_back(
    lengths: list[list[int]],
    seen: dict[tuple[str, str], tuple[str, tuple[int, ...]]],
    layout: LayoutName,
) -> None:
    firsts = np.cumsum([0, *map(len, lengths)])
    batches = [random_batch(run, seen, int(n)) for run, n in zip(lengths, firsts, strict=False)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "d"
        write_toy(path, batches, layout=layout)
        reader = open_reader(path)
        assert_same_batch(reader.episode_batch(0, reader.episode_count), concatenate(batches))


def test_info_lies_behind_what_algorithms_read() -> None:
    keys = (("info", "a"), ("state",), ("observation", "x"), ("action",))
    columns = [Column(key, np.dtype("float32"), (2,)) for key in keys]
    order = [leaf.key[0] for leaf in pack("observations", columns).leaves]
    assert order == ["observation", "action", "state", "info"]


def test_one_copy_takes_about_half_of_two(tmp_path: Path) -> None:
    batch = toy_batch([200] * 5, width=60)
    sizes = [write_toy(tmp_path / name, [batch], layout=name).bytes for name in LAYOUTS]
    assert sizes[0] <= 0.55 * sizes[1]


@pytest.mark.parametrize("dtype", ["complex64", "float64"])
def test_nan_and_infinity_are_kept_and_reported(tmp_path: Path, dtype: str) -> None:
    batch = toy_batch([3, 2])
    values = np.ones(7, dtype)
    values[2], values[4] = np.nan, np.inf
    observations = {**batch.observations, ("info", "v"): values}
    manifest = write_toy(tmp_path / "d", [replace(batch, observations=observations)])
    assert manifest.non_finite == {"info/v": {"nan": 1, "inf": 1}}
    back = open_reader(tmp_path / "d").leaf("observations", ("info", "v"))
    np.testing.assert_array_equal(back, values)


def test_more_files_than_a_process_may_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (18, 4096))
    with pytest.raises(FormatError, match=r"a file for each feature, 13 here.* may open 18 files"):
        write_toy(tmp_path / "ted", [toy_batch([2])], layout="ted")
    write_toy(tmp_path / "compact", [toy_batch([2])])
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 4096))
    write_toy(tmp_path / "unlimited", [toy_batch([2])], layout="ted")
