"""HDF5 files as a stranger might write them: valid for the library, hostile to whoever reads them.

`D4RL` and `MINARI` map a name to a function that writes such a file at a path: a flat file, or the
`main_data.hdf5` of a Minari folder. Both begin as sound files of 40 rows (4 episodes of 10), and
one thing in them is then made nasty. A reader may refuse each one (`FormatError`), or leave the
nasty part out and say so; never crash, hang, fill the memory, or take bytes of `SECRET`.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5p, h5s, h5t

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECRET = 7.25e77
"""Every number in the files beside, which must never be in a dataset."""

ROWS, EPISODES = 40, 4
LENGTH = ROWS // EPISODES

D4RL: dict[str, Callable[[Path], None]] = {}
MINARI: dict[str, Callable[[Path], None]] = {}


def _both(function: Callable[[Any, str, Path], None]) -> Callable[[Any, str, Path], None]:
    """Register a change to the leaf of rewards for both formats: given the file and its name."""
    name = function.__name__.strip("_")

    def flat(path: Path) -> None:
        with sound_d4rl(path) as file:
            function(file, "rewards", path)

    def grouped(path: Path) -> None:
        with sound_minari(path) as file:
            function(file, "episode_2/rewards", path)

    D4RL[name], MINARI[name] = flat, grouped
    return function


def _flat(function: Callable[[Any, Path], None]) -> Callable[[Any, Path], None]:
    def write(path: Path) -> None:
        with sound_d4rl(path) as file:
            function(file, path)

    D4RL[function.__name__.strip("_")] = write
    return function


def _grouped(function: Callable[[Any, Path], None]) -> Callable[[Any, Path], None]:
    def write(path: Path) -> None:
        with sound_minari(path) as file:
            function(file, path)

    MINARI[function.__name__.strip("_")] = write
    return function


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


def _replace(file: Any, name: str, **options: Any) -> Any:
    """Put a dataset with the same rows, but other properties, in the place of one."""
    data = options.pop("data", file[name][()] if "shape" not in options else None)
    del file[name]
    return file.create_dataset(name, data=data, **options)


def _replace_low(file: Any, name: str, shape: tuple[int, ...], kind: Any, plan: Any) -> Any:
    del file[name]
    space = h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)
    return h5d.create(file.id, name.encode(), kind, space, dcpl=plan)


# Links and storage that lead to another file


@_both
def external_link(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    del file[name]
    file[name] = h5py.ExternalLink(str(secret_beside(path)), f"rows{rows}")


@_both
def external_link_beside(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    del file[name]
    file[name] = h5py.ExternalLink(secret_beside(path).name, f"rows{rows}")


@_both
def soft_link_to_an_external_link(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    del file[name]
    file["hidden/out"] = h5py.ExternalLink(str(secret_beside(path)), f"rows{rows}")
    file[name] = h5py.SoftLink("/hidden/out")


@_both
def soft_link_through_an_external_group(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    del file[name]
    file["hidden"] = h5py.ExternalLink(str(secret_beside(path)), "/")
    file[name] = h5py.SoftLink(f"/hidden/rows{rows}")


@_both
def soft_link_to_itself(file: Any, name: str, path: Path) -> None:
    del file[name]
    file[name] = h5py.SoftLink("/" + name)


@_both
def dangling_link(file: Any, name: str, path: Path) -> None:
    del file[name]
    file[name] = h5py.SoftLink("/nowhere")


@_both
def external_storage(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    raw = path.with_name("secret.raw")
    raw.write_bytes(np.full(rows, SECRET).tobytes())
    _replace(file, name, shape=(rows,), dtype="f8", external=[(str(raw), 0, 8 * rows)])


@_both
def virtual_over_another_file(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    layout = h5py.VirtualLayout((rows,), "f8")
    layout[:] = h5py.VirtualSource(str(secret_beside(path)), f"rows{rows}", (rows,))
    del file[name]
    file.create_virtual_dataset(name, layout)


@_both
def virtual_over_a_virtual_over_another_file(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    below = h5py.VirtualLayout((rows,), "f8")
    below[:] = h5py.VirtualSource(str(secret_beside(path)), f"rows{rows}", (rows,))
    file.create_virtual_dataset("hidden", below)
    layout = h5py.VirtualLayout((rows,), "f8")
    layout[:] = h5py.VirtualSource(".", "hidden", (rows,))
    del file[name]
    file.create_virtual_dataset(name, layout)


@_both
def virtual_over_an_external_link(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    file["hidden"] = h5py.ExternalLink(str(secret_beside(path)), "/")
    layout = h5py.VirtualLayout((rows,), "f8")
    layout[:] = h5py.VirtualSource(".", f"hidden/rows{rows}", (rows,))
    del file[name]
    file.create_virtual_dataset(name, layout)


@_both
def virtual_over_external_storage(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    raw = path.with_name("secret.raw")
    raw.write_bytes(np.full(rows, SECRET).tobytes())
    file.create_dataset("hidden", (rows,), "f8", external=[(str(raw), 0, 8 * rows)])
    layout = h5py.VirtualLayout((rows,), "f8")
    layout[:] = h5py.VirtualSource(".", "hidden", (rows,))
    del file[name]
    file.create_virtual_dataset(name, layout)


@_both
def virtual_over_itself(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    layout = h5py.VirtualLayout((rows,), "f8")
    layout[:] = h5py.VirtualSource(".", name, (rows,))
    del file[name]
    file.create_virtual_dataset(name, layout)


@_both
def virtual_text(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    file.create_dataset("hidden", data=["x"] * rows)
    layout = h5py.VirtualLayout((rows,), h5py.string_dtype())
    layout[:] = h5py.VirtualSource(".", "hidden", (rows,))
    del file[name]
    file.create_virtual_dataset(name, layout)


@_both
def virtual_of_variable_length(file: Any, name: str, path: Path) -> None:
    rows, kind = len(file[name]), h5py.vlen_dtype(np.uint8)
    hidden = file.create_dataset("hidden", (rows,), kind)
    for row in range(rows):
        hidden[row] = np.arange(3, dtype="u1")
    layout = h5py.VirtualLayout((rows,), kind)
    layout[:] = h5py.VirtualSource(".", "hidden", (rows,), kind)
    del file[name]
    file.create_virtual_dataset(name, layout)


def _scalar_virtual(file: Any, name: str, target: str, source: str) -> None:
    plan = h5p.create(h5p.DATASET_CREATE)
    plan.set_layout(h5d.VIRTUAL)
    scalar = h5s.create(h5s.SCALAR)
    plan.set_virtual(scalar, target.encode(), source.encode(), scalar)
    h5d.create(file.id, name.encode(), h5t.NATIVE_DOUBLE, scalar, dcpl=plan)


@_flat
def virtual_scalar_over_another_file(file: Any, path: Path) -> None:
    file.create_group("metadata")
    _scalar_virtual(file, "metadata/value", str(secret_beside(path)), "value")


@_flat
def virtual_scalar(file: Any, path: Path) -> None:
    file["hidden"] = 2.5
    file.create_group("metadata")
    _scalar_virtual(file, "metadata/value", ".", "hidden")


@_flat
def scalar_in_external_storage(file: Any, path: Path) -> None:
    raw = path.with_name("secret.raw")
    raw.write_bytes(np.full(1, SECRET).tobytes())
    plan = h5p.create(h5p.DATASET_CREATE)
    plan.set_external(str(raw).encode(), 0, 8)
    file.create_group("metadata")
    h5d.create(file.id, b"metadata/value", h5t.NATIVE_DOUBLE, h5s.create(h5s.SCALAR), dcpl=plan)


@_grouped
def infos_out_of_another_file(file: Any, path: Path) -> None:
    del file["episode_2/infos"]
    file["episode_2/infos"] = h5py.ExternalLink(str(secret_beside(path)), "/group")


@_grouped
def episode_out_of_another_folder(file: Any, path: Path) -> None:
    beside = secret_beside(path)
    away = path.parents[1] / "away.h5"
    beside.replace(away)
    del file["episode_2"]
    file["episode_2"] = h5py.ExternalLink(f"../{away.name}", "/group")


@_grouped
def episode_out_of_a_link_beside(file: Any, path: Path) -> None:
    beside = secret_beside(path)
    away = path.parents[1] / "away.h5"
    beside.replace(away)
    beside.symlink_to(away)
    del file["episode_2"]
    file["episode_2"] = h5py.ExternalLink(beside.name, "/group")


# Groups and links without end


@_both
def diamonds(file: Any, name: str, path: Path) -> None:
    """Groups in which every name is there twice: 2^40 paths."""
    group = file.require_group(name.rpartition("/")[0] + "/infos/deep")
    for _ in range(40):
        below = group.create_group("a")
        group["b"] = below
        group = below


@_both
def ring(file: Any, name: str, path: Path) -> None:
    infos = file[name.rpartition("/")[0] + "/infos"]
    infos["again"] = infos
    infos["root"] = file["/"]


@_both
def fan_of_soft_links(file: Any, name: str, path: Path) -> None:
    infos = file[name.rpartition("/")[0] + "/infos"]
    for number in range(30):
        group = infos.create_group(f"g{number}")
        for side in "ab":
            group[side] = h5py.SoftLink(f"{infos.name}/g{number + 1}")


@_both
def deep_groups(file: Any, name: str, path: Path) -> None:
    group = file[name.rpartition("/")[0] + "/infos"]
    for _ in range(3000):
        group = group.create_group("g")
    group["x"] = np.zeros(len(file[name]))


@_both
def many_names_of_one_dataset(file: Any, name: str, path: Path) -> None:
    infos = file[name.rpartition("/")[0] + "/infos"]
    for number in range(20_000):
        infos[f"n{number}"] = file[name]


# Sizes that are declared and not there


@_both
def declared_rows_without_data(file: Any, name: str, path: Path) -> None:
    _replace(file, name, shape=(10**13,), dtype="f4", chunks=(1 << 20,))


@_both
def declared_contiguous_without_data(file: Any, name: str, path: Path) -> None:
    _replace(file, name, shape=(10**13,), dtype="f4")


@_both
def declared_gzip_without_data(file: Any, name: str, path: Path) -> None:
    _replace(file, name, shape=(3 * 10**9,), dtype="f4", chunks=(1 << 20,), compression="gzip")


@_both
def declared_width_without_data(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    _replace(file, name, shape=(rows, 1 << 31), dtype="f4", chunks=(1, 1 << 20))


@_both
def one_chunk_of_very_many(file: Any, name: str, path: Path) -> None:
    dataset = _replace(
        file, name, shape=(3 * 10**9,), dtype="f4", chunks=(1 << 10,), compression="gzip"
    )
    dataset[:5] = 1


@_both
def large_chunks(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    dataset = _replace(
        file,
        name,
        shape=(rows,),
        dtype="f8",
        chunks=(90_000_000,),
        maxshape=(None,),
        compression="gzip",
    )
    dataset.id.write_direct_chunk((0,), zlib.compress(bytes(1 << 20)))


@_both
def never_written_gzip(file: Any, name: str, path: Path) -> None:
    """Legitimate: all rows are the fill value."""
    _replace(file, name, shape=(len(file[name]),), dtype="f4", compression="gzip")


@_flat
def all_columns_declared_only(file: Any, path: Path) -> None:
    for name in ("observations", "actions", "rewards", "terminals", "timeouts"):
        shape = (3 * 10**9, *file[name].shape[1:])
        _replace(file, name, shape=shape, dtype="f4", chunks=(1 << 16, *shape[1:]))


@_both
def long_text_items(file: Any, name: str, path: Path) -> None:
    _replace(file, name, shape=(len(file[name]),), dtype="S500000000")


@_both
def many_dimensions(file: Any, name: str, path: Path) -> None:
    _replace(file, name, shape=(len(file[name]), *[1] * 31), dtype="f4")


@_both
def no_rows(file: Any, name: str, path: Path) -> None:
    _replace(file, name, shape=(0,), dtype="f4")


@_both
def no_width(file: Any, name: str, path: Path) -> None:
    _replace(file, name, shape=(len(file[name]), 0), dtype="f4")


@_both
def no_dataspace(file: Any, name: str, path: Path) -> None:
    _replace(file, name, data=h5py.Empty("f4"))


# Chunks that are not what they should be


def _tampered(file: Any, name: str, raw: Callable[[bytes], bytes], **options: Any) -> None:
    dataset = _replace(file, name, chunks=(len(file[name]),), **options)
    whole = np.ascontiguousarray(dataset[()]).tobytes()
    dataset.id.write_direct_chunk((0,), raw(whole))


@_both
def short_chunk(file: Any, name: str, path: Path) -> None:
    _tampered(file, name, lambda whole: zlib.compress(whole[:-8]), compression="gzip")


@_both
def short_chunk_by_much(file: Any, name: str, path: Path) -> None:
    data = np.resize(file[name][()], 1 << 20)
    dataset = _replace(
        file,
        name,
        data=data[: len(file[name])],
        chunks=(1 << 20,),
        maxshape=(None,),
        compression="gzip",
    )
    dataset.id.write_direct_chunk((0,), zlib.compress(b"\1"))


@_both
def short_shuffled_chunk(file: Any, name: str, path: Path) -> None:
    _tampered(file, name, lambda whole: zlib.compress(whole[:-8]), compression="gzip", shuffle=True)


@_both
def bomb_in_a_chunk(file: Any, name: str, path: Path) -> None:
    _tampered(file, name, lambda _: zlib.compress(bytes(100_000_000)), compression="gzip")


@_both
def short_lzf_chunk(file: Any, name: str, path: Path) -> None:
    _tampered(file, name, lambda whole: b"\x07" + whole[:8], compression="lzf")


@_both
def wrong_checksum(file: Any, name: str, path: Path) -> None:
    _tampered(file, name, lambda whole: whole + b"\1\2\3\4", fletcher32=True)


@_both
def shuffle_by_another_size(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    plan = h5p.create(h5p.DATASET_CREATE)
    plan.set_chunk((rows,))
    plan.set_filter(2, 0, (1 << 31,))
    plan.set_deflate(4)
    dataset = _replace_low(file, name, (rows,), h5t.NATIVE_FLOAT, plan)
    dataset.write_direct_chunk((0,), zlib.compress(bytes(4 * rows)))


@_both
def unknown_filter(file: Any, name: str, path: Path) -> None:
    rows = len(file[name])
    plan = h5p.create(h5p.DATASET_CREATE)
    plan.set_chunk((rows,))
    plan.set_filter(31999, 1, (1, 2))  # optional, so that it can be written
    dataset = _replace_low(file, name, (rows,), h5t.NATIVE_FLOAT, plan)
    dataset.write_direct_chunk((0,), bytes(4 * rows))


# Names, types and attributes


@_both
def name_not_utf8(file: Any, name: str, path: Path) -> None:
    infos = file[name.rpartition("/")[0] + "/infos"]
    space = h5s.create_simple((len(file[name]),))
    h5d.create(infos.id, b"\xff\xfe", h5t.NATIVE_FLOAT, space)


@_grouped
def episode_name_not_utf8(file: Any, path: Path) -> None:
    file.id.links.create_hard(b"episode_\xff", file.id, b"episode_1")


@_both
def long_name(file: Any, name: str, path: Path) -> None:
    infos = file[name.rpartition("/")[0] + "/infos"]
    infos["n" * 5000] = infos["qpos"]


@_both
def names_like_paths(file: Any, name: str, path: Path) -> None:
    infos = file[name.rpartition("/")[0] + "/infos"]
    for bad in (b"..", b"a\\..\\b", b"new\nline"):
        infos.id.links.create_hard(bad, infos.id, b"qpos")


@_both
def named_type(file: Any, name: str, path: Path) -> None:
    file[name.rpartition("/")[0] + "/infos/kind"] = np.dtype("f8")


@_both
def time_type(file: Any, name: str, path: Path) -> None:
    plan = h5p.create(h5p.DATASET_CREATE)
    _replace_low(file, name, (len(file[name]),), h5t.UNIX_D32LE, plan)


@_both
def object_references(file: Any, name: str, path: Path) -> None:
    _replace(file, name, data=np.array([file.ref] * len(file[name]), h5py.ref_dtype))


@_both
def compound_type(file: Any, name: str, path: Path) -> None:
    _replace(file, name, data=np.zeros(len(file[name]), [("a", "f4"), ("b", "f8")]))


@_both
def array_type(file: Any, name: str, path: Path) -> None:
    plan, rows = h5p.create(h5p.DATASET_CREATE), len(file[name])
    kind = h5t.array_create(h5t.NATIVE_FLOAT, (3,))
    _replace_low(file, name, (rows,), kind, plan)


@_both
def odd_float(file: Any, name: str, path: Path) -> None:
    kind = h5t.IEEE_F32LE.copy()
    kind.set_size(7)
    plan = h5p.create(h5p.DATASET_CREATE)
    _replace_low(file, name, (len(file[name]),), kind, plan)


@_both
def group_in_place_of_a_dataset(file: Any, name: str, path: Path) -> None:
    del file[name]
    file.create_group(name)


def _episode_attribute(name: str, value: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with sound_minari(path) as file:
            file["episode_2"].attrs[name] = value

    return write


MINARI |= {
    f"seed_{name}": _episode_attribute("seed", value)
    for name, value in {
        "array": np.arange(2000, dtype="i8"),
        "array_of_one": np.arange(1),
        "matrix": np.zeros((40, 40), "i4"),
        "empty": h5py.Empty("i8"),
        "no_values": np.zeros(0, "i8"),
        "text": "seven",
        "float": 3.7,
        "nan": float("nan"),
        "compound": np.zeros((), [("a", "i8"), ("b", "f8", (500,))]),
    }.items()
}


@_grouped
def seed_of_array_type(file: Any, path: Path) -> None:
    kind = h5t.array_create(h5t.NATIVE_INT64, (500,))
    del file["episode_2"].attrs["seed"]
    h5a.create(file["episode_2"].id, b"seed", kind, h5s.create(h5s.SCALAR)).write(
        np.arange(500), mtype=kind
    )


@_grouped
def attribute_name_not_utf8(file: Any, path: Path) -> None:
    h5a.create(file["episode_2"].id, b"\xff\xfe", h5t.NATIVE_INT64, h5s.create(h5s.SCALAR))


@_grouped
def attribute_text_not_utf8(file: Any, path: Path) -> None:
    file["episode_2"].attrs["note"] = np.bytes_(b"\xff\xfe")


@_grouped
def options_below_a_value(file: Any, path: Path) -> None:
    file["episode_2"].attrs["options/a"] = 1
    file["episode_2"].attrs["options/a/b"] = 2


@_grouped
def episode_with_a_huge_number(file: Any, path: Path) -> None:
    file.move("episode_3", f"episode_{10**30}")


@_grouped
def episode_twice(file: Any, path: Path) -> None:
    file["episode_01"] = file["episode_1"]


@_grouped
def episode_that_is_a_dataset(file: Any, path: Path) -> None:
    del file["episode_2"]
    file["episode_2"] = np.zeros(3)


def write_minari(path: Path, name: str) -> None:
    """Write the variant `name` of `MINARI` as a folder of a dataset."""
    MINARI[name](path / "data" / "main_data.hdf5")


SOUND = {
    ("d4rl", "never_written_gzip"),
    ("minari", "never_written_gzip"),
    ("d4rl", "shuffle_by_another_size"),
    ("minari", "shuffle_by_another_size"),
    ("minari", "seed_array_of_one"),
    ("minari", "attribute_text_not_utf8"),
}
"""What is not hostile after all."""

LEFT_OUT = {
    ("d4rl", "ring"),
    ("d4rl", "virtual_scalar"),
    ("d4rl", "virtual_scalar_over_another_file"),
    ("d4rl", "scalar_in_external_storage"),
    ("minari", "seed_float"),
    ("minari", "seed_nan"),
    ("d4rl", "fan_of_soft_links"),
    ("d4rl", "named_type"),
    ("minari", "names_like_paths"),
}
"""What is hostile where it can be left out: in infos, single values, seeds."""

OTHERS = {
    *(("d4rl", "odd_float"), ("minari", "odd_float")),
    *(("d4rl", "long_name"), ("minari", "long_name")),
    ("minari", "episode_twice"),
}
"""What other tests decide on: here, either way."""
