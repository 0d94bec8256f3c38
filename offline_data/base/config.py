"""Settings of a run, resolved once: argument > environment > config file > default.

Only this file reads the environment. The config file is TOML with optional keys:

    root = "~/data/offline-rl"   # a relative one is refused
    offline = false
    workers = 4

    [mirrors]   # tried before the published URL, in the order written
    "http://host/data/" = ["/mnt/data/", "https://mirror.example/data/"]
    "https://other.example/" = "https://mirror.example/other/"
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

from offline_data.base.errors import (
    AccessError,
    FormatError,
    NotFoundError,
    UnknownNameError,
    UsageError,
)
from offline_data.base.json import check_depth, read_whole
from offline_data.base.pickles import pickled_by_name
from offline_data.base.urls import redact_setting

Mirror: TypeAlias = tuple[str, str]  # prefix of URLs, replacement that is tried first

ARGUMENT = "argument"  # origin of a setting: an argument, an option of the command line
CONFIG_FILE = "config file"  # origin of a setting: the file `Settings.config`

CONFIG_KEYS = ("root", "offline", "workers", "mirrors")
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}
_HOME, _OFFLINE, _HUB_OFFLINE = "OFFLINE_DATA_HOME", "OFFLINE_DATA_OFFLINE", "HF_HUB_OFFLINE"
_MIRRORS, _WORKERS, _CONFIG = "OFFLINE_DATA_MIRRORS", "OFFLINE_DATA_WORKERS", "OFFLINE_DATA_CONFIG"
_TOOLS = {  # environment variables of other tools, by setting
    "minari_path": "MINARI_DATASETS_PATH",
    "minari_remote": "MINARI_REMOTE",
    "hub_endpoint": "HF_ENDPOINT",
    "hub_token": "HF_TOKEN",
}
_MAX_NAME = 255
_QUOTES = "put text and URLs in quotes: root = '/data'"
_PREFIX = re.compile(r"[a-z][a-z0-9+.\-]*://\S*\Z")
_REPLACEMENT = re.compile(r"(?:(?:https?|hf)://[^\s/]\S*|file:///\S*)\Z")
_EXAMPLE = "for example http://host/data/=https://mirror/data/ or http://host/data/=/mnt/data/"


@pickled_by_name
@dataclass(frozen=True)
class TransferLimits:
    """The user's download limits; None: the default of `FetchLimits`."""

    files_at_once: int | None = None
    timeout: float | None = None  # seconds, for connecting and for receiving a byte
    tries: int | None = None  # attempts without progress before a host is given up
    bytes_per_second: int | None = None  # over all downloads of a process


