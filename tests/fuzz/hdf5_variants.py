"""HDF5 files as a stranger might write them: valid for the library, hostile to whoever reads them.

`D4RL` and `MINARI` map a name to a function that writes such a file at a path: a flat file, or the
`main_data.hdf5` of a Minari folder. Both begin as sound files of 40 rows (4 episodes of 10), and
one thing in them is then made nasty. A reader may refuse each one (`FormatError`), or leave the
nasty part out and say so; never crash, hang, fill the memory, or take bytes of `SECRET`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5p, h5s, h5t

SECRET = 7.25e77
"""Every number in the files beside, which must never be in a dataset."""

ROWS, EPISODES = 40, 4
LENGTH = ROWS // EPISODES

D4RL: dict[str, Callable[[Path], None]] = {}
MINARI: dict[str, Callable[[Path], None]] = {}


class Leaf:
    """The rewards of an open file, and ways to put something else in their place."""

    def __init__(self, file: Any, name: str, path: Path) -> None:
        self.file, self.name, self.path = file, name, path
        self.rows = len(file[name])

    @property
    def infos(self) -> Any:
        """The group of infos beside it."""
        return self.file[self.name.rpartition("/")[0] + "/infos"]

    def put(self, value: Any) -> None:
        del self.file[self.name]
        self.file[self.name] = value

    def replace(self, **options: Any) -> Any:
        """Put a dataset with the same rows, but other properties, in its place."""
        return replace(self.file, self.name, **options)

    def replace_low(self, kind: Any, *filters: tuple[Any, ...]) -> Any:
        """Put a dataset of any type, in one chunk if there are filters, in its place."""
        plan = h5p.create(h5p.DATASET_CREATE)
        if filters:
            plan.set_chunk((self.rows,))
        for method, *arguments in filters:
            getattr(plan, method)(*arguments)
        del self.file[self.name]
        space = h5s.create_simple((self.rows,))
        return h5d.create(self.file.id, self.name.encode(), kind, space, dcpl=plan)

    def virtual(self, source: Any, name: str | None = None, kind: Any = "f8") -> None:
        """Put a virtual dataset over some rows elsewhere in its place, or under another name."""
        layout = h5py.VirtualLayout((self.rows,), kind)
        layout[:] = h5py.VirtualSource(*source, (self.rows,), kind if kind != "f8" else None)
        if name is None:
            del self.file[self.name]
        self.file.create_virtual_dataset(name or self.name, layout)

    def outside(self) -> tuple[str, str]:
        """Return another file and as many rows of it."""
        return str(secret_beside(self.path)), f"rows{self.rows}"

    def outside_raw(self, rows: int) -> str:
        """Return a file of nothing but numbers."""
        raw = self.path.with_name("secret.raw")
        raw.write_bytes(np.full(rows, SECRET).tobytes())
        return str(raw)


def replace(file: Any, name: str, **options: Any) -> Any:
    data = options.pop("data", file[name][()] if "shape" not in options else None)
    del file[name]
    return file.create_dataset(name, data=data, **options)


def sound_d4rl(path: Path) -> Any:
    """Write a sound flat file, and return it open."""
    file = h5py.File(path, "w")
    numbers = np.arange(1, ROWS + 1, dtype="f4")
    file["observations"] = numbers[:, None] + np.array([0, 0.25, 0.5], "f4")
    file["actions"] = -numbers[:, None]
    file["rewards"] = numbers / 8
    file["terminals"] = np.zeros(ROWS, bool)
    file["timeouts"] = np.arange(ROWS) % LENGTH == LENGTH - 1
    file["infos/qpos"] = numbers[:, None] * 2
    return file


def sound_minari(path: Path) -> Any:
    """Write a sound `main_data.hdf5`, and return it open."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = h5py.File(path, "w")
    file.attrs["total_episodes"], file.attrs["total_steps"] = EPISODES, ROWS
    for number in range(EPISODES):
        group = file.create_group(f"episode_{number}")
        steps = np.arange(1, LENGTH + 2, dtype="f4") + 100 * number
        group["observations"] = steps[:, None] + np.array([0, 0.25, 0.5], "f4")
        group["actions"] = -steps[:-1, None]
        group["rewards"] = steps[:-1].astype("f8") / 8
        group["terminations"] = np.zeros(LENGTH, bool)
        group["truncations"] = np.arange(LENGTH) == LENGTH - 1
        group["infos/qpos"] = steps[:, None] * 2
        group.attrs["seed"] = number
        group.attrs["id"] = number
    return file


