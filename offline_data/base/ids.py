"""Dataset ids: `source:name[@revision]`; parsed only here."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from offline_data.base.errors import InvalidIdError, OfflineDataError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.urls import redact

_Error = TypeVar("_Error", bound=OfflineDataError)

_SOURCE = re.compile(r"[a-z][a-z0-9_]*\Z")
_SEGMENT = re.compile(r"[A-Za-z0-9(](?:[A-Za-z0-9._()+=, \-]|\[[A-Za-z0-9.%:\-]+\])*\Z")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+\-]*\Z")
_RULES = {
    "source": "use lower-case letters, digits and _, and begin with a letter",
    "name": "use letters, digits, . _ + - and begin with a letter or digit; a slice is [A:B]",
    "host": "use letters, digits, . _ and -, and a port after a colon",
    "revision": "use letters, digits, . _ + - and begin with a letter or digit",
}
_REMOTE = re.compile(r"(?P<scheme>[a-z][a-z0-9]*)://(?P<rest>.*)\Z", re.DOTALL)
_MAX_LENGTH = 300  # without the revision
_MAX_PART = 255  # a part of a name, or a revision, becomes a folder

SHARED = "shared"  # dataset directories at an address: of the hub, a web server, a folder

_REMOTES = {"hf": "minari", "gcp": "minari", "http": SHARED, "https": SHARED, "file": SHARED}
"""Source of ids of the form `scheme://…`, by scheme; `hf://OWNER/NAME` is `SHARED`, unless NAME ends as
names of Minari do."""
_SHARED_REPOSITORY = re.compile(
    r"hf://[^/@]+/(?![^/@]*-v[0-9]+(?:@|\Z))[^/@]+(?:@.*)?\Z", re.DOTALL
)
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]*(?::[0-9]{1,5})?\Z")


@pickled_by_name
@dataclass(frozen=True)
class DatasetId:
    """A dataset of a source, with or without a revision.

    Example:
        >>> parse_id("minari:D4RL/door/human-v2@3f2a").name
        'D4RL/door/human-v2'
    """

    source: str
    """Name of the adapter: `minari`, `d4rl`, `local`, …"""
    name: str
    """The source's name of the dataset, segments joined by `/`; may start with a remote (`hf://user/`)."""
    revision: str | None = None
    """None: the newest on this disk, else the source's newest."""

    def __str__(self) -> str:
        return f"{self.source}:{self.name}" + (f"@{self.revision}" if self.revision else "")

    @property
    def folder(self) -> str:
        """Relative posix path under the root, without the revision; never leaves the root."""
        return f"{self.source}/" + self.name.replace(":///", "+", 1).replace("://", "+", 1)

    def at(self, revision: str) -> DatasetId:
        """Return the same dataset at `revision`; raises `InvalidIdError`."""
        _check(_REVISION, revision, "revision", str(self))
        return DatasetId(self.source, self.name, revision)


def parse_id(text: str, *, default_source: str | None = None) -> DatasetId:
    """Parse `source:name[@revision]`; a scheme (`hf`, `gcp`, `https`, `file`) implies the source.

    `hf://OWNER/NAME` is a dataset that was pushed (`shared`); with more parts, or a NAME that ends
    in `-v` and a number, it is Minari's. Raises `InvalidIdError` if malformed, without a source or
    `default_source`, or if its folder would leave the root.

    Example:
        >>> parse_id("d4rl:halfcheetah-medium-v2")
        DatasetId(source='d4rl', name='halfcheetah-medium-v2', revision=None)
        >>> str(parse_id("hf://user/ns/name-v0"))
        'minari:hf://user/ns/name-v0'
        >>> str(parse_id("hf://user/name@3f2a"))
        'shared:hf://user/name@3f2a'
    """
    length = len(text.partition("@")[0])
    if length > _MAX_LENGTH:
        raise InvalidIdError(
            f"A dataset id has {length} characters before its revision; expected at most {_MAX_LENGTH}"
        )
    source, colon, name = text.partition(":")
    if remote := _REMOTE.match(text):
        source, name = _REMOTES.get(remote["scheme"], ""), text
        if not source:
            known = ", ".join(f"{scheme}://" for scheme in _REMOTES)
            raise InvalidIdError(
                f"Unknown remote {remote['scheme']}:// in {redact(text)!r}; known: {known}"
            )
        if _SHARED_REPOSITORY.match(text):
            source = SHARED
    elif not colon and default_source is None:
        raise InvalidIdError(
            f"{text!r} is neither `source:name` nor a dataset directory",
            hint=f"`offline-data search {shlex.quote(text)}` finds ids",
        )
    elif not colon:
        source, name = str(default_source), text
    _check(_SOURCE, source, "source", text)
    name, at, revision = name.partition("@")
    if source == "hf":
        name = name.replace(":", "/")  # a configuration: hf:openai/gsm8k:main
    if at:
        _check(_REVISION, revision, "revision", text)
    remote = _REMOTE.match(name)
    scheme = remote["scheme"] if remote else ""
    allowed = _REMOTES if source == SHARED else ("hf", "gcp", "")
    if scheme not in allowed or (source == SHARED and scheme == "gcp"):
        raise InvalidIdError(
            f"Unknown remote {scheme}:// in {redact(text)!r}"
            if scheme
            else f"{text!r} names no address; expected hf://OWNER/NAME, https://… or file:///…"
        )
    host, *segments = (remote["rest"] if remote else name).split("/")
    if scheme in {"http", "https"}:
        _check(_HOST, host, "host", text)
    elif scheme != "file":
        segments.insert(0, host)
    elif host:
        raise InvalidIdError(f"{text!r} names no folder; expected file:/// and its path")
    for segment in segments:
        _check(_SEGMENT, segment, "name", text)
        if segment.endswith((".", " ")):
            raise InvalidIdError(f"The name {segment!r} in {text!r} ends with a dot or a space")
    return DatasetId(source, name, revision or None)


