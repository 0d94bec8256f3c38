"""Verifying a dataset directory: files against digests, and metadata against rows."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offline_data.base.ahead import Ahead
from offline_data.base.errors import AccessError, FormatError, IntegrityError
from offline_data.base.json import read_json
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.base.progress import SILENT, Progress, Task
from offline_data.document import blocks as document
from offline_data.document.html import Document
from offline_data.episode.fields import DONE, REWARD, TERMINATED, TRUNCATED, join_key
from offline_data.store.audit import equal_rows
from offline_data.store.encoded import as_encoded
from offline_data.store.layout import EPISODE, EPISODES, MANIFEST, TED, TEXT
from offline_data.store.library import Entry, foreign_files
from offline_data.store.manifest import Manifest, check_digest, read_manifest
from offline_data.store.reader import DatasetReader, file_problem
from offline_data.store.tables import meta_files

CARD = "README.md"  # dataset card that `push` writes next to the files of a dataset
PREVIEW = "README.webp"  # picture that the card shows

_BLOCK = 1 << 20  # bytes that are read and hashed at once

_BLOCKS_AHEAD = 4  # blocks that are read while another one is hashed

_ROWS = 1 << 18  # rows that are compared at once

_CANNOT = {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors of reading a file that say nothing about the file."""


@dataclass(frozen=True)
class Problem:
    """A damaged file (relative posix path), and what is wrong with it."""

    file: str
    problem: str


@pickled_by_name
@dataclass(frozen=True, repr=False)
class Verification(Document):
    """Result of comparing a dataset with its manifest; true in `if` where it is intact."""

    id: str
    """Its id, revision included."""
    path: Path
    """Its directory."""
    ok: bool
    """Whether there is no problem."""
    problems: tuple[Problem, ...]
    """Damaged, missing and foreign files, by name."""
    manifest_checksum: bool
    """Whether the manifest has a digest of its own; without, changes to it are not seen."""
    files: int
    """Files that the manifest lists."""

    def __bool__(self) -> bool:
        return self.ok

    def blocks(self) -> list[document.Block]:
        """Return what was compared, and the problems."""
        fields = document.fields_of(
            self, "id path files:count problems:count", problems=len(self.problems)
        )
        return [fields, *document.non_empty(self.problem_table)]

    @property
    def problem_table(self) -> document.Table:
        """The problems as a table."""
        return document.table("file problem", self.problems)


def verify_entry(entry: Entry, progress: Progress = SILENT) -> Verification:
    """Compare a dataset with its manifest; see `verify`."""
    problems, manifest = verify(entry.path, progress), entry.manifest
    return Verification(
        str(entry.id),
        entry.path,
        not problems,
        problems,
        manifest.sha256 is not None,
        len(manifest.digests),
    )


def verify(path: Path, progress: Progress = SILENT) -> tuple[Problem, ...]:
    """Compare a dataset directory with its manifest; an empty result means it is intact.

    Reads all bytes, and compares: the manifest with its own digest; every file with its size and
    sha256; the episode table, flags, returns and counts with the rows of steps; text codes with
    their vocabularies; tensordict's `meta.json` with the schema. Names files that are not in the
    manifest, except the dataset card and its picture.
    Raises `NotFoundError`, `ManifestError`, `NewerFormatError`, `AccessError`.
    """
    manifest = read_manifest(path)
    problems = list(verify_files(path, manifest, progress))
    if not problems:
        problems += _compare_contents(DatasetReader(path, manifest))
    foreign = [name for name in foreign_files(path) if name not in {CARD, PREVIEW}]
    problems += [Problem(name, "is not in the manifest") for name in foreign]
    return tuple(sorted(problems, key=lambda problem: problem.file))


def verify_files(
    path: Path, manifest: Manifest, progress: Progress = SILENT, *, digests: bool = True
) -> tuple[Problem, ...]:
    """Compare the manifest with its own digest, and its files with their sizes and sha256.

    Without `digests`, with their sizes only: no file is read. Raises `AccessError`.
    """
    changed = check_digest(path, manifest)
    problems = [Problem(MANIFEST, changed)] if changed else []
    plain: set[str] = set()
    with progress.task("verify", manifest.bytes, "B") as task:
        for name, entry in manifest.digests.items():
            problem = file_problem(path, name, entry["size"], plain)
            if problem is None and digests:
                problem = _compare_digest(path / name, entry["sha256"], task)
            if problem:
                problems.append(Problem(name, problem))
    return tuple(problems)


def _compare_digest(file: Path, expected: str, task: Task) -> str | None:
    digest = hashlib.sha256()
    try:
        with closing(Ahead(_blocks_of(file), _BLOCKS_AHEAD)) as blocks:
            for block in blocks:
                digest.update(block)
                task.advance(len(block))
    except OSError as error:
        if error.errno in _CANNOT:
            raise AccessError(f"{file} cannot be read: {error.strerror}") from error
        return f"cannot be read: {error.strerror}"
    if digest.hexdigest() != expected:
        return f"has sha256 {digest.hexdigest()[:12]}…, not {expected[:12]}…"
    return None


