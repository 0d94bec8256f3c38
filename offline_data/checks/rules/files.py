"""Rules on the files and the manifest: damage, licence, published defects, what was left out."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from offline_data.checks.block import all_leaves
from offline_data.checks.rule import Measured, Rule
from offline_data.episodes.fields import join_key
from offline_data.store.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from offline_data.checks.finding import Finding, Severity
    from offline_data.store.reader import DatasetReader

MOST_NAMED = 8
"""Leaves or datasets that a message names."""


class DamagedFiles(Rule):
    """A file is not what was written: another checksum, missing, or not in the manifest.

    All bytes are read and compared with the manifest, as `offline-data verify` does, and the table of
    episodes with the rows.
    """

    code = "RL001"
    name = "damaged-files"
    severity = "error"
    hint = "download or convert the dataset again with --force"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """Yield a finding for each file."""
        for problem in verify(measured.reader.path):
            text = f"{problem.file} {problem.problem}"
            yield self.finding(measured.reader, text, about=problem.file)


class MissingLicence(Rule):
    """Neither the source nor the dataset states a licence.

    Whoever publishes a model that was trained on it needs one.
    """

    code = "RL002"
    name = "missing-licence"
    severity = "info"
    hint = "ask the authors; `offline-data info ID` shows where the data are from"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """Yield one finding."""
        if not (measured.reader.manifest.licence or "").strip():
            yield self.finding(measured.reader, "No licence is stated")


class MissingCitation(Rule):
    """Neither the source nor the dataset states how to cite it.

    Papers that use it should name it.
    """

    code = "RL003"
    name = "missing-citation"
    severity = "info"
    hint = "see the page of the dataset's authors"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """Yield one finding."""
        if not (measured.reader.manifest.citation or "").strip():
            yield self.finding(measured.reader, "No citation is stated")


class Advisory(NamedTuple):
    """A published defect of some datasets."""

    id: str
    datasets: tuple[str, ...]
    """Patterns of ids without revision, with `*`."""
    severity: Severity
    summary: str
    """Half a sentence."""
    link: str
    """Where it was reported."""


@cache
def advisories() -> tuple[Advisory, ...]:
    """Return the published defects that this version knows."""
    text = files("offline_data.checks").joinpath("advisories.json").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)
    return tuple(Advisory(**{**entry, "datasets": tuple(entry["datasets"])}) for entry in entries)


class KnownDefect(Rule):
    """A defect of the dataset has been published.

    Known by the dataset's id, whatever its values are; `advisories.json` lists them with links.
    """

    code = "RL004"
    name = "known-defect"
    severity = "warning"
    hint = "read what was reported, and whether a later version mends it"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """Yield a finding for each advisory, with its own severity."""
        name = measured.reader.manifest.id.partition("@")[0]
        for one in advisories():
            if any(fnmatchcase(name, pattern) for pattern in one.datasets):
                yield self.finding(
                    measured.reader,
                    f"{one.summary} ({one.link})",
                    about=one.id,
                    severity=one.severity,
                )


class DroppedLeaves(Rule):
    """Leaves of the source were left out of the dataset.

    The manifest says why for each; `--strict` makes it an error while converting.
    """

    code = "RL005"
    name = "dropped-leaves"
    severity = "warning"
    hint = "`offline-data info ID` lists the reasons"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """Yield one finding."""
        dropped = measured.reader.manifest.dropped_leaves
        if dropped:
            names = ", ".join(one.key for one in dropped[:MOST_NAMED])
            more = ", …" if len(dropped) > MOST_NAMED else ""
            yield self.finding(
                measured.reader,
                f"{len(dropped)} leaves of the source were dropped: {names}{more}",
                count=len(dropped),
            )


class SkippedEpisodes(Rule):
    """Episodes of the source were left out, since they could not be read.

    Results are not those of the whole dataset.
    """

    code = "RL006"
    name = "skipped-episodes"
    severity = "warning"
    hint = "`offline-data info ID` lists them; convert without --skip-bad-episodes to see the error"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """Yield one finding."""
        skipped = measured.reader.manifest.skipped_episodes
        if skipped:
            yield self.finding(
                measured.reader,
                f"{len(skipped)} pieces of the source were left out, the first at "
                f"{skipped[0].where}: {skipped[0].reason}",
                count=len(skipped),
            )


class SchemaDrift(Rule):
    """Datasets that are checked together have different leaves, dtypes or shapes.

    A mixture of them has only the leaves that all have. Datasets are compared with the first one that
    has the same source, or that is their parent.
    """

    code = "RL007"
    name = "schema-drift"
    severity = "warning"
    hint = "select common leaves with keys=…, or cast with `preprocess`"

    def across(self, measured: Sequence[Measured]) -> Iterator[Finding]:
        """Yield a finding for each dataset that differs from the first related one."""
        readers = [one.reader for one in measured]
        for i, reader in enumerate(readers):
            first = next((other for other in readers[:i] if _related(reader, other)), None)
            if first is None:
                continue
            said = "; ".join(_differences(reader, first))
            if said:
                yield self.finding(
                    reader, f"Unlike {first.manifest.id}: {said}", about=first.manifest.id
                )


def _related(reader: DatasetReader, other: DatasetReader) -> bool:
    mine, theirs = reader.manifest, other.manifest
    parents = {mine.id, *mine.parents} & {theirs.id, *theirs.parents}
    return bool(parents) or mine.source == theirs.source


def _differences(reader: DatasetReader, other: DatasetReader) -> Iterator[str]:
    """Yield what differs, a clause each."""
    mine, theirs = (
        {join_key(k): f"{leaf.dtype}{list(leaf.shape)}" for k, leaf in all_leaves(one).items()}
        for one in (reader, other)
    )
    for what, names in (
        ("has no", sorted(theirs.keys() - mine.keys())),
        ("has also", sorted(mine.keys() - theirs.keys())),
    ):
        if names:
            more = ", …" if len(names) > MOST_NAMED else ""
            yield f"{what} {', '.join(names[:MOST_NAMED])}{more}"
    changed = sorted(name for name in mine.keys() & theirs.keys() if mine[name] != theirs[name])
    for name in changed[:MOST_NAMED]:
        yield f"{name} is {mine[name]}, not {theirs[name]}"
