"""Rules on files and the manifest: digests, licence, published defects, losses, schemas."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Any

from offline_data.analysis.checks.block import all_leaves
from offline_data.analysis.checks.finding import Finding, Severity
from offline_data.analysis.checks.names import are_related, is_derived, without_revision
from offline_data.analysis.checks.rule import Measured, Rule
from offline_data.analysis.checks.run import DAMAGED
from offline_data.base.json import shown
from offline_data.base.plurals import plural
from offline_data.episode.fields import Key, join_key
from offline_data.store.layout import LeafSpec
from offline_data.store.library import foreign_files
from offline_data.store.manifest import Manifest
from offline_data.store.reader import DatasetReader
from offline_data.store.verify import verify_files

_MOST_LISTED = 8  # names that a message lists


class DamagedFiles(Rule):
    """A file of the dataset is missing, has changed its size, or does not belong to it.

    Also reported if the manifest was changed, or a file cannot be read. Files that the manifest
    does not list are a warning: nothing reads them, and `remove` keeps them. Contents are compared
    by RL008 and by `check --files`.
    """

    code = DAMAGED
    name = "damaged-files"
    severity = "error"
    hint = "`offline-data check --files ID` says how to replace damaged files"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        for problem in verify_files(reader.path, reader.manifest, digests=False):
            text = f"{problem.file} {problem.problem}"
            yield self.finding(reader, text, about=problem.file)
        for name in foreign_files(reader.path):
            text = f"{name} is not in the manifest"
            yield self.finding(reader, text, about=name, severity="warning")


class ChangedBytes(Rule):
    """The content of a file differs from what was written.

    Compares every file with the SHA-256 in the manifest. Damage comes from disks, copies, and tools
    that write into memory maps. Hashing takes longer than all other rules together, so this rule is
    not in the default set: add it with `--select RL`, or run `offline-data check --files`, which
    also checks that the files agree with each other.
    """

    code = "RL008"
    name = "changed-bytes"
    severity = "error"
    hint = "`offline-data check --files ID` says how to replace damaged files"
    by_default = False

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        known = set(verify_files(reader.path, reader.manifest, digests=False))
        for problem in verify_files(reader.path, reader.manifest):
            if problem not in known:
                text = f"{problem.file} {problem.problem}"
                yield self.finding(reader, text, about=problem.file)


class MissingLicence(Rule):
    """The dataset has no licence.

    Without a licence, nobody else may copy or publish it, whatever its authors intended. Harmless
    for data of your own that you do not share.
    """

    code = "RL002"
    name = "missing-licence"
    severity = "info"
    hint = "ask the authors; for data of your own, state one where they are converted"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        if not (measured.reader.manifest.licence or "").strip():
            yield self.finding(measured.reader, "The manifest names no licence")


class MissingCitation(Rule):
    """The dataset has no citation.

    Users of the dataset do not know what to cite. Harmless for data of your own.
    """

    code = "RL003"
    name = "missing-citation"
    severity = "info"
    hint = "look for a CITATION file or a paper at the source"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        if not (measured.reader.manifest.citation or "").strip():
            yield self.finding(measured.reader, "The manifest names no citation")


@dataclass(frozen=True)
class Advisory:
    """A published defect of some datasets, an entry of `advisories.json`."""

    name: str  # stable name, kebab-case
    severity: Severity
    datasets: tuple[str, ...]  # patterns (`fnmatch`) of `source:name`, which cover its splits, too
    summary: str
    instead: str  # alternative or next step
    links: tuple[str, ...]  # URL of the publication
    excluded: tuple[str, ...] = ()  # patterns of datasets that do not have it
    revisions: tuple[str, ...] = ("*",)  # patterns of revisions
    before: str | None = None  # first version of ours without it; None: it is in the source's files

    def affects(self, manifest: Manifest) -> bool:
        """Return True if a dataset, or one that it was made from, has the defect."""
        own = f"{manifest.source}:{manifest.name}@{manifest.revision}"
        version = manifest.converter.get("version")
        fixed = self.before and _numbers(version) >= _numbers(self.before)
        return not fixed and any(self.names(dataset) for dataset in (own, *manifest.parents))

    def names(self, dataset: str) -> bool:
        """Return True if the defect is of `source:name[@revision]`."""
        name, _, revision = dataset.partition("@")
        return (
            _matches(name, self.datasets)
            and not _matches(name, self.excluded)
            and any(fnmatchcase(revision, pattern) for pattern in self.revisions)
        )


class KnownDefect(Rule):
    """A defect of the dataset has been published.

    The list is part of the package (`advisories.json`): defects of published files, such as
    the maze2d rewards of D4RL, which are one step early, each with a link to its report. Datasets
    made from a listed one are reported as well; ignore the finding if you fixed the defect. Results
    on a defective dataset are comparable only with other results on it.
    """

    code = "RL004"
    name = "known-defect"
    severity = "warning"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        for advisory in advisories():
            if advisory.affects(measured.reader.manifest):
                yield self.finding(
                    measured.reader,
                    f"{advisory.summary} ({', '.join(advisory.links)}); {advisory.instead}",
                    about=advisory.name,
                    severity=advisory.severity,
                )


class DroppedLeaves(Rule):
    """Features of the source were not kept.

    The conversion could not represent them; the finding says why. Values that describe the
    recording policy and not rows, such as D4RL's `metadata/`, are not needed for training: these
    are info.
    """

    code = "RL005"
    name = "dropped-leaves"
    severity = "warning"
    hint = "read them from the raw files; --keep-raw keeps those of a download"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        by_reason = defaultdict(list)
        for leaf in measured.reader.manifest.dropped:
            by_reason[leaf["reason"]].append(leaf["key"])
        for reason, keys in by_reason.items():
            harmless = all(key.startswith("metadata/") for key in keys)
            more = " …" if len(keys) > _MOST_LISTED else ""
            yield self.finding(
                measured.reader,
                f"Not kept: {', '.join(keys[:_MOST_LISTED])}{more} ({_half_sentence(reason)})",
                count=len(keys),
                about=", ".join(sorted(keys)),
                severity="info" if harmless else None,
            )


class SkippedEpisodes(Rule):
    """Episodes of the source could not be read and were skipped.

    Results are then based on fewer episodes, and the missing ones are rarely a random sample.
    """

    code = "RL006"
    name = "skipped-episodes"
    severity = "warning"
    hint = "fetch the raw files again, and convert without `--skip-bad-episodes`"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        skipped = measured.reader.manifest.skipped
        if skipped:
            first = f"{skipped[0]['where']}: {_half_sentence(skipped[0]['reason'])}"
            episodes = plural(len(skipped), "episode was", "episodes were")
            found = f"{episodes} skipped, the first in {first}"
            yield self.finding(measured.reader, found, count=len(skipped))


class SchemaDrift(Rule):
    """Datasets that belong together have features of different names, dtypes or shapes.

    Compares datasets of one run that have the same parent, or the same source and names that differ
    only in version, split or quality of the policy (`hopper-medium-v2`, `hopper-expert-v2`). Code
    written for one of them fails on the other, or silently converts its values. Each dataset is
    compared with the first of its kind, but not with its own parent: recipes change features on
    purpose. Differences in features other than observations, actions and rewards are info.
    """

    code = "RL007"
    name = "schema-drift"
    severity = "warning"
    hint = "select or cast features with `preprocess`, so that all have the same schema"

    def across(self, measured: Sequence[Measured]) -> Iterator[Finding]:
        done = set()
        for (_, one), (number, other) in combinations(enumerate(measured), 2):
            first, second = one.reader.manifest, other.reader.manifest
            if number in done or not are_related(first, second) or is_derived(first, second):
                continue
            done.add(number)
            yield from self._compare(one.reader, other.reader)

    def _compare(self, first: DatasetReader, second: DatasetReader) -> Iterator[Finding]:
        name, minor = without_revision(first.manifest.id), []
        for key, difference in _differences(all_leaves(first), all_leaves(second), name):
            if key[0] in {"observation", "action"} or key == ("next", "reward"):
                yield self.finding(second, f"It {difference}", leaf=join_key(key), about=name)
            else:
                minor.append(f"{join_key(key)} {difference}")
        if minor:
            listed = "; ".join(minor[:_MOST_LISTED]) + (" …" if len(minor) > _MOST_LISTED else "")
            differ = plural(
                len(minor), "less important feature differs", "less important features differ"
            )
            message = f"{differ}: {listed}"
            yield self.finding(second, message, count=len(minor), about=name, severity="info")


@cache
def advisories() -> tuple[Advisory, ...]:
    """Return the published defects that this version knows."""
    text = files("offline_data.analysis.checks").joinpath("advisories.json").read_text("utf-8")
    return tuple(_advisory(entry) for entry in json.loads(text))


def _advisory(entry: Mapping[str, Any]) -> Advisory:
    lists = {name: tuple(value) for name, value in entry.items() if isinstance(value, list)}
    fields = {**entry, **lists}
    return Advisory(excluded=fields.pop("except", ()), **fields)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, p) or fnmatchcase(name, f"{p}/*") for p in patterns)


def _numbers(version: object) -> tuple[int, ...]:
    """Return the numbers of a version; none, which is the lowest, for what is not one."""
    found = re.match(r"\d{1,9}(?:\.\d{1,9})*", version) if isinstance(version, str) else None
    return tuple(map(int, found[0].split("."))) if found else ()


def _differences(
    first: Mapping[Key, LeafSpec], second: Mapping[Key, LeafSpec], name: str
) -> Iterator[tuple[Key, str]]:
    """Yield leaves of the second dataset that are not as in the first, which is called `name`."""
    for key in sorted({*first, *second}):
        theirs, mine = first.get(key), second.get(key)
        if mine is None:
            yield key, f"is missing, and {name} has it"
        elif theirs is None:
            yield key, f"is not in {name}"
        elif _form(mine) != _form(theirs):
            yield key, f"is {_form(mine)}, and {_form(theirs)} in {name}"


def _form(leaf: LeafSpec) -> str:
    kind = "text" if leaf.text else leaf.encoding or leaf.dtype
    return f"{kind} {list(leaf.shape)}"


def _half_sentence(text: str) -> str:
    return shown(text, 200).strip("'\"").rstrip(".")
