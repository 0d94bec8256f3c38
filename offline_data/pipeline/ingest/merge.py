"""`merge`: one dataset of the episodes of several, whose schemas are equal or reconciled by a rule."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from offline_data.base.config import Settings
from offline_data.base.errors import UsageError
from offline_data.base.exact import first_changed
from offline_data.base.plurals import plural
from offline_data.base.progress import SILENT, Progress
from offline_data.base.version import __version__
from offline_data.episode import EpisodeBatch, Key
from offline_data.episode.fields import ACTION_ROOTS, EPISODE_COLUMNS, Dropped, join_key, next_of
from offline_data.formats.base import Part, RandomAccess, SourceInfo
from offline_data.formats.local import StoredEpisodes
from offline_data.formats.options import Options
from offline_data.pipeline.ingest.build import BuildJob, DatasetBuild, destination_of
from offline_data.pipeline.ingest.conversion import finish_and_publish
from offline_data.pipeline.ingest.resolve import new_id
from offline_data.store.history import extend_history
from offline_data.store.layout import EPISODE, EPISODES, OBSERVATIONS, STEPS, TED, LeafSpec
from offline_data.store.library import Entry, Stored, entry_at, find, has_manifest, remove
from offline_data.store.manifest import HistoryStep, Manifest
from offline_data.store.publish import dataset_lock, staging_folder

SOURCE: Key = ("source",)  # episode column: id of the dataset that an episode is from

_UNITS = ("fps", "tokenizer")  # without equal ones, values do not mean the same
_MOST_NAMED = 8


def merge(
    entries: Sequence[Entry],
    name: str,
    settings: Settings,
    options: Options,
    progress: Progress = SILENT,
    *,
    common_leaves: bool = False,
    cast: bool = False,
) -> Stored:
    """Make `local:NAME` of the episodes of several datasets; see `offline_data.merge`.

    Raises:
        UsageError: Fewer than two datasets, or one twice; features that differ and that the rules
            do not reconcile; another dataset of that name.
        AuditError, NoSpaceError, AccessError: See `DatasetWriter`.
    """
    begin = time.perf_counter()
    ids = [str(entry.id) for entry in entries]
    if len(ids) < 2 or len(set(ids)) < len(ids):
        raise UsageError(
            f"merge takes two datasets or more, each once; found {', '.join(ids) or 'none'}"
        )
    target = new_id(name)
    if any(entry.id.folder == target.folder for entry in entries):
        raise UsageError(f"{target} is one of the merged datasets", hint="choose another name")
    members = [StoredEpisodes(entry.path) for entry in entries]
    raw = _MergedEpisodes(ids, members, common_leaves=common_leaves, cast=cast)
    manifests = [member.reader.manifest for member in members]
    content = [[manifest.id, manifest.digests] for manifest in manifests]
    rules = {"common_leaves": common_leaves, "cast": cast}
    text = json.dumps([content, rules], sort_keys=True)
    target = target.at(hashlib.sha256(text.encode()).hexdigest()[:12])
    layouts = {manifest.layout for manifest in manifests}
    layout = options.layout or (layouts.pop() if len(layouts) == 1 else "compact")
    step = HistoryStep("merge", str(target), tuple(ids), version=__version__, options=rules)
    destination = destination_of(target, settings)
    history = extend_history(manifests, step)
    job = BuildJob(
        target,
        "merge",
        layout,
        destination,
        options,
        parents=tuple(ids),
        recorded_options=rules,
        history=history,
    )
    with dataset_lock(settings.staging, target.folder, progress):
        there = has_manifest(destination)
        older = None if there else find(settings.root, replace(target, revision=None))
        if older is not None and not options.force:
            raise UsageError(
                f"{older.id} already exists ({older.path})",
                hint="choose another name, or replace it with --force",
            )
        existed = there and not options.force
        if existed and options.layout not in {None, entry_at(destination).manifest.layout}:
            raise UsageError(
                f"{target} already exists, in another layout", hint="replace it with --force"
            )
        if not existed:
            with staging_folder(settings.staging, target.folder, destination) as staging:
                folder = staging / "dataset"
                with DatasetBuild(raw, job, settings.workers, folder) as build:
                    finish_and_publish(build, job, progress, folder)
            if older is not None:
                remove(older)
    return Stored.of(entry_at(destination), begin, existed=existed)


class _MergedEpisodes(RandomAccess):
    """Several datasets' episodes, their features reconciled; raises `UsageError` if they differ."""

    threaded = True

    def __init__(
        self,
        ids: Sequence[str],
        members: Sequence[StoredEpisodes],
        *,
        common_leaves: bool,
        cast: bool,
    ) -> None:
        self._ids, self._members = ids, members
        self._starts = [0, *accumulate(member.reader.episode_count for member in members)]
        self._dtypes, dropped, converted = _reconcile(
            dict(zip(ids, members, strict=True)), common_leaves=common_leaves, cast=cast
        )
        manifests = [member.reader.manifest for member in members]
        self.info = _describe(ids, manifests, dropped, converted)

    def parts(self, budget: int) -> Sequence[Part]:
        return [
            Part(start + part.first, start + part.stop)
            for start, member in zip(self._starts, self._members, strict=False)
            for part in member.parts(budget)
        ]

    def read_part(self, part: Part) -> EpisodeBatch:
        number = int(np.searchsorted(self._starts, part.first, side="right")) - 1
        start, member = self._starts[number], self._members[number]
        batch = member.read_part(Part(part.first - start, part.stop - start))
        source = np.array([self._ids[number]] * len(batch.lengths), object)
        episodes = {SOURCE: source, **batch.episodes}
        return replace(
            batch,
            steps=self._take("step", batch.steps),
            observations=self._take("observation", batch.observations),
            episodes={**self._take("episode", episodes), SOURCE: episodes[SOURCE]},
        )

    def _take(self, kind: str, columns: Mapping[Key, Any]) -> dict[Key, Any]:
        return {
            key: columns[key] if dtype is None else columns[key].astype(dtype, copy=False)
            for (of, key), dtype in self._dtypes.items()
            if of == kind
        }


