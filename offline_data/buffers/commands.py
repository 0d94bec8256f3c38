"""Methods of a dataset that are commands, too: each is one call of the function of that name."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any
from warnings import warn

import torch

from offline_data.analysis.figures import DatasetStats, LeafStats, TextStats
from offline_data.analysis.transitions import Transitions, transitions_of
from offline_data.base.errors import NotFoundError
from offline_data.base.pickles import pickled_by_name
from offline_data.buffers.buffer import Buffer
from offline_data.buffers.described import Described
from offline_data.rows.indexing import positive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from offline_data.analysis.alignment.find import Alignment
    from offline_data.analysis.checks.finding import Finding
    from offline_data.buffers.views.episodes import EpisodeTable
    from offline_data.document.page import ReportPage, ReportPart
    from offline_data.pipeline.export.run import Exported


@pickled_by_name
@dataclass(frozen=True, repr=False)
class StatsOfBuffer(DatasetStats):
    """Statistics of a dataset, with the figures that TorchRL's `stats()` has of a buffer."""

    buffer: Mapping[str, Any] = field(default_factory=dict)
    """`size`, `capacity`, `utilization`, `write_count`, `prefetch_queue_size`, `initialized`."""

    def __getitem__(self, key: str | tuple[str, ...]) -> LeafStats | TextStats:
        try:
            return super().__getitem__(key)
        except NotFoundError:
            if key not in self.buffer:
                raise
        warn(
            f"ds.stats()[{key!r}] reads the whole dataset; use len(ds), which is its size and capacity",
            DeprecationWarning,
            stacklevel=2,
        )
        found: Any = self.buffer[key]  # type: ignore[index] # a string, as it is there
        return found  # type: ignore[no-any-return]


