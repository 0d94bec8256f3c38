"""`push`: a dataset to the hub or to a folder."""

from typing import Annotated

from offline_data.base.files import human_bytes
from offline_data.base.plurals import plural
from offline_data.document.blocks import fields_of, table
from offline_data_cli.names import entry_named
from offline_data_cli.options import Context, Dataset, DryRun, argument, option
from offline_data_cli.render import confirm
from offline_data_cli.result import Result


def push(
    context: Context,
    dataset: Dataset,
    to: Annotated[
        str, argument("TO", "hf://OWNER/NAME, or a folder: new, empty, or of an earlier push.")
    ],
    public: Annotated[
        bool,
        option("Make the repository public; asks first. (default: private)"),
    ] = False,
    licence: Annotated[
        str | None, option("Licence, if the source states none.", metavar="NAME")
    ] = None,
    dry_run: DryRun = False,
) -> Result:
    """Push a dataset to the Hugging Face hub or to a folder.

    `download` copies it from there. Files that already exist there are not sent again. The token
    for the hub comes from HF_TOKEN or `hf auth login`.
    """
    from offline_data.project.share.push import check_redistributable, push_dataset

    entry = entry_named(context, dataset)
    if public and to.startswith("hf://") and not dry_run:
        stated = check_redistributable(entry, licence)
        question = (
            f"Everybody will be able to read {entry.id} ({human_bytes(entry.bytes)}, {stated}) at {to}. "
            "Push it?"
        )
        if not confirm((), question, yes=context.yes, mode=context.mode):
            return Result(None, (), notes=("nothing was pushed",), code=1)
    pushed = push_dataset(
        entry,
        to,
        context.settings,
        context.progress,
        public=public,
        licence=licence,
        dry_run=dry_run,
    )
    if pushed.existed:
        line = f"{pushed.to} has {pushed.id} already; nothing was sent"
        return Result(pushed, (line,), (pushed.to,))
    if dry_run:
        listed = table("file", [{"file": name} for name in pushed.sent])
        line = f"would send {plural(len(pushed.sent), 'file')}, {human_bytes(pushed.bytes)}"
        return Result(pushed, (listed, line), (pushed.to,))
    fields = fields_of(pushed, "id to revision size=bytes:bytes")
    return Result(pushed, (fields,), (pushed.to,))
