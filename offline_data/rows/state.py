"""Checkpoints: a state on disk as JSON and raw tensor bytes, read without executing anything."""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase
from torch import Tensor

from offline_data.base.errors import IntegrityError, NotFoundError, UsageError
from offline_data.base.files import disk_errors, read_head
from offline_data.base.json import check_depth, parse_json, read_whole
from offline_data.base.pickles import pickled_by_name
from offline_data.rows.fields import StateFields
from offline_data.rows.gather.mmap import map_file
from offline_data.store.publish import REPLACED, publish

FORMAT = "offline-data state"
VERSION = 2
_NO_DIGESTS = 1
"""The last version without digests."""

_TREE, _BYTES = "state.json", "state.bin"
_MAX_TREE = 1 << 30
_ALIGN = 64
_ZEROS = "0" * 64
_SEAL = slice(-66, -2)
"""Key of the digest of `state.json` in itself."""
_HINT = "resume from an earlier state"
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


@pickled_by_name
class Saves(ABC):
    """Base class of objects whose `state_dict` can be saved to a folder without pickle."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from."""

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a state returned by `state_dict`; changes nothing if `check_state` raises."""

    def check_state(self, state: Any) -> None:
        """Raise `IntegrityError` or `UsageError` unless `load_state_dict` takes a state."""
        StateFields(state, type(self).__name__)

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict()` to a folder; raises like `save_tree`."""
        save_tree(self.state_dict(), Path(path))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Resume from a folder written by `dumps`; raises like `load_tree` and `load_state_dict`."""
        self.load_state_dict(owned_state(load_tree(Path(path))))

    def save(self, path: str | os.PathLike[str]) -> Any:
        """Write to a folder; alias of `dumps`."""
        self.dumps(path)

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Write to a folder; alias of `dumps`."""
        self.dumps(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read a folder; alias of `loads`."""
        self.loads(path)


def check_part(part: Saves, state: Any, *options: Any) -> None:
    """Call `check_state`, unless a subclass has a `load_state_dict` of its own that knows more."""
    kinds = type(part).__mro__
    loads, checks = (
        next(kind for kind in kinds if name in vars(kind))
        for name in ("load_state_dict", "check_state")
    )
    if issubclass(checks, loads):
        part.check_state(state, *options)


def save_tree(tree: Any, folder: Path) -> None:
    """Write a tree to a folder atomically, with digests; replaces an earlier state.

    A tree consists of dicts (keys: strings, numbers, or tuples of them), lists, tuples, tensors,
    TensorDicts, numpy arrays (loaded as tensors), strings, numbers, bools and None.

    Raises:
        UsageError: A value of another type in the tree, one nested too deep, or other files in the
            folder.
        NoSpaceError, AccessError: Disk errors.
    """
    folder = folder.expanduser().absolute()
    draft = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        with disk_errors(folder):
            if folder.exists() and not (folder / _TREE).exists() and any(folder.iterdir()):
                raise UsageError(
                    f"{folder} has files that are not a saved state and would be replaced"
                )
            draft.mkdir(parents=True)
            with (draft / _BYTES).open("wb") as file:
                data = _Digesting(file)
                coded = _encode(tree, data)
                _to_disk(file)
            files = {_BYTES: {"size": data.size, "sha256": data.sha256.hexdigest()}}
            content = {"format": FORMAT, "version": VERSION, "files": files, "tree": coded}
            with (draft / _TREE).open("wb") as file:
                file.write(_seal_text(content))
                _to_disk(file)
        publish(draft, folder, own=lambda _: [_TREE, _BYTES])
        for earlier in _set_aside(folder):
            shutil.rmtree(earlier, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def load_tree(folder: Path) -> Any:
    """Read a tree written by `save_tree`; tensors are copy-on-write maps of the file.

    All bytes are compared with the digests first. A state of an earlier version, which has none, is
    read with a warning.

    Raises:
        NotFoundError: No state in the folder.
        IntegrityError: Damaged, not a state, or written by a newer version of this package.
        AccessError: A file cannot be read.
    """
    folder = folder.expanduser().absolute()
    if not folder.exists():  # a `save_tree` that was killed between its two renames
        folder = next(iter(_set_aside(folder)), folder)
    try:
        data = read_whole(folder / _TREE, _MAX_TREE)
    except NotFoundError as error:
        raise NotFoundError(f"No saved state in {folder}: {_TREE} is missing") from error
    try:
        content = StateFields(parse_json(data, _TREE), _TREE)
        content.check("format", content.get("format") == FORMAT, repr(FORMAT))
        newest = f"up to {VERSION}, which this version of offline-data reads"
        content.check("version", content.integer("version") <= VERSION, newest)
        return _decode(content.get("tree"), _bytes_of(folder / _BYTES, _read_seal(content, data)))
    except (IntegrityError, NotFoundError) as error:
        raise IntegrityError(
            f"{folder} is not a saved state, or is damaged: {error.message}", hint=_HINT
        ) from error
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:
        # What torch and tensordict say of shapes that cannot be.
        raise IntegrityError(
            f"{folder} is not a saved state, or is damaged: {error!r:.200}", hint=_HINT
        ) from error


def _set_aside(folder: Path) -> list[Path]:
    """Return states of this folder that `publish` moved aside and, killed, did not delete."""
    if not folder.parent.is_dir():
        return []
    with disk_errors(folder.parent):
        others = list(folder.parent.iterdir())
    prefix = f".{folder.name}."
    return [old for old in others if old.name.startswith(prefix) and old.name.endswith(REPLACED)]


class _Digesting:
    """A file to write to whose digest is computed meanwhile."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.size, self.sha256 = file, 0, hashlib.sha256()

    def write(self, data: Any) -> None:
        """Write bytes or a buffer of bytes."""
        self.size += self._file.write(data)
        self.sha256.update(data)


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _seal_text(content: dict[str, Any]) -> bytes:
    """Return the text of `state.json`; its last field is the digest of it, with zeros instead."""
    try:
        check_depth(content)
        data = json.dumps({**content, "sha256": _ZEROS}, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The state cannot be saved: {error}") from error
    if len(data) > _MAX_TREE:
        raise UsageError(
            f"The state has more than {_MAX_TREE:,} bytes besides its tensors",
            hint="a LazyTensorStorage keeps rows as tensors, a ListStorage as objects",
        )
    return data[: _SEAL.start] + hashlib.sha256(data).hexdigest().encode() + data[_SEAL.stop :]


def _read_seal(content: StateFields, data: bytes) -> tuple[int, str] | None:
    """Return the size and digest of the bytes; None: of a version that wrote none.

    Raises `IntegrityError` unless the text has its own digest.
    """
    if content.integer("version") == _NO_DIGESTS:
        return None
    text = data[: _SEAL.start] + _ZEROS.encode() + data[_SEAL.stop :]
    if hashlib.sha256(text).hexdigest().encode() != data[_SEAL]:
        raise IntegrityError(f"{_TREE} was changed since it was written: its digest is another")
    file = StateFields(StateFields(content.get("files"), "files").get(_BYTES), _BYTES)
    return file.integer("size"), str(file.get("sha256"))


def _bytes_of(path: Path, stated: tuple[int, str] | None) -> Tensor:
    """Map the tensors' bytes, compared with their stated size and digest."""
    read_head(path, 0)  # raises unless it is a plain file
    size = path.stat().st_size
    words = map_file(path, size // _ALIGN, _ALIGN).words.view(torch.uint8).reshape(-1)
    if stated is None:
        warnings.warn(
            f"{path.parent} was saved by a version that wrote no digests, so that damage to it may "
            "not be noticed; dumps(…) writes them",
            stacklevel=4,
        )
        return words
    if size != stated[0] or len(words) != size:
        raise IntegrityError(f"{path.name} has {size} bytes; expected {stated[0]}")
    if hashlib.sha256(words.numpy().data).hexdigest() != stated[1]:
        raise IntegrityError(f"{path.name} was changed since it was written: its digest is another")
    return words


def copy_mapped(tree: Any) -> Any:
    """Return a tree with copied tensors that no longer map the file they were read from."""
    # For one, `Generator.set_state` crashes on tensors that start within another tensor's storage.
    if isinstance(tree, torch.Tensor | TensorDictBase):
        return tree.clone()
    if isinstance(tree, dict):
        return {key: copy_mapped(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(copy_mapped(item) for item in tree)
    return tree


def owned_state(state: Any) -> Any:
    """Return `owned(state)` except the rows of storages, which loading copies."""
    if not isinstance(state, dict):
        return state  # damaged, as loading says
    kept = ("storage", "members")
    found = {key: item if key in kept else copy_mapped(item) for key, item in state.items()}
    if isinstance(members := state.get("members"), list):
        found["members"] = [*map(owned_state, members)]
    return found


def _encode(value: Any, file: _Digesting) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_encode(item, file) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(item, file) for item in value]}
    if isinstance(value, dict):
        pairs = value.items()
        return {"dict": [[_encode(key, file), _encode(item, file)] for key, item in pairs]}
    if isinstance(value, NonTensorData):
        return {"plain": _encode(value.data, file)}
    if isinstance(value, TensorDictBase):
        content = dict(value.items())
        return {"tensordict": _encode(content, file), "batch_size": list(value.batch_size)}
    if isinstance(value, np.ndarray | np.generic):
        value = torch.as_tensor(value)
    if isinstance(value, torch.Tensor):
        flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        start = file.size
        file.write(flat.view(torch.uint8).numpy().data)
        file.write(b"\0" * (-file.size % _ALIGN))
        return {"tensor": start, "dtype": str(value.dtype), "shape": list(value.shape)}
    raise UsageError(
        f"A {type(value).__name__} cannot be saved without pickle, which would run code when loaded",
        hint="keep tensors, TensorDicts, text and numbers, and tuples, lists and dicts of them",
    )


def _decode(coded: Any, memory: Tensor) -> Any:
    if isinstance(coded, list):
        return [_decode(item, memory) for item in coded]
    if not isinstance(coded, dict):
        return coded
    fields = StateFields(coded, _TREE)
    if "tuple" in coded:
        return tuple(_decode(fields.items("tuple"), memory))
    if "plain" in coded:
        return NonTensorData(_decode(coded["plain"], memory))
    if "dict" in coded:
        pairs = _decode(fields.items("dict"), memory)
        by_key = {_key(key): item for key, item in pairs}
        fields.check("dict", len(by_key) == len(pairs), "a key once")
        return by_key
    if "tensordict" in coded:
        content = _decode(coded["tensordict"], memory)
        return TensorDict(content, fields.integers("batch_size"))
    shape, name = fields.integers("shape"), fields.get("dtype")
    fields.check("dtype", isinstance(name, str) and name in _DTYPES, "a dtype of torch")
    dtype = _DTYPES[name]
    size = math.prod(shape) * dtype.itemsize
    start = fields.integer("tensor", len(memory) - size)
    fields.check("tensor", start % _ALIGN == 0, f"a multiple of {_ALIGN}")
    found = memory[start : start + size]
    if dtype is torch.bool and size and int(found.max()) > 1:
        raise fields.wrong("tensor", "bytes of bools, 0 or 1")
    return found.view(dtype).reshape(shape)


def _key(key: Any) -> Any:
    """Return a key of a dict; raises `TypeError` for what `save_tree` takes for none."""
    for part in key if isinstance(key, tuple) else ():
        _key(part)
    if not (key is None or isinstance(key, bool | int | float | str | tuple)):
        raise TypeError(f"{type(key).__name__} is not a key")
    return key
