"""Checkpoints: a state on disk as JSON and raw tensor bytes, read without executing anything."""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
import warnings
from abc import ABC
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase
from torch import Tensor

from offline_data.base.errors import IntegrityError, NotFoundError, UsageError
from offline_data.base.files import disk_errors, read_head
from offline_data.base.json import check_depth, parse_json, read_whole
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.rows import fields
from offline_data.rows.fields import Rule, StateField, wrong
from offline_data.rows.gather.mmap import map_file
from offline_data.store.publish import REPLACED, publish
from offline_data.store.writer import HashedFile

FORMAT = "offline-data state"
VERSION = 3
_NO_DIGESTS = 1  # the last version without digests

_TREE, _BYTES = "state.json", "state.bin"
_MAX_TREE = 1 << 30
_ALIGN = 64
_ZEROS = "0" * 64
_SEAL = slice(-66, -2)  # key of the digest of `state.json` in itself
_HINT = "resume from an earlier state"
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_COPIED = 1 << 20  # bytes up to which a tensor is copied from the file, not mapped

_CONTENT = {
    "format": StateField(repr(FORMAT), lambda name: name == FORMAT),
    "version": StateField(
        f"up to {VERSION}, which this version of offline-data reads",
        fields.integer(high=VERSION).holds,
    ),
    "tree": fields.ANY,
}
_NODES: dict[str, dict[str, StateField]] = {
    "tuple": {"tuple": fields.LIST},
    "plain": {},
    "dict": {"dict": fields.LIST},
    "tensordict": {"batch_size": fields.each(fields.COUNT)},
    "tensor": {
        "shape": fields.each(fields.COUNT),
        "dtype": StateField(
            "a dtype of torch", lambda name: isinstance(name, str) and name in _DTYPES
        ),
    },
}


