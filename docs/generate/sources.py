"""Pages of sources and of their datasets, made of catalogues, adapters and sources.yml."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import yaml

from docs.generate.text import bullets, code, links, page, plain, table
from offline_data.analysis.checks.rules.files import advisories
from offline_data.base.files import human_bytes
from offline_data.formats.catalogues import Catalog, CatalogEntry, read_catalog
from offline_data.formats.registry import get_catalog, source_names

ROOT = Path(__file__).resolve().parents[2]
FACTS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("sources.yml").read_text("utf-8")
)
COLUMNS: dict[str, str] = FACTS.pop("columns")
"""Columns of the catalogues' tables that the pages show, and their names there."""
FACTS = {name: FACTS[name] for name in dict.fromkeys(("d4rl", "minari", "lerobot", *FACTS))}
"""What sources.yml says of each source, those that most people look for first."""


MOST_NAMED = 3
"""Most datasets that are named beside a note."""


def pages() -> dict[str, str]:
    """Return the pages by their path in docs/."""
    made = {"sources/index.md": _index()}
    for name in source_names():
        if name in FACTS:
            made[f"sources/{name}.md"] = _source(get_catalog(name))
            if get_catalog(name).catalog():
                made[f"sources/{name}-datasets.md"] = _datasets(get_catalog(name))
    return made


def _index() -> str:
    rows = []
    for name in FACTS:
        source = get_catalog(name)
        count = len(source.catalog())
        listed = f"[{count:,}]({name}-datasets.md)" if count else ""
        rows.append([f"[`{name}`]({name}.md)", plain(source.title), listed, source.licence or ""])
    return page(
        "# Datasets",
        f"{sum(len(get_catalog(name).catalog()) for name in FACTS):,} datasets are listed here. An id "
        "is `SOURCE:NAME`, such as `d4rl:hopper-medium-v2`; the page of a source says which names "
        "it takes, which row of its files becomes which row of a dataset, and what else is particular to it. "
        "`offline-data search hopper medium` searches all lists without a network.",
        table(["source", "what it has", "datasets", "licence"], rows),
        "A licence is that of the source's datasets, where they share one that is known; "
        "`offline-data info ID` shows what a dataset states itself.",
    )


def _source(source: Catalog) -> str:
    facts, entries = FACTS[source.name], source.catalog()
    extra = f"`pip install 'offline-data[{source.extra}]'`" if source.extra else "nothing more"
    about = [
        f"**Ids:** {facts['ids']}",
        f"**Requires:** {facts.get('extra', extra)}",
        f"**Licence:** {source.licence}" if source.licence else "",
        f"**Datasets:** [{len(entries):,} are listed]({source.name}-datasets.md)"
        if entries
        else "",
    ]
    quirks = [*facts["quirks"], *_notes(source.name, entries)]
    sample = facts.get("example", entries[0].name if entries else "")
    differs = _differs(facts["torchrl"]) if "torchrl" in facts else ""
    return page(
        f"# {source.name}",
        plain(source.title[:1].upper() + source.title[1:]) + ".",
        bullets(filter(None, about)),
        _load(f"{source.name}:{sample}") if sample else "",
        "## Which row becomes which",
        facts.get("instead", ""),
        *_alignments(source.name),
        "## What to know" if quirks else "",
        bullets(quirks),
        f"## `{facts['torchrl']}`" if differs else "",
        differs,
        "## Citation" if source.citation else "",
        plain(source.citation) if source.citation else "",
    )


def _notes(source: str, entries: Sequence[CatalogEntry]) -> Iterator[str]:
    """Yield the notes of a source's list, with the datasets that they are about."""
    about: dict[str, list[str]] = {}
    for entry in entries:
        for note in entry.notes:
            about.setdefault(note, []).append(entry.name)
    for note, names in sorted(about.items()):
        some = [
            f"[{code(name)}]({source}-datasets.md#{anchor(name)})" for name in names[:MOST_NAMED]
        ]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        yield plain(note) + (f" ({', '.join(some)}{more})" if len(names) < len(entries) else "")


def files_of(name: str) -> list[dict[str, Any]]:
    """Return the declared files of a source; those of another one, if it says so."""
    files = FACTS[name].get("files", [])
    return files_of(files) if isinstance(files, str) else files


def cells_of(text: str) -> list[str]:
    """Return the cells of a column: `s0`, `(a3)`, `0`, `·`."""
    return str(text).split()


def _alignments(name: str) -> Iterator[str]:
    files = files_of(name)
    if files:
        yield (
            "One episode of three steps. `s0` is the observation before action `a0`, and `r1` what that "
            "action brought: reward, flags, costs. Cells of one colour become one row of the dataset; "
            "the observation after an action is also the one before the next. Grey cells are not used."
        )
    for file in files:
        columns = {name: cells_of(cells) for name, cells in file["rows"].items()}
        yield f"**{plain(file['title'])}**"
        yield _diagram(columns, final=file["final"])


