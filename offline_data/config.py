"""Where things are and what is allowed: argument > environment > default, resolved once.

This is the only file that reads the environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


@dataclass(frozen=True)
class Settings:
    """Resolved settings of one run; travels to worker processes as it is."""

    root: Path
    """Folder under which all datasets live (`OFFLINE_DATA_HOME`)."""
    offline: bool = False
    """No network: what is not on this disk is an error."""
    mirrors: tuple[tuple[str, str], ...] = ()
    """`(prefix, replacement)` pairs: the rewritten URL is tried before the published one."""
    workers: int = 1
    """Processes a conversion may use."""
    minari_path: Path | None = None
    """Folder of local Minari datasets (`MINARI_DATASETS_PATH`)."""
    minari_remote: str = "hf://farama-minari"
    """Where Minari ids without a remote are fetched from (`MINARI_REMOTE`)."""
    hub_endpoint: str | None = None
    """`HF_ENDPOINT`, or None for the hub's own."""
    hub_token: str | None = None
    """`HF_TOKEN`, or None for the token that huggingface_hub has stored."""

    @property
    def downloads(self) -> Path:
        """Raw files, shared by all sources; safe to prune."""
        return self.root / ".downloads"

    @property
    def staging(self) -> Path:
        """Conversions under way; safe to delete when no process holds their lock."""
        return self.root / ".staging"


def resolve_settings(
    *,
    root: str | os.PathLike[str] | None = None,
    offline: bool | None = None,
    workers: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Resolve the settings of one run.

    Args:
        root: Dataset root, or None for `OFFLINE_DATA_HOME`, else the platform's user cache folder.
        offline: True or False to decide here, None for `OFFLINE_DATA_OFFLINE` or `HF_HUB_OFFLINE`.
        workers: Processes, or None for `OFFLINE_DATA_WORKERS`, else the cores of this machine.
        environ: The environment to read; a test passes its own.

    Raises:
        UsageError: A variable that does not parse; the message names it.

    Example:
        >>> resolve_settings(environ={"OFFLINE_DATA_HOME": "/data"}).root.as_posix()
        '/data'
    """
    env = os.environ if environ is None else environ
    return Settings(
        root=Path(root or env.get("OFFLINE_DATA_HOME") or _default_root()).expanduser().absolute(),
        offline=_offline(env) if offline is None else offline,
        mirrors=_mirrors(env.get("OFFLINE_DATA_MIRRORS", "")),
        workers=_workers(env) if workers is None else _positive(workers, "workers"),
        minari_path=_minari_path(env),
        minari_remote=env.get("MINARI_REMOTE") or "hf://farama-minari",
        hub_endpoint=env.get("HF_ENDPOINT") or None,
        hub_token=env.get("HF_TOKEN") or None,
    )


def child_environ(**changes: str) -> dict[str, str]:
    """Return the environment for a program started by this one: this one's with `changes`.

    Example:
        >>> child_environ(OFFLINE_DATA_HOME="/data")["OFFLINE_DATA_HOME"]
        '/data'
    """
    return {**os.environ, **changes}


def _default_root() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("offline_data", appauthor=False)


def _minari_path(env: Mapping[str, str]) -> Path:
    named = env.get("MINARI_DATASETS_PATH")
    return Path(named).expanduser() if named else Path.home() / ".minari" / "datasets"


def _offline(env: Mapping[str, str]) -> bool:
    return any(_flag(env, name) for name in ("OFFLINE_DATA_OFFLINE", "HF_HUB_OFFLINE"))


def _flag(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise UsageError(f"{name} is {value!r}; expected one of 1, true, yes, on, 0, false, no, off")


def _workers(env: Mapping[str, str]) -> int:
    value = env.get("OFFLINE_DATA_WORKERS", "").strip()
    if not value:
        return _cores()
    try:
        return _positive(int(value), "OFFLINE_DATA_WORKERS")
    except ValueError:
        raise UsageError(f"OFFLINE_DATA_WORKERS is {value!r}; expected a whole number") from None


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _positive(value: int, name: str) -> int:
    if value < 1:
        raise UsageError(f"{name} is {value}; expected at least 1")
    return value


def _mirrors(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for item in filter(None, (part.strip() for part in text.split(";"))):
        prefix, equals, replacement = item.partition("=")
        if not (equals and prefix and replacement):
            raise UsageError(f"OFFLINE_DATA_MIRRORS has {item!r}; expected PREFIX=REPLACEMENT")
        pairs.append((prefix, replacement))
    return tuple(pairs)
