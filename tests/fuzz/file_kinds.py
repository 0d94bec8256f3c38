"""Hostile files of users with a mapping, and hostile mappings: each format, each way to end episodes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from offline_data.sources.files.mapping import dump_toml, read_mapping
from tests.fuzz.mutations import spoil_bytes, spoil_json
from tests.fuzz.project_kinds import formed
from tests.fuzz.source_kinds import Leaves, Truth, after_hdf5, source_kind
from tests.sources.test_files import LEAVES, WAYS, as_rows, mapping_of, with_way
from tests.toys.files import TABLES, WRITERS, toy_episodes

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random


def _make_files(random: Random, folder: Path) -> Truth:
    suffix = random.choice([*WRITERS, "h5", "pt"])
    final = random.choice(("missing", "next_array", "last_row", "extra_row"))
    way = random.choice(list(WAYS))
    if suffix in TABLES and (way[:7] in {"lengths", "offsets"} or final == "extra_row"):
        final, way = "missing", "episode"
    rows = as_rows(toy_episodes((3, 1, 4)), final)
    each = suffix not in TABLES and random.random() < 0.3
    mapping = mapping_of(
        suffix, final, WAYS["flags" if each else way], **({"each": "ep_*"} if each else {})
    )
    arrays: Any
    path, file = folder / f"in.{suffix}", folder / "map.toml"
    if suffix == "pt" and each:
        mapping, arrays = read_mapping({**mapping.to_json(), "each": "*"}), rows
    elif each:
        arrays = {
            f"ep_{n}/{name}": values for n, one in enumerate(rows) for name, values in one.items()
        }
    else:
        arrays = with_way(rows, way)
    write: Any = WRITERS[suffix]
    write(path, arrays)
    file.write_text(dump_toml(mapping))
    what = random.choice(("none", "bytes", "bytes", "objects", "toml", "values", "values"))
    if what == "toml":
        file.write_bytes(spoil_bytes(random, file.read_bytes()))
    elif what == "values":
        value = spoil_json(random, mapping.to_json())
        text = formed(random, value if isinstance(value, dict) else {"leaves": value}, plain=False)
        file.write_bytes(text.encode(errors="replace"))
    elif what == "objects" and suffix == "h5":
        after_hdf5(random, folder, [path], json)  # which cannot be called: no reading is known
    elif what != "none":
        files = sorted(one for one in [path, *path.rglob("*")] if one.is_file())
        victim = random.choice(files)
        victim.write_bytes(spoil_bytes(random, victim.read_bytes(), head=512))
    if what != "none":
        return Truth(known=False)
    return Truth([(_leaves(one), False) for one in toy_episodes((3, 1, 4))], changed=False)


def _leaves(episode: dict[str, Any]) -> Leaves:
    named = {leaf: episode[array] for leaf, array in LEAVES.items()}
    flags = {"next/terminated": "term", "next/truncated": "trunc"}
    named |= {leaf: episode[array] for leaf, array in flags.items()}
    return {
        tuple(leaf.split("/")): values for leaf, values in named.items() if leaf != "observation"
    }


FILE_KINDS = (source_kind("files", "files", _make_files, more=("--mapping", "case/map.toml")),)