def _blocks_of(file: Path) -> Iterator[bytes]:
    with file.open("rb", buffering=0) as stream:
        while block := stream.read(_BLOCK):
            yield block


def _compare_contents(reader: DatasetReader) -> Iterator[Problem]:
    """Compare the files with each other, since a manifest may be wrong on purpose."""
    tables = reader.manifest.tables
    for name, spec in tables.items():
        for file, text in meta_files(name, spec).items():
            found = None
            if file not in reader.manifest.digests:
                yield Problem(file, "is not in the manifest")
                continue
            with suppress(FormatError):
                found = read_json(reader.path / file)
            if found != json.loads(text):
                yield Problem(file, "does not describe the files as the manifest does")
    for file, part in ((EPISODES, "starts"), (TEXT, "vocabularies")):
        try:
            getattr(reader, part)
        except IntegrityError as error:
            yield Problem(file, error.message)
            return
    yield from _compare_steps(reader)
    for table, leaf in [(table, leaf) for table, spec in tables.items() for leaf in spec.leaves]:
        values = reader.leaf(table, leaf.key)
        if (images := as_encoded(values)) is not None:
            if problem := images.problem():
                yield Problem(leaf.file, problem)
        elif leaf.text:
            known = len(reader.words(leaf.key, table) or ())
            parts = (values[begin : begin + _ROWS] for begin in range(0, len(values), _ROWS))
            if not all(not part.size or -1 <= part.min() <= part.max() < known for part in parts):
                yield Problem(
                    TEXT, f"has {plural(known, 'word')} for {join_key(leaf.key)}, too few"
                )


def _compare_steps(reader: DatasetReader) -> Iterator[Problem]:
    columns = {key[0]: np.asarray(column) for key, column in reader.episodes.items()}
    rows, steps = reader.transitions, reader.steps_table
    last = reader.last_rows
    flags = {"terminated": reader.step(TERMINATED), "truncated": reader.step(TRUNCATED)}
    counts = {name: int(np.count_nonzero(flag)) for name, flag in flags.items()}
    wrong_episodes = wrong_done = 0
    for begin in range(0, rows, _ROWS):
        part = slice(begin, min(begin + _ROWS, rows))
        owner = reader.episode_of(np.arange(part.start, part.stop))
        wrong_episodes += int((reader.step(EPISODE)[part] != owner).sum())
        if steps == TED:
            done = np.logical_or(*(flag[part] for flag in flags.values()))
            wrong_done += int((reader.step(DONE)[part] != done).sum())
    if wrong_episodes:
        yield Problem(
            steps, f"has {plural(wrong_episodes, 'row')} with the number of another episode"
        )
    if wrong_done:
        yield Problem(
            steps, f"has {plural(wrong_done, 'row')} whose next/done is not terminated | truncated"
        )
    for name, flag in flags.items():
        if not np.array_equal(columns[name], flag[last, 0]):
            yield Problem(EPISODES, f"has flags {name!r} that differ from the last steps")
    if not _returns_fit(reader, columns["return"]):
        yield Problem(EPISODES, "has returns that are not the sums of the rewards")
    final = columns["final_observation"]
    counts["without_final_observation"] = int((~final).sum())
    counts["valid_transitions"] = rows - int((~final & ~flags["terminated"][last, 0]).sum())
    for name, count in counts.items():
        stated = reader.manifest.counts.get(name, count)
        if stated != count:
            yield Problem(MANIFEST, f"counts {stated} as {name}, and the rows have {count}")


def _returns_fit(reader: DatasetReader, returns: NDArray[np.float64]) -> bool:
    """Return True if returns are the sums of their episodes' rewards, in any order of addition."""
    if REWARD not in reader.step_leaves:
        return bool(np.isnan(returns).all())
    rewards, starts, lengths = reader.step(REWARD)[:, 0], reader.starts, reader.lengths
    first = 0
    while first < len(starts):
        stop = max(first + 1, int(np.searchsorted(starts, starts[first] + _ROWS)))
        begin, end = int(starts[first]), int(starts[stop - 1] + lengths[stop - 1])
        values = rewards[begin:end].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            sums = np.add.reduceat(values, starts[first:stop] - begin)
            sizes = np.add.reduceat(np.abs(values), starts[first:stop] - begin)
            stated = returns[first:stop]
            near = np.abs(stated - sums) <= 1e-9 * sizes
        if not (near | equal_rows(stated, sums) | ~np.isfinite(sizes)).all():
            return False
        first = stop
    return True
