"""From finished tasks to a dataset directory: manifest, joined files, digests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.base.errors import IntegrityError, StepError
from offline_data.base.files import disk_errors
from offline_data.base.ids import DatasetId
from offline_data.base.plurals import plural, plural_of
from offline_data.base.version import __version__
from offline_data.formats.corrections import reading_of
from offline_data.pipeline.jobs.workdir import Record, WorkDir
from offline_data.pipeline.preprocess.job import Recipe, RunOptions
from offline_data.pipeline.preprocess.plan import Plan, TaskSpec, digest_of_rows
from offline_data.pipeline.preprocess.steps.base import Selection
from offline_data.pipeline.preprocess.tasks import add_losses
from offline_data.store.history import extend_history
from offline_data.store.join import RowsPart, finalize_joined, join_rows
from offline_data.store.layout import AuditMode, TableSpec, file_sizes, with_counts
from offline_data.store.manifest import NEXT_TOO, HistoryStep, Manifest
from offline_data.store.reader import DatasetReader, decode
from offline_data.store.tables import Vocabularies
from offline_data.store.writer import (
    Contents,
    DatasetCounts,
    Digest,
    HashedFile,
    join_episodes,
)

if TYPE_CHECKING:
    from typing_extensions import Self


_REWARD_SCALES = ("ref_min_score", "ref_max_score", "reward_threshold")
"""Fields of a source on the scale of rewards, which are wrong once rewards change."""


def header_of(
    target: DatasetId, plan: Plan, reader: DatasetReader, fingerprint: str, options: RunOptions
) -> Manifest:
    """Return the manifest without tables, counts and digests.

    The parent's fields are kept, except spaces whose features have changed.
    """
    parent = reader.manifest
    changed = [name for name in parent.spaces if _space_changed(name, plan, reader)]
    notes = [*parent.notes, *plan.recipe.notes()]
    if changed:
        notes.append(f"Spaces of {' and '.join(changed)} are left out: these features have changed")
    said = {**parent.about, **parent.environment}
    tells = any(said.get(name) is not None for name in _REWARD_SCALES)
    if tells and not all(isinstance(step, Selection) for step in plan.recipe.steps):
        notes.append(f"Reference scores and reward thresholds are those of {parent.id}")
    said_of_view = {}
    if (view := options.view) is not None:
        cut = int((view.lengths != reader.lengths[view.episodes]).sum())
        said_of_view["view"] = {
            "transitions": view.transitions,
            "episodes": len(view.episodes),
            "cut": cut,
            "sha256": digest_of_rows(view),
        }
        pieces = (
            f". {plural_of(cut, len(view.episodes), 'episode', 'is a piece', 'are pieces')}, "
            "truncated where the parent's episode continues"
        )
        rows = f"{view.transitions} of {plural(reader.transitions, 'step')}"
        notes.append(f"Made of a view of {parent.id}: {rows}{pieces if cut else ''}")
    chosen = plan.chosen
    last, stop = int(chosen.episodes[-1]), int(chosen.steps[-1] + chosen.lengths[-1])
    if options.num_frames is not None and stop < reader.lengths[last]:
        steps = f"{stop} of {plural(int(reader.lengths[last]), 'step')}"
        notes.append(f"Episode {last} of {parent.id} is cut after {steps}: truncated there")
    about: Mapping[str, Any] = parent.about
    for each in plan.recipe.steps:
        about = each.update_about(about)
    frames = {} if options.num_frames is None else {"num_frames": options.num_frames}
    step = HistoryStep(
        "preprocess",
        str(target),
        (parent.id,),
        version=__version__,
        recipe=tuple(plan.recipe.describe()),
        options={**frames, **said_of_view},
    )
    return Manifest(
        id=str(target),
        source=target.source,
        name=target.name,
        revision=target.revision or "",
        layout=plan.layout,
        tables={},
        counts={},
        converter={
            "name": "offline-data",
            "version": __version__,
            "adapter": "preprocess",
            "reading": reading_of("preprocess"),
            "options": {
                "recipe": recipe_json(plan.recipe),
                "num_frames": options.num_frames,
                NEXT_TOO: True,
                "fingerprint": fingerprint,
                **said_of_view,
            },
        },
        spaces={name: space for name, space in parent.spaces.items() if name not in changed},
        environment=parent.environment,
        about=about,
        licence=parent.licence,
        citation=parent.citation,
        notes=tuple(dict.fromkeys(note for note in notes if note)),
        dropped=parent.dropped,
        skipped=parent.skipped,
        parents=(parent.id,),
        history=extend_history([parent], step),
    )


def recipe_json(recipe: Recipe) -> list[dict[str, Any]]:
    """Return every step's parameters and what it learnt, without schemas."""
    return [
        {**step.describe(), **{k: v for k, v in step.state().items() if k != "schema"}}
        for step in recipe.steps
    ]


def _space_changed(space: str, plan: Plan, reader: DatasetReader) -> bool:
    before = {key for key in reader.leaves if key[0] == space}
    after = {key for key in (*plan.schema.steps, *plan.schema.observations) if key[0] == space}
    return before != after or not before <= plan.unchanged