def secret_beside(path: Path) -> Path:
    """Write a sound HDF5 file beside, which holds nothing but `SECRET`."""
    beside = path.with_name("secret.h5")
    with h5py.File(beside, "w") as file:
        for rows in (LENGTH, LENGTH + 1, ROWS):
            file[f"rows{rows}"] = np.full(rows, SECRET)
        file["value"] = SECRET
        file["group/qpos"] = np.full((LENGTH + 1, 1), SECRET)
        file["group/rewards"] = np.full(LENGTH, SECRET)
    return beside


_FLAT = (D4RL, sound_d4rl, "rewards")
_GROUPED = (MINARI, sound_minari, "episode_2/rewards")


def _write(change: Callable[[Leaf], None], sound: Any, name: str, path: Path) -> None:
    with sound(path) as file:
        change(Leaf(file, name, path))


def _register(change: Callable[[Leaf], None], name: str, *formats: Any) -> None:
    for table, sound, leaf in formats:
        table[name] = partial(_write, change, sound, leaf)


def _both(change: Callable[[Leaf], None]) -> None:
    _register(change, change.__name__, _FLAT, _GROUPED)


def _flat(change: Callable[[Leaf], None]) -> None:
    _register(change, change.__name__, _FLAT)


def _grouped(change: Callable[[Leaf], None]) -> None:
    _register(change, change.__name__, _GROUPED)


def _replaced(name: str, *shape: int | None, **options: Any) -> None:
    """Register another dataset, written or not; None stands for the right number of rows."""

    def change(leaf: Leaf) -> None:
        if shape:
            options["shape"] = tuple(leaf.rows if size is None else size for size in shape)
        leaf.replace(**options)

    _register(change, name, _FLAT, _GROUPED)


# Links and storage that lead to another file


@_both
def external_link(leaf: Leaf) -> None:
    leaf.put(h5py.ExternalLink(*leaf.outside()))


@_both
def external_link_beside(leaf: Leaf) -> None:
    leaf.put(h5py.ExternalLink(secret_beside(leaf.path).name, f"rows{leaf.rows}"))


@_both
def soft_link_to_an_external_link(leaf: Leaf) -> None:
    del leaf.file[leaf.name]
    leaf.file["hidden/out"] = h5py.ExternalLink(*leaf.outside())
    leaf.file[leaf.name] = h5py.SoftLink("/hidden/out")


@_both
def soft_link_through_an_external_group(leaf: Leaf) -> None:
    del leaf.file[leaf.name]
    leaf.file["hidden"] = h5py.ExternalLink(leaf.outside()[0], "/")
    leaf.file[leaf.name] = h5py.SoftLink(f"/hidden/rows{leaf.rows}")


@_both
def soft_link_to_itself(leaf: Leaf) -> None:
    leaf.put(h5py.SoftLink("/" + leaf.name))


@_both
def dangling_link(leaf: Leaf) -> None:
    leaf.put(h5py.SoftLink("/nowhere"))


@_both
def external_storage(leaf: Leaf) -> None:
    external = [(leaf.outside_raw(leaf.rows), 0, 8 * leaf.rows)]
    leaf.replace(shape=(leaf.rows,), dtype="f8", external=external)


@_both
def virtual_over_another_file(leaf: Leaf) -> None:
    leaf.virtual(leaf.outside())


@_both
def virtual_over_a_virtual_over_another_file(leaf: Leaf) -> None:
    leaf.virtual(leaf.outside(), "hidden")
    leaf.virtual((".", "hidden"))


@_both
def virtual_over_an_external_link(leaf: Leaf) -> None:
    leaf.file["hidden"] = h5py.ExternalLink(leaf.outside()[0], "/")
    leaf.virtual((".", f"hidden/rows{leaf.rows}"))


@_both
def virtual_over_external_storage(leaf: Leaf) -> None:
    external = [(leaf.outside_raw(leaf.rows), 0, 8 * leaf.rows)]
    leaf.file.create_dataset("hidden", (leaf.rows,), "f8", external=external)
    leaf.virtual((".", "hidden"))


@_both
def virtual_over_itself(leaf: Leaf) -> None:
    leaf.virtual((".", leaf.name))


