"""`sources`: the adapters and what each needs."""

from typing import TYPE_CHECKING

from offline_data_cli.call import Call
from offline_data_cli.result import Column, Result, Table

if TYPE_CHECKING:
    from offline_data.reports.environment import SourceReport

_COLUMNS = (
    Column("SOURCE"),
    Column("DATASETS", "count"),
    Column("NEEDS"),
    Column("WHAT"),
)


def sources(call: Call) -> Result:  # noqa: ARG001 - every command gets a call
    """List the sources of datasets and what each needs."""
    from offline_data.reports.environment import source_reports

    reports = source_reports()
    rows = tuple((r.name, r.datasets, _needs(r), r.title) for r in reports)
    notes = tuple(f"{r.name}: {r.install}" for r in reports if r.install)
    return Result(reports, (Table(_COLUMNS, rows),), tuple(r.name for r in reports), notes)


def _needs(report: "SourceReport") -> str:
    named = (
        f"{need} (missing)" if need in report.missing else f"{need} (installed)"
        for need in report.needs
    )
    return ", ".join(named) or "nothing more"
