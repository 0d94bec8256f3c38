"""`demo`: a tiny dataset recorded on this machine, converted, checked and sampled offline."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from offline_data.config import Settings
from offline_data_cli.commands.info import info_result
from offline_data_cli.commands.inspection import sample_result, stats_result
from offline_data_cli.commands.manage import verify_result
from offline_data_cli.context import Context
from offline_data_cli.options import option
from offline_data_cli.result import Result

NAME = "demo/cartpole"
BATCH = 32


def demo(
    context: Context,
    keep: Annotated[bool, option(f"Keep the dataset as local:{NAME}.", "--keep")] = False,
) -> Result:
    """Record, convert, verify and sample a tiny dataset. Works offline."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="offline-data-demo-") as folder:
        settings = replace(context.settings, offline=True)
        if not keep:
            settings = replace(settings, root=Path(folder) / "root")
        return _run(context, settings, Path(folder), keep=keep)


def _run(context: Context, settings: Settings, folder: Path, *, keep: bool) -> Result:
    from offline_data import ingest
    from offline_data.reports.info import entry_info
    from offline_data.reports.stats import dataset_stats
    from offline_data.store import verify as integrity
    from offline_data.store.library import entry_at
    from offline_data.store.reader import open_reader
    from offline_data_cli.recording import EPISODES, record

    say = context.progress.note
    say(f"recording {EPISODES} episodes of CartPole-v1 with Minari's DataCollector")
    recorded = record(folder)
    say(f"converting them to local:{NAME}, comparing every row with the source")
    options = ingest.Options(audit="all", force=True)
    stored = ingest.convert(recorded, NAME, settings, options, context.progress, source="minari")
    say(f"verifying it, computing statistics and sampling a batch of {BATCH}")
    entry, reader = entry_at(stored.path), open_reader(stored.path)
    steps = {
        "info": info_result(entry_info(entry)),
        "verify": verify_result(entry, integrity.verify(stored.path, context.progress)),
        "stats": stats_result(dataset_stats(reader, context.progress)),
        "sample": sample_result(entry, BATCH),
    }
    say(f"kept in {stored.path}" if keep else "deleted again; use --keep to keep it")
    return Result(
        data={"id": str(stored.id), **{name: result.data for name, result in steps.items()}},
        blocks=tuple(
            block
            for name, result in steps.items()
            for block in (f"$ offline-data {name} local:{NAME}", *result.blocks)
        ),
        ids=(str(stored.id),),
        notes=tuple(note for result in steps.values() for note in result.notes),
        failures=tuple(error for result in steps.values() for error in result.failures),
    )