@_both
def virtual_text(leaf: Leaf) -> None:
    leaf.file.create_dataset("hidden", data=["x"] * leaf.rows)
    layout = h5py.VirtualLayout((leaf.rows,), h5py.string_dtype())
    layout[:] = h5py.VirtualSource(".", "hidden", (leaf.rows,))
    del leaf.file[leaf.name]
    leaf.file.create_virtual_dataset(leaf.name, layout)


@_both
def virtual_of_variable_length(leaf: Leaf) -> None:
    kind = h5py.vlen_dtype(np.uint8)
    hidden = leaf.file.create_dataset("hidden", (leaf.rows,), kind)
    for row in range(leaf.rows):
        hidden[row] = np.arange(3, dtype="u1")
    leaf.virtual((".", "hidden"), kind=kind)


def _scalar(leaf: Leaf, name: str, prepare: Callable[[Any, Any], None]) -> None:
    plan, space = h5p.create(h5p.DATASET_CREATE), h5s.create(h5s.SCALAR)
    prepare(plan, space)
    h5d.create(leaf.file.id, name.encode(), h5t.NATIVE_DOUBLE, space, dcpl=plan)


def _scalar_virtual(leaf: Leaf, target: str, source: str) -> None:
    def prepare(plan: Any, scalar: Any) -> None:
        plan.set_layout(h5d.VIRTUAL)
        plan.set_virtual(scalar, target.encode(), source.encode(), scalar)

    leaf.file.create_group("metadata")
    _scalar(leaf, "metadata/value", prepare)


@_flat
def virtual_scalar_over_another_file(leaf: Leaf) -> None:
    _scalar_virtual(leaf, leaf.outside()[0], "value")


@_flat
def virtual_scalar(leaf: Leaf) -> None:
    leaf.file["hidden"] = 2.5
    _scalar_virtual(leaf, ".", "hidden")


@_flat
def scalar_in_external_storage(leaf: Leaf) -> None:
    raw = leaf.outside_raw(1)
    leaf.file.create_group("metadata")
    _scalar(leaf, "metadata/value", lambda plan, _: plan.set_external(raw.encode(), 0, 8))


@_grouped
def infos_out_of_another_file(leaf: Leaf) -> None:
    del leaf.file["episode_2/infos"]
    leaf.file["episode_2/infos"] = h5py.ExternalLink(leaf.outside()[0], "/group")


@_grouped
def episode_out_of_another_folder(leaf: Leaf) -> None:
    away = leaf.path.parents[1] / "away.h5"
    secret_beside(leaf.path).replace(away)
    del leaf.file["episode_2"]
    leaf.file["episode_2"] = h5py.ExternalLink(f"../{away.name}", "/group")


@_grouped
def episode_out_of_a_link_beside(leaf: Leaf) -> None:
    beside, away = secret_beside(leaf.path), leaf.path.parents[1] / "away.h5"
    beside.replace(away)
    beside.symlink_to(away)
    del leaf.file["episode_2"]
    leaf.file["episode_2"] = h5py.ExternalLink(beside.name, "/group")


# Groups and links without end


@_both
def diamonds(leaf: Leaf) -> None:
    """Groups in which every name is there twice: 2^40 paths."""
    group = leaf.infos.require_group("deep")
    for _ in range(40):
        below = group.create_group("a")
        group["b"] = below
        group = below


@_both
def ring(leaf: Leaf) -> None:
    leaf.infos["again"] = leaf.infos
    leaf.infos["root"] = leaf.file["/"]


@_both
def fan_of_soft_links(leaf: Leaf) -> None:
    for number in range(30):
        group = leaf.infos.create_group(f"g{number}")
        for side in "ab":
            group[side] = h5py.SoftLink(f"{leaf.infos.name}/g{number + 1}")


@_both
def deep_groups(leaf: Leaf) -> None:
    group = leaf.infos
    for _ in range(3000):
        group = group.create_group("g")
    group["x"] = np.zeros(leaf.rows)


@_both
def many_names_of_one_dataset(leaf: Leaf) -> None:
    for number in range(10_500):
        leaf.infos[f"n{number}"] = leaf.file[leaf.name]


# Sizes that are declared and not there

_replaced("declared_rows_without_data", 10**13, dtype="f4", chunks=(1 << 20,))
_replaced("declared_contiguous_without_data", 10**13, dtype="f4")
_replaced(
    "declared_gzip_without_data", 3 * 10**9, dtype="f4", chunks=(1 << 20,), compression="gzip"
)
_replaced("declared_width_without_data", None, 1 << 31, dtype="f4", chunks=(1, 1 << 20))


