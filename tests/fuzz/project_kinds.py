"""Hostile files of a project: `datasets.toml`, `datasets.lock`, the baseline of `check`."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from offline_data.testing.toy import toy_batch, write_toy
from tests.fuzz.cases import ROOT, generator, run_quietly
from tests.fuzz.described_kinds import rewritten
from tests.fuzz.harness import EXIT_CODES, Kind, Plan
from tests.fuzz.mutations import spoil_bytes, spoil_json

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


OFFLINE = ("--offline", *ROOT)
TOML, LOCK = "case/root/p/datasets.toml", "case/root/p/datasets.lock"
FILE = ("--file", TOML)


def _toml(value: Any) -> str:
    """Write any value as TOML on one line, or something that is near to it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


def formed(random: Random, value: Any, *, plain: bool) -> str:
    """Return a document of TOML of these values in any form."""
    lines = []
    for name in random.sample(list(value), len(value)) if plain else value:
        if isinstance(value[name], dict) and random.random() < 0.5:
            continue
        lines.append(f"{name}{_gap(random)}={_gap(random)}{_toml(value[name])}{_end(random)}")
    for name in random.sample(list(value), len(value)):
        if not any(line.startswith((f"{name} ", f"{name}=", f"{name}\t")) for line in lines):
            lines.append(f"[{name}]{_end(random)}")
            inner = value[name].items()
            lines += [f"{key}{_gap(random)}= {_toml(one)}{_end(random)}" for key, one in inner]
    return random.choice(("\n", "\r\n", "\n\n")).join(lines) + "\n"


def _gap(random: Random) -> str:
    return random.choice(("", " ", "\t  "))


def _end(random: Random) -> str:
    return random.choice(("", "", "  # née \t x"))


def prepare_project(which: str, seed: int, folder: Path) -> Plan:
    """A project of a dataset under two names, of which `datasets.toml` or `datasets.lock` is changed."""
    random = generator(which, seed)
    from offline_data_cli.main import main

    write_toy(folder / "root" / "local" / "toy" / "1", [toy_batch([3, 1, 4])])
    file = folder / "root" / "p" / "datasets.toml"
    file.parent.mkdir()
    file.write_text('[datasets]\none = "local:toy"\ntwo = { id = "local:toy" }\n')
    main(["lock", "--file", str(file), "--root", str(folder / "root"), "--offline", "-q"])
    lock = file.with_suffix(".lock")
    shutil.copytree(folder / "root" / "local", folder.parent / "truth")
    shutil.copy(lock, folder.parent / "truth.lock")
    changed = file if which == "toml" else lock
    how = random.choice(("bytes", "values", "values", "rewritten"))
    value = tomllib.loads(changed.read_text())
    if how == "bytes":
        changed.write_bytes(spoil_bytes(random, changed.read_bytes()))
    elif how == "values":
        value = spoil_json(random, value)
        value = value if isinstance(value, dict) else {"datasets": value}
        with suppress(UnicodeError):
            changed.write_bytes(formed(random, value, plain=False).encode())
    else:
        changed.write_bytes(formed(random, value, plain=True).encode())
    right = frozenset({0}) if how == "rewritten" else EXIT_CODES
    lines = (
        ("sync", "--locked", *FILE, *OFFLINE),
        ("lock", "--check", *FILE, *OFFLINE),
        ("lock", *FILE, *OFFLINE),
        ("sync", *FILE, *OFFLINE),
    )
    return Plan(lines, (right,) * 4, publishes=False, facts={"how": how})


def check_project(folder: Path, _plan: Plan, codes: list[int | None]) -> str | None:
    """Look that datasets are as they were, and that a lock that is in order says what they are."""
    whole, here = folder / "truth", folder / "case/root/local"
    for path in whole.rglob("*"):
        other = here / path.relative_to(whole)
        if path.is_file() and path.read_bytes() != other.read_bytes():
            return f"{other} was changed"
    if codes[3] != 0:
        return None
    truth = tomllib.loads((folder / "truth.lock").read_text())["datasets"]
    asked = tomllib.loads((folder / TOML).read_text()).get("datasets", {})
    found = tomllib.loads((folder / LOCK).read_text())["datasets"]
    if found.keys() != asked.keys():
        return f"the lock file has {sorted(found)}, asked for {sorted(asked)}"
    known = {one["id"]: one for one in truth.values()}
    for name, one in found.items():
        right = known.get(one["id"], {})
        for field in ("content", "transitions", "episodes"):
            if one[field] != right.get(field):
                return f"{name}: {field} is {one[field]!r}, expected {right.get(field)!r}"
    return None


# ---- the baseline of `check` -----------------------------------------------------------------


def prepare_baseline(seed: int, folder: Path) -> Plan:
    """Findings of a dataset, and a changed file of those that are known."""
    random = generator("baseline", seed)
    from offline_data_cli.main import main

    batch = toy_batch([3, 1, 4, 2])
    state = batch.observations["observation", "state"]
    state[2] = np.nan
    batch.steps["next", "reward"][1] = np.inf
    write_toy(folder / "root" / "local" / "toy" / "1", [batch])
    root = ["--root", str(folder / "root")]
    file = folder / "root" / "known.json"
    main(["check", "local:toy", "--write-baseline", str(file), *root, "-q"])
    shutil.copy(file, folder.parent / "truth.json")
    how = random.choice(("bytes", "values", "values", "rewritten"))
    value = json.loads(file.read_text())
    if how == "bytes":
        file.write_bytes(spoil_bytes(random, file.read_bytes()))
    elif how == "values":
        text = json.dumps(spoil_json(random, value))
        file.write_bytes(text.encode(errors="surrogatepass"))
    else:
        random.shuffle(value["findings"])
        file.write_text(rewritten(random, value), encoding="utf-8")
    line = ("check", "local:toy", "--baseline", "case/root/known.json", "--fail-on", "info", *ROOT)
    again = ("check", "local:toy", "--write-baseline", "case/root/known.json", *ROOT)
    codes = frozenset({0}) if how == "rewritten" else frozenset({0, 1, 2})
    return Plan((line, again), (codes, frozenset({0, 1, 2})), publishes=False)


def check_baseline(folder: Path, _plan: Plan, codes: list[int | None]) -> str | None:
    """Look that nothing is known which the file does not have, and that it is written right."""
    truth = _known((folder / "truth.json").read_text())
    if codes[1] != 2 and not truth <= _known((folder / "case/root/known.json").read_text()):
        return "the baseline that was written lacks findings"
    return None


def _known(text: str) -> Counter[Any]:
    listed = json.loads(text)["findings"]
    fields = ("dataset", "code", "leaf", "about")
    return Counter({tuple(one[f] for f in fields): one["count"] for one in listed})


PROJECT_KINDS = (
    Kind("toml", lambda *a: prepare_project("toml", *a), check_project, run_quietly),
    Kind("lock", lambda *a: prepare_project("lock", *a), check_project, run_quietly),
    Kind("baseline", prepare_baseline, check_baseline, run_quietly),
)
