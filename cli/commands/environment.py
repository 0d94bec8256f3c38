"""`sources` and `env`: adapters and their requirements; versions, settings and paths."""

from offline_data_cli.context import Context
from offline_data_cli.result import Column, Field, Fields, Result, Table

_SOURCES = (Column("SOURCE"), Column("DATASETS", "count"), Column("REQUIRES"), Column("CONTENT"))
_SETTINGS = (Column("SETTING"), Column("VALUE"), Column("FROM"))


def sources(context: Context) -> Result:  # noqa: ARG001 - every command takes a context
    """List dataset sources and the packages they require."""
    from offline_data.reports.environment import source_reports

    reports = source_reports()
    rows = []
    for report in reports:
        requires = ", ".join(
            f"{need} ({'missing' if need in report.missing else 'installed'})"
            for need in report.needs
        )
        rows.append((report.name, report.datasets, requires or "nothing", report.title))
    notes = tuple(f"{r.name}: {r.install}" for r in reports if r.install)
    table = Table(_SOURCES, tuple(rows))
    return Result(reports, (table,), tuple(r.name for r in reports), notes)


def env(context: Context) -> Result:
    """Show versions, settings and paths for a bug report. Secrets are left out."""
    from offline_data.reports.environment import environment

    found = environment(context.settings)
    place, origins = found.settings["config_place"], found.settings["origins"]
    system = Fields(
        (
            Field("offline-data", found.version or "not installed"),
            Field("python", found.python),
            Field("platform", found.platform),
            Field("compiled gather", "yes" if found.compiled_gather else "no (sampling is slower)"),
            Field("free disk space", found.free_bytes, "bytes"),
            Field("config file", str(found.settings["config"] or f"none ({place} does not exist)")),
        )
    )
    settings = tuple(
        (name, item, origins.get(item if name == "mirrors" else name, "default"))
        for name, value in found.settings.items()
        if name not in {"config", "config_place", "origins"}
        for item in (value if isinstance(value, list) else [value])
        if item is not None
    )
    packages = tuple(
        Field(name, version or "not installed") for name, version in found.packages.items()
    )
    blocks = (system, Table(_SETTINGS, settings, "settings"), Fields(packages, "packages"))
    return Result(found, blocks)
