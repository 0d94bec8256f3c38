"""Errors of preprocessing: what a function or a step did, and what became of a process."""

from __future__ import annotations

from offline_data.errors import OfflineDataError


class StepError(OfflineDataError):
    """A function or a step failed on some row, or returned what cannot be stored."""

    code = "step"


class WorkerDiedError(OfflineDataError):
    """A process that ran a task was ended from outside, twice with the same task."""

    code = "worker_died"
