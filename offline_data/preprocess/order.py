"""A new dataset as it is asked for, in Python or on a command line, and the making of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from offline_data.config import user_path
from offline_data.preprocess.engine import Run, preprocess
from offline_data.preprocess.options import target_of
from offline_data.preprocess.plan import fingerprint
from offline_data.preprocess.spec import recipe_of
from offline_data.progress import SILENT
from offline_data.store.library import entry_at
from offline_data.store.reader import open_reader

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.ingest.options import Result
    from offline_data.preprocess.options import Options
    from offline_data.preprocess.spec import Calling, Stage
    from offline_data.progress import Progress

REVISION_DIGITS = 12
"""Digits of the fingerprint that are the revision of a dataset that was made here."""

FUNCTION = "fn:"
"""What the text of a stage begins with that is a function."""


@dataclass(frozen=True)
class Order:
    """One dataset to be made of another one.

    Example:
        >>> from pathlib import Path
        >>> from offline_data.preprocess.options import Options
        >>> from offline_data.preprocess.spec import Calling
        >>> stages = ("fn:scale.py:scale", "clip:action,high=1")
        >>> order = Order(Path("/data/door"), stages, Calling(), "scaled", None, Options())
        >>> order.absolute().stages[0] == f"fn:{Path.cwd()}/scale.py:scale"
        True
    """

    parent: Path
    """Directory of the dataset it is made of."""
    stages: tuple[Stage, ...]
    """In order. A command line has texts, which read the same in other programs; `fn:FILE.py:NAME`
    and `fn:pkg.module:NAME` are functions."""
    calling: Calling
    """How functions are called."""
    name: str | None
    """It becomes `local:NAME` under the root; None: `dest` says where it goes."""
    dest: Path | None
    """The dataset directory to be made."""
    options: Options
    """How it is carried out."""

    def absolute(self) -> Order:
        """Return the same order as it reads in any folder."""
        dest = None if self.dest is None else user_path(self.dest, "the destination")
        stages = tuple(map(_absolute, self.stages))
        return replace(self, parent=self.parent.absolute(), stages=stages, dest=dest)

    def run(self, settings: Settings, progress: Progress = SILENT) -> Run:
        """Look the parent, functions and steps up; the parent's data are not touched.

        Raises:
            UsageError: A function cannot be imported; arguments of a step; no place, or two.
            NotFoundError: No step of that name.
            ManifestError: The parent cannot be read.
        """
        reader = open_reader(self.parent.absolute())
        recipe = recipe_of(self.stages, self.calling)
        made_of = fingerprint(reader, recipe, self.options.num_frames, self.options.view)
        target = target_of(self.name, self.dest, made_of[:REVISION_DIGITS], settings)
        return Run(reader, recipe, target, made_of, self.options, settings, progress)


def carry_out(order: Order, settings: Settings, progress: Progress = SILENT) -> Result:
    """Make the dataset here and now; raises what `Order.run` and `preprocess` raise."""
    run = order.run(settings, progress)
    parent = entry_at(run.reader.path)
    return preprocess(parent, run.recipe, run.target, settings, run.options, progress)


def _absolute(stage: Stage) -> Stage:
    """Write the file of a function so that it is found from any folder."""
    if not isinstance(stage, str) or not stage.startswith(FUNCTION):
        return stage
    place, colon, name = stage.removeprefix(FUNCTION).rpartition(":")
    if not place.endswith(".py"):
        return stage
    return f"{FUNCTION}{user_path(place, 'the file of the function')}{colon}{name}"
