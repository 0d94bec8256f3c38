"""`env`: versions, settings and paths, for a bug report."""

from typing import TYPE_CHECKING

from offline_data_cli.call import Call
from offline_data_cli.result import Column, Field, Fields, Result, Table

if TYPE_CHECKING:
    from offline_data.reports.environment import Environment

_SETTINGS = (Column("SETTING"), Column("VALUE"), Column("FROM"))


def env(call: Call) -> Result:
    """Show versions and settings for a bug report; no secrets."""
    from offline_data.reports.environment import environment

    found = environment(call.settings)
    return Result(found, (_system(found), _settings(found), _packages(found)))


def _system(found: "Environment") -> Fields:
    return Fields(
        (
            Field("offline-data", found.version or "not installed"),
            Field("python", found.python),
            Field("platform", found.platform),
            Field("compiled gather", "yes" if found.compiled_gather else "no, sampling is slower"),
            Field("free on the root's disk", found.free_bytes, "bytes"),
            Field("config file", _config(found)),
        )
    )


def _config(found: "Environment") -> str:
    place = found.settings["config_place"]
    return str(found.settings["config"] or f"none ({place} is not there)")


def _settings(found: "Environment") -> Table:
    """Give each setting, and each mirror in its order, with what decided it."""
    origins = found.settings["origins"]
    rows = (
        (name, item, origins.get(item if name == "mirrors" else name, "default"))
        for name, value in found.settings.items()
        if name not in {"config", "config_place", "origins"}
        for item in (value if isinstance(value, list) else [value])
        if item is not None
    )
    return Table(_SETTINGS, tuple(rows), "settings")


def _packages(found: "Environment") -> Fields:
    versions = found.packages.items()
    return Fields(tuple(Field(k, v or "not installed") for k, v in versions), "packages")