@_both
def one_chunk_of_very_many(leaf: Leaf) -> None:
    leaf.replace(shape=(3 * 10**9,), dtype="f4", chunks=(1 << 10,), compression="gzip")[:5] = 1


@_both
def large_chunks(leaf: Leaf) -> None:
    size = {"shape": (leaf.rows,), "chunks": (90_000_000,), "maxshape": (None,)}
    dataset = leaf.replace(**size, dtype="f8", compression="gzip")
    dataset.id.write_direct_chunk((0,), zlib.compress(bytes(1 << 20)))


_replaced("never_written_gzip", None, dtype="f4", compression="gzip")
"""Legitimate: all rows are the fill value."""


@_flat
def all_columns_declared_only(leaf: Leaf) -> None:
    for name in ("observations", "actions", "rewards", "terminals", "timeouts"):
        shape = (3 * 10**9, *leaf.file[name].shape[1:])
        replace(leaf.file, name, shape=shape, dtype="f4", chunks=(1 << 16, *shape[1:]))


_replaced("long_text_items", None, dtype="S500000000")
_replaced("many_dimensions", None, *[1] * 31, dtype="f4")
_replaced("no_rows", 0, dtype="f4")
_replaced("no_width", None, 0, dtype="f4")
_replaced("no_dataspace", data=h5py.Empty("f4"))


# Chunks that are not what they should be


def _tampered(leaf: Leaf, raw: Callable[[bytes], bytes], **options: Any) -> None:
    dataset = leaf.replace(chunks=(leaf.rows,), **options)
    whole = np.ascontiguousarray(dataset[()]).tobytes()
    dataset.id.write_direct_chunk((0,), raw(whole))


@_both
def short_chunk(leaf: Leaf) -> None:
    _tampered(leaf, lambda whole: zlib.compress(whole[:-8]), compression="gzip")


@_both
def short_chunk_by_much(leaf: Leaf) -> None:
    data = np.resize(leaf.file[leaf.name][()], 1 << 20)[: leaf.rows]
    dataset = leaf.replace(data=data, chunks=(1 << 20,), maxshape=(None,), compression="gzip")
    dataset.id.write_direct_chunk((0,), zlib.compress(b"\1"))


@_both
def short_shuffled_chunk(leaf: Leaf) -> None:
    _tampered(leaf, lambda whole: zlib.compress(whole[:-8]), compression="gzip", shuffle=True)


@_both
def bomb_in_a_chunk(leaf: Leaf) -> None:
    _tampered(leaf, lambda _: zlib.compress(bytes(100_000_000)), compression="gzip")


@_both
def short_lzf_chunk(leaf: Leaf) -> None:
    _tampered(leaf, lambda whole: b"\x07" + whole[:8], compression="lzf")


@_both
def wrong_checksum(leaf: Leaf) -> None:
    _tampered(leaf, lambda whole: whole + b"\1\2\3\4", fletcher32=True)


@_both
def shuffle_by_another_size(leaf: Leaf) -> None:
    dataset = leaf.replace_low(
        h5t.NATIVE_FLOAT, ("set_filter", 2, 0, (1 << 31,)), ("set_deflate", 4)
    )
    dataset.write_direct_chunk((0,), zlib.compress(bytes(4 * leaf.rows)))


@_both
def unknown_filter(leaf: Leaf) -> None:
    # optional, so that it can be written
    dataset = leaf.replace_low(h5t.NATIVE_FLOAT, ("set_filter", 31999, 1, (1, 2)))
    dataset.write_direct_chunk((0,), bytes(4 * leaf.rows))


# Names, types and attributes


@_both
def name_not_utf8(leaf: Leaf) -> None:
    infos = leaf.infos
    h5d.create(infos.id, b"\xff\xfe", h5t.NATIVE_FLOAT, h5s.create_simple((leaf.rows,)))


@_grouped
def episode_name_not_utf8(leaf: Leaf) -> None:
    leaf.file.id.links.create_hard(b"episode_\xff", leaf.file.id, b"episode_1")


@_both
def long_name(leaf: Leaf) -> None:
    leaf.infos["n" * 5000] = leaf.infos["qpos"]


@_both
def names_like_paths(leaf: Leaf) -> None:
    infos = leaf.infos
    for bad in (b"..", b"a\\..\\b", b"new\nline"):
        infos.id.links.create_hard(bad, infos.id, b"qpos")


