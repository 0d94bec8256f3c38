"""Buffers that TorchRL's `ReplayBuffer.dumps` wrote, read without executing anything.

```
buffer_metadata.json    batch size
storage/                storage_metadata.json, and a memory-mapped TensorDict or one tensor
sampler/                nothing, or priorities, or what is left of an epoch
writer/metadata.json    cursor, or the ranks of the best rows
rng_state/              state of the buffer's generator
prefetch.pkl            batches drawn ahead: never read
```
"""

from __future__ import annotations

import math
import os
import re
import stat
import warnings
from pathlib import Path
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase
from torch import Tensor

from offline_data.buffers.fields import StateFields
from offline_data.buffers.gather.mmap import map_file
from offline_data.buffers.keys import as_key
from offline_data.buffers.samplers import PrioritizedSampler, SamplerWithoutReplacement
from offline_data.buffers.samplers.base import GLOBAL, OWN
from offline_data.buffers.storage import LazyTensorStorage, TensorStorage
from offline_data.buffers.writers import RoundRobinWriter, TensorDictMaxValueWriter
from offline_data.errors import IntegrityError, NotFoundError, UsageError
from offline_data.plurals import plural
from offline_data.strict_json import MAX_DEPTH, read_json

_METADATA = "buffer_metadata.json"
_SINGLE = "_-single-tensor-_"
_MAX_JSON = 1 << 26  # texts of rows are in it
_TENSORDICT = "<class 'tensordict._td.TensorDict'>"
_TEXTS = "<class 'tensordict.tensorclass.NonTensorStack'>"
_PLAIN = "<class 'tensordict.tensorclass.NonTensorData'>"
_NEVER = -1.0
_HINT = (
    "TorchRL's own loads reads it, and buffer.extend(theirs[:]) writes its rows here: LazyTensorStorage "
    "and LazyMemmapStorage of TensorDicts or tensors, without transforms, can be read"
)
_DTYPES = {
    f"torch.{name}": getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
}


def is_torchrl_dump(folder: Path) -> bool:
    """Return True if TorchRL's `dumps` wrote a folder, as its names say."""
    return os.path.lexists(folder / _METADATA) and not os.path.lexists(folder / "state.json")


def read_torchrl_dump(folder: Path, buffer: Any) -> dict[str, Any]:
    """Return the state for `buffer.load_state_dict` in a folder that TorchRL's `dumps` wrote.

    Tensors map the files. A ring continues at its cursor, and priorities are those of TorchRL. What is
    left of an epoch without replacement is not: a new one begins, with a warning.

    Raises:
        IntegrityError: Damaged, a pickle, or of a kind that is not read.
        UsageError: The buffer has another kind of storage, sampler or writer.
    """
    try:
        state = _state(folder, buffer)
        buffer.check_state(state)
    except UsageError:
        raise
    except (IntegrityError, NotFoundError) as error:
        raise _refusal(folder, error.message) from error
    except (
        *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError),
    ) as error:
        # What torch and tensordict say of shapes that cannot be.
        raise _refusal(folder, repr(error)) from error
    return state


def _refusal(folder: Path, reason: str) -> IntegrityError:
    return IntegrityError(
        f"{folder} was written by TorchRL, and cannot be read: {reason:.400}", hint=_HINT
    )


def _state(folder: Path, buffer: Any) -> dict[str, Any]:
    metadata = _read(folder / _METADATA)
    if metadata.has("consume_after_n_samples"):
        never = metadata.get("consume_after_n_samples") is None
        metadata.check("consume_after_n_samples", never, "null: rows are not consumed")
    if os.path.lexists(folder / "transform.t"):
        raise IntegrityError("transform.t, the state of its transforms, is a pickle")
    state = {**buffer.state_dict(), "draws": [], "ended": False}
    rows, width = _rows(folder / "storage", buffer.storage)
    state["writer"] = _writer(folder / "writer", buffer.writer, rows, width)
    state["storage"] = _storage(rows, buffer.storage.ndim, state["writer"].get("cursor"))
    state["sampler"] = _sampler(folder, buffer.sampler, len(rows) * width)
    if metadata.get("batch_size") is not None:
        state["batch_size"] = metadata.get("batch_size")
    return state


