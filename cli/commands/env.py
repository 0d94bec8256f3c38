"""`env`: versions, settings and paths, for a bug report."""

from typing import TYPE_CHECKING

from offline_data_cli.call import Call
from offline_data_cli.result import Field, Fields, Result

if TYPE_CHECKING:
    from offline_data.reports.environment import Environment


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
        )
    )


def _settings(found: "Environment") -> Fields:
    return Fields(tuple(Field(k, v) for k, v in found.settings.items()), "settings")


def _packages(found: "Environment") -> Fields:
    versions = found.packages.items()
    return Fields(tuple(Field(k, v or "not installed") for k, v in versions), "packages")