@_both
def named_type(leaf: Leaf) -> None:
    leaf.infos["kind"] = np.dtype("f8")


@_both
def time_type(leaf: Leaf) -> None:
    leaf.replace_low(h5t.UNIX_D32LE)


@_both
def object_references(leaf: Leaf) -> None:
    leaf.replace(data=np.array([leaf.file.ref] * leaf.rows, h5py.ref_dtype))


@_both
def compound_type(leaf: Leaf) -> None:
    leaf.replace(data=np.zeros(leaf.rows, [("a", "f4"), ("b", "f8")]))


@_both
def array_type(leaf: Leaf) -> None:
    leaf.replace_low(h5t.array_create(h5t.NATIVE_FLOAT, (3,)))


@_both
def odd_float(leaf: Leaf) -> None:
    kind = h5t.IEEE_F32LE.copy()
    kind.set_size(7)
    leaf.replace_low(kind)


@_both
def group_in_place_of_a_dataset(leaf: Leaf) -> None:
    del leaf.file[leaf.name]
    leaf.file.create_group(leaf.name)


def _seed(value: Any, leaf: Leaf) -> None:
    leaf.file["episode_2"].attrs["seed"] = value


for _name, _value in {
    "array": np.arange(2000, dtype="i8"),
    "array_of_one": np.arange(1),
    "matrix": np.zeros((40, 40), "i4"),
    "empty": h5py.Empty("i8"),
    "no_values": np.zeros(0, "i8"),
    "text": "seven",
    "float": 3.7,
    "nan": float("nan"),
    "compound": np.zeros((), [("a", "i8"), ("b", "f8", (500,))]),
}.items():
    _register(partial(_seed, _value), f"seed_{_name}", _GROUPED)


@_grouped
def seed_of_array_type(leaf: Leaf) -> None:
    kind, episode = h5t.array_create(h5t.NATIVE_INT64, (500,)), leaf.file["episode_2"]
    del episode.attrs["seed"]
    seed = h5a.create(episode.id, b"seed", kind, h5s.create(h5s.SCALAR))
    seed.write(np.arange(500), mtype=kind)


@_grouped
def attribute_name_not_utf8(leaf: Leaf) -> None:
    episode = leaf.file["episode_2"].id
    h5a.create(episode, b"\xff\xfe", h5t.NATIVE_INT64, h5s.create(h5s.SCALAR))


@_grouped
def attribute_text_not_utf8(leaf: Leaf) -> None:
    leaf.file["episode_2"].attrs["note"] = np.bytes_(b"\xff\xfe")


@_grouped
def options_below_a_value(leaf: Leaf) -> None:
    leaf.file["episode_2"].attrs["options/a"] = 1
    leaf.file["episode_2"].attrs["options/a/b"] = 2


@_grouped
def episode_with_a_huge_number(leaf: Leaf) -> None:
    leaf.file.move("episode_3", f"episode_{10**30}")


@_grouped
def episode_twice(leaf: Leaf) -> None:
    leaf.file["episode_01"] = leaf.file["episode_1"]


@_grouped
def episode_that_is_a_dataset(leaf: Leaf) -> None:
    del leaf.file["episode_2"]
    leaf.file["episode_2"] = np.zeros(3)


def write_minari(path: Path, name: str) -> None:
    """Write the variant `name` of `MINARI` as a folder of a dataset."""
    MINARI[name](path / "data" / "main_data.hdf5")


SOUND = {
    *((source, "never_written_gzip") for source in ("d4rl", "minari")),
    *((source, "shuffle_by_another_size") for source in ("d4rl", "minari")),
    *(("minari", name) for name in ("seed_array_of_one", "attribute_text_not_utf8")),
    *((source, "many_names_of_one_dataset") for source in ("d4rl", "minari")),
}
"""What is not hostile after all."""

_UNREAD = ("virtual_scalar", "virtual_scalar_over_another_file", "scalar_in_external_storage")
LEFT_OUT = {
    *(("d4rl", name) for name in ("ring", *_UNREAD, "fan_of_soft_links", "named_type")),
    *(("minari", name) for name in ("seed_float", "seed_nan", "names_like_paths")),
}
"""What is hostile where it can be left out: in infos, single values, seeds."""

OTHERS = {
    *((source, name) for source in ("d4rl", "minari") for name in ("odd_float", "long_name")),
    ("minari", "episode_twice"),
}
"""What other tests decide on: here, either way."""
