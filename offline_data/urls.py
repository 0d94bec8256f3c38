"""URLs as text: what may be shown and stored of them, which is never a password or a token."""

from __future__ import annotations

import re

HIDDEN = "***"
"""Stands in the place of what is left out."""

_NO_PORT = r":(?![0-9]*(?:[^\w%]|\Z))"
_MALFORMED = re.compile(rf"(://)[^\s/?#@\[]*{_NO_PORT}\S*@")
"""A password with a slash, which a URL cannot have: all up to the last `@` may belong to it."""
_USER = re.compile(r"(://)[^\s/?#]*@")
_HALF = re.compile(rf"(://[^\s/?#@:\[]*){_NO_PORT}[^\s/?#]*")
"""The beginning of a URL that was cut inside its password."""
_QUERY = re.compile(
    r"""([?&;#][^\s&;=?#/]*(?:token|sig|secret|pass|pwd|auth(?!or\b)|credential|key|session|jwt|policy)"""
    r"""[^\s&;=?#/]*=)[^\s&;#'"]+""",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return `text` with the secrets of every URL in it replaced by `***`.

    Those are user name and password, and the values of query parameters whose names speak of a
    token, signature, key, credential, password, session or policy (`X-Amz-Signature`, `sig`,
    `access_token`). A secret that is part of a path cannot be told from a name.

    Example:
        >>> redact("https://me:hush@host.example:80/x?v=1&X-Amz-Signature=f00 answered 404")
        'https://***@host.example:80/x?v=1&X-Amz-Signature=*** answered 404'
    """
    if "://" not in text:
        return text
    text = _MALFORMED.sub(rf"\1{HIDDEN}@", text)
    text = _USER.sub(rf"\1{HIDDEN}@", text)
    text = _HALF.sub(rf"\1:{HIDDEN}", text)
    return _QUERY.sub(rf"\1{HIDDEN}", text)


def redact_setting(text: str) -> str:
    """Return a setting that should be a URL and may be none: nothing before its last `@` is shown.

    Example:
        >>> redact_setting("http://me:hu sh@host/"), redact_setting("sh@host/")
        ('http://***@host/', '***@host/')
    """
    before, at, after = text.rpartition("@")
    if not at:
        return redact(text)
    scheme, mark, _ = before.partition("://")
    return f"{scheme}{mark}{HIDDEN}@{after}" if mark else f"{HIDDEN}@{after}"
