"""Checks of datasets, as a linter has them: rules with codes, findings, one pass over the data."""

from offline_data.analysis.checks.finding import CheckReport, Finding, Severity
from offline_data.analysis.checks.rule import Rule
from offline_data.analysis.checks.run import run_checks

__all__ = ["CheckReport", "Finding", "Rule", "Severity", "run_checks"]
