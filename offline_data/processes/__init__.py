"""Child processes that compute a function and answer over pipes."""

from offline_data.processes.child import Child, ChildDiedError

__all__ = ["Child", "ChildDiedError"]