def _diagram(columns: Mapping[str, list[str]], *, final: bool) -> str:
    """Return the cells of a file above those of the dataset that they become, as HTML."""
    used = {cell for cells in columns.values() for cell in cells}
    steps = sum(re.fullmatch(r"a\d", cell) is not None for cell in used) or 3
    width = max(map(len, columns.values()))
    rows = [
        f'<tr><th scope="row">row of the file</th>{"".join(f"<th scope=col>{n}</th>" for n in range(width))}</tr>'
    ]
    for name, cells in columns.items():
        body = "".join(map(_cell, [*cells, *["·"] * (width - len(cells))]))
        rows.append(f'<tr><th scope="row"><code>{escape(name)}</code></th>{body}</tr>')
    span = '<td class="none"></td>' * (width - steps)
    rows.append(
        f'<tr class="below"><th scope="row">row of the dataset</th>{"".join(f"<th scope=col>{n}</th>" for n in range(steps))}{span}</tr>'
    )
    after = [f"s{n}" if n < steps or final else "unknown" for n in range(1, steps + 1)]
    made = {
        "observation": [f"s{n}" for n in range(steps)],
        "action": [f"a{n}" for n in range(steps)] if any(c.startswith("a") for c in used) else None,
        "next/observation": after,
        "next/…": [f"r{n}" for n in range(1, steps + 1)] if "r1" in used else None,
    }
    for name, found in made.items():
        if found:
            body = "".join(_cell(cell, n) for n, cell in enumerate(found))
            rows.append(f'<tr><th scope="row"><code>{name}</code></th>{body}{span}</tr>')
    return f'<table class="alignment">\n{chr(10).join(rows)}\n</table>'


def _cell(cell: str, row: int | None = None) -> str:
    """Return a cell, coloured by the row of the dataset that it belongs to."""
    if cell == "·":
        return '<td class="none"></td>'
    if cell == "unknown":
        return '<td class="unknown">not known</td>'
    if not re.fullmatch(r"[sar]\d", cell):
        return f'<td class="unused">{escape(cell.strip("()"))}</td>'
    number = int(cell[1:]) - (cell[0] == "r") if row is None else row
    return f'<td class="row{number}">{cell}</td>'


def _differs(name: str) -> str:
    """Return what a class is and how it differs from TorchRL's, as the guide says, and its import."""
    tree = ast.parse((ROOT / "offline_data/torchrl/experience_replay.py").read_text("utf-8"))
    nodes = {getattr(node, "name", ""): node for node in tree.body}
    about = (ast.get_docstring(nodes[name]) or "").partition("\n")[0]  # type: ignore[arg-type] # a class
    guide = (ROOT / "docs/guides/torchrl.md").read_text("utf-8")
    (cell,) = re.findall(rf"^\| `{name}` \| (.+) \|$", guide, re.MULTILINE)
    head = f"TorchRL's class has this name here, too: `from offline_data.torchrl import {name}`."
    return page(head, about, *cell.split("<br>")).rstrip()


def _datasets(source: Catalog) -> str:
    entries, facts = source.catalog(), _rows(source.name)
    columns = {
        "dataset": [f"[{code(one.name)}](#{anchor(one.name)})" for one in entries],
        "steps": [_number(one.transitions) for one in entries],
        "episodes": [_number(one.episodes) for one in entries],
        "download": [human_bytes(one.bytes) if one.bytes else "" for one in entries],
        "about": [plain(one.summary) for one in entries],
    }
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    return page(
        "---\nhide: [toc]\nsearch: {boost: 0.2}\n---",  # guides and sources come before
        f"# Datasets of {source.name}",
        f"{len(entries):,} datasets of [{source.name}]({source.name}.md), as the list in the package has "
        f"them. `offline-data list {source.name} --remote` asks the host. Where a figure is missing, the "
        "host publishes none.",
        f"Licence of the datasets: {source.licence}." if source.licence else "",
        f"To cite: {plain(source.citation)}" if source.citation else "",
        table(list(shown), zip(*shown.values(), strict=True)),
        *(_section(source, entry, facts.get(entry.name, {})) for entry in entries),
    )


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _rows(name: str) -> dict[str, dict[str, str]]:
    """Return the table of a catalogue by dataset, if it has one with ids."""
    try:
        return {row["id"]: row for row in read_catalog(name)}
    except (FileNotFoundError, KeyError):
        return {}


def _section(source: Catalog, entry: CatalogEntry, row: Mapping[str, str]) -> str:
    id_ = f"{source.name}:{entry.name}"
    facts = [
        "" if "observation" in row else plain(entry.summary[:1].upper() + entry.summary[1:]),
        f"{_number(entry.transitions)} steps" if entry.transitions else "",
        f"{_number(entry.episodes)} episodes" if entry.episodes else "",
        f"{human_bytes(entry.bytes)} to download" if entry.bytes else "",
        f"{entry.action or source.action} actions" if entry.action or source.action else "",
        f"licence {source.licence}" if source.licence else "",
        *(
            f"{COLUMNS[key]}: {code(value)}"
            for key, value in row.items()
            if value and key in COLUMNS
        ),
    ]
    defects = [
        f"**Defect** ({one.severity}): {plain(one.summary)}. {plain(one.instead[:1].upper() + one.instead[1:])}. "
        + links(one.links)
        for one in advisories()
        if one.names(id_)
    ]
    return page(
        f"### {code(entry.name)} {{ #{anchor(entry.name)} }}",
        "; ".join(filter(None, facts)) + "." if any(facts) else "",
        bullets([*map(plain, entry.notes), *defects]),
        _load(id_),
    ).rstrip("\n")


def _load(id_: str) -> str:
    return f'```python\nds = offline_data.load_dataset("{id_}", batch_size=256)\n```'


def anchor(name: str) -> str:
    """Return the anchor of a dataset's section."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