def _check(pattern: re.Pattern[str], value: str, what: str, text: str) -> None:
    if not pattern.match(value):
        lower = value.lower()
        raise InvalidIdError(
            f"{redact(value)!r} in {redact(text)!r} is not a valid {what}: {_RULES[what]}",
            hint=f"did you mean {text.replace(value, lower, 1)}?"
            if value != lower and pattern.match(lower)
            else "ids look like minari:D4RL/door/human-v2 or d4rl:hopper-medium-v2[@revision]",
        )
    if len(value) > _MAX_PART:
        raise InvalidIdError(
            f"The {what} {value[:20]}… has {len(value)} characters; expected at most {_MAX_PART}, as in "
            "a file name",
            hint="choose a shorter name",
        )


def looks_like_path(text: str) -> bool:
    """Return True if a user means a folder (`./data`, `/data/x`, `~/x`) rather than an id."""
    return text.startswith(("/", "./", "../", "~")) or text in {".", ".."}


def nearest(wanted: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return up to `count` known names like `wanted`, best first; the source of an id is ignored.

    Example:
        >>> nearest("local:hopper", ["local:doors", "local:hoper"])
        ['local:hoper']
    """
    source = wanted[: wanted.find(":") + 1].casefold()
    by_folded = {name.casefold().removeprefix(source): name for name in known}
    bare = wanted.casefold().removeprefix(source)
    ends = [folded for folded in by_folded if bare and folded.endswith(f"/{bare}")]
    close = difflib.get_close_matches(bare, by_folded, n=count, cutoff=0.6)
    return [by_folded[name] for name in [*dict.fromkeys((*ends, *close))][:count]]


def did_you_mean(
    wanted: str, known: Iterable[str], *, count: int = 1, shown: Callable[[str], str] = str
) -> str | None:
    """Return a question that offers up to `count` similar known names; None if none is similar.

    Example:
        >>> did_you_mean("clp", ["clip", "cast"])
        'did you mean clip?'
        >>> did_you_mean("ant-v0", ["ant-v1", "ant-v2"], count=2, shown="d4rl:{}".format)
        'did you mean d4rl:ant-v2 or d4rl:ant-v1?'
    """
    return offer([shown(name) for name in nearest(wanted, known, count)])


def offer(names: Sequence[str]) -> str | None:
    """Return a question that offers these names; None if there are none."""
    return f"did you mean {' or '.join(names)}?" if names else None


def unknown(
    error: type[_Error],
    problem: str,
    name: str,
    known: Collection[str],
    *,
    hint: str | None = None,
    count: int = 1,
    shown: Callable[[str], str] = str,
    listed: bool = True,
) -> _Error:
    """Return the error for an unknown name; its hint offers the most similar known ones, or `hint`.

    The message: `problem`, the name, all known ones if `listed`. Others: see `did_you_mean`.

    Example:
        >>> error = unknown(InvalidIdError, "There is no feature", "acton", ["action", "reward"])
        >>> error.message, error.hint
        ("There is no feature 'acton'; there are action, reward", 'did you mean action?')
    """
    near = did_you_mean(name, known, count=count, shown=shown)
    every = f"; there are {', '.join(known) or 'none'}" if listed else ""
    return error(f"{problem} {name!r}{every}", hint=near or hint)
