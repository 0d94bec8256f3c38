"""Arrow and Parquet files as numpy leaves; the only file that imports pyarrow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.base.errors import FormatError, MissingDependencyError
from offline_data.base.files import (
    advise_on_head,
    check_relative,
    describe_head,
    is_file,
    read_head,
)
from offline_data.base.json import read_json
from offline_data.base.plurals import plural

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PARQUET = b"PAR1"  # first bytes of a Parquet file
_STREAM = b"\xff\xff\xff\xff"  # first bytes of a stream
_END = _STREAM + bytes(4)  # and its last ones
ARROW = (b"ARROW1", _STREAM)  # first bytes of Arrow's files and streams
_SMALL = 256 << 20  # bytes that any file may unpack to
_RATIO = 1024  # bytes that a byte of a larger file may unpack to; also rows read at once


@dataclass(frozen=True)
class ArrowLeaf:
    """One column of a table, or one field of a struct column."""

    path: tuple[str, ...]
    """Name of the column, then of the fields below it."""
    values: NDArray[Any] | None
    """`[rows, …]`: numbers, or objects (`str`, `bytes`, None); None where numpy cannot hold it."""
    nulls: NDArray[np.bool_] | None
    """`[rows]` where the source has nothing; numbers are NaN, 0 or False there. None: nowhere."""
    row_shape: tuple[int, ...] | None
    """Shape of one row as the field's own metadata states it, where it does."""
    kind: str
    """The Arrow type in words."""


def read_table(paths: Sequence[Path], columns: Sequence[str] | None = None) -> Any:
    """Read Arrow (`.arrow`) or Parquet (`.parquet`) files of the same columns as one `pyarrow.Table`.

    `columns` are those to read of Parquet files, if there; None: all.

    Raises:
        FormatError: A file is not what its name says, is damaged, or holds a thousand times more
            than its size.
        MissingDependencyError: pyarrow is not installed.
    """
    pa = _pyarrow()
    tables = []
    for path in paths:
        parquet = path.suffix == ".parquet"
        with _name_damage(path, parquet=parquet):
            tables.append(_read_parquet(path, columns) if parquet else _read_arrow(path))
    try:
        return pa.concat_tables(tables)
    except pa.ArrowException as error:
        said = str(error).splitlines()
        raise FormatError(f"{paths[0].parent} has files of different columns: {said[0]}") from error


