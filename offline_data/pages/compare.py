"""A comparison: one self-contained HTML file about several datasets, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offline_data.checks.registry import select_rules
from offline_data.checks.run import run_checks
from offline_data.episodes.fields import REWARD, join_key
from offline_data.files import human_bytes
from offline_data.pages import charts, sections
from offline_data.pages.distributions import feature_names, histogram, whole_histograms
from offline_data.pages.histograms import distributions_of
from offline_data.pages.page import Html, element, page, section, table
from offline_data.progress import SILENT
from offline_data.reports.info import entry_info
from offline_data.store.reader import open_reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offline_data.pages.histograms import Distributions
    from offline_data.progress import Progress
    from offline_data.reports.info import DatasetInfo
    from offline_data.store.library import Entry


def compare_page(
    entries: Sequence[Entry], *, workers: int = 1, progress: Progress = SILENT
) -> bytes:
    """Return a page that shows datasets side by side; reads each three times, in bounded memory.

    Args:
        entries: The datasets, two at least; each once.
        workers: Threads that check them.
        progress: Of bytes.

    Raises:
        ManifestError, FormatError: A file is missing or damaged.
    """
    readers = [open_reader(entry.path) for entry in entries]
    infos = [entry_info(entry) for entry in entries]
    names = [info.id for info in infos]
    found = dict(zip(names, distributions_of(readers, progress), strict=True))
    report = run_checks(
        [entry.path for entry in entries], select_rules(), workers=workers, progress=progress
    )
    titles = {
        "datasets": "Datasets",
        "schema": "Schema",
        "distributions": "Distributions",
        "findings": "Findings",
    }
    content = {
        "datasets": _counts(infos, found),
        "schema": _schemas(infos),
        "distributions": _distributions(found),
        "findings": sections.findings(report),
    }
    return page(
        ", ".join(info.name for info in infos),
        (section(name, title, content[name]) for name, title in titles.items()),
        links=[(f"#{name}", title) for name, title in titles.items()],
    )


def _counts(infos: Sequence[DatasetInfo], found: dict[str, Distributions]) -> Html:
    rows = []
    for info in infos:
        spreads = found[info.id].stats.per_episode
        means = [f"{one.mean:.4g}" if one else "–" for one in (spreads.returns, spreads.length)]
        rows.append(
            (
                element("code", info.id),
                info.licence or "not stated",
                f"{info.transitions:,}",
                f"{info.episodes:,}",
                human_bytes(info.bytes),
                *means,
                f"{100 * spreads.terminated:.3g} %",
            )
        )
    titles = ("Dataset", "Licence", "Transitions", "Episodes", "Size")
    return table((*titles, "Mean return", "Mean length", "Terminated"), rows, numbers=6)


def _schemas(infos: Sequence[DatasetInfo]) -> Html:
    """Return the type of every leaf in each dataset; differences stand out."""
    rows = []
    for key in sorted({key for info in infos for key in info.schema}):
        kinds = [_kind(info, key) for info in infos]
        same = len(set(kinds)) == 1
        cells = (
            kinds if same else [element("b", kind or "absent", class_="warning") for kind in kinds]
        )
        rows.append((element("code", key), *cells))
    return table(("Leaf", *(info.id for info in infos)), rows)


def _kind(info: DatasetInfo, key: str) -> str:
    leaf = info.schema.get(key)
    if leaf is None:
        return ""
    encoding = f" {leaf['encoding']}" if "encoding" in leaf else ""
    return f"{'text' if leaf['text'] else leaf['dtype']}{encoding} {list(leaf['shape'])}"


def _distributions(found: dict[str, Distributions]) -> list[Html]:
    first = next(iter(found.values()))
    described = {leaf.key: leaf for leaf in first.stats.leaves}
    parts = [
        charts.legend(list(found)),
        element("div", whole_histograms(found), class_="grid wide"),
    ]
    for key, bins in first.features.items():
        if key == REWARD:
            continue
        leaf = described[join_key(key)]
        each = [
            histogram(
                name, {of: one.features[key][i] for of, one in found.items()}, "value", "rows"
            )
            for i, name in enumerate(feature_names(key, leaf.shape, len(bins)))
        ]
        parts += [element("h3", f"{leaf.key}, {leaf.kind}"), element("div", each, class_="grid")]
    if first.left_out:
        left_out = ", ".join(first.left_out)
        parts.append(element("p", f"Without histograms: {left_out}", class_="soft"))
    return parts
