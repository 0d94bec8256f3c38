"""Findings: what a rule found, in which feature, episode and row of which dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from offline_data.analysis.checks.names import without_revision
from offline_data.base.pickles import pickled_by_name

Severity: TypeAlias = Literal["info", "warning", "error"]
"""`error`: training on it as it is goes wrong; `warning`: probably not what was meant; `info`: worth
knowing."""

SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # from the least to the most severe


@pickled_by_name
@dataclass(frozen=True)
class Finding:
    """One finding of a rule. All places with the same cause in one feature are one finding."""

    code: str
    """Code of the rule, `RL020`."""
    rule: str
    """Name of the rule, `non-finite-values`."""
    severity: Severity
    dataset: str
    """Id of the dataset, revision included; its path if the manifest cannot be read."""
    message: str
    """The finding with figures, in one sentence without a full stop."""
    leaf: str | None = None
    """TED key of the feature, parts joined by `/`; None if the finding is of no feature."""
    episode: int | None = None
    """Episode of the first place, counted from 0."""
    row: int | None = None
    """Transition of the first place, counted from 0 over the whole dataset."""
    count: int = 1
    """Number of places: rows, episodes or files, as the message says."""
    about: str | None = None
    """Distinguishes findings of one rule in one feature: a dimension, a file, another dataset."""
    hint: str | None = None
    """Next step."""

    @property
    def identity(self) -> tuple[str, str, str | None, str | None]:
        """Key that stays equal when the data change: dataset without revision, code, feature and `about`."""
        leaf = None if self.leaf is None else self.leaf.removeprefix("next/")
        return (without_revision(self.dataset), self.code, leaf, self.about)

    @property
    def where(self) -> str:
        """Feature and first place as text: `action, episode 3, row 1204`; empty if there is none."""
        parts = [self.leaf] if self.leaf else []
        parts += [f"episode {self.episode}"] if self.episode is not None else []
        parts += [f"row {self.row}"] if self.row is not None else []
        return ", ".join(parts)


@dataclass(frozen=True)
class CheckedDataset:
    """A dataset that was checked."""

    id: str
    path: Path
    transitions: int
    """0 if the dataset could not be opened, like the next two."""
    episodes: int
    bytes: int


@dataclass(frozen=True)
class CheckReport:
    """Outcome of a run: findings ordered by dataset as given, then severity, code and feature."""

    datasets: tuple[CheckedDataset, ...]
    rules: tuple[str, ...]
    """Codes of the rules that ran."""
    findings: tuple[Finding, ...]

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings of this severity or a higher one."""
        least = SEVERITIES.index(severity)
        return tuple(f for f in self.findings if SEVERITIES.index(f.severity) >= least)
