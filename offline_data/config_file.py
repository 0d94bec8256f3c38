"""The config file: where it is, what it may say, and what is wrong with it.

TOML, all keys optional; a relative `root` has no meaning here and is refused:

    root = "~/data/offline-rl"
    offline = false
    workers = 4

    [mirrors]   # tried before the published URL, in the order written
    "http://host/data/" = ["/mnt/data/", "https://mirror.example/data/"]
    "https://other.example/" = "https://mirror.example/other/"
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.config_mirrors import Mirror, check_mirror
from offline_data.errors import AccessError, FormatError, NotFoundError, UsageError
from offline_data.strict_json import read_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "OFFLINE_DATA_CONFIG"
"""Names another file than the one in the user's config folder."""

_LARGEST = 1 << 20
_LONGEST_NAME = 255
_NAMED = f"this is the config file; set {VARIABLE} to use another"

KEYS = ("root", "offline", "workers", "mirrors")
"""What the file may say."""


@dataclass(frozen=True)
class ConfigFile:
    """What the config file says; None and empty where it says nothing."""

    root: Path | None = None
    """Absolute."""
    offline: bool | None = None
    workers: int | None = None
    """At least 1."""
    mirrors: tuple[Mirror, ...] = ()
    """In the order of the file."""


def config_place(environ: Mapping[str, str]) -> Path | None:
    """Return where the config file is, whether or not there is one.

    Args:
        environ: `OFFLINE_DATA_CONFIG` names it, else it is `offline_data/config.toml` in the
            folder that `XDG_CONFIG_HOME` names, else in the platform's config folder below `HOME`.

    Returns:
        The path; None where none of the three variables is set.

    Raises:
        UsageError: `OFFLINE_DATA_CONFIG` begins with a `~` that leads nowhere.

    Example:
        >>> config_place({"XDG_CONFIG_HOME": "/etc/me"}).as_posix()
        '/etc/me/offline_data/config.toml'
    """
    if environ.get(VARIABLE):
        return user_path(environ[VARIABLE], VARIABLE)
    folder = environ.get("XDG_CONFIG_HOME", "").strip()
    if not folder and environ.get("HOME"):
        # platformdirs would say the same, but only of this process's own environment
        below = "Library/Application Support" if sys.platform == "darwin" else ".config"
        folder = f"{environ['HOME']}/{below}"
    return Path(folder) / "offline_data" / "config.toml" if folder else None


def user_path(path: str | os.PathLike[str], where: str) -> Path:
    """Return a path as a user writes it, absolute and without `~`.

    Raises:
        UsageError: It begins with `~` and there is no such user, or the user has no home; or no
            file can have such a name.

    Example:
        >>> user_path("/data/sets", "root").as_posix()
        '/data/sets'
    """
    try:
        found = Path(path).expanduser().absolute()
        longest = max(len(os.fsencode(name)) for name in found.parts)
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"{where} is {str(path)[:200]!r}: {error}") from error
    if longest > _LONGEST_NAME or "\0" in str(found):
        raise UsageError(
            f"{where} is {str(path)[:200]!r}: a name has over {_LONGEST_NAME} bytes, or a NUL"
        )
    return found


def read_config(environ: Mapping[str, str]) -> ConfigFile:
    """Read the config file at `config_place`; where there is none it says nothing.

    Raises:
        UsageError: `OFFLINE_DATA_CONFIG` names a file that does not exist; the file is no TOML,
            has a key that is not known, or a value of another kind.
        AccessError: The file may not be read.
    """
    path = config_place(environ)
    if path is None:
        return ConfigFile()
    text = _text(path, named=bool(environ.get(VARIABLE)))
    return ConfigFile() if text is None else _checked(_parse(text, path), path)


def _text(path: Path, *, named: bool) -> str | None:
    try:
        return read_whole(path, _LARGEST).decode()
    except NotFoundError:
        if not named:
            return None
        raise UsageError(
            f"{VARIABLE} is {str(path)!r}: there is no such file",
            hint=f"unset {VARIABLE} or create the file",
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not TOML: it is not UTF-8: {error.reason}") from error
    except FormatError as error:
        raise UsageError(f"{error.message}; expected TOML", hint=_NAMED) from error
    except AccessError as error:
        raise AccessError(error.message, hint=_NAMED) from error


def _parse(text: str, path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        value: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is not TOML: {error}", hint="put text and URLs in quotes: root = '/data'"
        ) from error
    return value


def _checked(value: dict[str, Any], path: Path) -> ConfigFile:
    unknown = ", ".join(sorted(set(value) - set(KEYS)))
    if unknown:
        raise UsageError(f"{path} has {unknown}; expected only {', '.join(KEYS)}")
    return ConfigFile(
        root=_root(value.get("root"), path),
        offline=_offline(value.get("offline"), path),
        workers=_workers(value.get("workers"), path),
        mirrors=_mirrors(value.get("mirrors", {}), path),
    )


def _root(value: Any, path: Path) -> Path | None:
    if value is None:
        return None
    if isinstance(value, str) and value.startswith(("/", "~")):
        return user_path(value, f"{path}: root")
    raise _wrong(path, "root", "an absolute path as text, or one below ~", value)


def _offline(value: Any, path: Path) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise _wrong(path, "offline", "true or false", value)


def _workers(value: Any, path: Path) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise _wrong(path, "workers", "a whole number of at least 1", value)


def _mirrors(value: Any, path: Path) -> tuple[Mirror, ...]:
    if not isinstance(value, dict):
        raise _wrong(path, "mirrors", 'a table: "PREFIX" = ["REPLACEMENT", …]', value)
    return tuple(
        check_mirror(prefix, replacement, f"{path}, mirrors")
        for prefix, listed in value.items()
        for replacement in _replacements(prefix, listed, path)
    )


def _replacements(prefix: str, value: Any, path: Path) -> list[str]:
    listed = value if isinstance(value, list) else [value]
    if all(isinstance(item, str) for item in listed):
        return listed
    raise _wrong(path, f'mirrors."{prefix}"', "a URL or path as text, or a list of them", value)


def _wrong(path: Path, key: str, expected: str, found: Any) -> UsageError:
    return UsageError(f"{path}: {key} is {found!r}; expected {expected}")
