"""JSON, exit codes and texts of every verb on a fixed dataset; what depends on the machine is replaced."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.sources.registry import source_names
from offline_data.testing.toy import toy_batch
from tests.toys.stored import write_stored

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

STEP = "--step reward_scale:scale=2"
COMMANDS: dict[str, str] = {
    "card": "card local:toy",
    "check": "check local:toy",
    "check --select": "check local:toy --select RL001,RL015",
    "check without a dataset": "check local:toyy",
    "compare": "compare local:toy local:other --out both.html",
    "config get": "config get",
    "config set": "config set workers 2",
    "config set what is not a key": "config set worker 2",
    "cp": "cp local:toy copy",
    "diff": "diff local:toy local:other",
    "diff of one": "diff local:toy local:toy",
    "episodes": "episodes local:toy --sort jerk",
    "episodes by a missing column": "episodes local:toy --sort jerc",
    "filter": "filter local:toy length>1 --out long",
    "filter by a missing leaf": "filter local:toy width>1 --out long",
    "head": "head local:toy",
    "head -n": "head local:toy -n 2",
    "info": "info local:toy",
    "info of none": "info local:none",
    "list": "list",
    "lock": "lock",
    "merge": "merge local:toy local:other --out both",
    "path": "path local:toy",
    "preprocess": f"preprocess local:toy {STEP} --out twice",
    "preprocess --dry-run": f"preprocess local:toy {STEP} --out twice --dry-run",
    "preprocess with a wrong step": "preprocess local:toy --step reward_scal:scale=2 --out twice",
    "preprocess with a wrong argument": "preprocess local:toy --step reward_scale:scal=2 --out twice",
    "rename": "rename local:other new",
    "report": "report local:toy",
    "rm": "rm local:other --yes",
    "rm of none": "rm local:none --yes",
    "rule": "rule RL001",
    "sample": "sample local:toy --seed 3",
    "search": "search hopper medium",
    "search for nothing": "search qqqqq",
    "split": "split local:toy a=0.5 b=0.5",
    "stats": "stats local:toy --features --quantiles",
    "step": "step clip",
    "tail": "tail local:toy",
    "cache ls": "cache ls",
    "explain": "explain clip",
    "report of two": "report local:toy local:other --out both.html",
    "report --card": "report local:toy --card",
    "head --tail": "head local:toy --tail -n 1",
    "head --random": "head local:toy --random 2 --seed 1",
    "check --files": "check local:toy --files",
    "verify": "verify local:toy",
    "verify --all": "verify --all",
    "convert": "convert raw-v0 converted",
    "convert what is not data": "convert datasets.toml converted",
    "download of a typo": "download d4rl:hopper-medum-v2",
    "download offline": "download d4rl:hopper-medium-v2",
    "download --dry-run": "download d4rl:hopper-medium-v2 --dry-run",
    "a verb that does not exist": "dowload d4rl:hopper-medium-v2",
    "an option that does not exist": "info local:toy --jso",
}
"""Command lines, by name, each run in a folder of its own."""

HELP = (
    "", "cache", "card", "check", "config", "convert", "diff", "download", "filter", "head", "info",
    "list", "lock", "merge", "plot", "preprocess", "report", "rm", "search", "split", "stats", "sync",
    "verify", "view",
)  # fmt: skip
"""Verbs whose help is compared; an empty name is that of the program."""


def prepare(folder: Path) -> None:
    """Write a root of two datasets, a Minari folder, and a `datasets.toml`."""
    from tests.toys.minari import toy_episode, write_minari

    for name, lengths in (("toy", [3, 2]), ("other", [3, 4])):
        write_stored(folder / "root", f"local:{name}@1", toy_batch(lengths, text=True))
    write_minari(folder / "raw-v0", [toy_episode(e, 3 + e) for e in range(2)])
    (folder / "config.toml").touch()
    (folder / "datasets.toml").write_text('[datasets]\nmine = "local:toy"\n')


def run(words: list[str], cli: Cli, folder: Path) -> dict[str, Any]:
    """Run a command line and return its exit code, stdout, and stderr."""
    ran = cli(*words)
    out: Any = plain(ran.out, folder)
    if "--json" in words:
        out = [_plain(json.loads(value), folder) for value in _values(ran.out)]
    return {"code": ran.code, "out": out, "err": plain(ran.err, folder)}


def _values(out: str) -> list[str]:
    """Return the JSON values of an output: one value of several lines, or one in each line."""
    try:
        json.loads(out)
    except ValueError:
        return out.splitlines()
    return [out]


def plain(text: str, folder: Path) -> str:
    """Replace what depends on the machine, the day and the run, and the names of all sources."""
    text = text.replace(str(folder), "FOLDER").replace(", ".join(source_names()), "SOURCES")
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?", "TIME", text)
    text = re.sub(r"\b\d+(\.\d+)? ?(ms|s|µs)\b", "SECONDS", text)
    text = re.sub(r"\t\d+(\.\d+)?$", "\tNUMBER", text, flags=re.MULTILINE)
    text = re.sub(r"local-[0-9a-f]{12}", "local-FINGERPRINT", text)
    return re.sub(r"\b\d+\.\d+\.\d+\.post[^\s\"]*|0\.1\.\d[^\s\"]*", "VERSION", text)


_VOLATILE = {"age", "free_bytes", "disk_free", "estimated_seconds", "seconds", "created", "modified", "version", "elapsed", "free", "revision", "sha256",
             "rows_per_second", "size_on_disk", "disk", "python", "platform", "digest"}  # fmt: skip
"""Keys whose values depend on the day, the machine or the run."""


def _plain(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {
            key: f"<{type(one).__name__}>" if key in _VOLATILE else _plain(one, folder)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_plain(one, folder) for one in value]
    if isinstance(value, str):
        return plain(value, folder)
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value
