"""The contract of a layout: what goes in comes out, and damage is named. Inherit and set `layout`.

```python
class TestCompact(LayoutContract):
    layout = "compact"
```
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest

from offline_data.episodes.fields import DONE, TERMINATED, TRUNCATED, next_of
from offline_data.errors import FormatError, ManifestError, NewerFormatError, NotFoundError
from offline_data.sources.local import StoredEpisodes
from offline_data.store.layout import EPISODE, MANIFEST
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.batches import assert_same_batch, concatenate
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.store.layout import LayoutName

LENGTHS = ([3, 1, 4], [1], [2, 5, 1, 1])
UNKNOWN = (1, 4)


class LayoutContract:
    """Tests every layout must pass; the batches hold text, images and unknown final rows."""

    layout: ClassVar[LayoutName]

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A dataset directory of three batches."""
        first, batches = 0, []
        for lengths in LENGTHS:
            batches.append(
                toy_batch(
                    lengths, first_episode=first, text=True, images=True, unknown_final=UNKNOWN
                )
            )
            first += len(lengths)
        self.batches = batches
        write_toy(tmp_path / "toy", batches, layout=self.layout)
        return tmp_path / "toy"

    def test_batches_come_back_as_they_went_in(self, folder: Path) -> None:
        """Whole episodes, read at once and one by one, equal the source's."""
        reader, whole = open_reader(folder), concatenate(self.batches)
        assert_same_batch(reader.episode_batch(0, reader.episode_count), whole)
        single = [reader.episode_batch(e, e + 1) for e in range(reader.episode_count)]
        assert_same_batch(concatenate(single), whole)

    def test_every_transition_is_the_sources(self, folder: Path) -> None:
        """Row by row: the observation before, the one after, and what the action brought."""
        reader, whole = open_reader(folder), concatenate(self.batches)
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

    def test_episode_table(self, folder: Path) -> None:
        """Starts, lengths, returns and the source's own columns."""
        reader, whole = open_reader(folder), concatenate(self.batches)
        np.testing.assert_array_equal(reader.lengths, whole.lengths)
        np.testing.assert_array_equal(reader.starts, whole.starts)
        np.testing.assert_array_equal(reader.episodes[("id",)], np.arange(len(whole.lengths)))
        rewards = np.split(whole.steps[("next", "reward")][:, 0], whole.starts[1:])
        returns = np.asarray(reader.episodes[("return",)], dtype=np.float64)
        np.testing.assert_allclose(returns, [r.astype(np.float64).sum() for r in rewards])

    def test_rows_without_a_known_next_are_listed(self, folder: Path) -> None:
        """Unknown and not terminated: left out by samplers; unknown and terminated: kept."""
        reader, whole = open_reader(folder), concatenate(self.batches)
        expected = [whole.last_rows[e] for e in UNKNOWN if e % 2 == 1]
        assert reader.invalid_rows.tolist() == expected
        counts = reader.manifest.counts
        assert counts["valid_transitions"] == whole.transitions - len(expected)
        assert counts["without_final_observation"] == len(UNKNOWN)

    def test_other_layout_and_back_loses_nothing(self, folder: Path, tmp_path: Path) -> None:
        """Rewriting as the other layout and back gives the same bytes of data."""
        other: LayoutName = "ted" if self.layout == "compact" else "compact"
        once = StoredEpisodes(folder)
        write_toy(tmp_path / "b", [once.read(p) for p in once.parts(1)], layout=other)
        twice = StoredEpisodes(tmp_path / "b")
        write_toy(tmp_path / "c", [twice.read(p) for p in twice.parts(10**9)], layout=self.layout)
        digests = [open_reader(path).manifest.digests for path in (folder, tmp_path / "c")]
        assert digests[0] == digests[1]

    def test_verify_names_what_is_damaged(self, folder: Path) -> None:
        """A flipped byte, a short file, a missing one, a stranger."""
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

    def test_opening_a_damaged_directory_says_what_to_run(self, folder: Path) -> None:
        """A missing or short file is met at opening, not as zeros later."""
        name = max(open_reader(folder).manifest.digests)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-8])
        with pytest.raises(ManifestError) as short:
            open_reader(folder)
        (folder / name).unlink()
        with pytest.raises(ManifestError) as missing:
            open_reader(folder)
        for error in (short.value, missing.value):
            assert name in error.message
            assert "verify" in str(error.hint)

    def test_newer_and_damaged_manifests_are_refused(self, folder: Path, tmp_path: Path) -> None:
        """A newer format names the version that reads it; damage is no traceback."""
        path = folder / MANIFEST
        value = json.loads(path.read_text())
        path.write_text(json.dumps({**value, "format_version": 99}))
        with pytest.raises(NewerFormatError, match="99"):
            open_reader(folder)
        for text in ("", "{", "[]", "{}", '{"format_version": 1}'):
            path.write_text(text)
            with pytest.raises(ManifestError):
                open_reader(folder)
        with pytest.raises(NotFoundError):
            open_reader(tmp_path)

    def test_a_batch_that_does_not_fit_is_refused(self, tmp_path: Path) -> None:
        """Another shape, another set of leaves: the message names the leaf."""
        wider = toy_batch([2], first_episode=1, width=4)
        with pytest.raises(FormatError, match="observation/state"):
            write_toy(tmp_path / "a", [toy_batch([2]), wider], layout=self.layout)
        more = toy_batch([2], first_episode=1, text=True)
        with pytest.raises(FormatError, match="mission"):
            write_toy(tmp_path / "b", [toy_batch([2]), more], layout=self.layout)
        assert not (tmp_path / "a" / MANIFEST).exists()

    def test_no_leaf_is_written_to(self, folder: Path) -> None:
        """Arrays of a reader are read-only views of the files."""
        reader = open_reader(folder)
        with pytest.raises(ValueError, match="read-only"):
            reader.step(TRUNCATED)[0] = True
