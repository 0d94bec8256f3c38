"""Where things are and what is allowed: argument > environment > config file > default.

Resolved once. This is the only file that reads the environment.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offline_data.config_file import ConfigFile, config_place, read_config, user_path
from offline_data.config_mirrors import Mirror, check_mirror, parse_mirrors
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}
_HOME, _OFFLINE, _HUB_OFFLINE = "OFFLINE_DATA_HOME", "OFFLINE_DATA_OFFLINE", "HF_HUB_OFFLINE"
_MIRRORS, _WORKERS = "OFFLINE_DATA_MIRRORS", "OFFLINE_DATA_WORKERS"
_TOOLS = {
    "minari_path": "MINARI_DATASETS_PATH",
    "minari_remote": "MINARI_REMOTE",
    "hub_endpoint": "HF_ENDPOINT",
    "hub_token": "HF_TOKEN",
}
"""Variables of other tools, by the setting they are."""
ARGUMENT = "argument"
"""Origin of what a caller or an option of the command line said."""
CONFIG_FILE = "config file"
"""Origin of what stands in `Settings.config`."""


@dataclass(frozen=True)
class Settings:
    """Resolved settings of one run; travels to worker processes as it is.

    Fields that may hold a password or a token are left out of its `repr`.
    """

    root: Path
    """Folder under which all datasets live (`OFFLINE_DATA_HOME`)."""
    offline: bool = False
    """No network: what is not on this disk is an error."""
    mirrors: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """`(prefix, replacement)` pairs: the rewritten URL is tried before the published one."""
    workers: int = 1
    """Processes a conversion may use."""
    minari_path: Path | None = None
    """Folder of local Minari datasets (`MINARI_DATASETS_PATH`)."""
    minari_remote: str = "hf://farama-minari"
    """Where Minari ids without a remote are fetched from (`MINARI_REMOTE`)."""
    hub_endpoint: str | None = field(default=None, repr=False)
    """`HF_ENDPOINT`, or None for the hub's own."""
    hub_token: str | None = field(default=None, repr=False)
    """`HF_TOKEN`, or None for the token that huggingface_hub has stored."""
    config: Path | None = None
    """The config file, whether or not there is one; None where it has no place."""
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What decided a setting, by its name here, or a mirror, by `PREFIX=REPLACEMENT`: `argument`,
    names of variables, or `config file`; a default has no entry."""

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
    mirrors: Iterable[Mirror] = (),
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Resolve the settings of one run: argument, else environment, else config file, else default.

    Mirrors add up: those given come before the environment's, and these before the file's.

    Args:
        root: Dataset root, or None for `OFFLINE_DATA_HOME`, else the file's, else the platform's
            user cache folder.
        offline: True or False to decide here. None: offline if `OFFLINE_DATA_OFFLINE` or
            `HF_HUB_OFFLINE` says so, online if `OFFLINE_DATA_OFFLINE` says that, else as the file
            says, else online.
        workers: Processes, or None for `OFFLINE_DATA_WORKERS`, else the file's, else the cores of
            this machine.
        mirrors: `(prefix, replacement)` pairs, see `offline_data.config_mirrors.check_mirror`.
        environ: The environment to read, which also says where the config file is (see
            `offline_data.config_file.config_place`); a test passes its own.

    Raises:
        UsageError: Invalid value; the message names the variable, or file and key.
        AccessError: The config file may not be read.

    Example:
        >>> resolve_settings(environ={"OFFLINE_DATA_HOME": "/data"}).root.as_posix()
        '/data'
    """
    env = os.environ if environ is None else environ
    file = read_config(env)
    folder, root_by = _root(root, env, file)
    is_offline, offline_by = _offline(offline, env, file)
    processes, workers_by = _workers(workers, env, file)
    places = _mirrors(mirrors, env, file)
    decided = {"root": root_by, "offline": offline_by, "workers": workers_by}
    return Settings(
        root=folder,
        offline=is_offline,
        mirrors=tuple(places),
        workers=processes,
        minari_path=_minari_path(env),
        minari_remote=env.get("MINARI_REMOTE") or "hf://farama-minari",
        hub_endpoint=env.get("HF_ENDPOINT") or None,
        hub_token=env.get("HF_TOKEN") or None,
        config=config_place(env),
        origins={
            **{name: origin for name, origin in decided.items() if origin},
            **{name: variable for name, variable in _TOOLS.items() if env.get(variable)},
            **{"=".join(pair): origin for pair, origin in places.items()},
        },
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
    return user_path(named or "~/.minari/datasets", "MINARI_DATASETS_PATH")


def _root(
    given: str | os.PathLike[str] | None, env: Mapping[str, str], file: ConfigFile
) -> tuple[Path, str | None]:
    if given:
        return user_path(given, "root"), ARGUMENT
    if env.get(_HOME):
        return user_path(env[_HOME], _HOME), _HOME
    if file.root is not None:
        return file.root, CONFIG_FILE
    return _default_root(), None


def _offline(
    given: bool | None, env: Mapping[str, str], file: ConfigFile
) -> tuple[bool, str | None]:
    if given is not None:
        return given, ARGUMENT
    on = [name for name in (_OFFLINE, _HUB_OFFLINE) if _flag(env, name)]
    if on:
        return True, " and ".join(on)
    if env.get(_OFFLINE, "").strip():
        return False, _OFFLINE
    if file.offline is not None:
        return file.offline, CONFIG_FILE
    return False, None


def _flag(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise UsageError(f"{name} is {value!r}; expected one of 1, true, yes, on, 0, false, no, off")


def _workers(given: int | None, env: Mapping[str, str], file: ConfigFile) -> tuple[int, str | None]:
    value = env.get(_WORKERS, "").strip()
    if given is not None:
        return _positive(given, "workers"), ARGUMENT
    if not value:
        return (_cores(), None) if file.workers is None else (file.workers, CONFIG_FILE)
    if not re.fullmatch(r"-?[0-9]{1,9}", value):
        raise UsageError(f"{_WORKERS} is {value[:40]!r}; expected a whole number")
    return _positive(int(value), _WORKERS), _WORKERS


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _positive(value: int, name: str) -> int:
    if value < 1:
        raise UsageError(f"{name} is {value}; expected at least 1")
    return value


def _mirrors(
    given: Iterable[Mirror], env: Mapping[str, str], file: ConfigFile
) -> dict[Mirror, str]:
    """Return all mirrors in their order, each once, with what named it first."""
    found: dict[Mirror, str] = {}
    for origin, pairs in (
        (ARGUMENT, [check_mirror(*pair, "mirrors") for pair in given]),
        (_MIRRORS, parse_mirrors(env.get(_MIRRORS, ""), _MIRRORS)),
        (CONFIG_FILE, file.mirrors),
    ):
        for pair in pairs:
            found.setdefault(pair, origin)
    return found