class DatasetCommands(Described):
    """Mixin of datasets: what the command `offline-data` does with one.

    `check`, `align`, `report` and `plot` are of the dataset on the disk, also for a view of it;
    `stats`, `head`, `view` and `export` are of the view.
    """

    if TYPE_CHECKING:
        episodes: EpisodeTable

    def check(self, *, select: Iterable[str] = (), ignore: Iterable[str] = ()) -> list[Finding]:
        """Check the dataset for defects; the most severe finding first, none if it is empty.

        ```python
        for finding in ds.check(ignore=["RL021"]):
            print(finding.severity, finding.code, finding.where, finding.message)
        ```

        Args:
            select: Codes of rules, their beginnings (`RL02`), or names; empty: all.
            ignore: Those to leave out.

        For thresholds, several datasets, and what is raised see `offline_data.check`.
        """
        found: list[Finding] = _api("check")(self, select=select, ignore=ignore)
        return found

    def stats(
        self,
        *,
        chunk: int | None = None,
        relative_to: str | None = None,
        absolute: Sequence[int] = (),
    ) -> StatsOfBuffer:
        """Compute statistics of every stored feature and of the episodes; see `describe`.

        ```python
        found = ds.stats()
        print(found)  # a table
        found["observation"].mean, found.per_episode.returns.median
        ```

        TorchRL's `stats()` of a buffer has other keys (`size`, `capacity`, …), which the result also
        answers, with a `DeprecationWarning`.
        """
        found = self.describe(chunk=chunk, relative_to=relative_to, absolute=absolute)
        counts: Any = Buffer.stats(self)  # type: ignore[arg-type] # a mixin of buffers
        return StatsOfBuffer(**vars(found), buffer=counts)

    def align(
        self, *, pairs: Sequence[tuple[str, str]] = (), rows: int = 50_000, seed: int = 0
    ) -> Alignment:
        """Find actions, rewards and cameras that are stored some rows late or early.

        ```python
        found = ds.align()
        print(found.shifts)  # {"action": 1}: stored one row late
        ```

        For arguments and what is raised see `offline_data.align`.
        """
        found: Alignment = _api("align")(self, pairs=pairs, rows=rows, seed=seed)
        return found

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        only: ReportPart | Collection[ReportPart] | None = None,
    ) -> ReportPage:
        """Return a page about the dataset, one HTML file without links; reads the data three times.

        ```python
        ds.report("report.html")  # also writes it
        ```

        Args:
            path: File to write, replacing an existing one; None: none, and the page plays fewer
                episodes, as a notebook that shows it keeps 2 MB of them.
            only: `"episodes"`, `"features"`, `"findings"` or `"metadata"`, or several, to compute and
                show only these; None: all.

        Raises:
            ManifestError, FormatError: A file is missing or damaged.
            UsageError: The file is not named `.html`, or there is no such part.
            UsageError, AccessError, NoSpaceError: The file cannot be written.
        """
        found: ReportPage = _api("report")(self, path, only=only)
        return found

    def view(self, episode: int) -> ReportPage:
        """Return a page that plays one episode, in one HTML file; a notebook shows it.

        ```python
        ds.view(-1).save("last.html")
        ```

        Args:
            episode: Row of `episodes`; negative numbers count from the end. Of a view, the whole
                episode of the dataset is played.

        Raises:
            IndexError: No such episode.
            UsageError: Not an integer, or the dataset is text.
        """
        found: ReportPage = _api("view")(self, self._episode_number(episode))
        return found

    def plot(self) -> Figure:
        """Draw returns, lengths, rewards, actions, observations, episodes and coverage.

        ```python
        ds.plot().savefig("overview.png")
        ```

        Raises `MissingDependencyError` without matplotlib; see `offline_data.plot`.
        """
        found: Figure = _api("plot")(self)
        return found

    def export(self, dest: str | os.PathLike[str], *, to: str, **options: Any) -> Exported:
        """Write the dataset or view as files of another format, and read every value back.

        ```python
        ds.export("arm.hdf5", to="robomimic").losses
        ```

        For formats, options and what is raised see `offline_data.export`.
        """
        found: Exported = _api("export")(self, dest, to=to, **options)
        return found

    def head(self, n: int = 5, *, episode: int | None = None) -> Transitions:
        """Return the first `n` transitions as plain values; printed, a line for each feature.

        ```python
        print(ds.head(2, episode=-1))
        ds.head(1)[0]["values"]["action"]
        ```

        Args:
            n: Number of transitions, or fewer.
            episode: Only those of this row of `episodes`; None: of all. `index` and `episode` of
                the result are the dataset's, also in a view.

        Raises:
            IndexError: No such episode.
            UsageError: `n` is not a number of at least 1.
        """
        n = positive(n, "n")
        if episode is None:
            rows = torch.arange(min(n, self._size_in_steps()[0]))
        else:
            rows = self.episodes.rows(episode)[:n]
        return transitions_of(self._steps_storage.reader, self._step_rows(rows).numpy())

    def cite(self) -> str:
        """Return how the dataset is to be cited, as its source states it.

        ```python
        print(ds.cite())
        ```

        Raises `NotFoundError` if the source states nothing.
        """
        if not self.manifest.citation:
            raise NotFoundError(
                f"{self.manifest.id} has no citation: its source states none",
                hint="ds.metadata has all that the source states",
            )
        return self.manifest.citation

    def provenance(
        self, *, lock: str | os.PathLike[str] | None = None
    ) -> dict[str, str | int | None]:
        """Return what identifies the data of a run, flat, for experiment trackers.

        ```python
        wandb.config.update({f"data/{name}": value for name, value in ds.provenance().items()})
        ```

        The keys are `id`, `revision`, `content_digest` (of all values, whatever the layout),
        `lock_digest` (of a lock file that locks this content), `recipe` (steps that made the
        dataset), `licence`, `steps`, `episodes` and `view` (digest of the rows of a view); None for
        what it has not. The data are read for the content digest, once: it is kept until the files
        change.

        Args:
            lock: Lock file; None: `datasets.lock` in the current folder, if there is one.

        Raises:
            NotFoundError, UsageError: The lock file does not exist, or is damaged.
            IntegrityError, AccessError: A file of the dataset is damaged or cannot be read.
        """
        found: dict[str, str | int | None] = _api("provenance")(self, lock=lock)
        steps, episodes = self._size_in_steps()
        view = self._origin().get("view")
        return {**found, "steps": steps, "episodes": episodes, "view": view}

    def _episode_number(self, episode: int) -> int:
        """Return the number in the dataset of a row of `episodes`."""
        return self.episodes._place(episode)

    def _step_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the dataset's rows of steps of this buffer."""
        return rows

    if TYPE_CHECKING:

        def _origin(self) -> dict[str, Any]: ...


def _api(name: str) -> Any:
    """Return a function of a later package."""
    return getattr(import_module("offline_data.api"), name)