Columns: TypeAlias = "dict[tuple[str, Key], LeafSpec]"  # kind: observation, step, episode


def _columns_of(member: StoredEpisodes) -> Columns:
    reader = member.reader
    tables: dict[str, Mapping[Key, LeafSpec]] = {
        "observation": reader.observation_leaves,
        "step": reader.step_leaves,
        "episode": reader.manifest.tables[EPISODES].by_key,
    }
    return {
        (kind, key): leaf
        for kind, leaves in tables.items()
        for key, leaf in leaves.items()
        if key != EPISODE and not (kind == "episode" and key[0] in EPISODE_COLUMNS)
    }


def _reconcile(
    members: Mapping[str, StoredEpisodes], *, common_leaves: bool, cast: bool
) -> tuple[dict[tuple[str, Key], np.dtype[Any] | None], list[Dropped], list[str]]:
    """Return the type of each column that is cast (None: unchanged), dropped columns and converted ones."""
    dtypes: dict[tuple[str, Key], np.dtype[Any] | None] = {}
    dropped: list[Dropped] = []
    converted: list[str] = []
    problems: list[str] = []
    needs: set[str] = set()
    every = {name: _columns_of(member) for name, member in members.items()}
    for column in dict.fromkeys(column for columns in every.values() for column in columns):
        kind, key = column
        leaves = {name: columns.get(column) for name, columns in every.items()}
        found = [leaf for leaf in leaves.values() if leaf is not None]
        if column == ("episode", SOURCE) and all(leaf.text for leaf in found):
            continue  # of datasets that were merged before: kept
        forms = {(leaf.shape, leaf.text, leaf.encoding) for leaf in found}
        types = sorted({leaf.dtype for leaf in found})
        reason, name = (
            "",
            join_key(key) if kind != "episode" else f"{join_key(key)} of the episodes",
        )
        if len(found) < len(leaves) and common_leaves:
            lacking = next(name for name, leaf in leaves.items() if leaf is None)
            dropped.append(Dropped(join_key(key), f"It is not in {lacking}."))
            continue
        if len(found) < len(leaves):
            need = "common"
        elif len(forms) > 1 or (column == ("episode", SOURCE)):
            need = "other"
        elif len(types) < 2:
            dtypes[column] = None
            continue
        elif not cast:
            need = "cast"
        else:
            dtypes[column] = common = np.result_type(*types)
            reason = _find_rounded(members, column, common)
            if not reason:
                converted.append(f"{name} ({common})")
                continue
            need = "round"
        needs.add(need)
        first, *others = leaves.items()
        other = next(pair for pair in others if _form(pair[1]) != _form(first[1]))
        problems.append(
            f"{name} is {_form(first[1])} in {first[0]}, {_form(other[1])} in {other[0]}{reason}"
        )
    if problems:
        more = len(problems) - _MOST_NAMED
        listed = "; ".join(problems[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
        count = plural(len(problems), "feature differs", "features differ")
        raise UsageError(f"{count}: {listed}", hint=_advise(needs))
    if not any(kind == "step" and key[0] in ACTION_ROOTS for kind, key in dtypes):
        raise UsageError("The datasets have no action feature in common")
    return dtypes, dropped, converted


def _find_rounded(
    members: Mapping[str, StoredEpisodes], column: tuple[str, Key], dtype: np.dtype[Any]
) -> str:
    """Return which value of a column another type does not hold, for a message; empty: it holds all."""
    kind, key = column
    for name, member in members.items():
        reader = member.reader
        table = {"observation": OBSERVATIONS, "step": STEPS}.get(kind, EPISODES)
        places = [(table, key)]
        if table not in reader.manifest.tables:
            places = [(TED, key), *([(TED, next_of(key))] if kind == "observation" else [])]
        for place in places:
            if (value := first_changed(reader.leaf(*place), dtype)) is not None:
                return f", and {dtype} does not hold {value} of {name}"
    return ""


def _form(leaf: LeafSpec | None) -> str:
    if leaf is None:
        return "absent"
    kind = (
        "text" if leaf.text else f"{leaf.dtype} ({leaf.encoding})" if leaf.encoding else leaf.dtype
    )
    return f"{kind} {list(leaf.shape)}"


def _advise(needs: set[str]) -> str:
    advice = {
        "cast": "--cast converts numbers to a common type",
        "round": "`--step cast:…` of preprocess gives them one type, and rounds",
        "common": "--common-leaves drops what not all have",
        "other": "rename, drop or convert the others first: `offline-data preprocess ID --step …`",
    }
    return "; ".join(text for need, text in advice.items() if need in needs)


def _describe(
    ids: Sequence[str],
    manifests: Sequence[Manifest],
    dropped: Sequence[Dropped],
    cast: Sequence[str],
) -> SourceInfo:
    """Return what the datasets say alike; raises `UsageError` for another rate or tokenizer."""
    first = manifests[0]
    for unit in _UNITS:
        said = {name: one.about.get(unit) for name, one in zip(ids, manifests, strict=True)}
        values = [value for value in said.values() if value is not None]
        if any(value != values[0] for value in values):
            listed = ", ".join(f"{value} in {name}" for name, value in said.items())
            advice = {
                "fps": "bring them to one rate first: `offline-data preprocess ID --step resample`"
            }
            raise UsageError(f"{unit} differs: {listed}"[:500], hint=advice.get(unit))
    about = {
        k: v for k, v in first.about.items() if all(one.about.get(k) == v for one in manifests)
    }
    spaces = {
        k: v for k, v in first.spaces.items() if all(one.spaces.get(k) == v for one in manifests)
    }
    same = all(one.environment == first.environment for one in manifests)
    notes = [note for one in manifests for note in one.notes]
    notes.append(f"Merged from {', '.join(ids)}; the column source of the episodes says which.")
    if cast:
        notes.append(f"Converted to a type that has the values of all: {', '.join(cast)}.")
    unequal = [
        *(f"about.{k}" for k in dict.fromkeys(k for one in manifests for k in one.about) if k not in about),
        *(f"spaces.{k}" for k in dict.fromkeys(k for one in manifests for k in one.spaces) if k not in spaces),
        *([] if same else ["environment"]),
    ]  # fmt: skip
    if unequal:
        notes.append(f"Dropped, because the datasets differ in it: {', '.join(unequal)}.")
    licences = [one.licence for one in manifests]
    known = [licence for licence in licences if licence is not None]
    citations = dict.fromkeys(one.citation for one in manifests if one.citation)
    return SourceInfo(
        transitions=sum(one.counts["transitions"] for one in manifests),
        episodes=sum(one.counts["episodes"] for one in manifests),
        spaces=spaces,
        environment=first.environment if same else {},
        about=about,
        licence="; ".join(dict.fromkeys(known)) if len(known) == len(licences) else None,
        citation="\n\n".join(citations) or None,
        notes=tuple(dict.fromkeys(notes)),
        dropped=(*dict.fromkeys(x for one in manifests for x in one.dropped_leaves), *dropped),
        skipped=tuple(x for one in manifests for x in one.skipped_episodes),
    )