class IncrementalHasher:
    """Hashes and syncs the files that tasks write in place, up to where all tasks are finished.

    Reading right behind the writer finds the bytes in the page cache. Errors of the disk are raised
    by `digests`.
    """

    def __init__(self, tasks: Sequence[TaskSpec], folder: Path) -> None:
        self._tasks, self._folder = tasks, folder
        with disk_errors(folder):
            self._files = {name: HashedFile(folder / name, "rb") for name in sorted(tasks[0].end)}
        self._threads = {name: ThreadPoolExecutor(1, "offline-data-hash") for name in self._files}
        self._waiting: list[Future[None]] = []
        self._finished: set[int] = set()
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for name, thread in self._threads.items():
            thread.shutdown(wait=True, cancel_futures=True)
            self._files[name].handle.close()

    def add(self, task: int) -> None:
        """Hash on, now that this task's rows are complete."""
        self._finished.add(task)
        if task != self._next:
            return
        while self._next in self._finished:
            self._next += 1
        for name, stop in self._tasks[self._next - 1].end.items():
            self._waiting.append(self._threads[name].submit(self._hash, name, stop))

    def digests(self) -> dict[str, Digest]:
        """Wait until all is hashed and synced; returns size and digest of every file."""
        with disk_errors(self._folder):
            for waiting in self._waiting:
                waiting.result()
        return {name: file.digest for name, file in self._files.items()}

    def _hash(self, name: str, stop: int) -> None:
        self._files[name].read_to(stop)
        self._files[name].sync()


def finish(
    plan: Plan,
    work: WorkDir,
    header: Manifest,
    audit: AuditMode,
    reader: DatasetReader,
    digests: Mapping[str, Digest] | None = None,
) -> Manifest:
    """Assemble the dataset directory from the output of the tasks; it is not published yet.

    Raises `StepError` if no episode is left (the tasks' output is deleted), `IntegrityError` if a
    task is not finished or a file has another size than recorded, and what `finalize` raises.
    """
    found = [work.read_record(task) for task in range(len(plan.tasks))]
    missing = [task for task, record in enumerate(found) if record is None]
    if missing:
        raise IntegrityError(f"Tasks {missing[:5]} of {len(found)} are not finished in {work.path}")
    records = [record for record in found if record is not None]
    counted = [counts for _, counts, _ in records]
    census = DatasetCounts()
    for one in counted:
        census.add_counted(one["counts"], one["non_finite"])
    transitions, episodes = census.counts["transitions"], census.counts["episodes"]
    if not episodes:
        work.clear()
        raise StepError("The recipe leaves no episode of the dataset")
    tables = with_counts(plan.tables, transitions, episodes)
    if digests is None:
        digests = join_rows(_parts(work, records, tables), work.dataset, Vocabularies())
    digests = {**digests, **{name: reader.manifest.digests[name] for name in plan.shared}}
    for name, size in file_sizes(tables).items():
        if digests[name]["size"] != size:
            raise IntegrityError(
                f"{name} has {plural(digests[name]['size'], 'byte')} of new rows, expected {size}"
            )
    audited = {
        "mode": audit,
        "rows": sum(one["audit"][0] for one in counted),
        "of": transitions,
        "episodes": sum(one["audit"][1] for one in counted),
        "differences": 0,
    }
    texts = plan.recipe.episode_words(reader)
    extras = {key: replace(one, text=key in texts) for key, one in plan.schema.episodes.items()}
    words = Vocabularies()  # of text leaves, under the names that they have in the new dataset
    for name, table in tables.items():
        for leaf in table.leaves:
            if leaf.text and leaf.key in plan.words:
                words.know(name, leaf.key, plan.words[leaf.key])
    columns = join_episodes([columns for columns, _, _ in records if columns])
    columns |= {key: decode(columns[key], list(texts[key])) for key in texts if key in columns}
    contents = Contents(tables, columns, extras, census, audited, plan.schema.two_copies, digests)
    options = header.converter["options"]
    recipe = [dict(step) for step in options["recipe"]]
    for number, blocks, rows, why in (part for one in counted for part in one["by_rows"]):
        said = recipe[number].setdefault("by_rows", {"blocks": 0, "rows": 0, "why": why})
        said["blocks"] += blocks
        said["rows"] += rows
    losses: dict[int, tuple[int, int, int]] = {}
    for number, *loss in (part for one in counted for part in one["losses"]):
        losses[number] = add_losses(losses.get(number), loss)
    notes = [*header.notes]
    for number, (largest, total, values) in sorted(losses.items()):
        recipe[number]["error"] = {"max": largest, "mean": total / values}
        notes.append(
            f"Values decoded after step {number + 1}, {recipe[number]['step']}, differ from those "
            f"before it by {largest} of 255 at most, by {total / values:.3g} on average"
        )
    options = {**options, "recipe": recipe}
    header = replace(header, converter={**header.converter, "options": options}, notes=tuple(notes))
    return finalize_joined(work.dataset, header, contents, words)


def _parts(
    work: WorkDir, records: Sequence[Record], tables: Mapping[str, TableSpec]
) -> list[RowsPart]:
    """Return what the tasks wrote to files of their own, of those that have episodes."""
    parts = []
    for task, (_, about, written) in enumerate(records):
        if count := about["counts"].get("episodes", 0):
            files = {name: {"size": size} for name, (_, size, _) in written.items()}
            folder = work.shard(task)
            parts.append(RowsPart(folder, folder.name, tables, count, {**files, **about["videos"]}))
    return parts
