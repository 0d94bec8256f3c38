"""`to_hf`: the rows of a buffer as a `datasets.Dataset`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from offline_data.base.errors import MissingDependencyError


def to_hf(buffer: Any) -> Any:
    """Return the rows of a dataset or view; see `Dataset.to_hf`."""
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(
            f"datasets cannot be imported: {error}", hint="pip install datasets"
        ) from error
    rows = datasets.Dataset.from_dict({"row": np.arange(len(buffer))})
    return rows.with_transform(partial(_read, buffer))


def _read(buffer: Any, batch: dict[str, list[int]]) -> dict[str, Any]:
    found = buffer[torch.tensor(batch["row"], dtype=torch.int64)]
    leaves = found.flatten_keys(".").items()
    return {name: leaf.numpy() if torch.is_tensor(leaf) else leaf.tolist() for name, leaf in leaves}
