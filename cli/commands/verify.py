"""`verify`: what is on disk against the manifest."""

import shlex
from typing import TYPE_CHECKING

from offline_data.errors import IntegrityError
from offline_data_cli.call import Call
from offline_data_cli.options import Dataset
from offline_data_cli.result import Column, Result, Table

if TYPE_CHECKING:
    from offline_data.store.library import Entry
    from offline_data.store.verify import Problem

_PROBLEMS = (Column("FILE"), Column("PROBLEM"))
_NO_DIGEST = (
    "the manifest has no checksum of its own (an older version wrote it): a change in what it "
    "says of the source would not be noticed"
)


def verify(call: Call, dataset: Dataset) -> Result:
    """Compare the files on disk with the manifest's digests."""
    from offline_data.store import verify as integrity
    from offline_data.store.library import locate

    entry = locate(dataset, call.settings)
    problems = integrity.verify(entry.path, call.progress)
    return verify_result(entry, problems)


def verify_result(entry: "Entry", problems: "tuple[Problem, ...]") -> Result:
    """Lay out what verifying a dataset found."""
    text = str(entry.id)
    unsigned = entry.manifest.sha256 is None
    data = {
        "id": text,
        "path": entry.path,
        "ok": not problems,
        "problems": problems,
        "manifest_checksum": not unsigned,
    }
    if not problems:
        done = f"{text}: OK, {len(entry.manifest.digests)} files match their checksums"
        return Result(data, (done,), (text,), notes=(_NO_DIGEST,) if unsigned else ())
    table = Table(_PROBLEMS, tuple((problem.file, problem.problem) for problem in problems))
    return Result(data, (table,), failures=(_error(entry, len(problems)),))


def _error(entry: "Entry", count: int) -> IntegrityError:
    files = "1 file is" if count == 1 else f"{count} files are"
    return IntegrityError(
        f"{files} not what was written in {entry.path}",
        hint=_again(entry),
    )


def _again(entry: "Entry") -> str:
    """Say how to make a damaged dataset anew: what was converted here has no address to go to."""
    if entry.id.source == "local":
        name = shlex.quote(entry.id.name)
        return f"convert it again: offline-data convert PATH {name} --force"
    name = shlex.quote(f"{entry.id.source}:{entry.id.name}")
    return f"get it again: offline-data download {name} --force"
