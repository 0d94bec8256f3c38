"""A report: one self-contained HTML file about a dataset, for people who do not have it."""

from __future__ import annotations

from offline_data.checks.registry import select_rules
from offline_data.checks.run import run_checks
from offline_data.pages import sections
from offline_data.pages.distributions import distribution_parts
from offline_data.pages.episodes import example_episodes, read_episode
from offline_data.pages.page import Html, element, page, section
from offline_data.progress import SILENT, Progress
from offline_data.reports.info import entry_info
from offline_data.reports.stats import dataset_stats
from offline_data.store.library import Entry
from offline_data.store.reader import DatasetReader, open_reader

PICTURE_BYTES = 3 << 20
"""Bytes of all pictures of a report. Charts and texts are bounded, too: a report of a dataset with
fewer than a few hundred leaves takes at most 5 MiB."""

_FILM = 40
"""Pictures of an animation."""


def report_page(entry: Entry, *, workers: int = 1, progress: Progress = SILENT) -> bytes:
    """Return a page with all that can be said about a dataset; reads it twice, in bounded memory.

    The page loads nothing, and names no folder of this machine.

    Args:
        entry: The dataset.
        workers: Threads that check it.

    Raises:
        ManifestError, FormatError: A file is missing or damaged.
    """
    reader = open_reader(entry.path)
    info = entry_info(entry)
    stats = dataset_stats(reader, progress)
    found = run_checks([entry.path], select_rules(), workers=workers, progress=progress)
    parts = [
        sections.card(info, stats),
        sections.schema(info),
        section("distributions", "Distributions", distribution_parts(reader, stats)),
        section("episodes", "Example episodes", _examples(reader)),
        section("findings", "Findings", sections.findings(found)),
        sections.provenance(info),
        sections.citation(info),
    ]
    names = ("Dataset", "Schema", "Distributions", "Episodes", "Findings", "Provenance", "Citation")
    identities = ("card", *(name.lower() for name in names[1:]))
    links = [(f"#{one}", name) for one, name in zip(identities, names, strict=True)]
    return page(info.id, parts, links=links)


def _examples(reader: DatasetReader) -> list[Html]:
    found = example_episodes(reader)
    parts = []
    for number, why in found.items():
        budget = PICTURE_BYTES // len(found)
        shown = read_episode(reader, number, film=_FILM, budget=budget)
        title = f"Episode {number}" + (f": {why}" if why else "")
        summary = element("p", sections.episode_summary(shown), class_="soft")
        parts += [element("h3", title), summary, sections.episode_parts(shown)]
    return parts
