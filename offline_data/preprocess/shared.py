"""The plan that programs on several machines follow: one JSON file, changed under a lock."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.disk import disk_errors, write_durably
from offline_data.errors import ManifestError, NewerFormatError, NotFoundError, UsageError
from offline_data.preprocess.options import Options
from offline_data.preprocess.order import Order
from offline_data.preprocess.spec import Calling
from offline_data.preprocess.work import Work
from offline_data.strict_json import MAX_BYTES, read_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offline_data.config import Settings
    from offline_data.preprocess.engine import Run
    from offline_data.preprocess.recipe import Recipe
    from offline_data.progress import Progress

FORMAT_VERSION = 1


@dataclass(frozen=True)
class SharedPlan:
    """What is to be made, and how far it is, as the file has it.

    The folder beside the file, `FILE.work`, has a new folder for every plan that was made: what a
    task still writes of an older one counts for nothing, and is in nobody's way.
    """

    file: Path
    order: Order
    """What was asked for; it reads the same everywhere."""
    root: Path
    """Where datasets live by their ids, and their locks."""
    id: str
    """Of the new dataset."""
    destination: Path
    """Where the new dataset goes."""
    fingerprint: str
    """What is made of what."""
    digests: tuple[str | None, ...]
    """Of the functions among the stages; None for other steps."""
    place: str = ""
    """Folder in `FILE.work` of what its tasks have made; no two plans have the same."""
    generation: int = 0
    """How often the data asked for another plan."""
    states: tuple[dict[str, Any], ...] = ()
    """What the data asked for of each step; nothing (`{}`) for most."""
    recipe: tuple[dict[str, Any], ...] = ()
    """Every step with what it learnt, for people."""
    tasks: int = 0
    """Number of tasks."""
    published: bool = False
    """Whether the dataset has been made."""

    @property
    def folder(self) -> Path:
        """Where the work of all plans of this file lies."""
        return self.file.with_name(self.file.name + ".work")

    def work(self, run: Run) -> Work:
        """Return the folder of its tasks; the dataset grows beside the place where it is to go."""
        return Work(self.folder / self.place, run.target.work.with_suffix(".finish"))

    def run(self, settings: Settings, progress: Progress) -> Run:
        """Build the recipe again, and hold it against what was planned.

        Raises:
            UsageError: A function or the parent has changed since, or cannot be found here.
        """
        run = self.order.run(replace(settings, root=self.root), progress)
        for stage, was, step in zip(self.order.stages, self.digests, run.recipe.steps, strict=True):
            if digest_of(step.describe()) != was:
                raise _changed(f"The function {stage} has changed", self.file)
        if run.fingerprint != self.fingerprint:
            raise _changed(f"The dataset {self.order.parent} has changed", self.file)
        return replace(run, recipe=_with_states(run.recipe, self.states))

    def to_json(self) -> dict[str, Any]:
        """Return the file's content."""
        order, options = self.order, self.order.options
        stages = zip(order.stages, self.digests, strict=True)
        return {
            "format_version": FORMAT_VERSION,
            "id": self.id,
            "destination": str(self.destination),
            "parent": str(order.parent),
            "fingerprint": self.fingerprint,
            "stages": [{"text": text, "sha256": digest} for text, digest in stages],
            "calling": asdict(order.calling),
            "name": order.name,
            "dest": None if order.dest is None else str(order.dest),
            "root": str(self.root),
            "options": {
                "num_frames": options.num_frames,
                "layout": options.layout,
                "audit": options.audit,
                "chunksize": options.chunksize,
                "force": options.force,
            },
            "place": self.place,
            "generation": self.generation,
            "states": list(self.states),
            "recipe": list(self.recipe),
            "tasks": self.tasks,
            "published": self.published,
        }


def digest_of(step: dict[str, Any]) -> str | None:
    """Return the digest of a function, from what its step says of itself; None for other steps."""
    return step.get("sha256")


def read_shared(file: Path) -> SharedPlan:
    """Read the file of a plan.

    Raises:
        NotFoundError: There is none.
        NewerFormatError, ManifestError: It cannot be read.
        AccessError: It may not be read.
    """
    with disk_errors(file):
        try:
            value = json.loads(read_whole(file, MAX_BYTES))
            _check_version(file, value)
            return _read(file, value)
        except NotFoundError as error:
            raise NotFoundError(
                f"There is no plan {file}",
                hint=f"offline-data preprocess … --plan-only --plan {file} makes one",
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ManifestError(
                f"{file} is no plan of offline-data: {type(error).__name__}: {error}",
                hint="it is what `offline-data preprocess … --plan-only --plan FILE` writes",
            ) from error


def write_shared(shared: SharedPlan) -> None:
    """Write the file of a plan, whole or not at all; the caller holds its lock."""
    with disk_errors(shared.file):
        write_durably(shared.file, (json.dumps(shared.to_json(), indent=1) + "\n").encode())


@contextmanager
def plan_lock(file: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of a plan's file; waits while another process changes it, and says so."""
    from filelock import FileLock, Timeout

    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(file.with_name(f".{file.name}.lock"))
        try:
            lock.acquire(blocking=False)
        except Timeout:
            progress.note(f"another process is changing {file.name}; waiting for it")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _check_version(file: Path, value: Any) -> None:
    version = value["format_version"]
    if version > FORMAT_VERSION:
        raise NewerFormatError(
            f"{file} has format {version}; this version reads up to {FORMAT_VERSION}",
            hint="use the offline-data that made it",
        )


def _read(file: Path, value: dict[str, Any]) -> SharedPlan:
    dest = value["dest"]
    order = Order(
        Path(value["parent"]),
        tuple(stage["text"] for stage in value["stages"]),
        Calling(**value["calling"]),
        value["name"],
        None if dest is None else Path(dest),
        Options(**value["options"]),
    )
    return SharedPlan(
        file,
        order,
        Path(value["root"]),
        value["id"],
        Path(value["destination"]),
        value["fingerprint"],
        tuple(stage["sha256"] for stage in value["stages"]),
        value["place"],
        value["generation"],
        tuple(value["states"]),
        tuple(value["recipe"]),
        value["tasks"],
        value["published"],
    )


def _with_states(recipe: Recipe, states: tuple[dict[str, Any], ...]) -> Recipe:
    pairs = zip(recipe.steps, states, strict=True)
    steps = tuple(step.with_state(state) if state else step for step, state in pairs)
    return replace(recipe, steps=steps)


def _changed(what: str, file: Path) -> UsageError:
    return UsageError(
        f"{what} since {file} was made",
        hint="plan again: offline-data preprocess … --plan-only --plan FILE --force",
    )
