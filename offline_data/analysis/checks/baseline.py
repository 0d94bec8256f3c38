"""Baselines: findings that are known, so that only new ones fail.

A baseline is JSON, one finding a line, sorted, so that changes of it read well in a diff:

```json
{
 "offline_data_baseline": 1,
 "findings": [
  {"dataset": "local:mine", "code": "RL021", "leaf": "observation", "about": null, "count": 2}
 ]
}
```

A finding is known by `Finding.identity`, which has neither revision nor place, if its count is not
larger. `RL000`, a rule that failed, is never known.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

from offline_data.analysis.checks.finding import CheckReport, Finding
from offline_data.analysis.checks.names import without_revision
from offline_data.analysis.checks.run import DAMAGED, RULE_FAILED
from offline_data.base.decode import at_least, decode
from offline_data.base.errors import FormatError, NotFoundError, UnknownNameError, UsageError
from offline_data.base.files import is_file, write_user_file
from offline_data.base.json import read_json

Identity: TypeAlias = "tuple[str, str, str | None, str | None]"  # see `Finding.identity`

VERSION = 1
_VERSION, _FIELDS = "offline_data_baseline", ("dataset", "code", "leaf", "about")
_HINT = "write it again with --write-baseline, or name another file"


@dataclass(frozen=True)
class _Known:
    dataset: str
    code: str
    leaf: str | None
    about: str | None
    count: Annotated[int, at_least(1)]


@dataclass(frozen=True)
class _Baseline:
    offline_data_baseline: Literal[1]
    findings: tuple[_Known, ...]


@dataclass(frozen=True)
class Comparison:
    """Findings of a run compared to a baseline."""

    new: tuple[Finding, ...]  # findings that the baseline lacks, or has with a smaller count
    known: int  # number of the others
    gone: int  # number of findings of the baseline that this run looked for and did not find
    strange: bool  # whether the baseline has findings, but none of a dataset of this run


def compare(report: CheckReport, baseline: Counter[Identity]) -> Comparison:
    """Compare the findings of a run with a baseline."""
    found = _counts(report.findings)
    new = tuple(
        one
        for one in report.findings
        if one.code == RULE_FAILED or found[_identity(one)] > baseline[_identity(one)]
    )
    asked = {identity for identity in baseline if _looked_for(identity, report)}
    datasets = {without_revision(one.id) for one in report.datasets}
    strange = bool(baseline) and not any(identity[0] in datasets for identity in baseline)
    return Comparison(new, len(report.findings) - len(new), len(asked - found.keys()), strange)


def read_baseline(file: Path) -> Counter[Identity]:
    """Return counts; raises `UnknownNameError`, `AccessError`, `UsageError` for another file."""
    try:
        baseline = decode(_Baseline, read_json(file), f"The baseline {file}")
    except NotFoundError as error:
        hint = "`--write-baseline FILE` writes one"
        raise UnknownNameError(f"The baseline {file} does not exist", hint=hint) from error
    except FormatError as error:
        raise UsageError(error.message, hint=_HINT) from error
    counts: Counter[Identity] = Counter()
    for one in baseline.findings:
        if one.code != RULE_FAILED:
            counts[one.dataset, one.code, one.leaf, one.about] += one.count
    return counts


def write_baseline(file: Path, report: CheckReport) -> int:
    """Write the findings of a run as a baseline; returns how many it has.

    If there is one already, its findings of datasets and rules that are not of this run are kept.
    Raises `AccessError`, `NoSpaceError`, and `UsageError` for another file, which is left as it is.
    """
    kept = read_baseline(file) if is_file(file) else Counter()
    counts = Counter({one: count for one, count in kept.items() if not _looked_for(one, report)})
    counts |= _counts(report.findings)
    lines = [
        "\n  " + json.dumps(_as_json(identity, counts[identity]), ensure_ascii=False)
        for identity in sorted(counts, key=lambda one: [part or "" for part in one])
    ]
    listed = ",".join(lines) + "\n " * bool(lines)
    content = f'{{\n "{_VERSION}": {VERSION},\n "findings": [{listed}]\n}}\n'
    write_user_file(file, content.encode())
    return len(lines)


def _counts(findings: Iterable[Finding]) -> Counter[Identity]:
    counts: Counter[Identity] = Counter()
    for one in findings:
        if one.code != RULE_FAILED:
            counts[_identity(one)] += one.count
    return counts


def _identity(finding: Finding) -> Identity:
    """Return the identity with bytes of file names that are not text escaped, for JSON."""
    return cast(
        "Identity",
        tuple(
            part and part.encode("utf-8", "backslashreplace").decode() for part in finding.identity
        ),
    )


def _as_json(identity: Identity, count: int) -> dict[str, Any]:
    return {**dict(zip(_FIELDS, identity, strict=True)), "count": count}


def _looked_for(identity: Identity, report: CheckReport) -> bool:
    dataset, code, *_ = identity
    here = any(without_revision(one.id) == dataset for one in report.datasets)
    return here and code in {*report.rules, DAMAGED}
