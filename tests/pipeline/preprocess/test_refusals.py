"""What jobs, recipes, places, views and plans refuse, changing nothing: the cases are the lines of `refusals.json`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import OfflineDataError
from offline_data.base.json import read_json
from offline_data.pipeline.preprocess.engine import preprocess
from offline_data.pipeline.preprocess.job import Job, Recipe, RunOptions, Target, recipe_of
from offline_data.pipeline.preprocess.steps.base import Revision, Selection, Step
from offline_data.pipeline.preprocess.subsets import save_view
from offline_data.pipeline.preprocess.worker import plan_job, run_share
from offline_data.store.chunk import EpisodeChunk
from offline_data.store.library import entry_at
from offline_data.testing.chunks import toy_chunk
from tests.pipeline.preprocess import stopping
from tests.pipeline.preprocess.runs import LENGTHS, Shuffled, make, small_groups, write_plain
from tests.pipeline.preprocess.stopping import OTHER, STAGES
from tests.refusals import Refusals

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))
CLIP, ANOTHER = "clip:action,low=-5000", "clip:action,low=-6000"


@dataclass(frozen=True)
class Nothing(Selection):
    name: ClassVar[str] = "nothing"

    def choose(
        self,
        table: Mapping[Any, Any],
        words: Mapping[Any, Sequence[str]],  # noqa: ARG002 - no column matters
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.zeros(len(table["length",]), bool)


@dataclass(frozen=True)
class Strange(Step):
    """Does what no step may do: to all data, or from some episode on."""

    name: ClassVar[str] = "strange"

    what: str
    value: int = 0

    def with_state(self, state: Mapping[str, Any]) -> Strange:  # noqa: ARG002
        return self

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        steps = dict(chunk.batch.steps)
        if self.what == "objects":
            steps["wide",] = np.ones(chunk.batch.transitions, np.longdouble)
        if self.what == "codes":
            steps["mission",] = np.full_like(steps["mission",], self.value)
        if chunk.episodes.tolist() == [4] and self.what == "revises":
            raise Revision({"told": True}, "found late")
        if chunk.episodes.tolist() == [4] and self.what == "widens":
            steps["action",] = np.repeat(steps["action",], 2, axis=1)
        if chunk.episodes.tolist() == [4] and self.what == "shortens":
            steps = {key: column[:-1] for key, column in steps.items()}
            observations = {key: column[:-1] for key, column in chunk.batch.observations.items()}
            lengths = chunk.batch.lengths - 1
            batch = replace(chunk.batch, lengths=lengths, steps=steps, observations=observations)
            return replace(chunk, batch=batch)
        return chunk.having(steps=steps)


class Odd(BaseException):
    """Neither an Exception nor an exit."""


class Speechless(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise ValueError("no text")


def fail(error: BaseException) -> Any:
    raise error


def endless(td: Any) -> Any:
    return endless(td)


def holding_itself() -> Any:
    out: dict[str, Any] = {}
    out["self"] = out
    return out


def thirds(td: Any) -> Any:
    return td.set(("next", "reward"), td["next", "reward"] / 3)


def lacking_short(td: Any) -> Any:
    return None if len(td) == 1 else td


@dataclass(frozen=True)
class Scene:
    """Datasets, plans and documents in a folder, which is the current one."""

    folder: Path
    settings: Settings
    made_of: str
    """Fingerprint of the dataset in `out`."""

    @classmethod
    def of(cls, folder: Path, patch: pytest.MonkeyPatch) -> Scene:
        settings = Settings(folder / "root", offline=True, workers=1, minari_path=folder)
        stopping.Scene.of(folder / "stopped", settings, patch).stop()
        small_groups(patch, rows=4, width=45)
        for place, lengths in (("toy", LENGTHS), ("even", [4] * 4), ("root/local/mine/1", [2])):
            write_plain(folder / place, lengths)
        for name in ("thesis/chapter.tex", "file", "root/local/damaged/2/manifest.json"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("{")
        (folder / "link").symlink_to(folder / "toy")
        (folder / "empty").mkdir()
        found = make(folder / "toy", [CLIP], folder / "out", settings)
        patch.chdir(folder / "empty")
        patch.setenv("OFFLINE_DATA_HOME", str(folder / "root"))
        scene = cls(folder, settings, found.manifest.converter["options"]["fingerprint"])
        scene.plan(CLIP)
        newer = {**read_json(folder / "plan.json"), "format_version": 2}
        (folder / "newer.json").write_text(json.dumps(newer))
        save_view(folder / "toy", ["filter:length > 2"], "some", settings)
        return scene

    def make(self, stages: Any, dest: str = "new", parent: str = "toy", **more: Any) -> None:
        stages = [stages] if isinstance(stages, str) else stages
        make(self.folder / parent, stages, self.folder / dest, self.settings, **more)

    def again(self, stages: Any = STAGES, **more: Any) -> None:
        """Run anew what was stopped."""
        self.make(stages, "stopped/out", "stopped/toy", **more)

    def plan(self, stage: str, **more: Any) -> None:
        job = Job(self.folder / "toy", (stage,), None, self.folder / "planned", RunOptions(**more))
        plan_job(job, self.folder / "plan.json", self.settings)

    def share(self, rank: int, world: int | None, plan: str = "plan.json") -> None:
        run_share(self.folder / plan, rank, world, self.settings)

    def view(self, *stages: str, name: str = "other") -> None:
        save_view(self.folder / "toy", stages, name, self.settings)

    def place(self, name: str | None, dest: Path | None = None) -> Target:
        return Target.of(name, dest, "2", self.settings)

    def preprocess(self, fn: Any, rows: Any = None, **more: Any) -> None:
        """Preprocess the four episodes of four steps, or rows of them, as users do."""
        ds = offline_data.open_dataset(self.folder / "even")
        ds = ds if rows is None else ds.subset(rows)
        ds.preprocess(fn, **{"dest": self.folder / "new", **more})

    def files(self) -> dict[Path, bytes]:
        paths = [path for path in self.folder.rglob("*") if path.suffix != ".lock"]
        return {path: path.read_bytes() if path.is_file() else b"" for path in paths}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with pytest.MonkeyPatch.context() as patch:
        yield Scene.of(tmp_path_factory.mktemp("scene"), patch)


NAMES: dict[str, Any] = {
    "CLIP": CLIP, "ANOTHER": ANOTHER, "OTHER": OTHER, "os": os, "torch": torch, "Path": Path,
    **{
        one.__name__: one
        for one in (
            *(Job, Nothing, Odd, Recipe, RunOptions, Shuffled, Speechless, Strange, endless, entry_at),
            *(fail, holding_itself, lacking_short, preprocess, recipe_of, replace, thirds, toy_chunk),
        )
    },
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@REFUSALS.cases
def test_refusals(kind: str, text: str, scene: Scene) -> None:
    names = {**NAMES, "s": scene, "here": scene.folder, "settings": scene.settings}
    calls = {
        "functions": f"s.preprocess(lambda td: {text})",
        "options": f"RunOptions({text})",
        "arguments": f"s.preprocess(thirds, {text})",
    }

    def brief() -> None:
        """Leave the traceback away: it has lines of this file."""
        try:
            eval(calls.get(kind, text), names)  # noqa: S307
        except OfflineDataError as error:
            lines = error.message.split("\n")
            if len(lines) < 80:
                error.message = lines[0].partition(": maximum recursion")[0]
            raise

    before = scene.files()
    wide = np.dtype(np.longdouble).name
    known = {scene.folder: "FOLDER", wide: "LONGDOUBLE", scene.made_of[:12]: "REVISION"}
    REFUSALS.check(kind, text, brief, known)
    shutil.rmtree(scene.folder / ".new.preprocess", ignore_errors=True)  # finished tasks
    assert scene.files() == before
    assert os._exit.__name__ == "_exit", "it is as it was"


@pytest.mark.parametrize("value", [-1, 0, 2])
def test_codes_that_stand_for_words(value: int) -> None:
    Recipe((Strange("codes", value),)).apply(toy_chunk([3]))
