"""Content digests: of each episode, and of a dataset.

They are of values and schema alone. The machine, workers, time, place, layout, packing of files and
order of a vocabulary do not matter; the order of episodes does.

The digest of an episode of `T` steps is the SHA-256 of, in this order,

- `T` as a little-endian int64, and one byte: 1 if the observation after the last action is known;
- for each feature, sorted by table (`episodes`, `observations`, `steps`), then key: its `T` rows;
  for `observations` the `T` rows before each action, then the one after the last if it is known;
  for `episodes` its only row.

Rows are the bytes of their items in C order, little-endian, booleans as 0 and 1. So -0.0 differs
from 0.0, and NaN equals NaN of the same bits. An item of text is the SHA-256 of its UTF-8, 32 zeros
if it is missing. Encoded images are the bytes of the files: first the int64 length of each row,
then all of them; so a dataset of decoded pixels (`images="raw"`) has another digest. What
follows from other values is left out: `episode` of steps, `next/done` and root flags, and `start`,
`length`, `return` and the flags of the episode table; so is `file_timeout`, which is how a file
writes the last of these flags.

The content digest of a dataset is the SHA-256 of `offline-data content 1`, the schema as JSON (a
sorted list of table, key and kind, without spaces), each followed by a line feed, and the digests
of all episodes. The kind is `float32[3]`; of text `text[3]`, of images `png uint8[8, 9]`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import AccessError, ManifestError, OfflineDataError
from offline_data.base.files import check_links, disk_errors, read_head, write_durably
from offline_data.base.plurals import plural
from offline_data.base.progress import SILENT, Progress
from offline_data.episode.cut import runs_within
from offline_data.episode.fields import EPISODE_COLUMNS, Key, join_key
from offline_data.store.arrays import TIMEOUT, run_of
from offline_data.store.layout import EPISODE, EPISODES, MANIFEST, OBSERVATIONS, STEPS, LeafSpec
from offline_data.store.library import Entry
from offline_data.store.reader import DatasetReader, open_reader

Leaf: TypeAlias = "tuple[str, Key]"
"""Table (`steps`, `observations` or `episodes`, in either layout) and TED key of a feature."""

_VERSION = b"offline-data content 1\n"
_BLOCK = 16 << 20  # bytes of one feature that are in memory at once
_GROUP_BYTES, _GROUP_ROWS = 64 << 20, 1 << 16
"""Size of the groups of whole episodes that are hashed together, feature by feature."""
_DERIVED = {*EPISODE_COLUMNS, TIMEOUT[0]}


class Content:
    """The features of a dataset, by values that do not depend on how they are stored."""

    def __init__(self, reader: DatasetReader) -> None:
        self.reader = reader
        episodes = reader.manifest.tables[EPISODES].by_key
        specs = {(STEPS, key): leaf for key, leaf in reader.step_leaves.items() if key != EPISODE}
        specs |= {(OBSERVATIONS, key): leaf for key, leaf in reader.observation_leaves.items()}
        specs |= {(EPISODES, k): leaf for k, leaf in episodes.items() if k[0] not in _DERIVED}
        self.specs: dict[Leaf, LeafSpec] = dict(sorted(specs.items()))
        self._words: dict[Leaf, NDArray[np.uint8]] = {
            leaf: self._word_digests(leaf) for leaf, spec in self.specs.items() if spec.text
        }

    @property
    def kinds(self) -> dict[Leaf, str]:
        """The schema: features in order, with their kinds."""
        return {
            leaf: f"{spec.encoding or ''} {'text' if spec.text else spec.dtype}".lstrip()
            + (str(list(spec.shape)) if spec.shape else "")
            for leaf, spec in self.specs.items()
        }

    def rows(self, leaf: Leaf, rows: NDArray[np.int64], *, after: bool = False) -> Any:
        """Read `[n]` rows of a feature: `[n, …]`, text as digests `[n, …, 32]`, images encoded.

        `rows` are step rows, of the table `episodes` numbers of episodes; `after`: the observations
        after their actions.
        """
        table, key = leaf
        run = run_of(rows)  # a slice is twice as fast
        at: Any = rows if run is None else run
        if table == OBSERVATIONS:
            values: Any = self.reader.observations_at(key, rows, after=after)
        elif table == EPISODES:
            values = self.reader.episodes[key][at]
        else:
            values = self.reader.step(key)[at]
        if leaf not in self._words:
            return values
        known = len(self._words[leaf]) - 1
        if values.size and not -1 <= values.min() <= values.max() < known:
            raise ManifestError(
                f"Text feature {join_key(key)!r} in {self.reader.path} has codes outside its "
                f"{plural(known, 'word')}",
                hint="`offline-data check --files ID` names damaged files",
            )
        return self._words[leaf][values]

    def row_bytes(self, leaf: Leaf) -> int:
        """Return the bytes of one row as `rows` returns it, images decoded."""
        spec = self.specs[leaf]
        return spec.nbytes * (32 // 4 if spec.text else 1)

    def _word_digests(self, leaf: Leaf) -> NDArray[np.uint8]:
        """Return the digests of all words and, at the end, that of a missing one: `[V + 1, 32]`."""
        words = self.reader.words(leaf[1], *((EPISODES,) if leaf[0] == EPISODES else ())) or []
        found = [hashlib.sha256(word.encode()).digest() for word in words]
        return np.frombuffer(b"".join([*found, bytes(32)]), np.uint8).reshape(-1, 32)


def episode_digests(
    content: Content, leaves: Collection[Leaf] | None = None, progress: Progress = SILENT
) -> NDArray[np.uint8]:
    """Compute the digest of each episode, `[E, 32]`, of some features or all, in bounded memory.

    Raises `ManifestError`, `FormatError`, `AccessError`: files are damaged, or cannot be read.
    """
    chosen = [leaf for leaf in content.specs if leaves is None or leaf in leaves]
    lengths = content.reader.lengths
    out = np.empty((len(lengths), 32), np.uint8)
    of_row = sum(content.row_bytes(leaf) for leaf in chosen)
    most = max(1, min(_GROUP_ROWS, _GROUP_BYTES // max(of_row, 1)))
    with progress.task("content digest", int(lengths.sum()), "steps") as task:
        for first, stop in runs_within(lengths, most):
            heads = zip(
                lengths[first:stop].astype("<i8"), content.reader.final[first:stop], strict=True
            )
            hashes = [hashlib.sha256(t.tobytes() + final.tobytes()) for t, final in heads]
            for leaf in chosen:
                _add_leaf(content, leaf, np.arange(first, stop), hashes)
            digests = b"".join(one.digest() for one in hashes)
            out[first:stop] = np.frombuffer(digests, np.uint8).reshape(-1, 32)
            task.advance(int(lengths[first:stop].sum()))
    return out


def _add_leaf(
    content: Content, leaf: Leaf, episodes: NDArray[np.int64], hashes: Sequence[Any]
) -> None:
    starts, lengths = content.reader.starts[episodes], content.reader.lengths[episodes]
    if leaf[0] == EPISODES:
        _add_rows(content, leaf, episodes, [1] * len(hashes), hashes)
        return
    rows = np.arange(int(starts[0]), int(starts[-1] + lengths[-1]))
    _add_rows(content, leaf, rows, lengths.tolist(), hashes)
    if leaf[0] == OBSERVATIONS:
        final = content.reader.final[episodes]
        ends = (starts + lengths - 1)[final]
        _add_rows(content, leaf, ends, final.astype(int).tolist(), hashes, after=True)


def _add_rows(
    content: Content,
    leaf: Leaf,
    rows: NDArray[np.int64],
    counts: list[int],
    hashes: Sequence[Any],
    *,
    after: bool = False,
) -> None:
    """Add rows, `counts[i]` of them to `hashes[i]`; see `Content.rows`."""
    if content.specs[leaf].encoding:
        parts = np.split(rows, np.cumsum(counts)[:-1])
        for hashed, part in zip(hashes, parts, strict=True):
            images = content.rows(leaf, part, after=after)
            hashed.update(np.subtract(*images.bounds()[::-1]).astype("<i8").tobytes())
            for run in images.runs() if len(part) else ():
                hashed.update(run)
        return
    most, number = max(1, _BLOCK // max(content.row_bytes(leaf), 1)), 0
    for begin in range(0, len(rows), most):
        block = np.asarray(content.rows(leaf, rows[begin : begin + most], after=after))
        data, at, size = memoryview(block.tobytes()), 0, block.nbytes // len(block)
        while at < len(block):
            take = min(counts[number], len(block) - at)
            hashes[number].update(data[at * size : (at + take) * size])
            at, counts[number] = at + take, counts[number] - take
            number += not counts[number]


def content_digest(content: Content, digests: NDArray[np.uint8]) -> str:
    """Return the content digest of a dataset, `sha256:…`, from those of all its episodes."""
    schema = [[table, list(key), kind] for (table, key), kind in content.kinds.items()]
    text = json.dumps(schema, separators=(",", ":")) + "\n"
    return f"sha256:{hashlib.sha256(_VERSION + text.encode() + digests.tobytes()).hexdigest()}"


def digest_of(entry: Entry, root: Path, progress: Progress = SILENT) -> str:
    """Return the content digest of a dataset; it is kept below the root until its files change.

    Raises what `episode_digests` raises.
    """
    reader = open_reader(entry.path)
    with disk_errors(entry.path):  # another process may replace it at this moment
        state = [hashlib.sha256((entry.path / MANIFEST).read_bytes()).hexdigest()]
        for name in sorted(reader.manifest.digests):
            file = (entry.path / name).stat()
            state.append(f"{name} {file.st_size} {file.st_mtime_ns} {file.st_ino}")
    key = hashlib.sha256(_VERSION + "\n".join(state).encode()).hexdigest()
    kept = root / ".content" / key
    with suppress(OfflineDataError, UnicodeDecodeError):
        text = read_head(kept).decode()
        if text == _with_checksum(key, found := text.partition(" ")[0]):
            return found
    content = Content(reader)
    digest = content_digest(content, episode_digests(content, None, progress))
    with suppress(OSError, AccessError):  # a root that cannot be written to: computed each time
        check_links(root, kept)
        write_durably(kept, _with_checksum(key, digest).encode())
    return digest


def _with_checksum(key: str, digest: str) -> str:
    return f"{digest} {hashlib.sha256(f'{key} {digest}'.encode()).hexdigest()}"
