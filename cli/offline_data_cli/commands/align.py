"""`align`: features that are stored some rows late or early."""

from typing import TYPE_CHECKING, Annotated

from offline_data.base.errors import UsageError
from offline_data.base.plurals import plural
from offline_data_cli.commands.pages import Replace, new_figure
from offline_data_cli.names import entry_named
from offline_data_cli.options import Context, Dataset, count, option
from offline_data_cli.result import Result

if TYPE_CHECKING:
    from offline_data.analysis.alignment.find import Alignment


def align(
    context: Context,
    dataset: Dataset,
    pair: Annotated[
        list[str] | None,
        option("Also compare two observation features; may be repeated.", metavar="KEY:KEY"),
    ] = None,
    rows: Annotated[int, count("Rows to read, of episodes in random order.")] = 50_000,
    seed: Annotated[int, option("Seed of the order and of the bootstrap.", metavar="N")] = 0,
    fix: Annotated[
        str | None,
        option("Write local:NAME, in which features are shifted back.", metavar="NAME"),
    ] = None,
    out: Annotated[
        str | None,
        option("Draw the errors in a .png, .svg or .pdf file.", metavar="FILE"),
    ] = None,
    force: Replace = False,
) -> Result:
    """Find features that are stored some rows late or early.

    For lags from -5 to 5 rows, the next observation is predicted from this one and the action, on
    episodes that the model was not fitted on; rewards and cameras likewise. Exits 1 if a feature is
    shifted and --fix is not given.
    """
    from offline_data import api
    from offline_data.reports import figure

    entry = entry_named(context, dataset)
    picture = new_figure(out, force)
    pairs = [_split(text) for text in pair or ()]
    found = api.align(entry.path, pairs=pairs, rows=rows, seed=seed, settings=context.settings)
    blocks = found.blocks()
    data = {"id": found.id, "leaves": found.leaves, "shifts": found.shifts, "steps": found.steps}
    notes: tuple[str, ...] = ()
    if picture:
        figure.write(figure.draw_lags(found), picture)
        notes = (f"{picture} written",)
    if not found.shifts:
        decided = sum(leaf.lag is not None for leaf in found.leaves)
        line = f"nothing is shifted; {decided} of {plural(len(found.leaves), 'comparison')} decided"
        return Result(data, (*blocks, line), notes=notes)
    shifted = shift_sentence(found)
    if fix is None:
        steps = " ".join(f"--step {step}" for step in found.steps)
        line = f"to shift back: offline-data preprocess {dataset} {steps} --out NAME"
        return Result(data, (*blocks, f"{shifted}\n{line}"), tuple(found.shifts), notes, code=1)
    from offline_data.pipeline.preprocess.engine import preprocess
    from offline_data.pipeline.preprocess.job import Job, RunOptions

    job = Job(entry.path, found.steps, fix, None, RunOptions())
    made = str(preprocess(job, context.settings, context.progress).id)
    line = f"{made}: shifted back with {' '.join(found.steps)}"
    return Result({**data, "fixed": made}, (*blocks, f"{shifted}\n{line}"), (made,), notes)


def shift_sentence(found: "Alignment") -> str:
    """Say by how many rows each shifted feature is late or early."""
    return "; ".join(
        f"{leaf} is {plural(abs(lag), 'row')} {'late' if lag > 0 else 'early'}"
        for leaf, lag in found.shifts.items()
    )


def _split(text: str) -> tuple[str, str]:
    first, colon, second = text.partition(":")
    if not (first and colon and second):
        raise UsageError(
            f"--pair {text}: expected two observation features",
            hint="as in --pair observation/position:observation/velocity",
        )
    return first, second
