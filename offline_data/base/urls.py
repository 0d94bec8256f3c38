"""URLs as text that may be shown and stored, without passwords and tokens."""

from __future__ import annotations

import re

HIDDEN = "***"  # replaces secrets

_NO_PORT = r":(?![0-9]*(?:[^\w%]|\Z))"
_MALFORMED = re.compile(rf"(://)[^\s/?#@\[]*{_NO_PORT}\S*@")
"""A password with a slash, invalid in a URL: everything up to the last `@` may belong to it."""
_USER = re.compile(r"(://)[^\s/?#]*@")
_HALF = re.compile(rf"(://[^\s/?#@:\[]*){_NO_PORT}[^\s/?#]*")  # truncated inside its password
_QUERY = re.compile(
    r"""([?&;#][^\s&;=?#/]*(?:token|sig|secret|pass|pwd|auth(?!or\b)|credential|key|session|jwt|policy)"""
    r"""[^\s&;=?#/]*=)[^\s&;#'"]+""",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return `text` with the secrets of all its URLs replaced by `***`.

    These are user name and password, and the values of query parameters whose names suggest a
    token, signature, key, credential, password, session or policy (`X-Amz-Signature`, `sig`,
    `access_token`). A secret that is part of a path cannot be recognised.

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
    """Return a setting that may be a malformed URL, with everything before its last `@` hidden.

    Example:
        >>> redact_setting("http://me:hu sh@host/"), redact_setting("sh@host/")
        ('http://***@host/', '***@host/')
    """
    before, at, after = text.rpartition("@")
    if not at:
        return redact(text)
    scheme, mark, _ = before.partition("://")
    return f"{scheme}{mark}{HIDDEN}@{after}" if mark else f"{HIDDEN}@{after}"
