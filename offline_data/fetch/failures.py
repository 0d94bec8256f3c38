"""Places that did not give a file, and the one error that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offline_data.errors import (
    AuthError,
    IntegrityError,
    NetworkError,
    NotFoundError,
    OfflineError,
)
from offline_data.fetch.mirrors import host_of

if TYPE_CHECKING:
    from offline_data.errors import OfflineDataError
    from offline_data.fetch.files import RemoteFile

_NEXT_PLACE = (NetworkError, NotFoundError, AuthError, IntegrityError)


class Failures:
    """Collects why a file could not be had from one place after the other.

    Args:
        file: What is being fetched.
    """

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._errors: dict[str, OfflineDataError] = {}

    def add(self, url: str, error: OfflineDataError) -> bool:
        """Take note of a failure; False where no other place can help (a full disk)."""
        if not isinstance(error, _NEXT_PLACE):
            return False
        self._errors[url] = error
        return True

    @property
    def host_is_down(self) -> bool:
        """Whether the last failure was the host's, not the file's."""
        last = next(reversed(self._errors.values()), None)
        return isinstance(last, NetworkError) and not isinstance(last, OfflineError)

    @property
    def reasons(self) -> tuple[str, ...]:
        """`host: reason` for each place, in the order in which they were tried."""
        return tuple(f"{host_of(url)}: {error.message}" for url, error in self._errors.items())

    def summary(self) -> OfflineDataError:
        """Return the error to raise when no place is left.

        It is of the kind that the first published URL gave: mirrors may know less.
        """
        published = next(
            (self._errors[url] for url in self._file.urls if url in self._errors), None
        )
        chosen = published or next(iter(self._errors.values()))
        if len(self._errors) == 1:
            return chosen
        told = "".join(f"\n  {error.message}" for error in self._errors.values())
        summary = type(chosen)(
            f"{self._file.path} could not be fetched from any of {len(self._errors)} places:{told}",
            hint=chosen.hint,
        )
        summary.__cause__ = chosen
        return summary