def _rows(folder: Path, storage: Any) -> tuple[Any, int]:
    """Return the rows, `[steps, …]`, and their number in a step."""
    if not isinstance(storage, TensorStorage):
        raise UsageError(
            f"TorchRL's rows are tensors, and this buffer has a {type(storage).__name__}; expected a "
            "LazyTensorStorage or a LazyMemmapStorage"
        )
    metadata = _read(folder / "storage_metadata.json")
    count = metadata.integer("len")
    rows: Any
    if metadata.flag("is_pytree"):
        leaves = metadata.mapping("metadata")
        metadata.check("metadata", leaves.keys() == {_SINGLE}, "one tensor, no dict or tuple")
        rows = _tensor(folder / f"{_SINGLE}.memmap", StateFields(leaves[_SINGLE], _SINGLE))
    else:
        rows = storage.after_load_hooks(_collection(folder))
    width = math.prod(rows.shape[1 : storage.ndim])
    fits = width and count % width == 0 and count <= rows.shape[: storage.ndim].numel()
    metadata.check("len", fits, f"whole steps of {width} within rows {list(rows.shape)}")
    if count > -(-storage.max_size // width) * width:
        raise UsageError(
            f"{folder} has {plural(count, 'row')}; this storage has space for {storage.max_size}"
        )
    rows = rows[: count // width]
    index = rows.get("index", None) if isinstance(rows, TensorDictBase) else None
    if count and isinstance(index, torch.Tensor):  # a TensorDict writer of TorchRL stores it
        steps = index.reshape(len(index), -1)[:, 0]
        rows = rows.exclude("index") if steps.equal(torch.arange(len(index))) else rows
    return rows, width


def _storage(rows: Any, ndim: int, cursor: int | None) -> dict[str, Any]:
    """Return the state of a storage; None: rows are not in order of time."""
    if not len(rows):
        return LazyTensorStorage(1, ndim=ndim).state_dict()
    state = TensorStorage(rows, ndim=ndim).state_dict()
    links = state["links"]
    if cursor is None:
        links["after"][:], links["last"] = False, -1
    elif 0 < cursor < len(rows):  # of a ring: its oldest step
        links["after"][0], links["after"][cursor] = links["place"] is None, False
        links["last"] = cursor - 1
    links["place"] = None
    return state


def _writer(folder: Path, writer: Any, rows: Any, width: int) -> dict[str, Any]:
    metadata = _read(folder / "metadata.json")
    best = metadata.has("rank_key")
    kind: Any = TensorDictMaxValueWriter if best else RoundRobinWriter
    if not isinstance(writer, kind):
        raise _other(folder, f"a {kind.__name__}", writer)
    known = metadata.has("write_count") and metadata.get("write_count") is not None
    count = metadata.integer("write_count") if known else len(rows)
    if not best:  # TorchRL counts steps
        return {"write_count": count * width, "cursor": metadata.integer("cursor")}
    key = metadata.get("rank_key")
    if as_key(tuple(key) if isinstance(key, list) else key) != writer.rank_key:
        raise UsageError(f"{folder} ranks rows by {key}; this buffer by {writer.rank_key}")
    ranks = _tensor(folder / "current_top_values.memmap", metadata).reshape(-1, 2)
    return {"write_count": count, "ranks": ranks[:, 0].double(), "rows": ranks[:, 1].long()}


def _sampler(folder: Path, sampler: Any, count: int) -> dict[str, Any]:
    own: dict[str, Any] = sampler.state_dict()
    place = folder / "sampler"
    found = set()
    if os.path.lexists(place):
        found = {file.name for file in _check_plain(place, stat.S_ISDIR).iterdir()}
    if isinstance(sampler, SamplerWithoutReplacement):
        if "_ran_out.memmap" not in found:
            raise _other(place, "a sampler with replacement", sampler)
        return {**own, **_epoch(place, sampler)}
    if os.path.lexists(folder / "rng_state"):
        own.pop(GLOBAL, None)
        own[OWN] = _collection(folder / "rng_state").get("rng_state")
    if isinstance(sampler, PrioritizedSampler):
        if "sampler_metadata.json" not in found:
            raise _other(place, "a sampler without priorities", sampler)
        return {**own, **_priorities(place, sampler, count)}
    if found:
        raise _other(place, "a sampler with a state, such as priorities", sampler)
    return own


def _epoch(folder: Path, sampler: SamplerWithoutReplacement) -> dict[str, Any]:
    left = _collection(folder)
    drop_last, rows = bool(left.get("drop_last")), left.get("_sample_list", None)
    if drop_last != sampler.drop_last:
        raise UsageError(f"{folder} has drop_last={drop_last}; this sampler {sampler.drop_last}")
    if isinstance(rows, torch.Tensor) and len(rows) != int(left.get("len_storage")):
        warnings.warn(
            f"{folder} was saved within an epoch, with {len(rows)} of {int(left.get('len_storage'))} "
            "left to draw: a new epoch begins, since this sampler's order is its own",
            stacklevel=6,
        )
    return {"position": 0}


def _priorities(folder: Path, sampler: PrioritizedSampler, count: int) -> dict[str, Any]:
    """Return priorities from TorchRL's weights, `(priority + eps) ** alpha`."""
    metadata = _read(folder / "sampler_metadata.json")
    versioned = metadata.has("_schema_version") and metadata.integer("_schema_version", 1)
    alpha, beta, eps, size = (
        metadata.number(name) for name in ("_alpha", "_beta", "_eps", "_max_capacity")
    )
    metadata.check("_max_capacity", size >= count and size % 1 == 0, f"{count} rows or more")
    highest = StateFields({"it": metadata.items("_max_priority", 2)[0]}, "_max_priority").number(
        "it"
    )
    tree = StateFields({"shape": [int(size)], "dtype": "torch.float64"}, "sumtree.memmap")
    weights = _tensor(folder / "sumtree.memmap", tree)[:count]
    metadata.check("_alpha", (weights >= 0).all(), "that of weights, which are numbers from 0 on")
    known = weights.pow(1 / alpha).sub(eps).clamp(min=0) if alpha else weights * 0 + highest
    capacity = max(count, sampler.max_capacity)
    priorities = torch.full((capacity,), _NEVER, dtype=sampler.dtype)
    priorities[:count] = torch.where(weights > 0, known, _NEVER)
    none = torch.zeros(capacity, dtype=torch.bool)  # sampling finds out which rows can be drawn
    return {
        "alpha": alpha,
        "beta": beta,
        "eps": eps,
        "priorities": priorities,
        "weights": none.to(sampler.dtype),
        "allowed": none,
        "highest": highest if versioned else None,  # earlier, it was a weight in some cases
    }


def _other(folder: Path, found: str, own: Any) -> UsageError:
    return UsageError(
        f"{folder} is of {found}; this buffer has a {type(own).__name__}",
        hint="make the buffer as the saved one was",
    )


def _collection(folder: Path, depth: int = 0) -> Any:
    """Read a memory-mapped TensorDict, or what a folder within one has."""
    if depth > MAX_DEPTH:
        raise IntegrityError(f"{folder} is nested deeper than {MAX_DEPTH}")
    _check_plain(folder, stat.S_ISDIR)
    metadata = _read(folder / "meta.json")
    kind = str(metadata.get("_type"))
    if kind in {_TEXTS, _PLAIN}:
        data = metadata.get("data")
        metadata.check("data", data != "pickle.pkl", "values, not a pickle")
        if kind == _PLAIN:
            return NonTensorData(data)
        return NonTensorStack.from_list(metadata.items("data"))
    metadata.check("_type", kind == _TENSORDICT, "a TensorDict, or text")
    content = {}
    for key, entry in metadata.mappings():
        below = folder / _file_name(key)
        if "type" in entry:
            content[key] = _collection(below, depth + 1)
        else:
            below = below.with_name(f"{below.name}.memmap")
            content[key] = _tensor(below, StateFields(entry, below.name))
    return TensorDict(content, metadata.integers("shape"))


def _file_name(key: str) -> str:
    """Return the name of a leaf's file as tensordict writes it: without separators."""
    if key in {"", ".", ".."}:
        return "%2E" * len(key) or "%"
    return re.sub(r'[\x00-\x1f\x7f/<>:"|?*\\ %]', lambda found: f"%{ord(found[0]):02X}", key)


def _tensor(path: Path, fields: StateFields) -> Tensor:
    """Map a file of a tensor, whose `shape` and `dtype` are checked first."""
    name, shape = fields.get("dtype"), fields.integers("shape")
    fields.check("dtype", isinstance(name, str) and name in _DTYPES, "a dtype of numbers")
    nested = fields.has("is_nested") and fields.get("is_nested") is not False
    fields.check("is_nested", not nested, "false: no nested tensor")
    dtype = _DTYPES[name]
    size = math.prod(shape) * dtype.itemsize
    if not size:  # no file is written
        return torch.empty(shape, dtype=dtype)
    found = _check_plain(path, stat.S_ISREG).stat().st_size
    if found < size:
        raise IntegrityError(f"{path} has {found} bytes; expected {size} for {list(shape)}")
    data = map_file(path, size, 1).words.reshape(-1)
    if dtype is torch.bool and int(data.max()) > 1:
        raise IntegrityError(f"{path} is not of bools, which are 0 or 1")
    return data.view(dtype).reshape(shape)


def _read(path: Path) -> StateFields:
    return StateFields(read_json(_check_plain(path, stat.S_ISREG), max_bytes=_MAX_JSON), str(path))


def _check_plain(path: Path, kind: Any) -> Path:
    """Return a path that is a plain file or folder itself, no link."""
    what = "folder" if kind is stat.S_ISDIR else "file"
    try:
        if kind(path.lstat().st_mode):
            return path
    except OSError as error:
        raise IntegrityError(f"the {what} {path} cannot be read: {error.strerror}") from error
    raise IntegrityError(f"{path} is not a plain {what}; links are not followed")