@pickled_by_name
@dataclass(frozen=True)
class Settings:
    """Resolved settings of one run; pickled unchanged to worker processes.

    `repr` does not include fields that may contain a password or token.
    """

    root: Path
    """Folder of all datasets (`OFFLINE_DATA_HOME`)."""
    offline: bool = False
    """Whether to refuse network access: a dataset that is not on this disk is an error."""
    mirrors: tuple[Mirror, ...] = field(default=(), repr=False)
    """`(prefix, replacement)` pairs: the rewritten URL is tried before the original."""
    workers: int = 1
    """Maximum number of processes for a conversion."""
    minari_path: Path | None = None
    """Folder of local Minari datasets (`MINARI_DATASETS_PATH`)."""
    minari_remote: str = "hf://farama-minari"
    """Default remote of Minari ids (`MINARI_REMOTE`)."""
    hub_endpoint: str | None = field(default=None, repr=False)
    """`HF_ENDPOINT`, or None for the hub's default."""
    hub_token: str | None = field(default=None, repr=False)
    """`HF_TOKEN`, or None for the token stored by huggingface_hub."""
    transfer: TransferLimits = TransferLimits()
    config: Path | None = None
    """The config file, even if it does not exist; None if it has no location."""
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Origin of each setting by its name, or of each mirror by `PREFIX=REPLACEMENT`: `argument`,
    names of variables, or `config file`; defaults have no entry."""

    @property
    def downloads(self) -> Path:
        """Raw files, shared by all sources; safe to prune."""
        return self.root / ".downloads"

    @property
    def staging(self) -> Path:
        """Conversions in progress; safe to delete if no process holds their lock."""
        return self.root / ".staging"

    @property
    def recordings(self) -> Path:
        """Logs of unfinished recordings; not safe to delete."""
        return self.root / ".recordings"

    def check_outside(self, path: Path) -> None:
        """Raise `UsageError` if a path to write to is in the root, where only datasets are."""
        if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.root)):
            raise UsageError(
                f"{path} is in the root, where the datasets are", hint="name another folder"
            )


def completes_command_lines() -> bool:
    """Return True if a shell asks for completions, by the variable of click."""
    return "_OFFLINE_DATA_COMPLETE" in os.environ


def resolve_settings(
    *,
    root: str | os.PathLike[str] | None = None,
    offline: bool | None = None,
    workers: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Resolve the settings of one run; mirrors of the environment come before those of the file.

    Args:
        root: Defaults to the platform's user cache folder.
        offline: Defaults to False. `HF_HUB_OFFLINE` can only set it.
        workers: Defaults to the cores of this machine.
        environ: The environment to read, config file included; None: this process's.

    Raises:
        UsageError: Invalid value; the message names the variable, or file and key.
        AccessError: The config file cannot be read.

    Example:
        >>> resolve_settings(environ={"OFFLINE_DATA_HOME": "/data"}).root.as_posix()
        '/data'
    """
    env = os.environ if environ is None else environ
    file = _read_config(env)
    on = [name for name in (_OFFLINE, _HUB_OFFLINE) if offline is None and _flag(env, name)]
    off = env.get(_OFFLINE, "").strip()
    number = env.get(_WORKERS, "").strip()
    candidates: dict[str, tuple[tuple[str, Any], ...]] = {
        "root": ((ARGUMENT, root or None), (_HOME, env.get(_HOME) or None)),
        "offline": (
            (ARGUMENT, offline),
            (" and ".join(on), True if on else None),
            (_OFFLINE, False if off else None),
        ),
        "workers": ((ARGUMENT, workers), (_WORKERS, number or None)),
    }
    readers: dict[str, Callable[[Any, str], Any]] = {"root": user_path, "workers": _count}
    found: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, tried in candidates.items():
        for origin, value in (*tried, (CONFIG_FILE, file.get(name))):
            if value is not None:
                read = readers.get(name)
                found[name] = read(value, name if origin == ARGUMENT else origin) if read else value
                origins[name] = origin
                break
    if "root" not in found:
        from platformdirs import user_cache_path

        found["root"] = user_cache_path("offline_data", appauthor=False)
    if "workers" not in found:
        found["workers"] = usable_cores()
    for name, variable in _TOOLS.items():
        if env.get(variable):
            found[name], origins[name] = env[variable], variable
    minari = found.get("minari_path", "~/.minari/datasets")
    found["minari_path"] = user_path(minari, _TOOLS["minari_path"])
    places: dict[Mirror, str] = {}
    for origin, pairs in (
        (_MIRRORS, _parse_mirrors(env.get(_MIRRORS, ""))),
        (CONFIG_FILE, file.get("mirrors", [])),
    ):
        for pair in pairs:
            places.setdefault(pair, origin)
    origins |= {"=".join(pair): origin for pair, origin in places.items()}
    return Settings(**found, mirrors=tuple(places), config=config_place(env), origins=origins)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # macOS has none
    return (len(allowed(0)) if allowed else os.cpu_count()) or 1


def child_environ(**changes: str) -> dict[str, str]:
    """Return this process's environment with `changes`, for a child process."""
    return {**os.environ, **changes}


def silence_encoder() -> None:
    """Let SVT-AV1 print errors alone; it has no other setting for that."""
    os.environ.setdefault("SVT_LOG", "1")


def shorten_blas_spinning() -> None:
    """Let idle threads of OpenBLAS spin for 2^20 cycles instead of 2^26, if numpy is not imported yet.

    Importing numpy takes 0.1 s of CPU less. A value in the environment is kept.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")


def launched_ranks(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return `RANK` and `WORLD_SIZE` as torchrun sets both, else 0 and 1; raises `UsageError`.

    Example:
        >>> launched_ranks({"RANK": "1", "WORLD_SIZE": "4"}), launched_ranks({"RANK": "1"})
        ((1, 4), (0, 1))
    """
    env = os.environ if environ is None else environ
    rank, world = env.get("RANK", ""), env.get("WORLD_SIZE", "")
    if not (rank and world):
        return 0, 1
    if not (rank.isdecimal() and world.isdecimal() and int(rank) < int(world)):
        raise UsageError(
            f"RANK is {rank[:40]!r} and WORLD_SIZE {world[:40]!r}; expected a rank from 0 to world - 1",
            hint="unset them, or give rank=… and world=…",
        )
    return int(rank), int(world)


