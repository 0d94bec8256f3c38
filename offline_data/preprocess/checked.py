"""Small files of arrays and a JSON value that are read back as they were written, or not at all.

```
sha256 of all that follows, hexadecimal
{"about": …, "keys": [[…], …]}
an npz file of the arrays, in the order of their keys
```
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.disk import sync_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.episodes import Key


def write_checked(
    path: Path, about: Mapping[str, Any], arrays: Mapping[Key, NDArray[Any]], *, durable: bool
) -> None:
    """Give `path` this content, whole or not at all.

    Args:
        path: The file; folders above it are made.
        about: JSON values.
        arrays: No objects among them.
        durable: Whether it is to be there also if the machine stops afterwards.
    """
    body = io.BytesIO()
    np.savez(body, *arrays.values())
    head = json.dumps({"about": about, "keys": [list(key) for key in arrays]})
    rest = head.encode() + b"\n" + body.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    beside.replace(path)
    if durable:
        sync_folder(path.parent)


def read_checked(path: Path) -> tuple[dict[str, Any], dict[Key, NDArray[Any]]] | None:
    """Read what `write_checked` wrote; None where it is not there, or is damaged."""
    try:
        digest, _, rest = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    if hashlib.sha256(rest).hexdigest().encode() != digest:
        return None
    text, _, body = rest.partition(b"\n")
    head = json.loads(text)
    with np.load(io.BytesIO(body), allow_pickle=False) as file:
        arrays = {tuple(key): file[f"arr_{i}"] for i, key in enumerate(head["keys"])}
    return head["about"], arrays
