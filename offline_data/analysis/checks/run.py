"""One run of rules over datasets: each file is read once, in blocks, in a few threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from offline_data.analysis.checks.block import BLOCK_ITEMS, RowBlock, all_leaves, blocks
from offline_data.analysis.checks.finding import SEVERITIES, CheckedDataset, CheckReport, Finding
from offline_data.analysis.checks.rule import Measured, Rule
from offline_data.base.errors import OfflineDataError
from offline_data.base.progress import SILENT, Progress
from offline_data.episode.fields import Key
from offline_data.store.layout import leaves_by_file
from offline_data.store.reader import DatasetReader, open_reader

if TYPE_CHECKING:
    States: TypeAlias = dict[Rule, dict[Key, Any]]  # by leaf: measures, or the exception

RULE_FAILED = "RL000"  # code of the finding that a rule raised an exception; never ignored

DAMAGED = "RL001"  # code of findings of data that are unreadable, or not as the manifest states


def run_checks(
    paths: Sequence[Path],
    rules: Sequence[Rule],
    *,
    ignored: Callable[[Finding], bool] = lambda _: False,
    workers: int = 1,
    progress: Progress = SILENT,
    block_items: int = BLOCK_ITEMS,
) -> CheckReport:
    """Check dataset directories with rules. Findings depend neither on `workers` nor on blocks.

    A dataset that cannot be read is a finding (`RL001`), and so is a rule that raises (`RL000`);
    the other rules and datasets are checked nevertheless. `rules` has each once. `ignored` returns
    True for findings to leave out; it is not called for `RL000`. `workers` threads measure blocks
    of `block_items` numbers; each holds a few copies of one.
    """
    datasets, measured, found = [], [], dict[Finding, None]()
    for path in paths:
        try:
            reader = open_reader(path)
            states, findings = _check(reader, rules, workers, progress, block_items)
        except OfflineDataError as error:
            found[_unreadable(str(path), error)] = None
            datasets.append(CheckedDataset(str(path), path, 0, 0, 0))
            continue
        manifest = reader.manifest
        counts = (reader.transitions, reader.episode_count, manifest.bytes)
        datasets.append(CheckedDataset(manifest.id, path, *counts))
        measured.append((reader, states))
        found |= dict.fromkeys(one for rule in rules for one in findings[rule])
    if len(measured) > 1:
        for rule in rules:
            every = [Measured(reader, states.get(rule, {})) for reader, states in measured]
            if not any(_failure(one) for one in every):
                found |= dict.fromkeys(_attempt(rule, every[0].reader, partial(rule.across, every)))
    order = {dataset.id: i for i, dataset in reversed(list(enumerate(datasets)))}

    def rank(one: Finding) -> tuple[Any, ...]:
        severity = -SEVERITIES.index(one.severity)
        return (order.get(one.dataset, 0), severity, one.code, one.leaf or "", one.row or 0)

    kept = (one for one in found if one.code == RULE_FAILED or not ignored(one))
    codes = tuple(rule.code for rule in rules)
    return CheckReport(tuple(datasets), codes, tuple(sorted(kept, key=rank)))


def _check(
    reader: DatasetReader,
    rules: Sequence[Rule],
    workers: int,
    progress: Progress,
    block_items: int,
) -> tuple[States, dict[Rule, list[Finding]]]:
    """Pass every leaf that a rule wants to it, block by block, and merge in order of rows."""
    states: States = {}
    wanted: dict[Key, list[Rule]] = {}
    for rule in rules:
        try:
            for key in rule.leaves(reader):
                wanted.setdefault(key, []).append(rule)
        except OfflineDataError:
            raise
        except Exception as error:  # noqa: BLE001 -- a rule may be anybody's
            states[rule] = {(): error}
    known = all_leaves(reader).items()
    groups = leaves_by_file({key: leaf for key, leaf in known if key in wanted})
    size = sum(leaf.nbytes for group in groups for leaf in group.values()) * reader.transitions
    with (
        progress.task(f"check {reader.manifest.name}", size, "B") as task,
        ThreadPoolExecutor(max(1, workers), "offline-data-check") as pool,
    ):
        idle = [rule for rule in rules if not any(rule in some for some in wanted.values())]
        # rules that want none begin first: checksums of files take longest
        early = {rule: pool.submit(_findings_of, rule, reader, states) for rule in idle}
        running: deque[Future[States]] = deque()
        try:
            for group in groups:
                row = sum(leaf.nbytes for leaf in group.values())
                for block in blocks(reader, group.values(), block_items):
                    rules_of = {key: wanted[key] for key in group}
                    running.append(pool.submit(_measure_block, block, rules_of))
                    if len(running) > 2 * workers:
                        _merge(states, running.popleft().result())
                    task.advance(row * len(block))
            while running:
                _merge(states, running.popleft().result())
            return states, {
                rule: early[rule].result() if rule in early else _findings_of(rule, reader, states)
                for rule in rules
            }
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _measure_block(block: RowBlock, wanted: dict[Key, list[Rule]]) -> States:
    found: States = {}
    for key, rules in wanted.items():
        for rule in rules:
            try:
                state = rule.measure(block, key)
            except OfflineDataError:
                raise
            except Exception as error:  # noqa: BLE001 -- a rule may be anybody's
                state = error
            if state is not None:
                found.setdefault(rule, {})[key] = state
    return found


def _merge(states: States, of_block: States) -> None:
    """Merge what was measured in the next block; after an exception a leaf keeps it."""
    for rule, leaves in of_block.items():
        known = states.setdefault(rule, {})
        for key, state in leaves.items():
            old = known.get(key)
            if old is None or isinstance(state, Exception):
                known[key] = state
            elif not isinstance(old, Exception):
                try:
                    known[key] = rule.merge(old, state)
                except Exception as error:  # noqa: BLE001 -- a rule may be anybody's
                    known[key] = error


def _failure(measured: Measured) -> Exception | None:
    """Return what a rule raised while measuring, if it did."""
    raised = (state for state in measured.leaves.values() if isinstance(state, Exception))
    return next(raised, None)


def _findings_of(rule: Rule, reader: DatasetReader, states: States) -> list[Finding]:
    measured = Measured(reader, states.get(rule, {}))
    failure = _failure(measured)
    if failure is not None:
        return [_failure_finding(rule, reader, failure)]
    return _attempt(rule, reader, partial(rule.findings, measured))


def _attempt(
    rule: Rule, reader: DatasetReader, call: Callable[[], Iterable[Finding]]
) -> list[Finding]:
    try:
        return list(call())
    except OfflineDataError as error:
        return [_unreadable(reader.manifest.id, error)]
    except Exception as error:  # noqa: BLE001 -- a rule may be anybody's
        return [_failure_finding(rule, reader, error)]


def _failure_finding(rule: Rule, reader: DatasetReader, error: Exception) -> Finding:
    return Finding(
        RULE_FAILED,
        "rule-failed",
        "error",
        reader.manifest.id,
        f"Rule {rule.code} ({rule.name}) failed: {type(error).__name__}: {error}",
        about=rule.code,
        hint=f"skip it with --ignore {rule.code}, and report the error to its author",
    )


def _unreadable(dataset: str, error: OfflineDataError) -> Finding:
    return Finding(
        DAMAGED,
        "damaged-files",
        "error",
        dataset,
        error.message,
        about="read",
        hint=error.shell_hint,
    )
