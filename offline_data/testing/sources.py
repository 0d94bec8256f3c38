"""The contract of a source as tests: an adapter's own test is a subclass and a fixture.

Needs pytest. A subclass overrides `case`:

```python
class TestMySource(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        raw = write_toy(tmp_path / "raw")
        return SourceCase(
            MySource(),
            Release("toy-v0", "unversioned"),
            raw,
            truth=read_by_numpy_alone,
            bad={"cut": Damage(cut_second_episode, "reward has 2 rows", skipped=(1,))},
        )
```
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError, OfflineDataError, OfflineError
from offline_data.base.ids import DatasetId, parse_id
from offline_data.episode import join_key
from offline_data.episode.joining import concatenate
from offline_data.formats.base import Part, RandomAccess, RawDataset, Release, Shard, Source
from offline_data.formats.options import Options
from offline_data.formats.registry import iter_sources, source_accepting
from offline_data.store.layout import EPISODES
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.toy import TABLES, assert_same_batch, write_toy

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch, Key

BUDGETS = (1, 700, 10_000, 1 << 50)  # of a part in bytes: one episode, a few, some more, all
DAMAGED = 25  # bytes that are changed, one after the other, by the test of damaged files
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
DERIVED = {("episode",), ("done",), ("terminated",), ("truncated",), ("next", "done")}
"""Features of a transition that follow from the others."""

Episode = dict[Any, Any]
"""Values of all features of an episode's transitions by key, and below `("episode", ...)` of the episode."""


@dataclass(frozen=True)
class Damage:
    """A way to damage the raw data, and what must come of it."""

    apply: Callable[[Path], object]
    """Changes a copy of the raw data."""
    match: str = ""
    """Regular expression that is found in the error's message."""
    error: type[OfflineDataError] = FormatError
    skipped: tuple[int, ...] | None = None
    """Episodes that are lost where bad ones are skipped; None: not tried."""


@dataclass(frozen=True)
class SourceCase:
    """An adapter and a small dataset of at least three episodes."""

    source: Source
    release: Release
    """Argument of `open`."""
    raw: Path
    """Folder or file of the raw data, under a temporary folder of the test."""
    truth: Callable[[Path], Sequence[Episode]] | None = None
    """Reads the raw data without the adapter: what must be stored of each episode."""
    bad: Mapping[str, Damage] = field(default_factory=dict)
    """Ways to damage the raw data, by name."""


