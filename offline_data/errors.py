"""The error tree: every expected failure, with a code for scripts and a next step for people."""

from __future__ import annotations

import functools
from typing import ClassVar

from offline_data.urls import redact


class OfflineDataError(Exception):
    """Base of every failure this package expects.

    URLs are shown without passwords and tokens, see `offline_data.urls.redact`.

    Attributes:
        code: Stable word for scripts (`{"error": {"code": …}}` of the command line).
        message: What failed, where, what was expected and what was found.
        hint: What to do next, or None; also below a traceback (from Python 3.11 on).

    Example:
        >>> error = NotFoundError("No dataset 'minari:x/y-v0' here", hint="offline-data list")
        >>> error.code, str(error)
        ('not_found', "No dataset 'minari:x/y-v0' here")
    """

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = redact(message)
        self.hint = hint and redact(hint)
        super().__init__(self.message)
        add_note = getattr(self, "add_note", None)
        if hint and add_note:
            add_note(f"hint: {self.hint}")

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the hint when an error crosses a process boundary."""
        return functools.partial(type(self), hint=self.hint), (self.message,)


class UsageError(OfflineDataError, ValueError):
    """Invalid argument: an option's value, a range, a combination."""

    code = "usage"


class BufferUsageError(UsageError, RuntimeError):
    """A call that a buffer cannot serve as it is now; TorchRL raises `RuntimeError` for these."""


class InvalidIdError(UsageError):
    """A dataset id that is malformed or would leave its folder."""

    code = "invalid_id"


class NotFoundError(OfflineDataError, LookupError):
    """A source, dataset, episode or file that does not exist where it was looked for."""

    code = "not_found"


class AuthError(OfflineDataError):
    """A host refused access (401, 403) or a token is missing."""

    code = "auth"


class IntegrityError(OfflineDataError):
    """Bytes that are not what they should be: digest, size, magic, a cut-off file."""

    code = "integrity"


class FormatError(IntegrityError):
    """A source file that cannot be read as what it claims to be, or that lacks a needed part."""

    code = "format"


class ManifestError(IntegrityError):
    """A dataset directory whose manifest is missing, unreadable or does not fit its files."""

    code = "manifest"


class NewerFormatError(ManifestError):
    """A dataset directory written by a newer version of this package."""

    code = "newer_format"


class AuditError(IntegrityError):
    """Values read back from the new files differ from the source's."""

    code = "audit"


class NetworkError(OfflineDataError):
    """A host that does not answer, or answers with something else than the file."""

    code = "network"


class OfflineError(NetworkError):
    """Something that is not on this disk was asked for in offline mode."""

    code = "offline"


class NoSpaceError(OfflineDataError, OSError):
    """The disk is too small for what is to be written, or became so while writing."""

    code = "no_space"


class AccessError(OfflineDataError):
    """A folder or file of the root that may not be read or written by this user."""

    code = "access"


class MissingDependencyError(OfflineDataError, ImportError):
    """An optional package that this operation needs is not installed."""

    code = "missing_dependency"


class ImmutableError(OfflineDataError, RuntimeError):
    """An attempt to change a dataset, which is immutable."""

    code = "immutable"


class StepError(OfflineDataError):
    """A function or a step failed on some row, or returned what cannot be stored."""

    code = "step"


class WorkerDiedError(OfflineDataError):
    """A process that ran a task was ended from outside, twice with the same task."""

    code = "worker_died"
