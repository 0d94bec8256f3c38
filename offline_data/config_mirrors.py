"""What a mirror must look like: the beginning of URLs, and what is put in its place."""

from __future__ import annotations

import os
import re
from typing import TypeAlias
from urllib.parse import quote, urlsplit

from offline_data.errors import UsageError
from offline_data.urls import redact_setting

Mirror: TypeAlias = tuple[str, str]
"""A prefix and its replacement: a URL that begins with the one is tried with the other first."""

_PREFIX = re.compile(r"[a-z][a-z0-9+.\-]*://\S*\Z")
_REPLACEMENT = re.compile(r"(?:(?:https?|hf)://[^\s/]\S*|file:///\S*)\Z")
_EXAMPLE = "http://host/data/=https://mirror/data/ or http://host/data/=/mnt/data/"


def check_mirror(prefix: str, replacement: str, where: str) -> Mirror:
    """Return a mirror as fetching takes it: the replacement is a URL.

    Args:
        prefix: What published URLs begin with, scheme included.
        replacement: An `http(s)://`, `file:///` or `hf://` URL, or the absolute path of a folder.
        where: Variable, file and key, or argument that has it, for the message.

    Raises:
        UsageError: One of the two has another form, or only the prefix ends with a slash, which
            would glue the rest of the URL to the last name of the replacement.

    Example:
        >>> check_mirror("http://a.org/data/", "/mnt/my data", "OFFLINE_DATA_MIRRORS")
        ('http://a.org/data/', 'file:///mnt/my%20data/')
    """
    if not (_PREFIX.match(prefix) and _is_url(prefix)):
        raise UsageError(
            f"{where}: a mirror is for {redact_setting(prefix)!r}; expected how a URL begins, with its scheme",
            hint=f"for example {_EXAMPLE}",
        )
    found = _url_of_folder(prefix, replacement) if replacement[:1] == "/" else replacement
    shown = redact_setting(replacement)
    if not (_REPLACEMENT.match(found) and _is_url(found)):
        raise UsageError(
            f"{where}: the mirror of {prefix} is {shown!r}; expected an http(s)://, file:/// "
            "or hf:// URL, or an absolute path",
            hint=f"for example {_EXAMPLE}",
        )
    if prefix.endswith("/") and found[-1].isalnum():
        raise UsageError(
            f"{where}: the mirror of {prefix} is {shown}, without the trailing slash of the prefix",
            hint=f"write {shown}/, because the prefix is replaced literally",
        )
    return prefix, found


def parse_mirrors(text: str, where: str) -> tuple[Mirror, ...]:
    """Read `PREFIX=REPLACEMENT;…`, in this order; raises what `check_mirror` raises.

    Example:
        >>> parse_mirrors("http://a/=http://b/; http://a/=file:///c/", "OFFLINE_DATA_MIRRORS")
        (('http://a/', 'http://b/'), ('http://a/', 'file:///c/'))
    """
    pairs = []
    for item in filter(None, (part.strip() for part in text.split(";"))):
        prefix, equals, replacement = (part.strip() for part in item.partition("="))
        if not (equals and prefix and replacement):
            raise UsageError(
                f"{where} has {redact_setting(item)!r}; expected PREFIX=REPLACEMENT, several separated by `;`",
                hint=f"for example {_EXAMPLE}",
            )
        pairs.append(check_mirror(prefix, replacement, where))
    return tuple(pairs)


def _is_url(text: str) -> bool:
    """Return True if host and port can be those of a URL, and all of it can be sent."""
    try:
        parts = urlsplit(text)
        text.encode()
        (parts.hostname or "").encode("idna")
        port = parts.port
    except ValueError:  # UnicodeError is one
        return False
    return port != 0


def _url_of_folder(prefix: str, path: str) -> str:
    url = f"file://{quote(os.fsencode(path))}"
    return f"{url.rstrip('/')}/" if prefix.endswith("/") else url
