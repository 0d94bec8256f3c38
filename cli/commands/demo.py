"""`demo`: a tiny dataset recorded here, converted, checked and sampled without any network."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from offline_data.config import Settings
from offline_data_cli.call import Call
from offline_data_cli.commands.info import info_result
from offline_data_cli.commands.sample import sample_result
from offline_data_cli.commands.stats import stats_result
from offline_data_cli.commands.verify import verify_result
from offline_data_cli.result import Result

NAME = "demo/cartpole"
BATCH = 32


def demo(
    call: Call,
    keep: Annotated[
        bool, typer.Option("--keep", help=f"Leave it under the root as local:{NAME}.")
    ] = False,
) -> Result:
    """Record, convert, verify, show and sample a tiny dataset."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="offline-data-demo-") as folder:
        settings = replace(call.settings, offline=True)
        if not keep:
            settings = replace(settings, root=Path(folder) / "root")
        return _run(call, settings, Path(folder), keep=keep)


def _run(call: Call, settings: Settings, folder: Path, *, keep: bool) -> Result:
    from offline_data import ingest
    from offline_data_cli.recording import EPISODES, record

    say = call.progress.note
    say(f"recording {EPISODES} episodes of CartPole-v1 with Minari's DataCollector")
    recorded = record(folder)
    say(f"converting them to local:{NAME}, every row read back and compared")
    options = ingest.Options(audit="all", force=True)
    stored = ingest.convert(recorded, NAME, settings, options, call.progress, source="minari")
    say(f"verifying, measuring, and sampling a batch of {BATCH}")
    steps = _look(stored.path, call)
    say(f"kept in {stored.path}" if keep else "everything is deleted again; --keep keeps it")
    return _join(steps, str(stored.id))


def _look(path: Path, call: Call) -> dict[str, Result]:
    """Do what the verbs of these names do."""
    from offline_data.reports.info import entry_info
    from offline_data.reports.stats import dataset_stats
    from offline_data.store import verify as integrity
    from offline_data.store.library import entry_at
    from offline_data.store.reader import open_reader

    entry = entry_at(path)
    return {
        "info": info_result(entry_info(entry)),
        "verify": verify_result(entry, integrity.verify(path, call.progress)),
        "stats": stats_result(dataset_stats(open_reader(path), call.progress)),
        "sample": sample_result(entry, BATCH),
    }


def _join(steps: dict[str, Result], dataset: str) -> Result:
    results = list(steps.values())
    return Result(
        data={"id": dataset, **{name: result.data for name, result in steps.items()}},
        blocks=tuple(
            block
            for name, result in steps.items()
            for block in (f"$ offline-data {name} local:{NAME}", *result.blocks)
        ),
        ids=(dataset,),
        notes=tuple(note for result in results for note in result.notes),
        failures=tuple(error for result in results for error in result.failures),
    )
