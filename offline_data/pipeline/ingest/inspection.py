"""Inspection of a user's own files: their arrays, a proposed mapping, and its questions and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.document.blocks import Block, Table, TableColumn, non_empty, table
from offline_data.document.html import Document
from offline_data.formats.files.found import Proposal
from offline_data.formats.registry import check_plain
from offline_data.pipeline.ingest.conversion import ConversionProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offline_data.formats.files.mapping import FileMapping
    from offline_data.formats.files.preview import Preview
    from offline_data.formats.files.questions import Answer


@pickled_by_name
@dataclass(frozen=True, repr=False)
class Inspection(Document, Proposal):
    """Arrays of files, a proposed mapping, and the questions that it leaves open; shown as two tables."""

    def answer(self, **answers: Answer) -> FileMapping:
        """Return the complete mapping, by answers to `questions`; reads the files again.

        An answer may raise another question, which the same call answers: with
        `final_observation="last_row"` files with rewards also need `reward_of`.

        Args:
            answers: A value from `choices` by `name` of each question. `observation` and `action`,
                where no name of an array tells them, are an array or several; optional questions
                can be left out.

        Raises:
            UsageError: A question has no answer, or an answer is not one of its choices, or no
                question has that name; the message lists what is available.

        Example:
            >>> import pathlib, tempfile, numpy as np
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "recorded.npz")
            ...     np.savez(path, obs=np.eye(4), act=np.ones((4, 1)), run=np.array([0, 0, 1, 1]))
            ...     found = inspect_files(path)
            ...     names = [question.name for question in found.questions]
            ...     final = "missing"
            ...     mapping = found.answer(episode="run", final_observation=final, ends="truncated")
            >>> names, mapping.ends.episode
            (['final_observation', 'episode', 'ends'], 'run')
        """
        found = inspect_files(self.path, answers)
        missing = [question for question in found.questions if not question.optional]
        if missing:
            listed = "; ".join(
                f"{one.name}: {one.why} ({', '.join(map(repr, one.choices))})" for one in missing
            )
            raise UsageError(
                f"{plural(len(missing), 'question has', 'questions have')} no answer: {listed}"
            )
        return found.mapping

    def blocks(self) -> list[Block]:
        """Return the arrays, and the questions with their choices."""
        spec = "name shape:text dtype min=least:number max=most:number looks_like"
        arrays = table(spec, self.arrays, shape=lambda one: str(list(one.shape)))
        columns = [TableColumn(name) for name in ("question", "argument", "answer", "meaning")]
        rows = [
            ("" if place else one.why, "" if place else one.name, repr(value), meaning)
            for one in self.questions
            for place, (value, meaning) in enumerate(one.choices.items())
        ]
        return [arrays, *non_empty(Table(columns, rows, "Questions"))]


def inspect_files(path: Path, answers: Mapping[str, Answer] | None = None) -> Inspection:
    """List a path's arrays in a child process, propose a mapping; raises as `read_head` does.

    `answers`: to questions of an earlier inspection, by name; `UsageError` for those that are not asked.
    """
    check_plain(path)
    with ConversionProcess(path) as process:
        return Inspection(**vars(process.inspect(answers or {})))


def preview_files(path: Path, mapping: FileMapping, rows: int) -> Preview:
    """Read the first rows of the first episode in a child process; raises as `convert` does."""
    check_plain(path)
    with ConversionProcess(path) as process:
        return process.preview(mapping, rows)
