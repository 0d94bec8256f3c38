"""Checkpoints: a state on disk as JSON and raw tensor bytes, read without executing anything."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase

from offline_data.buffers.gather.mmap import map_file
from offline_data.errors import IntegrityError, NotFoundError, UsageError
from offline_data.files import disk_errors
from offline_data.store.publish import publish

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "offline-data state"
VERSION = 1

_TREE, _BYTES = "state.json", "state.bin"
_ALIGN = 64
_DTYPES = {str(one): one for one in vars(torch).values() if isinstance(one, torch.dtype)}


class Saves(ABC):
    """Base class of objects whose `state_dict` can be saved to a folder without pickle."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state returned by `state_dict`."""

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict()` to a folder; raises like `save_tree`."""
        save_tree(self.state_dict(), Path(path))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Resume from a folder written by `dumps`; raises like `load_tree` and `load_state_dict`."""
        self.load_state_dict(owned(load_tree(Path(path))))

    def save(self, path: str | os.PathLike[str]) -> Any:
        """Write to a folder; alias of `dumps`."""
        self.dumps(path)

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Write to a folder; alias of `dumps`."""
        self.dumps(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read a folder; alias of `loads`."""
        self.loads(path)


def save_tree(tree: Any, folder: Path) -> None:
    """Write a tree to a folder atomically; replaces an earlier state.

    A tree consists of dicts (keys: strings, numbers, or tuples of them), lists, tuples, tensors,
    TensorDicts, numpy arrays (loaded as tensors), strings, numbers, bools and None.

    Raises:
        UsageError: A value of another type in the tree, or other files in the folder.
        NoSpaceError, AccessError: Disk errors.
    """
    folder = folder.expanduser().absolute()
    if folder.exists() and not (folder / _TREE).exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} has files that are not a saved state and would be replaced")
    beside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        with disk_errors(folder):
            beside.mkdir(parents=True)
            with (beside / _BYTES).open("wb") as data, (beside / _TREE).open("wb") as text:
                coded = _encode(tree, data)
                content = {"format": FORMAT, "version": VERSION, "tree": coded}
                text.write(json.dumps(content).encode())
                for file in (data, text):
                    file.flush()
                    os.fsync(file.fileno())
        publish(beside, folder, own=lambda _: [_TREE, _BYTES])
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def load_tree(folder: Path) -> Any:
    """Read a tree written by `save_tree`; tensors are copy-on-write maps of the file.

    Raises:
        NotFoundError: No state in the folder.
        IntegrityError: Unreadable, or written by a newer version of this package.
    """
    folder = folder.expanduser().absolute()
    if not (folder / _TREE).exists():
        raise NotFoundError(f"No saved state in {folder}: {_TREE} is missing")
    try:
        with disk_errors(folder):
            content = json.loads((folder / _TREE).read_text())
            size = (folder / _BYTES).stat().st_size
        if content["format"] != FORMAT or content["version"] > VERSION:
            raise IntegrityError(
                f"{folder} has a state of format {content['version']}; this version of offline-data "
                f"reads up to {VERSION}"
            )
        words = map_file(folder / _BYTES, size // 8, 8).words.view(torch.uint8).reshape(-1)
        return _decode(content["tree"], words)
    except (ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
        raise IntegrityError(
            f"{folder / _TREE} is not a saved state, or is damaged: {error!r}"
        ) from error


def owned(tree: Any) -> Any:
    """Return a tree with copied tensors that no longer map the file they were read from."""
    # For one, `Generator.set_state` crashes on tensors that start within another tensor's storage.
    if isinstance(tree, torch.Tensor | TensorDictBase):
        return tree.clone()
    if isinstance(tree, dict):
        return {key: owned(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(owned(item) for item in tree)
    return tree


def _encode(value: Any, file: BinaryIO) -> Any:
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
        start = file.tell()
        file.write(flat.view(torch.uint8).numpy().data)
        file.write(b"\0" * (-file.tell() % _ALIGN))
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
    if "tuple" in coded:
        return tuple(_decode(item, memory) for item in coded["tuple"])
    if "plain" in coded:
        return NonTensorData(_decode(coded["plain"], memory))
    if "dict" in coded:
        return {_decode(key, memory): _decode(item, memory) for key, item in coded["dict"]}
    if "tensordict" in coded:
        return TensorDict(_decode(coded["tensordict"], memory), coded["batch_size"])
    start, dtype, shape = coded["tensor"], _DTYPES[coded["dtype"]], coded["shape"]
    end = start + math.prod(shape) * dtype.itemsize
    if not 0 <= start <= end <= len(memory):
        raise IndexError(f"bytes {start} to {end} of {len(memory)}")
    return memory[start:end].view(dtype).reshape(shape)
