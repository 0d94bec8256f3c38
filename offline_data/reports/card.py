"""Dataset card: README.md as the Hugging Face Hub reads it, from a manifest and statistics.

The texts of a manifest come from strangers. In the header they are quoted, below they are escaped,
so that they are not markup of the card; only their links to `http` and `https` stay links.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import numpy as np

from offline_data.analysis.figures import DatasetStats, ends_fields, leaf_table, spread_table
from offline_data.analysis.info import DatasetInfo, provenance_fields, schema_table
from offline_data.base.files import human_bytes
from offline_data.base.plurals import plural
from offline_data.document.blocks import Field, Fields
from offline_data.document.markdown import LONGEST, escape, escape_text, one_line, render, table_of
from offline_data.reports.pictures import Histogram, histograms_of, ranges_of
from offline_data.store.names import names_in

_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
_LICENCES = {  # names of the Hub; another licence is `other` with a `license_name`
    "apache-2.0", "mit", "bsd", "bsd-2-clause", "bsd-3-clause", "cc", "cc0-1.0", "cc-by-2.0",
    "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc-by-nc-2.0",
    "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nd-4.0", "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0",
    "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "gpl", "gpl-2.0", "gpl-3.0", "lgpl",
    "lgpl-2.1", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "odc-by", "odbl", "pddl", "unlicense", "wtfpl",
}  # fmt: skip
_BLOCKS, _COLUMNS = " ▁▂▃▄▅▆▇█", 16


def size_category(count: int) -> str:
    """Return the Hub's size category of a number of rows.

    Example:
        >>> size_category(999), size_category(6729), size_category(10**12)
        ('n<1K', '1K<n<10K', 'n>1T')
    """
    power = next((i for i in range(len(_SIZES)) if count < 1000 * 10**i), None)
    if power is None:
        return f"n>{_SIZES[-1]}"
    return f"{_SIZES[power - 1]}<n<{_SIZES[power]}" if power else f"n<{_SIZES[0]}"


def dataset_card(
    info: DatasetInfo,
    stats: DatasetStats,
    *,
    address: str | None = None,
    header: Mapping[str, Any] = MappingProxyType({}),
    picture: str | None = None,
) -> str:
    """Return the text of a dataset card: YAML header, then Markdown.

    `address` is where the dataset is pushed to, in place of its id here; `picture` the name of a
    picture in the folder of the card. `header` has further lines of the header, as JSON values,
    which YAML reads; its `tags` are added. Without `configs`, which name files that the hub can
    load, its viewer is switched off.
    """
    size = f"{human_bytes(info.bytes)} on disk"
    blocks = (
        _header(info, header),
        f"# {escape(info.id)}",
        *(f"> {escape_text(line)}" for line in _description(info)),
        f"{plural(info.transitions, 'step')} in {plural(info.episodes, 'episode')}, {size}.",
        f"![Preview]({quote(picture)})" if picture else "",
        "## Schema",
        render(schema_table(info)),
        "## Statistics",
        render(ends_fields(stats)),
        render(leaf_table(stats.leaves)),
        table_of(("Dimension", "Min", "Median", "Max", "Histogram"), _features(info, stats)),
        render(spread_table(stats)),
        "## Provenance",
        render(provenance_fields(info)),
        render(Fields(Field("notes", info.notes))),
        "## Loading",
        _code_block("pip install offline-data", "console"),
        _code_block(
            f"import offline_data\n\n{'' if address else _where(info)}"
            f"ds = offline_data.load_dataset({_string(address or info.id)})\n"
            "batch = ds.sample(256)",
            "python",
        ),
        "## Citation",
        _citation(info),
    )
    return "\n\n".join(block for block in blocks if block) + "\n"


def _string(text: Any) -> str:
    """Return a text as a string of YAML, which is one of JSON and of Python, too."""
    return json.dumps(one_line(text)[:LONGEST], ensure_ascii=False)


def _header(info: DatasetInfo, more: Mapping[str, Any]) -> str:
    licence = (info.licence or "unknown").strip()
    known = licence.lower() in _LICENCES
    lines = ["---", f"pretty_name: {_string(info.name)}"]
    if known or not info.licence:
        lines.append(f"license: {licence.lower()}")
    else:
        lines += ["license: other", f"license_name: {_string(licence)}"]
    tags = dict.fromkeys(
        ("offline-rl", "reinforcement-learning", info.source, *more.get("tags", ()))
    )
    lines += ["task_categories:", "- reinforcement-learning", "tags:"]
    lines += [f"- {_string(tag)}" for tag in tags]
    shown = more if "configs" in more else {**more, "viewer": False}
    lines += [f"{key}: {json.dumps(value)}" for key, value in shown.items() if key != "tags"]
    return "\n".join([*lines, "size_categories:", f"- {size_category(info.transitions)}", "---"])


def _description(info: DatasetInfo) -> Iterator[str]:
    text = info.about.get("description")
    if isinstance(text, str) and text.strip():
        yield text


def _features(info: DatasetInfo, stats: DatasetStats) -> Iterator[tuple[str, ...]]:
    """Yield name, figures and a drawing of each dimension, rewards and actions first."""
    names = names_in(info.about, {leaf.key: leaf.shape for leaf in stats.leaves})
    order = ("next/reward", "action", "observation")
    first = {key: place for place, key in enumerate(order)}
    leaves = [one for one in stats.leaves if one.features and one.dtype != "bool"]
    leaves.sort(
        key=lambda one: first.get(one.key, first.get(one.key.partition("/")[0], len(order)))
    )
    for leaf in leaves:
        named = names.get(leaf.key, ())
        ranges = ranges_of(leaf, named)
        for histogram, levels in zip(histograms_of(leaf, named), ranges.quantiles, strict=True):
            figures = (levels[0], levels[len(levels) // 2], levels[-1])
            yield histogram.label, *map(_number, map(float, figures)), _draw(histogram)


def _draw(histogram: Histogram) -> str:
    """Return a histogram as one line of blocks.

    Example:
        >>> from offline_data.reports.pictures import histogram_of
        >>> _draw(histogram_of("x", np.array([1, 2, 2, 4])))
        '▄█ ▄'
    """
    counts = histogram.counts
    if len(counts) < 2:
        return "always the same" if len(counts) else "no finite value"
    merged = np.add.reduceat(counts, np.arange(0, len(counts), -(-len(counts) // _COLUMNS)))
    return "".join(_BLOCKS[level] for level in np.ceil(8 * merged / merged.max()).astype(int))


def _where(info: DatasetInfo) -> str:
    """Return a comment on how to load a local dataset on another machine."""
    if info.source != "local":
        return ""
    name = _string(info.name)
    return f"# on another machine, first: offline_data.convert(a copy of the dataset directory, {name})\n"


def _citation(info: DatasetInfo) -> str:
    """Return BibTeX: the source's own, or an entry of the dataset that notes its words."""
    text = (info.citation or "").strip()
    if not text:
        return "The source states none."
    if text.startswith("@"):
        lines = (one_line(line) for line in text[:LONGEST].splitlines())
        return _code_block("\n".join(lines), "bibtex")
    name = str(info.about.get("dataset_id") or info.name)  # Minari's, whatever it is called here
    authors = info.about.get("author")
    fields: Mapping[str, Any] = {
        "author": " and ".join(map(str, authors)) if isinstance(authors, list) else authors or "",
        "title": name,
        "note": text,
    }
    label = re.sub(r"\W+", "-", name)[:60].strip("-") or "dataset"
    values = {name: re.sub(r"[{}%\\]", "", one_line(value)) for name, value in fields.items()}
    lines = (f"  {name} = {{{value}}}," for name, value in values.items() if value)
    return _code_block("\n".join([f"@misc{{{label},", *lines, "}"]), "bibtex")


def _code_block(text: str, language: str) -> str:
    """Return a code block whose fence is longer than any in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
