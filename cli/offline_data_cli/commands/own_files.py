"""`convert` of a user's own files: questions on a terminal, the first episode, and the mapping as a file."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.base.config import user_path
from offline_data.base.errors import OfflineDataError, UsageError
from offline_data.base.files import write_user_file
from offline_data.base.plurals import plural
from offline_data.document.blocks import Table, TableColumn
from offline_data_cli.options import Context
from offline_data_cli.render import ask, choose, choose_several, confirm, say, show_blocks
from offline_data_cli.result import Block

if TYPE_CHECKING:
    from offline_data.formats.files.mapping import FileMapping, MappingQuestionError
    from offline_data.formats.files.preview import Preview
    from offline_data.pipeline.ingest.inspection import Inspection

_ROWS = 3  # first rows of the first episode that are shown
_NONE = "none of these"


def inspect_own_files(path: Path, source: str | None) -> "Inspection | None":
    """Inspect files that no source reads; None if one does, or if they have no arrays.

    With `--from files`, those that another source would read are inspected, too.
    """
    from offline_data.formats.registry import get_source
    from offline_data.pipeline import ingest

    try:
        found = ingest.inspect_files(path)
    except OfflineDataError:
        return None
    read = get_source(source).accepts(path) if source else found.source is not None
    return None if read else found


def ask_for_name(path: Path) -> str:
    """Ask for the name of a dataset; the default is that of the file, if it can be one."""
    from offline_data.pipeline.ingest.resolve import new_id

    name = path.name.partition(".")[0]
    try:
        new_id(name)
    except UsageError:
        name = ""
    default = f" (default: {name})" if name else ""
    chosen = ask(f"Name of the dataset{default}", name)
    new_id(chosen)  # raises
    return chosen


def ask_question(question: "MappingQuestionError", *, yes: bool) -> str | None:
    """Return the choice of the user, None for an optional question; raises `UsageError` if it cannot ask."""
    width = max(map(len, question.choices))
    lines = {f"{value:{width}}  {meaning}": value for value, meaning in question.choices.items()}
    default = next((line for line, value in lines.items() if value == question.likely), None)
    options = [*lines, *[_NONE] * question.optional]
    return lines.get(choose(question.why, options, "", yes=yes, default=default))


def ask_for_mapping(
    context: Context, found: "Inspection", name: str, out: str | None
) -> "FileMapping | None":
    """Ask what the files do not tell, show the first episode, and write the mapping.

    The file is `out`, else that of the name in the current folder. None, and no file, if the user declines.
    """
    from offline_data.formats.files.mapping import dump_toml
    from offline_data.pipeline import ingest

    last = name.removeprefix("local:").rpartition("/")[2]
    file = user_path(out, "--out") if out else Path(f"{last}.toml")
    shown = replace(found, questions=())
    show_blocks(shown.blocks())
    answers: dict[str, Any] = {}
    while open_ := [one for one in found.questions if one.name not in answers]:
        answers[open_[0].name] = _ask(open_[0])
        found = ingest.inspect_files(found.path, answers)
    mapping, preview = _preview(found)
    question = f"Write the mapping to {file}, and convert to local:{name.removeprefix('local:')}?"
    if file.exists():
        question = f"{file} already exists and will be replaced. {question}"
    if not confirm(_preview_blocks(preview), question, yes=False, mode=context.mode):
        return None
    text = found.toml if mapping == found.mapping else dump_toml(mapping)
    write_user_file(file, text.encode())
    say(f"mapping: {file} (to convert again: --mapping {file})")
    return mapping


def _preview(found: "Inspection") -> tuple["FileMapping", "Preview"]:
    """Return the mapping, and what it makes; asks what only a later file of a folder does not tell."""
    from offline_data.formats.files.mapping import MappingQuestionError
    from offline_data.pipeline import ingest

    mapping = found.mapping
    while True:
        try:
            return mapping, ingest.preview_files(found.path, mapping, _ROWS)
        except MappingQuestionError as asked:
            value = ask_question(asked, yes=False)
            if value is None:
                raise
            mapping = asked.answered(mapping, value)


def _ask(question: "MappingQuestionError") -> str | tuple[str, ...] | None:
    if not question.several:
        return ask_question(question, yes=False)
    lines = {f"{name}  {kind}": name for name, kind in question.choices.items()}
    return tuple(lines[line] for line in choose_several(question.why, list(lines)))


def _preview_blocks(preview: "Preview") -> list[Block]:
    from offline_data.analysis.transitions import brief

    columns = [TableColumn("feature"), *(TableColumn(f"step {step}") for step in preview.steps)]
    rows = [(name, *map(brief, values)) for name, values in preview.values.items()]
    title = f"First episode, {plural(preview.length, 'step')}"
    if not preview.final_observation:
        title += ", final observation not known"
    counts = "" if preview.episodes is None else f"{plural(preview.episodes, 'episode')}"
    if counts and preview.transitions is not None:
        counts += f" of {plural(preview.transitions, 'step')}"
    return [Table(columns, rows, title), *([counts] if counts else [])]
