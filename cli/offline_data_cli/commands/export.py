"""`export`: a dataset as files of another format."""

from enum import Enum
from pathlib import Path
from typing import Annotated

from offline_data.base.errors import UsageError
from offline_data.base.files import human_bytes
from offline_data.base.plurals import plural
from offline_data.document.blocks import fields_of, table
from offline_data_cli import complete
from offline_data_cli.names import entry_named
from offline_data_cli.options import Context, Dataset, DryRun, argument, option
from offline_data_cli.result import Result


class VideoCodec(str, Enum):
    """Encodings of images as video."""

    h264 = "h264"
    av1 = "av1"
    none = "none"


class FormatVersion(str, Enum):
    """Versions of LeRobot's format."""

    v3_0 = "3.0"
    v2_1 = "2.1"


def export(
    context: Context,
    dataset: Dataset,
    dest: Annotated[
        Path | None, argument("DEST", "File or folder, like --out.", hidden=True)
    ] = None,
    *,
    to: Annotated[
        str,
        option(
            "Format to write. minari, d4rl, lerobot, robomimic, rlds, parquet, hf, zarr, npz, d3rlpy, "
            "ogbench or ted.",
            metavar="FORMAT",
            autocompletion=complete.targets,
        ),
    ],
    out: Annotated[
        Path | None,
        option(
            "File or folder to write (required). New, empty, or of an earlier export.",
            metavar="PATH",
        ),
    ] = None,
    view: Annotated[
        str | None, option("Export only the rows of this view.", metavar="NAME")
    ] = None,
    observation: Annotated[
        str | None,
        option("d4rl, d3rlpy, ogbench: the observation to write.", metavar="KEY"),
    ] = None,
    fps: Annotated[
        float | None,
        option("lerobot: frames per second. (default: render_fps of the environment)", metavar="N"),
    ] = None,
    video: Annotated[
        VideoCodec, option("lerobot: encoding of images; none keeps them as images.")
    ] = VideoCodec.h264,
    format_version: Annotated[FormatVersion, option("lerobot: version of the format.")] = (
        FormatVersion.v3_0
    ),
    strict: Annotated[bool, option("Write nothing and fail if anything would be lost.")] = False,
    dry_run: DryRun = False,
    force: Annotated[bool, option("Replace a file that was not written by `export`.")] = False,
) -> Result:
    """Write a dataset in another format, and verify every value.

    Lists what the format cannot hold; --dry-run shows only this list. The receipt, export.json, has
    the origin of the data, this list, and the checksums of all files.
    """
    from offline_data import api

    place = out if dest is None else dest
    if place is None or (out is not None and dest is not None):
        raise UsageError("Give --out PATH, the file or folder to write", hint="add --out PATH")
    entry = entry_named(context, dataset)
    done = api.export(
        entry.path,
        place,
        to=to,
        view=view,
        observation=observation,
        fps=fps,
        video=video.value,
        format_version=format_version.value,
        strict=strict,
        dry_run=dry_run,
        force=force,
        settings=context.settings,
        progress=context.progress,
    )
    parts = []
    if done.losses:
        title = "would lose" if dry_run else "not in these files"
        parts.append(table("feature=leaf:keep rows:count reason", done.losses, title))
    size = f"{plural(done.transitions, 'step')} in {plural(done.episodes, 'episode')}"
    if dry_run:
        nothing = "" if done.losses else "; nothing would be lost"
        return Result(
            done, (*parts, f"would write {size} to {done.path}{nothing}"), (str(done.path),)
        )
    if done.existed:
        line = f"{done.path} already exists, of the same data; nothing was written"
        return Result(done, (line,), (str(done.path),))
    fields = fields_of(done, "id to path size=bytes:bytes")
    read = plural(done.compared, "value was read back and is", "values were read back and are")
    line = f"{size}, {human_bytes(done.bytes)}: {read} equal"
    return Result(done, (*parts, fields, line), (str(done.path),))