class SourceContract:
    """Tests that every adapter passes; `case` must be overridden."""

    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        """Return the adapter and a dataset of its format, under `tmp_path`."""
        raise NotImplementedError("a subclass of SourceContract overrides the fixture `case`")

    @pytest.fixture
    def dataset(self, case: SourceCase) -> RawDataset:
        """Return the opened dataset."""
        return case.source.open(case.release, case.raw)

    @pytest.fixture
    def offline(self, tmp_path: Path) -> Settings:
        """Return settings that forbid the network; every folder is empty."""
        return Settings(tmp_path / "root", offline=True, minari_path=tmp_path / "none")

    def test_the_catalog(self, case: SourceCase) -> None:
        """Every name of the catalogue is an id and names one dataset; notes are sentences."""
        source = case.source
        assert isinstance(source, Source)
        assert source.title
        assert "\n" not in source.title
        entries = source.catalog()
        names = [entry.name for entry in entries]
        assert len(set(names)) == len(names)
        for entry in entries:
            assert parse_id(f"{source.name}:{entry.name}") == DatasetId(source.name, entry.name)
            _assert_sentences(entry.notes)

    def test_resolves_what_the_catalog_lists(self, case: SourceCase, offline: Settings) -> None:
        """A listed dataset resolves to files with safe names, or raises that it needs the network."""
        name = _first_name(case.source)
        try:
            release = case.source.resolve(name, None, offline)
        except OfflineError as error:
            assert error.hint, "an OfflineError says what to do"  # noqa: PT017 -- either is right
            return
        assert parse_id(f"{case.source.name}:{name}").at(release.revision)
        assert release.name == name
        assert (release.local is None) == bool(release.files)
        for file in release.files:
            path = PurePosixPath(file.path)
            assert not path.is_absolute()
            assert ".." not in path.parts
            assert file.urls

    def test_what_is_not_there(self, case: SourceCase, offline: Settings) -> None:
        """A misspelled name gets a hint with the correct one; offline lists no remote."""
        name = _first_name(case.source)
        wrong = name[:-4] + name[-3:]
        assert wrong not in {entry.name for entry in case.source.catalog()}
        with pytest.raises((NotFoundError, OfflineError)) as caught:
            case.source.resolve(wrong, None, offline)
        assert name in (caught.value.hint or "")
        with pytest.raises(OfflineError):
            case.source.remote(offline)

    def test_accepts_its_own_format_only(self, case: SourceCase, tmp_path: Path) -> None:
        """`accepts` recognises its own files, which are taken for no other's, and never raises for others."""
        other = tmp_path / "other"
        other.mkdir()
        (other / "data.hdf5").write_text("<!DOCTYPE html>")
        assert case.source.accepts(case.raw)
        if any(type(one) is type(case.source) for one in iter_sources()):
            assert source_accepting(case.raw).name == case.source.name
        for path in (other, other / "data.hdf5", tmp_path / "absent"):
            assert not case.source.accepts(path)

    def test_describes_what_a_user_brings(self, case: SourceCase) -> None:
        """`release_of` returns a release that can be opened in place, under the given name."""
        release = case.source.release_of(case.raw, "mine")
        assert release.name == "mine"
        assert release.local is not None
        assert parse_id("local:mine").at(release.revision)
        opened = case.source.open(release, release.local)
        if isinstance(opened, RandomAccess):
            _assert_consecutive(opened.parts(1 << 50), opened)
        assert opened.shards()

    def test_shards_in_order_are_the_whole(self, case: SourceCase, dataset: RawDataset) -> None:
        """Every shard can be read again, in any order, by a pickled copy, from its files alone."""
        shards, listed = dataset.shards(), {file.path for file in case.release.files}
        assert shards
        assert tuple(dataset.shards()) == tuple(shards)
        assert all(set(shard.files) <= listed for shard in shards if listed)
        first = [_read(dataset, shard) for shard in shards]
        copy: RawDataset = pickle.loads(pickle.dumps(dataset))  # noqa: S301 -- our own bytes
        for shard, batch in reversed(list(zip(shards, first, strict=True))):
            assert_same_batch(_read(dataset, shard), batch)
            assert_same_batch(_read(copy, shard), batch)
            assert shard.episodes in {None, len(batch.lengths)}
            assert shard.transitions is None or shard.transitions >= batch.transitions
        whole = concatenate(first)
        assert dataset.info.episodes in {None, len(whole.lengths)}
        assert dataset.info.transitions in {None, whole.transitions}
        if isinstance(dataset, RandomAccess):
            (everything,) = dataset.parts(BUDGETS[-1])
            assert_same_batch(whole, dataset.read_part(everything))

    def test_every_value_is_the_truth(self, case: SourceCase, tmp_path: Path) -> None:
        """After the disk, every value of every transition and episode is that of `truth`."""
        if case.truth is None:
            pytest.skip("there is no independent reading")
        assert_episodes(_written(case, tmp_path / "written")[0], case.truth(case.raw))

    def test_bad_data_are_named_or_skipped(self, case: SourceCase, tmp_path: Path) -> None:
        """Each damage of `bad` raises its error; without bad episodes, the others are the truth."""
        whole = case.truth(case.raw) if case.truth else []
        for number, (name, damage) in enumerate(case.bad.items()):
            raw = tmp_path / f"bad{number}" / case.raw.name
            raw.parent.mkdir()
            shutil.copytree(case.raw, raw) if case.raw.is_dir() else shutil.copy(case.raw, raw)
            damage.apply(raw)
            release = replace(case.release, local=case.release.local and raw)
            self.assert_refused(name, damage, replace(case, release=release, raw=raw))
            if damage.skipped is not None:
                release = replace(release, options=Options(skip_bad_episodes=True))
                skipping = replace(case, release=release, raw=raw)
                reader, skipped = _written(skipping, raw.parent / "written")
                assert skipped == len(damage.skipped), name
                kept = [one for e, one in enumerate(whole) if e not in damage.skipped]
                assert_episodes(reader, kept, name)

    def assert_refused(self, name: str, damage: Damage, case: SourceCase) -> None:  # noqa: ARG002 -- of subclasses
        """Assert that damaged data raise the error of `damage`; a subclass may compare more of it."""
        with pytest.raises(damage.error, match=damage.match):
            read_all(case)

    def test_a_shard_needs_its_own_files_only(self, case: SourceCase, tmp_path: Path) -> None:
        """`open` reads only `Release.opening`, and `read` only that and the shard's own files."""
        opening = case.release.opening
        if opening is None:
            pytest.skip("all files are fetched before it is opened")
        _lay_out(opening, case.raw, tmp_path / "opening")
        shards = case.source.open(case.release, tmp_path / "opening").shards()
        everything = case.source.open(case.release, case.raw)
        assert tuple(everything.shards()) == tuple(shards)
        for number, shard in enumerate(shards):
            folder = tmp_path / str(number)
            _lay_out((*opening, *shard.files), case.raw, folder)
            alone = _read(case.source.open(case.release, folder), shard)
            assert_same_batch(alone, _read(everything, shard))

    def test_parts_end_to_end_are_the_whole(self, dataset: RawDataset) -> None:
        """Parts are consecutive without gap or overlap, and values do not depend on them.

        Nor do they depend on the order of reading, or on earlier reads; every part has the same
        keys, dtypes and row shapes.
        """
        if not isinstance(dataset, RandomAccess):
            pytest.skip("it is read in order")
        (everything,) = dataset.parts(BUDGETS[-1])
        whole = dataset.read_part(everything)
        assert {part.stop - part.first for part in dataset.parts(1)} == {1}
        for budget in BUDGETS:
            parts = dataset.parts(budget)
            _assert_consecutive(parts, dataset)
            backwards = [dataset.read_part(part) for part in reversed(parts)]
            assert_same_batch(concatenate(backwards[::-1]), whole)
            for table in TABLES:
                schemas = {
                    frozenset((k, v.dtype.name, v.shape[1:]) for k, v in getattr(b, table).items())
                    for b in backwards
                }
                assert len(schemas) == 1

    def test_pickles(self, dataset: RawDataset) -> None:
        """A dataset can be pickled, before its first read and after it."""
        fresh: RawDataset = pickle.loads(pickle.dumps(dataset))  # noqa: S301 -- our own bytes
        shard = dataset.shards()[-1]
        batch = _read(dataset, shard)
        used: RawDataset = pickle.loads(pickle.dumps(dataset))  # noqa: S301 -- our own bytes
        assert fresh.info == used.info == dataset.info
        assert_same_batch(_read(fresh, shard), batch)
        assert_same_batch(_read(used, shard), batch)

    def test_what_it_says_is_right(self, dataset: RawDataset) -> None:
        """Announced counts equal actual ones; `info` is JSON and complete sentences."""
        batches = [batch for shard in dataset.shards() for batch in dataset.read(shard)]
        if isinstance(dataset, RandomAccess):
            parts = dataset.parts(700)
            batches = [dataset.read_part(part) for part in parts]
            for part, batch in zip(parts, batches, strict=True):
                assert len(batch.lengths) == part.stop - part.first
                assert part.transitions in {None, batch.transitions}
        info, whole = dataset.info, concatenate(batches)
        assert info.episodes in {None, len(whole.lengths)}
        assert info.transitions in {None, whole.transitions}
        for value in (info.spaces, info.environment, info.about):
            assert json.loads(json.dumps(value)) == value
        _assert_sentences((*info.notes, *info.warnings, *whole.notes))
        _assert_sentences([item.reason for item in (*info.dropped, *whole.dropped)])

    def test_raw_files_stay_as_they_are(self, case: SourceCase) -> None:
        """Opening and reading writes nothing; a file cut short or replaced raises our error naming it."""
        files = [path for path in [case.raw, *case.raw.rglob("*")] if path.is_file()]
        before = {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}
        read_all(case)
        after = [path for path in [case.raw, *case.raw.rglob("*")] if path.is_file()]
        assert {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in after} == before
        victim = max(files, key=lambda path: path.stat().st_size)
        whole = victim.read_bytes()
        for content in (whole[: len(whole) // 2], POINTER, b"<!DOCTYPE html><title>404"):
            victim.write_bytes(content)
            with pytest.raises(OfflineDataError, match=re.escape(victim.name)):
                read_all(case)

    @pytest.mark.parametrize("skip_bad", [False, True])
    def test_damaged_bytes_raise_our_errors_only(self, case: SourceCase, skip_bad: bool) -> None:
        """A changed byte is not noticed, or is an error that names the place; never another one."""
        files = [path for path in [case.raw, *case.raw.rglob("*")] if path.is_file()]
        random = Random(0)  # noqa: S311 -- the same bytes in each run
        case = replace(
            case, release=replace(case.release, options=Options(skip_bad_episodes=skip_bad))
        )
        for _ in range(DAMAGED):
            victim = random.choice([path for path in files if path.stat().st_size])
            whole = victim.read_bytes()
            at = random.randrange(len(whole))
            victim.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
            with suppress(OfflineDataError):
                read_all(case)
            victim.write_bytes(whole)

    def test_needs_no_torch(self, case: SourceCase) -> None:
        """Resolving, opening and reading do not import torch, so that conversion starts quickly."""
        program = (
            "import pickle, sys\n"
            "case = pickle.load(sys.stdin.buffer)\n"
            "case.source.catalog()\n"
            "dataset = case.source.open(case.release, case.raw)\n"
            "for shard in dataset.shards(): list(dataset.read(shard))\n"
            "assert not {'torch', 'tensordict', 'torchrl'} & set(sys.modules)\n"
        )
        done = subprocess.run(  # noqa: S603 -- this interpreter, on the lines above
            [sys.executable, "-c", program],
            input=pickle.dumps(replace(case, truth=None, bad={})),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()


def _first_name(source: Source) -> str:
    """Return the first name of the catalogue; skip the test of a source that publishes nothing."""
    entries = source.catalog()
    if not entries:
        with pytest.raises(NotFoundError, match=f"^There is no {source.name}:x") as caught:
            source.resolve("x", None, Settings(Path("none"), offline=True))
        assert caught.value.hint
        pytest.skip("nothing is published in its format")
    return entries[0].name


def read_all(case: SourceCase) -> list[EpisodeBatch]:
    """Read all shards of a case."""
    dataset = case.source.open(case.release, case.raw)
    return [batch for shard in dataset.shards() for batch in dataset.read(shard)]


def assert_episodes(reader: DatasetReader, episodes: Sequence[Episode], name: str = "") -> None:
    """Assert that a stored dataset has these episodes: all keys, the dtypes of arrays, and all values."""
    assert reader.lengths.tolist() == [len(one["action",]) for one in episodes], name
    for number, episode in enumerate(episodes):
        found: dict[Key, Any] = reader.transitions_at(
            np.arange(reader.lengths[number]) + reader.starts[number]
        )
        columns = {key for key in episode if key[0] == "episode"}
        assert found.keys() - DERIVED == episode.keys() - columns, name
        for key, expected in episode.items():
            where = f"{name} {join_key(key)} of episode {number}"
            if key in columns:
                value: Any = np.asarray(reader.episodes[key[1:]])[number]
                value = reader.as_text(key[1:], value, EPISODES)
            else:
                value = np.asarray(reader.as_text(key, found[key]))
                assert value.shape == np.shape(expected), where
                assert value.dtype == getattr(expected, "dtype", value.dtype), where
            np.testing.assert_array_equal(value, expected, err_msg=where)


def _written(case: SourceCase, folder: Path) -> tuple[DatasetReader, int]:
    """Store a case's episodes; returns them, and how many bad ones were skipped."""
    info, batches = case.source.open(case.release, case.raw).info, read_all(case)
    write_toy(folder, batches)
    skipped = len(info.skipped) + sum(len(batch.skipped) for batch in batches)
    return open_reader(folder), skipped


def _read(dataset: RawDataset, shard: Shard) -> EpisodeBatch:
    return concatenate(list(dataset.read(shard)))


def _lay_out(paths: Sequence[str], raw: Path, folder: Path) -> None:
    for path in paths:
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(raw / path, place)


def _assert_consecutive(parts: Sequence[Part], dataset: RawDataset) -> None:
    assert parts[0].first == 0
    assert all(part.first < part.stop for part in parts)
    assert [part.first for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert dataset.info.episodes in {None, parts[-1].stop}
    counts = [part.transitions for part in parts if part.transitions is not None]
    if len(counts) == len(parts) and dataset.info.transitions is not None:
        assert sum(counts) == dataset.info.transitions


def _assert_sentences(texts: Sequence[str]) -> None:
    for text in texts:
        assert text == text.strip()
        assert "\n" not in text
        assert text[-1:] in {".", "!", "?"}, f"not a sentence: {text!r}"
