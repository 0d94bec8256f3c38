"""The contract of a source as tests: an adapter's own test is a subclass and a fixture.

Needs pytest. A subclass overrides `case`:

```python
class TestMySource(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        raw = write_toy(tmp_path / "raw")
        return SourceCase(MySource(), Release("toy-v0", "unversioned"), raw)
```
"""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from offline_data.config import Settings
from offline_data.errors import NotFoundError, OfflineDataError, OfflineError
from offline_data.ids import DatasetId, parse_id
from offline_data.sources.base import RawDataset, Release, Source
from offline_data.testing.toy import TABLES, assert_same_batch, concatenate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offline_data.sources.base import Part

BUDGETS = (1, 700, 10_000, 1 << 50)
"""Bytes a part may take in the tests: one episode, a few, some more, all."""


@dataclass(frozen=True)
class SourceCase:
    """An adapter, and one small dataset of at least three episodes."""

    source: Source
    release: Release
    """Argument of `open`."""
    raw: Path
    """Folder or file that holds the raw data, under a folder of the test's own."""


class SourceContract:
    """Tests that every adapter passes; `case` must be overridden."""

    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        """Give the adapter and a dataset of its format, under `tmp_path`."""
        raise NotImplementedError("a subclass of SourceContract overrides the fixture `case`")

    @pytest.fixture
    def dataset(self, case: SourceCase) -> RawDataset:
        """Give the dataset, opened."""
        return case.source.open(case.release, case.raw)

    @pytest.fixture
    def offline(self, tmp_path: Path) -> Settings:
        """Give settings that forbid the network; every folder is empty."""
        return Settings(tmp_path / "root", offline=True, minari_path=tmp_path / "none")

    def test_the_catalog(self, case: SourceCase) -> None:
        """Every name of the catalogue is an id and names one dataset; notes are sentences."""
        source = case.source
        assert isinstance(source, Source)
        assert source.title
        assert "\n" not in source.title
        entries = source.catalog()
        names = [entry.name for entry in entries]
        assert names
        assert len(set(names)) == len(names)
        for entry in entries:
            assert parse_id(f"{source.name}:{entry.name}") == DatasetId(source.name, entry.name)
            _assert_sentences(entry.notes)

    def test_resolves_what_the_catalog_lists(self, case: SourceCase, offline: Settings) -> None:
        """A listed dataset resolves to files with safe names, or needs the network and says so."""
        name = case.source.catalog()[0].name
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
        """A name with a typing error gets a hint with the right one; offline lists no remote."""
        name = case.source.catalog()[0].name
        wrong = name[:-4] + name[-3:]
        assert wrong not in {entry.name for entry in case.source.catalog()}
        with pytest.raises((NotFoundError, OfflineError)) as caught:
            case.source.resolve(wrong, None, offline)
        assert name in (caught.value.hint or "")
        with pytest.raises(OfflineError):
            case.source.remote(offline)

    def test_accepts_its_own_format_only(self, case: SourceCase, tmp_path: Path) -> None:
        """`accepts` knows its own files, and answers for anything else without raising."""
        other = tmp_path / "other"
        other.mkdir()
        (other / "data.hdf5").write_text("<!DOCTYPE html>")
        assert case.source.accepts(case.raw)
        for path in (other, other / "data.hdf5", tmp_path / "absent"):
            assert not case.source.accepts(path)

    def test_describes_what_a_user_brings(self, case: SourceCase) -> None:
        """`release_of` gives a release that can be opened where it lies, under the given name."""
        release = case.source.release_of(case.raw, "mine")
        assert release.name == "mine"
        assert release.local is not None
        assert parse_id("local:mine").at(release.revision)
        opened = case.source.open(release, release.local)
        _assert_consecutive(opened.parts(1 << 50), opened)

    def test_parts_end_to_end_are_the_whole(self, dataset: RawDataset) -> None:
        """Parts follow each other without gap or overlap, and values do not depend on them.

        Nor do they depend on the order of reading, or on what was read before; every part has
        the same keys, dtypes and row shapes.
        """
        (everything,) = dataset.parts(BUDGETS[-1])
        whole = dataset.read(everything)
        assert {part.stop - part.first for part in dataset.parts(1)} == {1}
        for budget in BUDGETS:
            parts = dataset.parts(budget)
            _assert_consecutive(parts, dataset)
            backwards = [dataset.read(part) for part in reversed(parts)]
            assert_same_batch(concatenate(backwards[::-1]), whole)
            for table in TABLES:
                schemas = {
                    frozenset((k, v.dtype.name, v.shape[1:]) for k, v in getattr(b, table).items())
                    for b in backwards
                }
                assert len(schemas) == 1

    def test_pickles(self, dataset: RawDataset) -> None:
        """A dataset travels to other processes, before its first read and after it."""
        fresh: RawDataset = pickle.loads(pickle.dumps(dataset))  # noqa: S301 -- our own bytes
        part = dataset.parts(700)[-1]
        batch = dataset.read(part)
        used: RawDataset = pickle.loads(pickle.dumps(dataset))  # noqa: S301 -- our own bytes
        assert fresh.info == used.info == dataset.info
        assert_same_batch(fresh.read(part), batch)
        assert_same_batch(used.read(part), batch)

    def test_what_it_says_is_right(self, dataset: RawDataset) -> None:
        """Counts said beforehand are those that come; `info` is JSON and whole sentences."""
        parts = dataset.parts(700)
        batches = [dataset.read(part) for part in parts]
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
        """Opening and reading writes nothing; a file cut short is an error of ours that names it."""
        files = [path for path in [case.raw, *case.raw.rglob("*")] if path.is_file()]
        before = {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}
        _read_all(case)
        after = [path for path in [case.raw, *case.raw.rglob("*")] if path.is_file()]
        assert {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in after} == before
        victim = max(files, key=lambda path: path.stat().st_size)
        with victim.open("r+b") as file:
            file.truncate(victim.stat().st_size // 2)
        with pytest.raises(OfflineDataError, match=re.escape(victim.name)):
            _read_all(case)

    def test_needs_no_torch(self, case: SourceCase) -> None:
        """Resolving, opening and reading import no torch: converting starts at once."""
        program = (
            "import pickle, sys\n"
            "case = pickle.load(sys.stdin.buffer)\n"
            "case.source.catalog()\n"
            "dataset = case.source.open(case.release, case.raw)\n"
            "for part in dataset.parts(700): dataset.read(part)\n"
            "assert not {'torch', 'tensordict', 'torchrl'} & set(sys.modules)\n"
        )
        done = subprocess.run(  # noqa: S603 -- this interpreter, on the lines above
            [sys.executable, "-c", program],
            input=pickle.dumps(case),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()


def _read_all(case: SourceCase) -> None:
    dataset = case.source.open(case.release, case.raw)
    for part in dataset.parts(700):
        dataset.read(part)


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
