"""JSON, exit codes, texts and made files of every verb on fixed data; what depends on the machine is replaced."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from offline_data.base.config import Settings
from offline_data.episode import EpisodeBatch
from offline_data.formats.registry import source_names
from offline_data.store.layout import MANIFEST
from offline_data.store.library import Entry, entry_at
from offline_data.store.manifest import read_manifest
from offline_data.testing.toy import toy_batch, write_toy
from offline_data_cli import cartpole
from offline_data_cli.commands import demo
from offline_data_cli.verbs import GROUPS, HIDDEN, VERBS
from tests.analysis.alignment.worlds import shifted, world
from tests.formats.test_files import EPISODES, as_rows, with_way
from tests.toys.files import WRITERS
from tests.toys.minari import toy_episode, write_minari
from tests.toys.stored import write_stored

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

STEP = "--step reward_scale:scale=2"
OWN = ("h5", "npz", "npy", "parquet", "csv", "zarr", "pt")
"""Suffixes of the user's own files `own.SUFFIX`."""
TARGETS = {
    "minari": "x-v0", "d4rl": "x.hdf5 --observation observation/state", "lerobot": "x --fps 10",
    "robomimic": "x.hdf5", "rlds": "x", "parquet": "x", "hf": "x", "zarr": "x.zarr", "npz": "x.npz",
    "d3rlpy": "x.h5 --observation observation/state",
    "ogbench": "x.npz --observation observation/state", "ted": "x",
}  # fmt: skip
"""Destination and options of an export to each format."""
UNKNOWN = {"cp": " copy", "push": " pushed", "rm": " --yes"} | dict.fromkeys(
    ("card", "info", "open", "path", "report", "sample", "tail", "verify"), ""
)
"""Verbs that are asked for a dataset that is not there, and the rest of their words."""
ALONE = ("cache dir", "cache ls", "config edit", "config path", "demo", "env", "sources", "version")
"""Verbs without arguments, of which one is given."""
COMMANDS: dict[str, str] = {
    **{f"{verb} of none": f"{verb} local:none{rest}" for verb, rest in UNKNOWN.items()},
    **{f"{verb} with an argument": f"{verb} x" for verb in ALONE},
    "align": "align ./late",
    "align --fix": "align ./late --fix aligned",
    "align of short episodes": "align local:toy",
    "align with half a pair": "align ./late --pair observation/state",
    "browse": "browse --no-open",
    "browse at no port": "browse --port 65536",
    "cache dir": "cache dir",
    "cache ls": "cache ls",
    "cache prune": "cache prune --yes",
    "cache prune --dry-run": "cache prune --dry-run",
    "cache prune of minus one day": "cache prune --older-than -1",
    "cache rm": "cache rm dataset --yes",
    "cache rm unconfirmed": "cache rm dataset",
    "cache rm of none": "cache rm nope",
    "card": "card local:toy",
    "card --out": "card local:toy --out CARD.md",
    "check": "check local:toy",
    "check --select": "check local:toy --select RL001,RL015",
    "check without a dataset": "check local:toyy",
    "check with findings": "check local:toy --fail-on info",
    "check --statistics": "check --all --statistics",
    "check --baseline": "check ./late --write-baseline known.json ; check ./late --baseline known.json",
    "check --baseline of others": "check ./late --select RL0 --write-baseline known.json ; check local:toy --fail-on info --baseline known.json",
    "check --out": "check local:toy ./late --out a.json --out a.xml --out a.sarif --out a.md",
    **{
        f"check --output-format {form}": f"check local:toy ./late --select RL00 --select RL044 --output-format {form}"
        for form in ("json", "junit", "sarif", "github", "markdown")
    },
    "compare": "compare local:toy local:other --out both.html",
    "compare one": "compare local:toy",
    "completion": "completion bash",
    "completion zsh": "completion zsh",
    "completion fish": "completion fish",
    "completion of another shell": "completion tcsh",
    "config get": "config get",
    "config get of one": "config get workers",
    "config get of none": "config get worker",
    "config set": "config set workers 2",
    "config set what is not a key": "config set worker 2",
    "config edit": "config edit",
    "config path": "config path",
    "convert": "convert raw-v0 converted",
    "convert --dry-run": "convert raw-v0 converted --dry-run",
    "convert in TED": "convert raw-v0 converted --layout ted --keep-episodes",
    "convert --plan-only": "convert raw-v0 converted --plan-only --plan plan.json",
    "convert what is not data": "convert datasets.toml converted",
    **{
        f"convert {suffix} --inspect": f"convert own.{suffix} --inspect --out map.toml"
        for suffix in OWN
    },
    **{
        f"convert {suffix}": f"convert own.{suffix} own --mapping {'csv' if suffix == 'csv' else 'map'}.toml"
        for suffix in OWN
    },
    "convert --inspect to stdout": "convert own.npz --inspect",
    "convert npz without a mapping": "convert own.npz own",
    "cp": "cp local:toy copy",
    "demo": "demo",
    "demo --keep": "demo --keep",
    "diff": "diff local:toy local:other",
    "diff of one": "diff local:toy local:toy",
    "download of a typo": "download d4rl:hopper-medum-v2",
    "download offline": "download d4rl:hopper-medium-v2",
    "download --dry-run": "download d4rl:hopper-medium-v2 --dry-run",
    "download what was pushed": "push local:toy pushed ; rm local:toy --yes ; download ./pushed",
    "download what is here": "download local:toy",
    "env": "env",
    "episodes": "episodes local:toy --sort jerk",
    "episodes --similar": "episodes local:other --similar --reverse --sort length --limit 1",
    "episodes by a missing column": "episodes local:toy --sort jerc",
    "explain": "explain clip",
    "explain all": "explain",
    "explain a typo": "explain clipp",
    **{f"export --to {to}": f"export local:toy --to {to} --out {dest}" for to, dest in TARGETS.items()},
    "export --dry-run": "export local:toy --to d4rl --out x.hdf5 --observation observation/state --dry-run",
    "export --strict": "export local:toy --to d4rl --out x.hdf5 --observation observation/state --strict",
    "export again": "export local:toy --to npz --out x.npz ; export local:toy --to npz --out x.npz",
    "export of a view": "filter local:toy length>2 --out long --view ; export local:toy --to npz --out x.npz --view long",
    "export to what is not a format": "export local:toy --to d4r --out x.hdf5",
    "filter": "filter local:toy length>1 --out long",
    "filter --view": "filter local:toy length>2 --out long --view",
    "filter by a missing leaf": "filter local:toy width>1 --out long",
    "head": "head local:toy",
    "head -n": "head local:toy -n 2",
    "head --tail": "head local:toy --tail -n 1",
    "head --random": "head local:toy --random 2 --seed 1",
    "head of an episode that is not there": "head local:toy --episode 9",
    "info": "info local:toy",
    "info --history": f"preprocess local:toy {STEP} --out twice ; info local:twice --history",
    "list": "list",
    "list --remote": "list libero --remote",
    "list of no source": "list nope",
    "lock": "lock",
    "lock --check": "lock --check",
    "lock --upgrade of none": "lock --upgrade nope",
    "merge": "merge local:toy local:other --out both",
    "merge of none": "merge local:toy local:none --out both",
    "open": "open local:toy",
    "path": "path local:toy",
    "plot": "plot local:toy",
    "plot --list": "plot local:toy --list",
    "plot --leaf": "plot local:toy --leaf action --kind histogram",
    "plot to a gif": "plot local:toy --out a.gif",
    "preprocess": f"preprocess local:toy {STEP} --out twice",
    "preprocess --dry-run": f"preprocess local:toy {STEP} --out twice --dry-run",
    "preprocess --list-steps": "preprocess --list-steps",
    "preprocess --plan-only": f"preprocess local:toy {STEP} --out twice --plan-only --plan plan.json",
    "preprocess again": f"preprocess local:toy {STEP} --out twice ; preprocess local:toy {STEP} --out twice",
    "preprocess without a step": "preprocess local:toy --out twice",
    "preprocess with a wrong step": "preprocess local:toy --step reward_scal:scale=2 --out twice",
    "preprocess with a wrong argument": "preprocess local:toy --step reward_scale:scal=2 --out twice",
    "push": "push local:toy pushed",
    "push again": "push local:toy pushed ; push local:toy pushed",
    "push --dry-run": "push local:toy pushed --dry-run",
    "push offline": "push local:toy hf://me/toy",
    "rename": "rename local:other new",
    "rename to a name in use": "rename local:other toy",
    "replay": "replay ./cart --env CartPole-v1",
    "replay without an environment": "replay local:toy",
    "report": "report local:toy",
    "report of two": "report local:toy local:other --out both.html",
    "report --card": "report local:toy --card",
    "report --episode": "report ./images --episode 1 --out one.html",
    "rm": "rm local:other --yes",
    "rm --dry-run": "rm local:other --dry-run",
    "rm unconfirmed": "rm local:other",
    "rule": "rule RL001",
    "rule of none": "rule RL999",
    "sample": "sample local:toy --seed 3",
    "search": "search hopper medium",
    "search for nothing": "search qqqqq",
    "sources": "sources",
    "split": "split local:toy a=0.5 b=0.5",
    "split --view": "split local:toy a=0.5 b=0.5 --view",
    "split without shares": "split local:toy a",
    "stats": "stats local:toy --features --quantiles",
    "stats by a missing leaf": "stats local:toy --relative-to nope",
    "step": "step clip",
    "step of none": "step clipp",
    "sync": "lock ; sync",
    "sync --dry-run": "lock ; sync --dry-run",
    "sync --locked without a lock file": "sync --locked",
    "tail": "tail local:toy",
    "verify": "verify local:toy",
    "verify --all": "verify --all",
    "check --files": "check local:toy --files",
    "version": "version",
    "view": "view ./images 1 --out film.gif",
    "view of an episode that is not there": "view ./images 9",
    "view without images": "view local:toy 0",
    "worker": f"preprocess local:toy {STEP} --out twice --plan-only --plan plan.json ; worker --plan plan.json --rank 0 --world 1",
    "worker --finish": f"preprocess local:toy {STEP} --out twice --plan-only --plan plan.json ; worker --plan plan.json --finish",
    "a verb that does not exist": "dowload d4rl:hopper-medium-v2",
    "an option that does not exist": "info local:toy --jso",
    "-q": "list -q",
    "--format tsv": "list --format tsv",
    "--format table": "list --format table",
    "--version": "--version",
    "no words": "",
}  # fmt: skip
"""Command lines, by name, each run in a folder of its own; of several, joined by ` ; `, the last is compared."""

