"""`check`: a linter for datasets."""

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from offline_data.base.config import user_path
from offline_data.base.errors import NotFoundError, UsageError
from offline_data.base.plurals import plural
from offline_data.document.blocks import Lines, non_empty, table
from offline_data_cli import complete
from offline_data_cli.commands.manage import verify
from offline_data_cli.names import dataset_id
from offline_data_cli.options import AllDatasets, Context, SomeDatasets, option
from offline_data_cli.result import Block, Result

if TYPE_CHECKING:
    from offline_data.analysis.checks.baseline import Comparison
    from offline_data.analysis.checks.config import Format
    from offline_data.analysis.checks.formats import CheckOutcome

_SUFFIXES = {".json": "json", ".xml": "junit", ".sarif": "sarif", ".md": "markdown"}


class FailLevel(str, Enum):
    """Values of `--fail-on`."""

    error = "error"
    warning = "warning"
    info = "info"
    never = "never"


class ReportFormat(str, Enum):
    """Values of `--output-format`."""

    human = "human"
    json = "json"
    junit = "junit"
    sarif = "sarif"
    github = "github"
    markdown = "markdown"


def check(
    context: Context,
    datasets: SomeDatasets = None,
    all_: AllDatasets = False,
    files: Annotated[
        bool, option("Compare files with their checksums instead. Exits with 5 if one differs.")
    ] = False,
    select: Annotated[
        list[str] | None,
        option(
            "Run only these rules. A code, a prefix (RL02) or a name; may be repeated.",
            metavar="RULE",
            autocompletion=complete.rules,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        option("Skip these rules.", metavar="RULE", autocompletion=complete.rules),
    ] = None,
    fail_on: Annotated[
        FailLevel | None,
        option(
            "Lowest severity that fails. error, warning, info or never. (default: error)",
            metavar="SEVERITY",
        ),
    ] = None,
    baseline: Annotated[Path | None, option("Ignore the findings in FILE.", metavar="FILE")] = None,
    write_baseline: Annotated[
        Path | None, option("Write the findings to FILE, for --baseline.", metavar="FILE")
    ] = None,
    output_format: Annotated[
        ReportFormat | None,
        option(
            "Format of the report. human, json, junit, sarif, github or markdown. (default: human)",
            metavar="FORMAT",
        ),
    ] = None,
    out: Annotated[
        list[Path] | None,
        option(
            "Write the report to FILE; may be repeated. The suffix names the format: .json, .xml "
            "(junit), .sarif or .md; others have --output-format.",
            metavar="FILE",
        ),
    ] = None,
    output: Annotated[list[Path] | None, option("Old name of --out.", hidden=True)] = None,
    statistics: Annotated[bool, option("Count findings by rule instead of listing them.")] = False,
    config: Annotated[
        Path | None,
        option(
            "Configuration file. (default: offline-data.toml or pyproject.toml here or above)",
            metavar="FILE",
        ),
    ] = None,
) -> Result:
    """Check datasets for defects, as a linter does for code.

    Exits with 1 if there are findings of --fail-on or above.
    """
    from offline_data.analysis.checks.baseline import compare, read_baseline
    from offline_data.analysis.checks.baseline import write_baseline as write
    from offline_data.analysis.checks.config import find_config, read_config
    from offline_data.analysis.checks.formats import CheckOutcome, render
    from offline_data.analysis.checks.registry import select_rules
    from offline_data.analysis.checks.run import RULE_FAILED, run_checks
    from offline_data.base.files import is_file, write_user_file

    outputs = [*(out or []), *(output or [])]
    if files:
        if select or ignore or baseline or write_baseline or output_format or outputs:
            raise UsageError("--files runs no rules", hint="for both: check --select RL")
        return verify(context, datasets, all_)
    here = Path.cwd()
    found = read_config(user_path(config, "--config")) if config else find_config(here)
    chosen, left_out = _split_selectors(select), _split_selectors(ignore)
    if not chosen:  # --select replaces both lists of the file, --ignore adds to its own
        chosen, left_out = found.select, (*found.ignore, *left_out)
    rules = select_rules(chosen, left_out, found.thresholds)
    known = user_path(baseline, "--baseline") if baseline else found.baseline
    expected = read_baseline(known) if known and not write_baseline else None
    target = user_path(write_baseline, "--write-baseline") if write_baseline else None
    if target and is_file(target):
        read_baseline(target)
    report = run_checks(
        _find_folders(context, datasets or [], all_=all_),
        rules,
        ignored=found.ignores,
        workers=context.settings.workers,
        progress=context.progress,
    )
    level = fail_on.value if fail_on else found.fail_on
    compared = None if expected is None else compare(report, expected)
    outcome = CheckOutcome(report, level, compared, here)
    wanted = output_format.value if output_format else found.output_format
    reports = {user_path(file, "--out"): _choose_format(file, wanted) for file in outputs}
    for file, form in reports.items():
        write_user_file(file, render(outcome, form).encode())
    shown: Format = "human" if wanted in reports.values() else wanted
    notes = _describe_baseline(compared, known)
    failed = outcome.failed
    if target:
        count = write(target, report)
        notes.append(f"{plural(count, 'finding is', 'findings are')} in the baseline {target}")
        failed = any(finding.code == RULE_FAILED for finding in report.findings)
    return _result(outcome, shown, notes, statistics=statistics, failed=failed)


def _split_selectors(given: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for text in given or [] for part in text.split(","))


def _find_folders(context: Context, datasets: list[str], *, all_: bool) -> list[Path]:
    """Return the directories of datasets, damaged ones included."""
    from offline_data.store.library import locate_folders, survey

    if all_ == bool(datasets):
        raise UsageError("Give dataset ids or --all", hint="offline-data list")
    root = context.settings.root
    if all_:
        entries, unreadable = survey(root)
        paths = [*(entry.path for entry in entries), *unreadable]
        if not paths:
            raise NotFoundError(f"There is no dataset under {root}", hint="offline-data download")
        return paths
    given = [dataset_id(context, text) for text in datasets]
    folders = [path for text in given for path in locate_folders(text, context.settings)]
    return list(dict.fromkeys(folders))


def _choose_format(file: Path, wanted: "Format") -> "Format":
    """Return the format of a file: by its ending, though SARIF may be in `.json`."""
    if file.suffix == ".json" and wanted == "sarif":
        return wanted
    return cast("Format", _SUFFIXES.get(file.suffix, wanted))


def _describe_baseline(compared: "Comparison | None", file: Path | None) -> list[str]:
    if compared is None:
        return []
    notes = []
    if compared.gone:
        notes.append(
            f"no longer found: {compared.gone} of the baseline "
            f"(to update it: --write-baseline {file})"
        )
    if compared.strange:
        notes.append(f"no finding of the baseline {file} is about a dataset of this run")
    return notes


def _result(
    outcome: "CheckOutcome", form: "Format", notes: list[str], *, statistics: bool, failed: bool
) -> Result:
    from offline_data.analysis.checks.formats import as_data, finding_blocks, render

    blocks: list[Block] = []
    if form != "human":
        text = render(outcome, form)
        blocks.append(Lines([[(line, "")] for line in text.splitlines()], wrap=False))
    elif statistics:
        spec = "code rule severity findings:count datasets:count"
        blocks += [*non_empty(table(spec, outcome.statistics())), outcome.summary]
    else:
        blocks += finding_blocks(outcome.findings, outcome.summary)
    ids = list(dict.fromkeys(finding.dataset for finding in outcome.findings))
    return Result(as_data(outcome), blocks, ids, notes, code=1 if failed else 0)
