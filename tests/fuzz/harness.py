"""Run one hostile input in child processes with limits, and hold what happened to the promise.

The promise: the right data, or an error of one or two sentences with a documented exit code;
nothing half-published, nothing written outside the root, no process or temporary file left, no
secret and no control character in any output, JSON that parses where JSON was asked for. A crash of
a library breaks it, also where the process that read the input contained it.

Children are forked from a process that has imported the command line, so a case costs tens of
milliseconds where a new interpreter would cost half a second.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

MEMORY = 3 << 30
"""Bytes of address space of one child, beside those of the process that it is forked from."""

SECONDS = 20.0
"""Wall time after which a child counts as hanging."""

FILE_BYTES = 256 << 20
"""Bytes of one file that a child may write."""

SECRET = b"<-- 41f0c3 bytes of another file -->" * 16
"""Content of a file beside the input, which no dataset and no output may ever show."""

PASSWORD = "hunter2-dQw4w9"  # noqa: S105 - a made-up one
"""Part of URLs; no output and no file may ever show it."""

EXIT_CODES = frozenset({0, 1, 2, 3, 4, 5, 6, 7})
"""Documented exit codes of a command that nobody interrupts."""

_ERROR_BYTES = 4000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_CRASH = re.compile(r"ended by (?!SIGPROF)(SIG\w+|signal)")
"""A process that read the input crashed; `SIGPROF` ends one that takes too much processor time."""

_GRACE = 0.5
"""Seconds in which a process of a command that has ended may end, too."""


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int | None
    """Exit code; None where a signal or the time limit ended it."""
    how: str
    """`ended`, `SIGSEGV`, `hangs`, …"""
    out: str
    err: str
    value: Any
    """What the function returned, through JSON; None where it did not return."""
    seconds: float


@dataclass(frozen=True)
class Plan:
    """What a case does once its input is written."""

    commands: tuple[tuple[str, ...], ...]
    """Command lines, run one after the other."""
    codes: tuple[frozenset[int], ...] = ()
    """Allowed exit codes of each; `EXIT_CODES` where not given."""
    publishes: bool = True
    """Whether the first command makes a dataset, which then is compared, or leaves none."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What `Kind.check` needs to know; JSON."""


@dataclass(frozen=True)
class Kind:
    """A family of hostile inputs."""

    name: str
    prepare: Callable[[int, Path], Plan]
    """Write the input of a seed into a folder and say what to run."""
    check: Callable[[Path, Plan, list[int | None]], str | None] | None = None
    """Compare what was made with an independent reading, given the exit codes; None: right."""
    run: Callable[[Path, int, tuple[str, ...]], int] | None = None
    """Run command number N of a case and return its exit code; `run_command` where not given."""
    batch: int = 1
    """Cases that a child runs one after the other; a broken promise is looked for in each alone."""


@dataclass(frozen=True)
class Verdict:
    """What came of one case."""

    kind: str
    seed: int
    problem: str | None
    """The broken promise, or None."""
    codes: tuple[int | None, ...]
    seconds: float
    right: bool = False
    """Whether no command ended with an error, but those that must."""


def run_case(kind: Kind, seed: int, folder: Path) -> Verdict:
    """Run the case `seed` of a kind in `folder`, which is new and empty."""
    begin = time.perf_counter()
    (folder / "case").mkdir(parents=True)
    secret = folder / "secret.txt"
    secret.write_bytes(SECRET)
    made = in_child(lambda: vars_of(kind.prepare(seed, folder / "case")), folder / "prepare")
    if made.value is None:
        return _verdict(kind, seed, f"not prepared: {_tail(made)}", (), begin)
    plan = plan_of(made.value)
    plan = replace(plan, commands=tuple(_as_json(seed, line) for line in plan.commands))
    before = _tree(folder / "case")
    ends: list[Ended] = []
    for number, command in enumerate(plan.commands):
        call = partial(kind.run or run_command, folder, number, command)
        ends.append(in_child(call, folder / f"run{number}"))
        allowed = plan.codes[number] if number < len(plan.codes) else EXIT_CODES
        if problem := _broken(ends[-1], allowed, as_json="--json" in command):
            return _verdict(kind, seed, f"{' '.join(command)}: {problem}", _codes(ends), begin)
    problem = _left_behind(folder, plan, ends) or _changed(folder / "case", before)
    if problem is None and (check := kind.check):
        codes = [end.code for end in ends]
        checked = in_child(lambda: [check(folder, plan, codes)], folder / "check")
        failed = f"the oracle failed: {_tail(checked)}"
        problem = failed if checked.value is None else checked.value[0]
    must = [len(allowed) == 1 for allowed in plan.codes] + [False] * len(ends)
    right = problem is None and all(e.code == 0 or m for e, m in zip(ends, must, strict=False))
    return replace(_verdict(kind, seed, problem, _codes(ends), begin), right=right)