def iter_parquet(path: Path, values: int = 1 << 20, rows: int | None = None) -> Iterator[Any]:
    """Yield tables of some `values` or of `rows`, first an empty one; raises as `read_table`."""
    pa = _pyarrow()
    with _name_damage(path, parquet=True), _open_parquet(path) as file:
        if file.metadata.num_rows > _SMALL + _RATIO * path.stat().st_size:
            raise FormatError(f"{path} declares {plural(file.metadata.num_rows, 'row')}: too many")
        schema = file.schema_arrow
        rows = rows or max(1, values // max(1, len(schema)))
        yield schema.empty_table()
        for batch in file.iter_batches(batch_size=rows):
            table = pa.Table.from_batches([batch], schema)
            table.validate(full=True)
            yield table


def count_rows(paths: Sequence[Path]) -> int:
    """Return the number of rows of Parquet or Arrow files; raises as `read_table`."""
    total = 0
    for path in paths:
        with _open_groups(path, None) as (_, groups):
            total += sum(count for count, _ in groups)
    return total


def iter_ranges(
    paths: Sequence[Path],
    ranges: Iterable[tuple[int, int]],
    columns: Sequence[str] | None,
    rows: int = _RATIO,
) -> Iterator[Any]:
    """Yield ranges of rows of Parquet or Arrow files, each as one `pyarrow.Table`.

    The rows of the files, which have the same columns, follow each other. `ranges` are half-open,
    ascending, without overlap, and not beyond the end; `rows` of Parquet are decoded at once. `columns`
    as for `read_table`, and raises as it does.
    """
    wanted = iter(ranges)
    first, stop = next(wanted, (0, 0))
    end = 0
    pieces: list[Any] = []
    known: Any = None
    for path in paths:
        with _open_groups(path, columns, rows) as (schema, groups):
            if known is not None and schema != known:
                raise FormatError(f"{path} has other columns than {paths[0]}, or of other types")
            known = schema
            for count, read in groups:
                begin, end = end, end + count
                if not first < stop or end <= first:
                    continue
                for batch in read():
                    until = begin + batch.num_rows
                    while first < stop and first < until:
                        low, high = max(first, begin), min(stop, until)
                        pieces.append(batch.select(schema.names).slice(low - begin, high - low))
                        if stop > until:
                            break
                        yield _join_batches(pieces, schema, path)
                        pieces = []
                        first, stop = next(wanted, (0, 0))
                    begin = until


@contextmanager
def _open_groups(
    path: Path, columns: Sequence[str] | None, rows: int = _RATIO
) -> Iterator[tuple[Any, Iterator[tuple[int, Callable[[], Iterable[Any]]]]]]:
    """Open a file: its schema, and the row groups or batches, each with its rows and what reads them."""
    parquet = read_head(path).startswith(PARQUET)
    with _name_damage(path, parquet=parquet), ExitStack() as stack:
        if parquet:
            file = stack.enter_context(_open_parquet(path))
            schema = _select_fields(file.schema_arrow, columns)
            read = partial(file.iter_batches, rows, columns=schema.names)
            counts = (file.metadata.row_group(n).num_rows for n in range(file.num_row_groups))
            yield schema, ((c, partial(read, row_groups=[n])) for n, c in enumerate(counts))
        else:
            source = stack.enter_context(_pyarrow().memory_map(os.fsencode(path)))
            batches, schema = _arrow_batches(source)
            found = ((batch.num_rows, partial(iter, [batch])) for batch in batches)
            yield _select_fields(schema, columns), found


def iter_row_groups(path: Path) -> Iterator[Any]:
    """Yield the row groups of a Parquet file, in order, as `pyarrow.Table`s; raises as `read_table`."""
    with _name_damage(path, parquet=True), _open_parquet(path) as file:
        schema = file.schema_arrow
        for group in range(file.num_row_groups):
            batches = file.iter_batches(batch_size=_RATIO, row_groups=[group])
            yield _join_batches(batches, schema, path)


def read_schema(path: Path) -> Any:
    """Return the `pyarrow.Schema` of a Parquet or Arrow file; raises as `read_table`."""
    with _open_groups(path, None) as (schema, _):
        return schema


def is_saved(folder: Path) -> bool:
    """Return True for a folder that `Dataset.save_to_disk` of Hugging Face's `datasets` wrote."""
    return all(is_file(folder / name) for name in ("state.json", "dataset_info.json"))


def saved_files(folder: Path) -> list[Path]:
    """Return the Arrow files of such a folder in the order of its rows.

    Raises `FormatError` or `IntegrityError` for a list of other things than names of files in it.
    """
    path = folder / "state.json"
    state = read_json(path)
    listed = state.get("_data_files") if isinstance(state, dict) else None
    names = [one.get("filename") if isinstance(one, dict) else None for one in listed or [None]]
    if not all(isinstance(name, str) for name in names):
        raise FormatError(f"{path} does not list the names of its files in '_data_files'")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise FormatError(
            f"{path} selects rows by a file of indices, as datasets did before version 2",
            hint="save it again: `load_from_disk(OLD).flatten_indices().save_to_disk(NEW)`",
        )
    return [folder / check_relative(str(name), f"A file in {path}") for name in names]


def iter_arrow(path: Path) -> Iterator[Any]:
    """Yield the batches of an Arrow file or stream as tables, in order; raises as `read_table`."""
    pa = _pyarrow()
    with _name_damage(path, parquet=False), pa.memory_map(os.fsencode(path)) as source:
        batches, schema = _arrow_batches(source)
        for batch in batches:
            table = pa.Table.from_batches([batch], schema)
            table.validate(full=True)
            yield table


@contextmanager
def _name_damage(path: Path, *, parquet: bool) -> Iterator[None]:
    """Check the first bytes, and turn what pyarrow raises into a `FormatError` that names the file."""
    head = read_head(path)
    if not head.startswith(PARQUET if parquet else ARROW):
        kind = "a Parquet file" if parquet else "an Arrow file"
        raise FormatError(f"{path} is not {kind}: {describe_head(head)}", hint=advise_on_head(head))
    pa = _pyarrow()
    try:
        yield
    except FormatError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
        said = str(error).splitlines() or [type(error).__name__]
        raise FormatError(
            f"{path} is damaged or cut short: {said[0]}", hint="download or copy the file again"
        ) from error


@contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    import pyarrow.parquet as pq

    # bytes: pyarrow refuses a name that is not UTF-8 as text
    with _pyarrow().OSFile(os.fsencode(path)) as source, pq.ParquetFile(source) as file:
        yield file


def _read_parquet(path: Path, columns: Sequence[str] | None) -> Any:
    with _open_parquet(path) as file:
        schema = _select_fields(file.schema_arrow, columns)
        # One row group at a time: pyarrow cannot join those of nested columns with a dictionary.
        batches = (
            batch
            for group in range(file.num_row_groups)
            for batch in file.iter_batches(
                batch_size=_RATIO, row_groups=[group], columns=schema.names
            )
        )
        return _join_batches((batch.select(schema.names) for batch in batches), schema, path)


def _select_fields(schema: Any, columns: Sequence[str] | None) -> Any:
    """Return the fields of a schema with these names, in its order."""
    fields = [field for field in schema if columns is None or field.name in columns]
    return _pyarrow().schema(fields)


def _read_arrow(path: Path) -> Any:
    with _pyarrow().memory_map(os.fsencode(path)) as source:
        return _join_batches(*_arrow_batches(source), path)


def _arrow_batches(source: Any) -> tuple[Iterable[Any], Any]:
    """Return the record batches of an open file or stream, and their schema."""
    ipc = _pyarrow().ipc
    if source.read(len(_STREAM)) == _STREAM:
        source.seek(max(0, source.size() - len(_END)))
        if source.read() != _END:  # batches may be missing, of which pyarrow says nothing
            raise ValueError("the end of the stream is missing")
        source.seek(0)
        stream = ipc.open_stream(source)
        return stream, stream.schema
    file = ipc.open_file(source)
    return (file.get_batch(number) for number in range(file.num_record_batches)), file.schema


def _join_batches(batches: Iterable[Any], schema: Any, path: Path) -> Any:
    """Return sound record batches as a table; a small file that declares endless rows is refused."""
    most = _SMALL + _RATIO * path.stat().st_size
    kept, size = [], 0
    _check_names(schema)
    for batch in batches:
        batch.validate(full=True)  # with wrong offsets, `nbytes` reads anywhere in memory
        size += max(batch.nbytes, batch.num_rows)
        if size > most:
            raise FormatError(f"{path} has {path.stat().st_size:,} bytes and unpacks to {size:,}")
        kept.append(batch)
    return _pyarrow().Table.from_batches(kept, schema)


def _check_names(fields: Iterable[Any]) -> None:
    """Raise `UnicodeDecodeError`, a `ValueError`, if a name, also of a nested field, is not UTF-8."""
    for field in fields:
        field.name  # noqa: B018 -- pyarrow decodes it here
        _check_names(field.type.field(n) for n in range(field.type.num_fields))


def table_leaves(table: Any) -> Iterator[ArrowLeaf]:
    """Yield every leaf of a `pyarrow.Table`; struct fields become leaves of their own."""
    for number, field in enumerate(table.schema):
        yield from _leaves(_whole(table.column(number)), field, (field.name,))


def _whole(column: Any) -> Any:
    if column.num_chunks == 1:
        return column.chunk(0)
    pa = _pyarrow()
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _leaves(array: Any, field: Any, path: tuple[str, ...]) -> Iterator[ArrowLeaf]:
    types = _pyarrow().types
    array = getattr(array, "storage", array)  # an extension type, if its package is imported
    if types.is_struct(array.type):
        # flatten(), not field(): it carries the nulls of the struct into its fields.
        for number, child in enumerate(array.flatten()):
            inner = array.type.field(number)
            yield from _leaves(child, inner, (*path, inner.name))
        return
    values = _to_numpy(array)
    nulls = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    yield ArrowLeaf(path, values, nulls, _stated_shape(field), str(array.type))


def _to_numpy(array: Any) -> NDArray[Any] | None:
    types = _pyarrow().types
    kind = array.type
    if types.is_dictionary(kind):
        return _dictionary(array)
    if types.is_fixed_size_list(kind):
        return _fixed_lists(array)
    if types.is_list(kind) or types.is_large_list(kind):
        return _lists(array)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return _numbers(array)
    text = types.is_string(kind) or types.is_large_string(kind)
    if text or types.is_binary(kind) or types.is_large_binary(kind):
        objects: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return objects
    return None


def _dictionary(array: Any) -> NDArray[Any] | None:
    """Look the rows up in the dictionary; those of text share their words."""
    words = _to_numpy(array.dictionary)
    if words is None or not len(words) or words.dtype != object:
        return _to_numpy(array.dictionary_decode())
    rows: NDArray[Any] = words[array.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    if array.null_count:
        rows[array.is_null().to_numpy(zero_copy_only=False)] = None
    return rows


def _numbers(array: Any) -> NDArray[Any]:
    if array.null_count:
        nothing: Any = float("nan") if _pyarrow().types.is_floating(array.type) else 0
        fill = _pyarrow().scalar(nothing).cast(array.type)
        array = array.fill_null(fill)
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers


def _fixed_lists(array: Any) -> NDArray[Any] | None:
    size = array.type.list_size
    inner = _to_numpy(array.values.slice(array.offset * size, len(array) * size))
    return None if inner is None else inner.reshape(len(array), size, *inner.shape[1:])


def _lists(array: Any) -> NDArray[Any] | None:
    import numpy as np

    lengths = set(array.value_lengths().drop_null().to_pylist())
    inner = _to_numpy(array.flatten()) if len(lengths) < 2 else None
    if inner is None:
        return None
    rows: NDArray[Any] = inner.reshape(
        len(array) - array.null_count, *lengths or {0}, *inner.shape[1:]
    )
    if not array.null_count:
        return rows
    nothing = {"f": np.nan, "O": None}.get(inner.dtype.kind, 0)
    whole: NDArray[Any] = np.full((len(array), *rows.shape[1:]), nothing, inner.dtype)
    whole[array.is_valid().to_numpy(zero_copy_only=False)] = rows
    return whole


def _stated_shape(field: Any) -> tuple[int, ...] | None:
    stated = (field.metadata or {}).get(b"shape")
    if stated is None:
        return None
    try:
        return tuple(int(length) for length in stated.split(b",") if length)
    except ValueError as error:
        raise FormatError(f"Field {field.name!r} states the shape {stated!r}: no shape") from error


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingDependencyError(
            "Arrow and Parquet files need pyarrow", hint="pip install 'offline-data[arrow]'"
        ) from error
    return pa