def _flag(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise UsageError(f"{name} is {value!r}; expected one of 1, true, yes, on, 0, false, no, off")


def _count(value: int | str, where: str) -> int:
    if isinstance(value, str) and not re.fullmatch(r"-?[0-9]{1,9}", value):
        raise UsageError(f"{where} is {value[:40]!r}; expected a whole number")
    if int(value) < 1:
        raise UsageError(f"{where} is {value}; expected at least 1")
    return int(value)


def config_place(environ: Mapping[str, str]) -> Path | None:
    """Return the path of the config file, whether or not it exists.

    It is `OFFLINE_DATA_CONFIG`, else `offline_data/config.toml` in `XDG_CONFIG_HOME`, else in the
    platform's config folder below `HOME`. Raises `UsageError`.
    """
    if environ.get(_CONFIG):
        return user_path(environ[_CONFIG], _CONFIG)
    folder = environ.get("XDG_CONFIG_HOME", "").strip()
    if not folder and environ.get("HOME"):
        # same as platformdirs, which only reads this process's environment
        below = "Library/Application Support" if sys.platform == "darwin" else ".config"
        folder = f"{environ['HOME']}/{below}"
    return Path(folder) / "offline_data" / "config.toml" if folder else None


def user_path(path: str | os.PathLike[str], where: str) -> Path:
    """Return a user's path as an absolute path without `~`; raises `UsageError`."""
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(
            f"{where} is a {type(path).__name__}; expected one path, as text or a Path"
        )
    try:
        found = Path(path).expanduser().absolute()
        longest = max(len(os.fsencode(name)) for name in found.parts)
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"{where} is {str(path)[:200]!r}: {error}") from error
    if longest > _MAX_NAME or "\0" in str(found):
        raise UsageError(
            f"{where} is {str(path)[:200]!r}: a name has over {_MAX_NAME} bytes, or a NUL"
        )
    return found


