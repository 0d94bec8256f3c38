"""Parsing of untrusted JSON: complete, or refused with one sentence that names the file."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from offline_data.base.errors import FormatError
from offline_data.base.files import advise_on_head, describe_head, read_head

MAX_BYTES = 16 << 20  # enough for the largest image spaces; parsed, up to 25 times as much

MAX_DEPTH = 64  # nesting of containers

MAX_COUNT = 2**63 - 1  # of a count or size: int64

_DIGITS = 400  # a longer integer exceeds float64, and takes quadratic time to parse
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_json(path: Path, *, max_bytes: int = MAX_BYTES, finite: bool = False) -> Any:
    """Read a regular file of JSON; raises what `read_whole` and `parse_json` raise."""
    return parse_json(read_whole(path, max_bytes), str(path), finite=finite)


def read_whole(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file; raises `NotFoundError`, `AccessError`, `FormatError`."""
    data = read_head(path, max_bytes + 1)
    if len(data) > max_bytes:
        raise FormatError(f"{path} is larger than {max_bytes:,} bytes: too large for its kind")
    return data


def parse_json(data: bytes | str, where: str, *, finite: bool = False) -> Any:
    r"""Parse JSON, refusing input on which `json.loads` is too lenient or fails.

    `finite`: also refuse `NaN`, `Infinity` and numbers beyond float64.

    Raises:
        FormatError: Not UTF-8 (a byte-order mark is allowed), not JSON, nested deeper than
            `MAX_DEPTH`, a key that occurs twice in an object, half of a surrogate pair, an integer
            of more than 400 digits.

    Example:
        >>> parse_json(b'{"rows": [1, 2.5, null]}', "here")
        {'rows': [1, 2.5, None]}
        >>> parse_json('{"a": 1, "a": 2}', "here")
        Traceback (most recent call last):
        offline_data.errors.FormatError: here cannot be read as JSON: the key 'a' occurs twice
    """
    try:
        raw = data if isinstance(data, bytes) else data.encode("utf-8")
        value = json.loads(
            raw.decode("utf-8-sig"),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_finite if finite else float,
            parse_constant=_finite if finite else float,
        )
        check_depth(value)
        if _SURROGATE.search(raw):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError as error:
        raise FormatError(f"{where} is not UTF-8 text: {error.reason}") from error  # type: ignore[attr-defined]
    except json.JSONDecodeError as error:
        raise FormatError(
            f"{where} is not JSON ({error}): {describe_head(raw[:512])}",
            hint=advise_on_head(raw[:512]),
        ) from error
    except (ValueError, RecursionError) as error:
        text = _TOO_DEEP if isinstance(error, RecursionError) else str(error)
        raise FormatError(f"{where} cannot be read as JSON: {text}") from error
    return value


def as_unicode(text: str) -> str:
    """Return text that `parse_json` reads: bytes of file names that are not UTF-8 become `?`."""
    return text.encode(errors="replace").decode()


def count_of(value: object, where: str) -> int:
    """Return a JSON value that must be a count or a size; raises `FormatError`."""
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise FormatError(f"{where} is {shown(value)}; expected an integer from 0 to 2**63 - 1")
    return value


def shown(value: object, limit: int = 60) -> str:
    """Return a JSON value for a message: printable ASCII, at most `limit` characters."""
    if isinstance(value, int) and abs(value) > MAX_COUNT:
        return f"an integer of {value.bit_length()} bits"
    text = ascii(value[:limit] if isinstance(value, (str, list)) else value)
    return text if len(text) <= limit else f"{text[: limit - 2]}…"


_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {shown(twice)} occurs twice")
    return value


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"an integer in it has {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"{shown(text)} is not a finite number")
    return value


def check_depth(value: object) -> None:
    """Raise `ValueError` if containers are nested deeper than `MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for container in level
            if isinstance(container, (list, dict))
            for part in (container.values() if isinstance(container, dict) else container)
            if isinstance(part, (list, dict))
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)
