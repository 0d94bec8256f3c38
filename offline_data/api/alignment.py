"""`align`: whether actions, rewards and cameras belong to the rows that they are stored in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from offline_data.api.arguments import DatasetLike, OnDisk, entry_of, settings_of
from offline_data.base.errors import UsageError

if TYPE_CHECKING:
    from offline_data.analysis.alignment.find import Alignment
    from offline_data.base.config import Settings


def align(
    data: DatasetLike | OnDisk,
    *,
    pairs: Sequence[tuple[str, str]] = (),
    rows: int = 50_000,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
) -> Alignment:
    """Find actions, rewards and cameras that are stored some rows late or early.

    For lags k from -5 to 5, compares how well the observation o[t] and the action a[t + k] predict
    o[t + 1] - o[t], on episodes that the model was not fitted on; rewards and cameras likewise. The model is
    ridge regression; a lag is claimed only if it predicts better than all others in 99 % of bootstrap samples
    of the episodes. Otherwise `lag` is None and `reason` says why. Random or exploring actions decide best,
    those of a deterministic policy rarely.

    ```python
    found = offline_data.align("local:mine")
    print(found.shifts)  # {"action": 1}: stored one row late; {}: no shift was found
    if found.steps:
        ds.preprocess(found.steps, name="aligned")
    ```

    Args:
        data: A dataset id, the path of a dataset directory, or a loaded dataset; for a view, the dataset
            it was made from.
        pairs: Pairs of numeric features of the observation whose changes are compared; "state/a" names a
            nested one. A positive lag means that the second is late.
        rows: Rows to read, of episodes in random order; at least 1. Of cameras at most 5,000.
        seed: Seed of the order, and of the bootstrap.

    Returns:
        The lag of each feature with its errors, `shifts` by name, and the `steps` of `preprocess` that shift
        them back.

    Raises:
        NotFoundError, InvalidIdError: No such dataset on this disk, or no such feature.
        IntegrityError, AccessError: As for `stats`.
        UsageError: `rows` below 1.
    """
    from offline_data.analysis.alignment.find import align_dataset
    from offline_data.store.reader import open_reader

    if rows < 1:
        raise UsageError(f"rows={rows}: expected at least 1")
    path = entry_of(data, settings_of(root, settings)).path
    return align_dataset(open_reader(path), pairs=pairs, most_rows=rows, seed=seed)