GROUPED = [f"{group} {verb}" for group, (_, _, verbs) in GROUPS.items() for verb in verbs]
EVERY = [*(verb for table in (*VERBS.values(), HIDDEN) for verb in table), *GROUPED]
"""All verbs of the program."""
HELP = ["", *GROUPS, *EVERY]
"""Verbs whose help is compared; an empty name is that of the program."""


def words_of(name: str) -> list[list[str]]:
    """Return the words of each command line of a name."""
    return [shlex.split(line) for line in COMMANDS[name].split(" ; ")]


def prepare(folder: Path) -> None:
    """Write a root of two datasets, other datasets by path, raw files, and a `datasets.toml`."""
    for name, lengths in (("toy", [3, 2]), ("other", [3, 4])):
        write_stored(folder / "root", f"local:{name}@1", toy_batch(lengths, text=True))
    write_minari(folder / "raw-v0", [toy_episode(e, 3 + e) for e in range(2)])
    (folder / "config.toml").touch()
    (folder / "datasets.toml").write_text('[datasets]\nmine = "local:toy"\n')
    late = shifted(world(0, episodes=12), ("action",), 2)
    batches = {"late": late, "images": toy_batch([3, 2], images=True), "cart": _played()}
    for name, batch in batches.items():
        write_toy(folder / name, [batch], dataset=f"local:{name}@1")
    arrays = with_way(as_rows(EPISODES, "missing"), "done")
    for suffix in OWN:
        WRITERS[suffix](folder / f"own.{suffix}", arrays)
    ends = 'final_observation = "missing"\n[ends]\ndone = "done"\nterminated = "term"\n[leaves]\n'
    leaves = {"map": '"obs"', "csv": '["obs_0", "obs_1"]'}, {"map": '"act"', "csv": '["act_0"]'}
    for name in ("map", "csv"):
        lines = (
            f'observation = {leaves[0][name]}\naction = {leaves[1][name]}\n"next/reward" = "rew"\n'
        )
        (folder / f"{name}.toml").write_text(ends + lines)


