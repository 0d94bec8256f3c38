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
import stat
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase
from torch import Tensor

from offline_data.base.errors import IntegrityError, NotFoundError, UsageError
from offline_data.base.plurals import plural
from offline_data.raw.tensordict_memmap import (
    BUFFER_METADATA,
    PICKLE,
    MappedDict,
    MappedTensor,
    PlainValues,
    check_plain,
    describe_tensor,
    read_fields,
    read_tensordict,
)
from offline_data.rows import fields
from offline_data.rows.fields import GLOBAL, OWN
from offline_data.rows.gather.mmap import map_file
from offline_data.rows.keys import as_key
from offline_data.rows.samplers import PrioritizedSampler, SamplerWithoutReplacement
from offline_data.torchrl.storages import LazyTensorStorage, TensorStorage
from offline_data.torchrl.writers import RoundRobinWriter, TensorDictMaxValueWriter

_SINGLE = "_-single-tensor-_"
_NEVER = -1.0
_FILES: dict[str, dict[str, fields.StateField]] = {
    BUFFER_METADATA: {"batch_size": fields.ANY},
    "storage_metadata.json": {"len": fields.COUNT, "is_pytree": fields.FLAG},
    "metadata.json": {},  # a writer checks its state
    "sampler_metadata.json": {
        **dict.fromkeys(("_alpha", "_beta", "_eps", "_max_capacity"), fields.NUMBER),
        "_schema_version": fields.optional(fields.integer(high=1)),
        "_max_priority": fields.LIST,
    },
}
_HINT = (
    "TorchRL's own loads reads it, and buffer.extend(theirs[:]) writes its rows here: LazyTensorStorage "
    "and LazyMemmapStorage of TensorDicts or tensors, without transforms, can be read"
)


def read_torchrl_dump(folder: Path, buffer: Any) -> dict[str, Any]:
    """Return the state for `buffer.load_state_dict` in a folder that TorchRL's `dumps` wrote.

    Tensors map the files; for what is read see `ReplayBuffer.loads`. Raises `IntegrityError` for
    damage, a pickle or an unknown kind, and `UsageError` for a buffer with other kinds of parts.
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
    metadata = _read(folder / BUFFER_METADATA)
    if metadata.get("consume_after_n_samples") is not None:
        raise IntegrityError("consume_after_n_samples: rows that are consumed are not supported")
    if os.path.lexists(folder / "transform.t"):
        raise IntegrityError("transform.t, the state of its transforms, is a pickle")
    state = {**buffer.state_dict(), "draws": [], "ended": False}
    rows, width = _rows(folder / "storage", buffer.storage)
    state["writer"] = _writer(folder / "writer", buffer.writer, rows, width)
    state["storage"] = _storage(rows, buffer.storage.ndim, state["writer"].get("cursor"))
    state["sampler"] = _sampler(folder, buffer.sampler, len(rows) * width)
    if metadata["batch_size"] is not None:
        state["batch_size"] = metadata["batch_size"]
    return state


def _rows(folder: Path, storage: Any) -> tuple[Any, int]:
    """Return the rows, `[steps, …]`, and their number in a step."""
    if not isinstance(storage, TensorStorage):
        raise UsageError(
            f"TorchRL's rows are tensors, and this buffer has a {type(storage).__name__}; expected a "
            "LazyTensorStorage or a LazyMemmapStorage"
        )
    metadata = _read(folder / "storage_metadata.json")
    rows: Any
    count = metadata["len"]
    if metadata["is_pytree"]:
        if {*metadata["metadata"]} != {_SINGLE}:
            raise IntegrityError("its rows are a dict or tuple; expected one tensor")
        leaf = metadata["metadata"][_SINGLE]
        rows = _map_tensor(describe_tensor(folder / f"{_SINGLE}.memmap", leaf))
    else:
        rows = storage.after_load_hooks(_collection(folder))
    width = math.prod(rows.shape[1 : storage.ndim])
    if not (width and count % width == 0 and count <= rows.shape[: storage.ndim].numel()):
        raise IntegrityError(f"{count} rows are not whole steps of {width} in {list(rows.shape)}")
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
    best = "rank_key" in metadata
    kind: Any = TensorDictMaxValueWriter if best else RoundRobinWriter
    if not isinstance(writer, kind):
        raise _other(folder, f"a {kind.__name__}", writer)
    known = metadata.get("write_count")
    count = len(rows) if known is None else known
    if not best:  # TorchRL counts steps
        return {"write_count": count * width, "cursor": metadata["cursor"]}
    key = metadata["rank_key"]
    if as_key(tuple(key) if isinstance(key, list) else key) != writer.rank_key:
        raise UsageError(f"{folder} ranks rows by {key}; this buffer by {writer.rank_key}")
    said = {name: metadata[name] for name in ("shape", "dtype")}
    ranks = _map_tensor(describe_tensor(folder / "current_top_values.memmap", said)).reshape(-1, 2)
    return {"write_count": count, "ranks": ranks[:, 0].double(), "rows": ranks[:, 1].long()}


def _sampler(folder: Path, sampler: Any, count: int) -> dict[str, Any]:
    own: dict[str, Any] = sampler.state_dict()
    place = folder / "sampler"
    found = set()
    if os.path.lexists(place):
        found = {file.name for file in check_plain(place, stat.S_ISDIR).iterdir()}
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
    alpha, beta, eps, size = (
        metadata[name] for name in ("_alpha", "_beta", "_eps", "_max_capacity")
    )
    if size < count or size % 1:
        raise IntegrityError(f"_max_capacity is {size}; expected {plural(count, 'row')} or more")
    tree = {"shape": [int(size)], "dtype": "torch.float64"}
    weights = _map_tensor(describe_tensor(folder / "sumtree.memmap", tree))[:count]
    if not (weights >= 0).all():
        raise IntegrityError("its weights are not numbers from 0 on")
    highest = metadata["_max_priority"][0]
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
        # Earlier, it was a weight in some cases.
        "highest": highest if "_schema_version" in metadata else None,
    }


def _other(folder: Path, found: str, own: Any) -> UsageError:
    return UsageError(
        f"{folder} is of {found}; this buffer has a {type(own).__name__}",
        hint="make the buffer as the saved one was",
    )


def _collection(folder: Path) -> Any:
    return _values_of(read_tensordict(folder))


def _values_of(found: MappedDict | MappedTensor | PlainValues) -> Any:
    if isinstance(found, MappedTensor):
        return _map_tensor(found)
    if isinstance(found, MappedDict):
        content = {key: _values_of(part) for key, part in found.content.items()}
        return TensorDict(content, found.shape)
    if found.data == PICKLE:
        raise IntegrityError("values that are not tensors were pickled")
    return NonTensorStack.from_list(found.data) if found.stacked else NonTensorData(found.data)


def _map_tensor(found: MappedTensor) -> Tensor:
    dtype = getattr(torch, found.dtype)
    if not found.nbytes:
        return torch.empty(found.shape, dtype=dtype)
    data = map_file(found.path, found.nbytes, 1).words.reshape(-1)
    if dtype is torch.bool and int(data.max()) > 1:
        raise IntegrityError(f"{found.path} is not of bools, which are 0 or 1")
    return data.view(dtype).reshape(found.shape)


def _read(path: Path) -> Mapping[str, Any]:
    return fields.check(read_fields(path), str(path), _FILES[path.name])
