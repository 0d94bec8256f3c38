"""Dataset directories as immutable replay buffers; the only package here that imports torch.

Importing it raises `MissingDependencyError` where torch or tensordict is not installed.
"""

from offline_data.base.errors import MissingDependencyError

try:
    import tensordict as tensordict
    import torch as torch
except ModuleNotFoundError as missing:
    raise MissingDependencyError(
        "Buffers, saved views and functions of rows need torch and tensordict; "
        f"{missing.name} is not installed",
        hint="pip install torch tensordict; `load_arrays` in Python needs neither",
    ) from missing
