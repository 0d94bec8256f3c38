"""The error tree: every expected failure, with a code for scripts and a next step for people."""

from __future__ import annotations

import functools
import re
from importlib import import_module
from typing import ClassVar

from offline_data.base.hints import in_python
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import shorten
from offline_data.base.urls import redact

_LONG_WORD = re.compile(r"\S{501,}")


@pickled_by_name
class OfflineDataError(Exception):
    """Base of every failure this package expects.

    URLs are shown without passwords and tokens, see `offline_data.base.urls.redact`; of words of more than
    500 characters, as names in a damaged file may be, the beginning and the end.

    Attributes:
        code: Stable word for scripts (`{"error": {"code": …}}` of the command line).
        message: What failed, where, what was expected and what was found.
        hint: What to do next in Python, or None; shown below a traceback, too (from Python 3.11 on).
        shell_hint: What to do next on the command line, as the argument `hint` has it; for another
            error with the same hint.

    Example:
        >>> error = NotFoundError("No dataset 'minari:x/y-v0' here", hint="`offline-data list`")
        >>> error.code, str(error)
        ('not_found', "No dataset 'minari:x/y-v0' here")
        >>> error.hint, error.shell_hint
        ('`offline_data.list_datasets()`', '`offline-data list`')
    """

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = _LONG_WORD.sub(lambda word: shorten(word[0], 500), redact(message))
        self.shell_hint = hint and redact(hint)
        self.hint = self.shell_hint and in_python(self.shell_hint)
        super().__init__(self.message)
        add_note = getattr(self, "add_note", None)
        if hint and add_note:
            add_note(f"hint: {self.hint}")

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the hint when an error crosses a process boundary."""
        return functools.partial(type(self), hint=self.shell_hint), (self.message,)


class UsageError(OfflineDataError, ValueError):
    """Invalid argument: an option's value, a range, a combination."""

    code = "usage"


class BufferUsageError(UsageError, RuntimeError):
    """A buffer cannot serve a call in its present state; TorchRL raises `RuntimeError` for these."""

    code = "buffer_usage"


class InvalidIdError(UsageError):
    """A dataset id that is malformed or would leave its folder."""

    code = "invalid_id"


class LockError(OfflineDataError):
    """`datasets.lock` is not up to date with `datasets.toml`."""

    code = "lock"


class NotFoundError(OfflineDataError, LookupError):
    """A source, dataset, episode or file does not exist."""

    code = "not_found"


class UnknownNameError(NotFoundError, UsageError):
    """No rule, setting, function or file has the given name, which is well-formed."""

    code = "unknown_name"


class AuthError(OfflineDataError):
    """A host refused access (401, 403) or a token is missing."""

    code = "auth"


class IntegrityError(OfflineDataError):
    """A file is damaged or not the expected one: digest, size, magic bytes, a truncated file."""

    code = "integrity"


class FormatError(IntegrityError):
    """A source file does not conform to its format, or lacks a required part."""

    code = "format"


class ManifestError(IntegrityError):
    """The manifest of a dataset directory is missing, unreadable or does not match its files."""

    code = "manifest"


class NewerFormatError(ManifestError):
    """A dataset directory was written by a newer version of this package."""

    code = "newer_format"


class AuditError(IntegrityError):
    """Values read back from the new files differ from the source's."""

    code = "audit"


class NetworkError(OfflineDataError):
    """A host does not answer, or answers with something other than the file."""

    code = "network"


class NoNetworkError(NetworkError):
    """The name of a host does not resolve, or there is no route to it.

    Example:
        >>> NoNetworkError.of("a.org is not found").message
        'this machine seems to have no network: a.org is not found'
    """

    code = "no_network"
    _SEEMS = "this machine seems to have no network: "

    @classmethod
    def of(cls, reason: str) -> NoNetworkError:
        """Return the error for a host, with what can be done without one."""
        return cls(
            f"{cls._SEEMS}{reason}",
            hint="`offline-data list` shows the datasets on this disk; "
            "OFFLINE_DATA_OFFLINE=1 or --offline asks no host",
        )

    @property
    def reason(self) -> str:
        """The message without the guess about the network, since another host may answer."""
        return self.message.removeprefix(self._SEEMS)


class OfflineError(NetworkError):
    """Data that are not on this disk were requested in offline mode."""

    code = "offline"


class NoSpaceError(OfflineDataError, OSError):
    """The disk has too little space, or became full while writing."""

    code = "no_space"


class AccessError(OfflineDataError):
    """A folder or file may not be read or written by this user."""

    code = "access"


class MissingDependencyError(OfflineDataError, ImportError):
    """An optional package that this operation needs is not installed."""

    code = "missing_dependency"


class ImmutableError(OfflineDataError, RuntimeError):
    """An attempt to change a dataset, which is immutable."""

    code = "immutable"


class StepError(OfflineDataError):
    """A function or a step failed on a row, or its result cannot be stored."""

    code = "step"


class UnknownLeafError(StepError, NotFoundError, KeyError):
    """The dataset does not have a feature, or a field, that a step or an index names."""

    code = "unknown_leaf"
    __str__ = Exception.__str__  # that of a KeyError quotes it


class WorkerDiedError(OfflineDataError):
    """A worker process was killed or crashed twice at the same task.

    Attributes:
        task: Number of the task in the list of tasks, if it is known.
    """

    code = "worker_died"

    def __init__(self, message: str, *, hint: str | None = None, task: int | None = None) -> None:
        self.task = task
        super().__init__(message, hint=hint)


for _kind in tuple(vars().values()):
    if isinstance(_kind, type) and issubclass(_kind, OfflineDataError):
        _kind.__module__ = "offline_data.errors"  # the public name, which tracebacks show
import_module("offline_data.errors")  # cloudpickle copies classes whose module is not loaded