def _read_config(environ: Mapping[str, str]) -> dict[str, Any]:
    path, hint = config_place(environ), f"it is the config file; {_CONFIG} names another"
    if path is None:
        return {}
    try:
        text = read_whole(path, 1 << 20).decode()
    except NotFoundError:
        if not environ.get(_CONFIG):
            return {}
        raise UsageError(
            f"{_CONFIG} is {str(path)!r}: there is no such file",
            hint=f"unset {_CONFIG}, or write the file",
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not TOML: it is not UTF-8: {error.reason}") from error
    except FormatError as error:
        raise UsageError(f"{error.message}; expected TOML", hint=hint) from error
    except AccessError as error:
        raise AccessError(error.message, hint=hint) from error
    return check_values(parse_toml(text, path, _QUOTES), path)


def parse_toml(text: str, path: Path, hint: str) -> dict[str, Any]:
    """Parse the text of a TOML file, unchecked; raises `UsageError` with the hint."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        value: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}", hint=hint) from error
    return value


def read_toml(file: Path, max_bytes: int, hint: str) -> dict[str, Any]:
    """Read a TOML file of a user; raises `NotFoundError`, `AccessError`, `UsageError` with the hint."""
    try:
        whole = parse_toml(read_whole(file, max_bytes).decode(), file, hint)
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not TOML: it is not UTF-8: {error.reason}") from error
    except FormatError as error:
        raise UsageError(f"{error.message}; expected TOML", hint=hint) from error
    try:
        check_depth(whole)
    except ValueError as error:
        raise UsageError(f"{file} cannot be used: {error}") from error
    return whole


def check_values(value: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of a config file with `root` as a path and `mirrors` as pairs."""
    unknown = ", ".join(map(redact_setting, sorted(value.keys() - {*CONFIG_KEYS})))
    if unknown:
        raise UsageError(f"{path} has {unknown}; expected only {', '.join(CONFIG_KEYS)}")

    def wrong(key: str, expected: str, found: Any) -> UsageError:
        return UsageError(f"{path}: {key} is {redact_setting(repr(found))}; expected {expected}")

    root, offline, workers, table = (value.get(key) for key in CONFIG_KEYS)
    if root is not None and not (isinstance(root, str) and root.startswith(("/", "~"))):
        raise wrong("root", "an absolute path as text, or one below ~", root)
    if offline is not None and not isinstance(offline, bool):
        raise wrong("offline", "true or false", offline)
    if workers is not None and not (type(workers) is int and workers >= 1):
        raise wrong("workers", "a whole number of at least 1", workers)
    if table is not None and not isinstance(table, dict):
        raise wrong("mirrors", 'a table: "PREFIX" = ["REPLACEMENT", …]', table)
    mirrors: list[Mirror] = []
    for prefix, listed in (table or {}).items():
        replacements = listed if isinstance(listed, list) else [listed]
        if not all(isinstance(item, str) for item in replacements):
            key = f'mirrors."{redact_setting(prefix)}"'
            raise wrong(key, "a URL or path as text, or a list of them", listed)
        mirrors += (check_mirror(prefix, item, f"{path}, mirrors") for item in replacements)
    folder = None if root is None else user_path(root, f"{path}: root")
    return {**value, "root": folder, "mirrors": mirrors}


def write_setting(key: str, value: str, environ: Mapping[str, str] | None = None) -> Path:
    """Set `root`, `offline` or `workers` in the config file; returns its path.

    The rest of the file is unchanged, including comments. Raises `AccessError`, and `UsageError` for
    another key, an invalid value and a file that is not TOML.
    """
    import tomlkit

    from offline_data.base.files import disk_errors, is_unicode, write_durably

    env = os.environ if environ is None else environ
    path = config_place(env)
    if path is None:
        raise UsageError(
            "No config directory: neither HOME nor XDG_CONFIG_HOME is set",
            hint=f"set {_CONFIG} to a path",
        )
    if key not in CONFIG_KEYS or key == "mirrors":
        known = ", ".join(name for name in CONFIG_KEYS if name != "mirrors")
        raise (UsageError if key in CONFIG_KEYS else UnknownNameError)(
            f"{key!r} cannot be set; expected one of {known}",
            hint="mirrors are a table: `offline-data config edit`",
        )
    setting: str | int
    if key == "offline":
        if value.lower() not in {"true", "false"}:
            raise UsageError(f"offline cannot be {value!r}; expected true or false")
        setting = value.lower() == "true"
    elif key == "workers":
        setting = _count(value, key)
    else:
        setting = value if value.startswith("~") else str(user_path(value, key))
        if not is_unicode(setting):
            raise UsageError(
                f"root {setting!r} is not UTF-8, as {path} must be",
                hint="give such a name by OFFLINE_DATA_HOME or --root",
            )
    try:
        text = path.read_bytes().decode() if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    parse_toml(text, path, _QUOTES)
    document = tomlkit.parse(text)
    document[key] = setting
    changed = tomlkit.dumps(document)
    check_values(parse_toml(changed, path, _QUOTES), path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, changed.encode())
    return path


def editor_command(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the command of the user's editor: `VISUAL`, else `EDITOR`, else `vi`."""
    import shlex

    env = os.environ if environ is None else environ
    return shlex.split(env.get("VISUAL") or env.get("EDITOR") or "vi")


def check_mirror(prefix: str, replacement: str, where: str) -> Mirror:
    """Return a mirror with its replacement as an `http(s)://`, `file:///` or `hf://` URL.

    That may be the absolute path of a folder. Raises `UsageError` if one is malformed, or only the
    prefix ends with a slash: the rest of a URL would be appended to the replacement's last name.

    Example:
        >>> check_mirror("http://a.org/data/", "/mnt/my data", "OFFLINE_DATA_MIRRORS")
        ('http://a.org/data/', 'file:///mnt/my%20data/')
    """
    shown = redact_setting(replacement)
    if not (_PREFIX.match(prefix) and _is_url(prefix)):
        raise UsageError(
            f"{where}: a mirror is for {redact_setting(prefix)!r}; expected how a URL begins, with its scheme",
            hint=_EXAMPLE,
        )
    if replacement[:1] == "/":
        replacement = f"file://{quote(os.fsencode(replacement))}"
        if prefix.endswith("/"):
            replacement = f"{replacement.rstrip('/')}/"
    if not (_REPLACEMENT.match(replacement) and _is_url(replacement)):
        raise UsageError(
            f"{where}: the mirror of {prefix} is {shown!r}; expected an http(s)://, file:/// "
            "or hf:// URL, or an absolute path",
            hint=_EXAMPLE,
        )
    if prefix.endswith("/") and replacement[-1].isalnum():
        raise UsageError(
            f'{where}: the mirror {shown} must end with "/", as its prefix {prefix} does',
            hint=f"write {shown}/",
        )
    return prefix, replacement


def _parse_mirrors(text: str) -> list[Mirror]:
    pairs = []
    for item in filter(None, map(str.strip, text.split(";"))):
        prefix, _, replacement = map(str.strip, item.partition("="))
        if not (prefix and replacement):
            raise UsageError(
                f"{_MIRRORS} has {redact_setting(item)!r}; expected PREFIX=REPLACEMENT, several separated by `;`",
                hint=_EXAMPLE,
            )
        pairs.append(check_mirror(prefix, replacement, _MIRRORS))
    return pairs


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        text.encode()
        (parts.hostname or "").encode("idna")
        port = parts.port
    except ValueError:  # UnicodeError is one
        return False
    return port != 0