def _played() -> EpisodeBatch:
    """Return two short episodes of CartPole; they are exact in whichever version it is."""
    import gymnasium

    env, batch = gymnasium.make("CartPole-v1"), toy_batch([4, 3])
    seen, rewards = [], []
    for episode, length in enumerate((4, 3)):
        seen.append(env.reset(seed=episode)[0])
        for row in range(length):
            observation, reward, *_ = env.step(row % 2)
            seen.append(observation)
            rewards.append([float(reward)])
    action = np.array([0, 1, 0, 1, 0, 1, 0])
    flags = {
        key: np.zeros((7, 1), bool) for key in batch.steps if key[-1] in {"terminated", "truncated"}
    }
    return replace(
        batch,
        steps={("action",): action, ("next", "reward"): np.array(rewards), **flags},
        observations={("observation",): np.array(seen)},
        episodes={("seed",): np.arange(2)},
    )


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no server, editor, file manager nor environment."""
    monkeypatch.setenv("EDITOR", "true")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setattr("typer.launch", lambda _: 0)
    monkeypatch.setattr("offline_data.reports.pages.browse.DatasetServer.serve_forever", _stop)
    monkeypatch.setattr(cartpole, "BATCH", 5000)  # drawn without a seed: it has all of 480 rows
    monkeypatch.setattr(demo, "record", _recorded)
    monkeypatch.setattr(cartpole, "train", lambda _: cartpole.Cloning(200, 256, 5, 20.0, 186.0))


def _recorded(settings: Settings, _: object) -> Entry:
    """Write what `demo` keeps, without Gymnasium, whose numbers depend on the processor."""
    return entry_at(write_stored(settings.root, f"local:{demo.NAME}@1", world(0, episodes=12)))


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def run(lines: list[list[str]], cli: Cli, folder: Path) -> dict[str, Any]:
    """Run command lines and return what the last one printed and wrote, and its exit code."""
    torch.manual_seed(0)
    for words in lines[:-1]:
        cli(*words)
    before = set(folder.rglob("*"))
    ran = cli(*lines[-1])
    verb = lines[-1][0] if lines[-1] else ""
    out: Any = plain(ran.out, folder, verb)
    if "--json" in lines[-1]:
        out = [plain_json(json.loads(value), folder, verb) for value in _values(ran.out)]
    found = {"code": ran.code, "out": out, "err": plain(ran.err, folder, verb)}
    if made := dict(_made(folder, before)):
        found["made"] = made
    return found


_TEXT = {".json", ".lock", ".md", ".sarif", ".toml", ".xml"}
"""Suffixes of files whose text does not depend on versions of libraries."""
_OF_THE_RUN = ("export.json", "plan.json")
"""Files with checksums of files of other libraries, and with times."""


def _made(folder: Path, before: set[Path]) -> Iterator[tuple[str, Any]]:
    """Yield new datasets with digests of their files, and new text files with a digest."""
    for path in sorted(set(folder.rglob("*")) - before):
        place = plain(str(path), folder).removeprefix("FOLDER/")
        if place.startswith("root/"):
            if path.name == MANIFEST and "/.staging/" not in place:
                manifest = read_manifest(path.parent)
                files = sorted((name, file["sha256"]) for name, file in manifest.digests.items())
                yield place.removesuffix(f"/{MANIFEST}"), _digest(json.dumps(files))
        elif path.is_file() and "/" not in place:
            is_text = path.suffix in _TEXT and not path.name.endswith(_OF_THE_RUN)
            yield place, _digest(plain(path.read_text("utf-8"), folder)) if is_text else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _values(out: str) -> list[str]:
    """Return the JSON values of an output: one value of several lines, or one in each line."""
    try:
        json.loads(out)
    except ValueError:
        return out.splitlines()
    return [out]


@functools.cache
def _sources() -> str:
    return ", ".join(source_names())


def plain(text: str, folder: Path, verb: str = "") -> str:
    """Replace what depends on the machine, the day and the run, and the names of all sources."""
    text = text.replace(str(folder), "FOLDER").replace(str(folder)[1:], "FOLDER")
    text = text.replace(_sources(), "SOURCES")
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?", "TIME", text)
    text = re.sub(r"\b\d+(\.\d+)? ?(ms|s|µs)\b", "SECONDS", text)
    text = re.sub(r"\t\d+(\.\d+)?$", "\tNUMBER", text, flags=re.MULTILINE)
    text = re.sub(r"\b\d+\.\d{7,}\b", lambda found: f"{float(found[0]):.6g}", text)
    text = re.sub(r"local-[0-9a-f]{12}", "local-FINGERPRINT", text)
    text = re.sub(r"\b(pushed[@/])[0-9a-f]{12}\b", r"\1FINGERPRINT", text)
    text = re.sub(r"127\.0\.0\.1:\d+[^\s\"]*", "SERVER", text)
    text = re.sub(r"[^\s\"]*/offline-data-demo-\w+", "DEMO", text)
    text = re.sub(r"^manifest\t[0-9a-f]{64}$", "manifest\tSHA256", text, flags=re.MULTILINE)
    for found, instead in _OF_VERB.get(verb, {}).items():
        text = re.sub(found, instead, text, flags=re.MULTILINE)
    return re.sub(r"\b\d+\.\d+\.\d+\.post[^\s\"]*|0\.1\.\d[^\s\"]*", "VERSION", text)


_SIZES = {r"\b\d+(\.\d+)? ([KM]i)?B\b": "SIZE", r"^(\w+)\t\d+\t": r"\1\tNUMBER\t"}
_OF_VERB = {
    "cache": _SIZES,  # manifests have versions of packages
    "env": {
        r"^(python|platform|compiled gather)\t.*": r"\1\tVERSION",
        r"^(\S+)\t(\d\S*\.\S+|not installed)$": r"\1\tVERSION",
        r"^tomli\tVERSION\n": "",  # of Python 3.10
    },
    "export": _SIZES,  # of files of other libraries
}
"""What else is replaced in the output of some verbs."""
_VOLATILE = {"age", "free_bytes", "disk_free", "estimated_seconds", "seconds", "created", "modified", "version", "elapsed", "free", "revision", "sha256",
             "rows_per_second", "size_on_disk", "disk", "python", "platform", "digest", "compiled_gather"}  # fmt: skip
"""Keys whose values depend on the day, the machine or the run."""
_VOLATILE_OF_VERB = {
    "cache": {"bytes", "other_bytes"},
    "convert": {"bytes"},
    "demo": {"size", "bytes"},
    "export": {"bytes", "files"},
}
"""Keys that depend on files of other libraries, or on manifests, which have versions of packages."""


def plain_json(value: Any, folder: Path, verb: str) -> Any:
    if isinstance(value, dict):
        volatile = _VOLATILE | _VOLATILE_OF_VERB.get(verb, set())
        return {
            key: f"<{type(one).__name__}>"
            if key in volatile
            else sorted({*one} - {"tomli"})
            if key == "packages"  # of `env`: their versions; tomli is for Python 3.10
            else plain_json(one, folder, verb)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [plain_json(one, folder, verb) for one in value]
    if isinstance(value, str):
        return plain(value, folder, verb)
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value
