"""Ways to spoil bytes, JSON and HDF5 files, each a function of a seeded generator."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**62, 2**63, 2**64 - 1)
"""Numbers that parsers get wrong."""


def spoil_bytes(random: Random, data: bytes, *, head: int | None = None) -> bytes:
    """Return `data` with one to four changes; in the first `head` bytes half of the time."""
    out = bytearray(data)
    for _ in range(random.randint(1, 4)):
        if not out:
            return bytes(out)
        end = min(head, len(out)) if head and random.random() < 0.5 else len(out)
        at = random.randrange(end)
        kind = random.randrange(8)
        if kind == 0:
            out[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            out[at] = random.randrange(256)
        elif kind == 2:
            size = random.choice((1, 2, 4, 8))
            value = random.choice(EXTREMES) % 2 ** (8 * size)
            out[at : at + size] = value.to_bytes(size, "little")
        elif kind == 3:
            out[at : at + random.choice((4, 64, 512))] = bytes(random.choice((4, 64, 512)))
        elif kind == 4:
            del out[at:]
        elif kind == 5:
            del out[at : at + random.randint(1, 64)]
        elif kind == 6:
            size = random.randint(1, 64)
            source = random.randrange(len(out))
            out[at : at + size] = out[source : source + size]
        else:
            out[at:at] = random.randbytes(random.randint(1, 64))
    return bytes(out)


def _deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3.7, -0.0, 10**30, -(10**30), 2**63, 1e308, float("nan"),
    float("inf"), "", "x", "../../../etc/passwd", "/etc/passwd", "a\0b", "\ud800", "é" * 300,
    "object", "O8", "|V16", ">f8", "float64", "float99", "<M8[ns]", [], {}, [[]], [-1], [2**40, 2**40],
    [0], ["a"], {"a": 1}, {"": None}, _deep(40), _deep(200),
)  # fmt: skip
"""Values put in the place of others."""


def spoil_json(random: Random, value: Any) -> Any:
    """Return a copy of a JSON value with one to three of its parts replaced, dropped or doubled."""
    out = copy.deepcopy(value)
    for _ in range(random.randint(1, 3)):
        places = list(_places(out))
        if not places:
            return random.choice(NASTY)
        holder, key = random.choice(places)
        kind = random.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif kind == 2 and isinstance(holder[key], (int, float)):
            holder[key] = holder[key] + random.choice((-1, 1, 8, -8, 1 << 20))
        elif kind == 3:
            other, name = random.choice(places)
            holder[key] = copy.deepcopy(other[name])
        else:
            holder[key] = copy.deepcopy(random.choice(NASTY))
    return out


def _places(value: Any) -> Any:
    """Yield every `(container, key)` of a nested value."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


def spoil_json_file(random: Random, path: Path) -> None:
    """Spoil a JSON file as a value, or as bytes."""
    content = path.read_bytes()
    try:
        value = None if random.random() < 0.25 else json.loads(content)
    except ValueError:  # spoiled before
        value = None
    if value is None:
        path.write_bytes(spoil_bytes(random, content))
        return
    spoiled = spoil_json(random, value)
    text = json.dumps(spoiled)
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))


def spoil_hdf5(random: Random, path: Path, secret: Path) -> str:
    """Change one object of an HDF5 file; returns what was done.

    Args:
        random: The generator.
        path: The file, changed in place.
        secret: Another file, for links and storage that lead there.
    """
    import h5py

    try:
        opened = h5py.File(path, "r+")
    except OSError:  # an earlier change left none
        return "nothing"
    with opened as file:
        names: list[str] = []
        with suppress(RuntimeError):  # an earlier change damaged a group
            file.visit(names.append)
        if not names:
            return "nothing"
        name = random.choice(names)
        spoil = random.choice(_HDF5)
        with suppress(
            OSError, ValueError, MemoryError
        ):  # the library does not do everything to every object
            spoil(random, file, name, str(secret))
        return f"{spoil.__name__} {name}"


def _drop(_random: Random, file: Any, name: str, _secret: str) -> None:
    del file[name]


def _group_instead(_random: Random, file: Any, name: str, _secret: str) -> None:
    del file[name]
    file.create_group(name)


def _other_dtype(random: Random, file: Any, name: str, _secret: str) -> None:
    values = _values(file, name)
    dtype = random.choice(("f8", "f4", "f2", "i8", "u8", "i4", "u1", "?", ">f8", "c8", "S3"))
    with np.errstate(all="ignore"):
        _replace(file, name, values.astype(dtype))


def _other_shape(random: Random, file: Any, name: str, _secret: str) -> None:
    values = _values(file, name)
    shapes = [values.shape[::-1], (values.size,), (1, *values.shape), (*values.shape, 1), ()]
    shape = random.choice(shapes)
    _replace(file, name, values.reshape(shape) if shape else values.reshape(-1)[0])


def _other_rows(random: Random, file: Any, name: str, _secret: str) -> None:
    values = _values(file, name)
    rows = len(values) if values.ndim else 0
    cut = random.choice((0, 1, max(rows - 1, 0), rows + 1, 2 * rows))
    _replace(file, name, np.resize(values, (cut, *values.shape[1:])))


def _other_values(random: Random, file: Any, name: str, _secret: str) -> None:
    values = np.array(_values(file, name))
    if values.size and values.dtype.kind in "fiub":
        extreme = np.nan if values.dtype.kind == "f" else 1
        values.reshape(-1)[random.randrange(values.size)] = extreme
    _replace(file, name, values)