def run_batch(kind: Kind, seeds: Sequence[int], folder: Path) -> list[Verdict] | None:
    """Run cases of a kind in one child, each in a new folder in `folder`.

    None: something is wrong with one of them at least, and `run_case` may say what.
    """
    begin = time.perf_counter()
    cases = partial(map, lambda seed: _run_here(kind, seed, folder / str(seed)), seeds)
    ended = in_child(lambda: list(cases()), folder / "batch", SECONDS * len(seeds))
    if ended.value is None or _broken(ended, frozenset({0}), as_json=False):
        return None
    each = (time.perf_counter() - begin) / len(seeds)
    verdicts = []
    for seed, (value, code, problem) in zip(seeds, ended.value, strict=True):
        plan, end = plan_of(value), replace(ended, code=code)
        if problem or code not in plan.codes[0] or _left_behind(folder / str(seed), plan, [end]):
            return None
        verdicts.append(Verdict(kind.name, seed, None, (code,), each, right=code == 0))
    return verdicts


def _run_here(kind: Kind, seed: int, folder: Path) -> Any:
    """Run a case of one command that needs no child; return its plan, exit code and problem."""
    (folder / "case").mkdir(parents=True)
    (folder / "prepare").mkdir()
    (folder / "secret.txt").write_bytes(SECRET)
    os.chdir(folder)
    plan = kind.prepare(seed, folder / "case")
    value = vars_of(plan)
    (folder / "prepare" / "value.json").write_text(json.dumps(value))
    assert kind.run
    code = kind.run(folder, 0, plan.commands[0])
    return value, code, kind.check and kind.check(folder, plan, [code])


def _as_json(seed: int, line: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command line, every third one of the fuzzer's with `--json`."""
    asked = "--root" in line and "--json" not in line and zlib.crc32(f"{seed}{line}".encode()) % 3
    return line if asked or "--root" not in line else (*line, "--json")


def in_child(function: Callable[[], Any], folder: Path, seconds: float = SECONDS) -> Ended:
    """Call a function in a forked child with limits; what it prints and returns comes back."""
    (folder / "tmp").mkdir(parents=True)
    begin = time.perf_counter()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _be_child(function, folder)
    how = "hangs"
    code: int | None = None
    while time.perf_counter() - begin < seconds:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            how = "ended" if code >= 0 else signal.Signals(-code).name
            break
        time.sleep(0.002)
    left = _kill_group(child)
    if how == "hangs":
        os.waitpid(child, 0)
    if (_orphans() or left) and how == "ended":
        how = "leaves a process"
    if how == "ended" and any((folder / "tmp").iterdir()):
        how = f"leaves temporary files: {[p.name for p in (folder / 'tmp').iterdir()]}"
    value = folder / "value.json"
    return Ended(
        code if how == "ended" else None,
        how,
        _text(folder / "out"),
        _text(folder / "err"),
        json.loads(value.read_text()) if value.exists() else None,
        time.perf_counter() - begin,
    )


def _be_child(function: Callable[[], Any], folder: Path) -> None:
    """Be the child: never returns."""
    code = 70
    try:
        os.setsid()
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
        inherited = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY + inherited,) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        value = function()
        (folder / "value.json").write_text(json.dumps(value))
        code = value if isinstance(value, int) else 0
    except BaseException:  # noqa: BLE001 - a child's last frame
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_command(_folder: Path, _number: int, line: tuple[str, ...]) -> int:
    """Run one command line in this process."""
    from offline_data_cli.main import main

    return main(list(line))


