"""`rm`: delete datasets, after showing which."""

from typing import TYPE_CHECKING

from offline_data.disk import human_bytes
from offline_data_cli.call import Call
from offline_data_cli.commands.cache import NAMED, losses
from offline_data_cli.options import Datasets, DryRun
from offline_data_cli.output import confirm, say
from offline_data_cli.result import Column, Result, Table

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.store.library import Entry

_COLUMNS = (Column("ID"), Column("SIZE", "bytes"), Column("PATH"))


def rm(call: Call, datasets: Datasets, dry_run: DryRun = False) -> Result:
    """Delete datasets, after showing them and asking."""
    from offline_data.store.cache import refetchable
    from offline_data.store.library import foreign_files, locate, remove

    by_path = {entry.path: entry for entry in (locate(text, call.settings) for text in datasets)}
    entries = list(by_path.values())
    total = sum(entry.bytes for entry in entries)
    warning = losses([str(entry.id) for entry in entries if not refetchable(entry)])
    if warning and (dry_run or call.yes):
        say(warning)
    kept = [entry.path / name for entry in entries for name in foreign_files(entry.path)]
    if dry_run:
        return _result(entries, total, kept, dry_run=True)
    question = f"{warning} Delete {_counted(entries)}, {human_bytes(total)}?".lstrip()
    if not confirm((_table(entries),), question, yes=call.yes, mode=call.mode):
        return Result({"removed": [], "bytes": 0}, (), notes=("nothing was deleted",), code=1)
    freed = sum(remove(entry) for entry in entries)
    return _result(entries, freed, kept, dry_run=False)


def _result(entries: "list[Entry]", freed: int, kept: "list[Path]", *, dry_run: bool) -> Result:
    from offline_data.store.cache import refetchable

    verb = "would delete" if dry_run else "deleted"
    data = {
        "removed": [{"id": str(e.id), "path": e.path, "bytes": e.bytes} for e in entries],
        "bytes": freed,
        "kept": kept,
        "dry_run": dry_run,
        "cannot_be_fetched_again": [str(e.id) for e in entries if not refetchable(e)],
    }
    line = f"{verb} {_counted(entries)}, {human_bytes(freed)}"
    blocks = (_table(entries), line) if dry_run else (line,)
    notes = tuple(f"kept, not the dataset's: {path}" for path in kept[:NAMED])
    more = (f"and {len(kept) - NAMED} more files that are not the dataset's",)
    return Result(
        data,
        blocks,
        tuple(str(entry.id) for entry in entries),
        notes=(*notes, *(more if len(kept) > NAMED else ())),
    )


def _table(entries: "list[Entry]") -> Table:
    return Table(_COLUMNS, tuple((str(e.id), e.bytes, e.path) for e in entries))


def _counted(entries: "list[Entry]") -> str:
    return f"{len(entries)} dataset" + ("" if len(entries) == 1 else "s")