def _other_storage(random: Random, file: Any, name: str, _secret: str) -> None:
    """Legal, and to be read right: other filters, chunks, fill values."""
    values = _values(file, name)
    if not values.ndim or not values.size:
        return
    chunks = tuple(random.randint(1, max(size, 1)) for size in values.shape)
    options: dict[str, Any] = random.choice(
        (
            {"compression": "gzip"}, {"compression": "gzip", "shuffle": True},
            {"compression": "gzip", "fletcher32": True}, {"compression": "lzf"},
            {"fletcher32": True}, {"shuffle": True}, {"scaleoffset": None},
        )
    )  # fmt: skip
    _replace(file, name, values, chunks=chunks, **options)


def _never_written(random: Random, file: Any, name: str, _secret: str) -> None:
    values = _values(file, name)
    rows = random.choice((values.shape[0] if values.ndim else 1, 3 * 10**9, 10**13))
    shape = (rows, *values.shape[1:])
    chunks = (min(rows, 1000), *values.shape[1:]) if all(shape) else None
    del file[name]
    file.create_dataset(name, shape, values.dtype, chunks=chunks, compression="gzip")


def _short_chunk(random: Random, file: Any, name: str, _secret: str) -> None:
    """A deflated chunk that holds fewer or more bytes than a chunk has, or is damaged."""
    import zlib

    values = _values(file, name)
    if not values.ndim or not values.size:
        return
    shuffle = random.random() < 0.3
    _replace(file, name, values, chunks=values.shape, compression="gzip", shuffle=shuffle)
    size = random.choice((0, 1, values.nbytes - 1, values.nbytes // 2, values.nbytes + 1, 1 << 24))
    raw = zlib.compress(bytes(max(size, 0)))
    if random.random() < 0.3:
        raw = spoil_bytes(random, raw)
    file[name].id.write_direct_chunk((0,) * values.ndim, raw)


def _soft_link(random: Random, file: Any, name: str, _secret: str) -> None:
    import h5py

    del file[name]
    file[name] = h5py.SoftLink(random.choice(("/", "/nowhere", f"/{name}", "/observations")))


def _hard_link(random: Random, file: Any, name: str, _secret: str) -> None:
    names: list[str] = []
    file.visit(names.append)
    file[f"{name}_again" if random.random() < 0.5 else f"loop{len(names)}"] = file["/"]


def _external_link(_random: Random, file: Any, name: str, secret: str) -> None:
    import h5py

    del file[name]
    file[name] = h5py.ExternalLink(secret.replace(".txt", ".h5"), "secret")


def _external_storage(_random: Random, file: Any, name: str, secret: str) -> None:
    values = _values(file, name)
    if not values.nbytes:
        return
    del file[name]
    external = [(secret, 0, values.nbytes)]
    file.create_dataset(name, values.shape, values.dtype, external=external)


def _virtual(_random: Random, file: Any, name: str, secret: str) -> None:
    import h5py

    values = _values(file, name)
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    if values.ndim and values.size:
        elsewhere = secret.replace(".txt", ".h5")
        layout[...] = h5py.VirtualSource(elsewhere, "secret", shape=values.shape)
    del file[name]
    file.create_virtual_dataset(name, layout)


def _text(_random: Random, file: Any, name: str, _secret: str) -> None:
    import h5py

    values = _values(file, name)
    rows = len(values) if values.ndim else 1
    _replace(
        file, name, np.array([f"row {n}" for n in range(rows)], object), dtype=h5py.string_dtype()
    )


def _compound(_random: Random, file: Any, name: str, _secret: str) -> None:
    values = _values(file, name)
    rows = len(values) if values.ndim else 1
    _replace(file, name, np.zeros(rows, [("a", "f4"), ("b", "i8")]))


def _attribute(random: Random, file: Any, name: str, _secret: str) -> None:
    held = file[name].attrs if random.random() < 0.7 else file[name].parent.attrs
    key = random.choice([*held, "seed", "id", "total_steps", "total_episodes"])
    value = random.choice(
        (np.arange(5000), np.float64(3.7), np.nan, -1, 2**63, "text", b"\xff\xfe", [1, 2], np.int8(5))
    )  # fmt: skip
    held[key] = value


def _odd_name(random: Random, file: Any, name: str, _secret: str) -> None:
    odd = random.choice((b"caf\xe9", b"x" * 300, b"a b", b"..", b"\xf0\x9f\x98\x80"))
    file.id.links.move(name.encode(), file.id, odd)


_HDF5: tuple[Callable[[Random, Any, str, str], None], ...] = (
    _drop, _group_instead, _other_dtype, _other_shape, _other_rows, _other_values, _other_storage,
    _other_storage, _never_written, _short_chunk, _short_chunk, _soft_link, _hard_link,
    _external_link, _external_storage, _virtual, _text, _compound, _attribute, _attribute, _odd_name,
)  # fmt: skip


def _values(file: Any, name: str) -> Any:
    import h5py

    found = file[name]
    return np.asarray(found[()]) if isinstance(found, h5py.Dataset) else np.arange(3.0)


def _replace(file: Any, name: str, values: Any, **options: Any) -> None:
    attributes = dict(file[name].attrs)
    del file[name]
    file.create_dataset(name, data=values, **options).attrs.update(attributes)