def _no_json(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _kill_group(leader: int) -> bool:
    """Kill what is left of a child's process group; return True if anything was."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def adopt_orphans() -> None:
    """Let processes whose parent has ended become children of this one, where the system can."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _orphans() -> bool:
    """Kill what a command has started and left; return True if anything did not end by itself."""
    until = time.perf_counter() + _GRACE
    found = False
    while True:
        try:
            done, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not done and time.perf_counter() > until:
            found = True
            for pid in Path("/proc/self/task").glob("*/children"):
                for child in pid.read_text().split():
                    os.kill(int(child), signal.SIGKILL)
        if not done:
            time.sleep(0.002)


def _broken(end: Ended, allowed: frozenset[int], *, as_json: bool) -> str | None:
    said = f"{end.out}\n{end.err}"
    if end.how != "ended":
        return f"{end.how} after {end.seconds:.1f} s: {_tail(end)}"
    if _CRASH.search(said):
        return f"a reader crashed: {_tail(end)}"
    if found := _CONTROL.search(said):
        return f"prints the control character {found[0]!r}: {ascii(said)[-500:]}"
    if as_json:
        try:
            json.loads(end.out, parse_constant=_no_json)
        except ValueError as error:
            return f"prints no JSON ({error}): {end.out[:300]!r} {_tail(end)}"
    if end.code not in allowed:
        return f"exit code {end.code}, expected one of {sorted(allowed)}: {_tail(end)}"
    for word in ("error: unexpected ", "Traceback", "please report"):
        if word in end.err:
            return f"says {word!r}: {_tail(end)}"
    if PASSWORD in said or SECRET[:36].decode() in said:
        return f"shows a secret: {_tail(end)}"
    if end.code and len(end.err) > _ERROR_BYTES:
        return f"an error of {len(end.err)} characters: {end.err[:300]}"
    if end.code and not end.err.strip() and not end.out.strip():
        return f"ends with {end.code} and says nothing"
    return None


def _left_behind(folder: Path, plan: Plan, ends: list[Ended]) -> str | None:
    root = folder / "case" / "root"
    staging = [p for p in root.glob(".staging/*") if p.is_dir() and p.name != "locks"]
    # the same command goes on with the shards that are finished, and with no others
    staging = [p for p in staging if p.suffix != ".shards" or list(p.rglob("[0-9]*.[0-9]*[0-9]"))]
    if staging:
        return f"staging left: {[p.name for p in staging]}"
    beside = [p.relative_to(root) for p in root.rglob(".*.tmp")]
    if beside:
        return f"temporary files left: {beside}"
    if plan.publishes and ends[0].code:
        made = [p for p in root.rglob("manifest.json") if ".staging" not in p.parts]
        if made:
            return f"exit code {ends[0].code}, and yet there is {made[0].relative_to(root)}"
    for file in root.rglob("*"):
        if file.is_file() and not file.is_symlink():
            content = file.read_bytes()
            if SECRET[:36] in content:
                return f"{file.relative_to(root)} has bytes of another file"
            if PASSWORD.encode() in content:
                return f"{file.relative_to(root)} has the password of a URL"
    return None


def _changed(case: Path, before: dict[str, str]) -> str | None:
    """Name a file outside the root that was made, changed or deleted."""
    after = _tree(case)
    changed = [n for n in {*before, *after} if before.get(n) != after.get(n)]
    return f"outside the root, changed: {sorted(changed)[:5]}" if changed else None


def _tree(case: Path) -> dict[str, str]:
    """Return a digest of every file of a case but those under its root."""
    digests = {}
    for folder, names, files in os.walk(case):
        if Path(folder) == case:
            names[:] = [name for name in names if name != "root"]
        for name in files:
            path = Path(folder, name)
            plain = path.is_file() and not path.is_symlink()
            content = path.read_bytes() if plain else os.fsencode(str(path.lstat().st_mode))
            digests[str(path.relative_to(case))] = hashlib.sha256(content).hexdigest()
    return digests


def vars_of(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON."""
    return {**vars(plan), "codes": [sorted(allowed) for allowed in plan.codes]}


def plan_of(value: dict[str, Any]) -> Plan:
    """Return the plan that `vars_of` wrote."""
    commands = tuple(tuple(line) for line in value["commands"])
    codes = tuple(frozenset(allowed) for allowed in value["codes"])
    return Plan(commands, codes, value["publishes"], value["facts"])


def _verdict(
    kind: Kind, seed: int, problem: str | None, codes: tuple[int | None, ...], begin: float
) -> Verdict:
    return Verdict(kind.name, seed, problem, codes, time.perf_counter() - begin)


def _codes(ends: list[Ended]) -> tuple[int | None, ...]:
    return tuple(end.code for end in ends)


def _tail(end: Ended) -> str:
    said = " / ".join(f"{end.out}{end.err}".split("\n"))
    return f"[{end.how} {end.code}] {said[-500:]}"


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