@pickled_by_name
class Saves(ABC):  # noqa: B024 - subclasses have abstract methods
    """Base class of objects whose `state_dict` can be saved to a folder without pickle.

    A class lists the fields of its state once, in `STATE`, or has a `state_dict` and a
    `load_state_dict` of its own, which then checks what it loads.
    """

    STATE: ClassVar[Mapping[str, StateField]] = {}
    """The fields of a state, in the order in which they are checked and loaded."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from."""
        saved = {name: field for name, field in self.STATE.items() if field.attribute is not None}
        found = {name: field.get(self, name) for name, field in saved.items()}
        return {n: v for n, v in found.items() if not (v is None and saved[n].optional)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a state of `state_dict`; everything is checked before anything changes.

        Raises `IntegrityError` for a damaged state, and `UsageError` for one of another object, or
        of other options.
        """
        self.check_state(state_dict)
        self._set_state(state_dict)

    def check_state(self, state: Any, above: Any = None) -> None:
        """Raise like `load_state_dict`; `above` is the state that this one is a part of, if any."""
        fields.check(state, type(self).__name__, self.STATE, self._rules(state, above), self)

    def _rules(self, state: Any, above: Any) -> Iterator[Rule]:  # noqa: ARG002
        """Yield what holds between fields, once each is right; may raise `UsageError`."""
        yield from ()

    def _set_state(self, state: dict[str, Any]) -> None:
        """Load a state that was checked."""
        for name, field in self.STATE.items():
            if name in state and field.attribute is not None:
                field.put(self, name, state)

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict()` to a folder; raises like `save_tree`."""
        save_tree(self.state_dict(), Path(path))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Resume from a folder written by `dumps`; raises like `load_tree` and `load_state_dict`."""
        self.load_state_dict(load_tree(Path(path)))

    def save(self, path: str | os.PathLike[str]) -> Any:
        """Write to a folder; alias of `dumps`."""
        self.dumps(path)

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Write to a folder; alias of `dumps`."""
        self.dumps(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read a folder; alias of `loads`."""
        self.loads(path)


def part_state(part: Any) -> Any:
    """Return the state of an object, or of a list of them; the storage of a dataset has none."""
    if isinstance(part, list | tuple):
        return [*map(part_state, part)]
    return part.state_dict() if isinstance(part, Saves) else {}


def check_part(part: Any, state: Any, above: Any = None) -> None:
    """Check a state of `part_state`, unless a class loads states in its own way."""
    for one, its_own in _with_states(part, state):
        if type(one).load_state_dict is Saves.load_state_dict:
            one.check_state(its_own, above)


def load_part(part: Any, state: Any) -> None:
    """Load a state of `part_state`."""
    for one, its_own in _with_states(part, state):
        one.load_state_dict(its_own)


def _with_states(part: Any, state: Any) -> list[tuple[Saves, Any]]:
    if not isinstance(part, list | tuple):
        return [(part, state)] if isinstance(part, Saves) else []
    if not isinstance(state, list | tuple):
        raise IntegrityError("The state is damaged: members is not a list of states")
    if len(state) != len(part):
        found = plural(len(state), "member")
        raise UsageError(f"The state has {found}; this mixture has {len(part)}")
    return [pair for pairs in map(_with_states, part, state) for pair in pairs]


class _Part(StateField):
    def get(self, own: Any, name: str) -> Any:
        return part_state(super().get(own, name))

    def check(self, own: Any, name: str, state: Any, where: str) -> None:  # noqa: ARG002
        check_part(super().get(own, name), state[name], state)

    def put(self, own: Any, name: str, state: Any) -> None:
        load_part(super().get(own, name), state[name])


PART = _Part("a state", lambda _: True)
"""The state of an object that is an attribute, or of a list of them."""


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
            data, text = HashedFile(draft / _BYTES), HashedFile(draft / _TREE)
            with data.handle, text.handle:
                coded = _encode(tree, data)
                files = {_BYTES: data.digest}
                content = {"format": FORMAT, "version": VERSION, "files": files, "tree": coded}
                text.append(memoryview(_seal_text(content)))
                data.sync()
                text.sync()
        publish(draft, folder, own=lambda _: [_TREE, _BYTES])
        for earlier in _set_aside(folder):
            shutil.rmtree(earlier, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def load_tree(folder: Path) -> Any:
    """Read a tree written by `save_tree`; large tensors are copy-on-write maps of the file.

    All bytes are compared with the digests; an earlier state without them is read with a warning.

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
        content = fields.check(parse_json(data, _TREE), _TREE, _CONTENT)
        return _decode(content["tree"], _bytes_of(folder / _BYTES, _read_seal(content, data)))
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


def _read_seal(content: Mapping[str, Any], data: bytes) -> tuple[int, str] | None:
    """Return size and digest of the bytes, None: of an earlier version; checks the text's own."""
    if content["version"] == _NO_DIGESTS:
        return None
    text = data[: _SEAL.start] + _ZEROS.encode() + data[_SEAL.stop :]
    if hashlib.sha256(text).hexdigest().encode() != data[_SEAL]:
        raise IntegrityError(f"{_TREE} was changed since it was written: its digest is another")
    files = fields.check(content.get("files"), "files", {_BYTES: fields.TABLE})
    file = fields.check(files[_BYTES], _BYTES, {"size": fields.COUNT, "sha256": fields.ANY})
    return file["size"], str(file["sha256"])


def _bytes_of(path: Path, stated: tuple[int, str] | None) -> Tensor:
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


def _encode(value: Any, file: HashedFile) -> Any:
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
        file.append(flat.view(torch.uint8).numpy().data)
        file.append(memoryview(bytes(-file.size % _ALIGN)))
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
    kind = next((kind for kind in _NODES if kind in coded), "tensor")
    fields.check(coded, _TREE, _NODES[kind])
    if kind == "tuple":
        return tuple(_decode(coded["tuple"], memory))
    if kind == "plain":
        return NonTensorData(_decode(coded["plain"], memory))
    if kind == "dict":
        pairs = _decode(coded["dict"], memory)
        by_key = {_key(key): item for key, item in pairs}
        if len(by_key) < len(pairs):
            raise wrong(coded, _TREE, "dict", "a key once")
        return by_key
    if kind == "tensordict":
        return TensorDict(_decode(coded["tensordict"], memory), coded["batch_size"])
    shape, dtype = coded["shape"], _DTYPES[coded["dtype"]]
    size = math.prod(shape) * dtype.itemsize
    place = fields.check(coded, _TREE, {"tensor": fields.integer(0, len(memory) - size)})["tensor"]
    if place % _ALIGN:
        raise wrong(coded, _TREE, "tensor", f"a multiple of {_ALIGN}")
    found = memory[place : place + size]
    if dtype is torch.bool and size and int(found.max()) > 1:
        raise wrong(coded, _TREE, "tensor", "bytes of bools, 0 or 1")
    # For one, `Generator.set_state` crashes on tensors that start within another tensor's storage.
    found = found.clone() if size <= _COPIED else found
    return found.view(dtype).reshape(shape)


def _key(key: Any) -> Any:
    """Return a key of a dict; raises `TypeError` for what `save_tree` takes for none."""
    for part in key if isinstance(key, tuple) else ():
        _key(part)
    if not (key is None or isinstance(key, bool | int | float | str | tuple)):
        raise TypeError(f"{type(key).__name__} is not a key")
    return key
