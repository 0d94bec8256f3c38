"""Child processes that compute a function and answer over pipes."""

from offline_data.pipeline.jobs.processes.child import Child, ChildDiedError

__all__ = ["Child", "ChildDiedError"]
