"""Hostile files that this package wrote itself: finished shards, leaves of images and videos."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from random import Random
from typing import Any

import av
import numpy as np

from offline_data.testing.toy import write_toy
from tests.films import FILM, NEXT_FILM, film_batch
from tests.fuzz.cases import ROOT, VERIFY, generator, one_thread, plan_of_case, refused, spoil_file
from tests.fuzz.disk import read_dataset
from tests.fuzz.harness import EXIT_CODES, Kind, Plan, run_command
from tests.fuzz.mutations import spoil_bytes, spoil_json, spoil_json_file
from tests.pictures import PIXELS, PNG, encoded_batch, images_on_disk, read, restate
from tests.toys.sharded import install, toy_episode, write_toy_shards

FILM_LENGTHS = (2, 1, 3)
SHARDS = 3
EPISODES = 2
CONVERT = ("convert", "case/in", "x", "--from", "shardtoy", *ROOT)


def prepare_shards(seed: int, folder: Path) -> Plan:
    """A conversion that is interrupted after two of three shards, whose output then is changed."""
    random = generator("shards", seed)
    write_toy_shards(folder / "in", f"sharded-{SHARDS}x{EPISODES}")
    how = random.choice(("none", "record", "record", "record", "files", "files"))
    return Plan(
        (CONVERT, CONVERT, VERIFY),
        (frozenset({1}), EXIT_CODES - {1}, frozenset({0, 3})),
        publishes=False,
        facts={"how": how, "seed": seed},
    )


def run_shards(folder: Path, number: int, line: tuple[str, ...]) -> int:
    """Convert two shards and fail; change what is left; convert again."""
    from offline_data.base.errors import OfflineDataError
    from offline_data.pipeline.ingest import shards
    from offline_data.pipeline.jobs.executors import InProcess

    plugin = folder / "plugin"
    if not plugin.exists():
        install(plugin)
    sys.path.insert(0, str(plugin))
    shards.__dict__["LocalProcesses"] = lambda *_, **__: InProcess()
    facts = plan_of_case(folder).facts
    if number == 0:
        convert: Any = shards.ConvertShard._convert

        def two(self: Any, shard: Any, *rest: Any) -> Any:
            if shard.name == "part 2":
                raise OfflineDataError("no more")
            return convert(self, shard, *rest)

        shards.ConvertShard._convert = two  # type: ignore[method-assign, assignment]
    elif number == 1:
        (work,) = (folder / "case/root/.staging").glob("*.shards/*/")
        _change(generator("shard-files", facts["seed"]), facts["how"], work)
    return run_command(folder, number, line)


def _change(random: Random, how: str, work: Path) -> None:
    if how == "record":
        record = random.choice(sorted(work.glob("finished/*.record")))
        record.write_bytes(spoil_bytes(random, record.read_bytes()))
    elif how == "files":
        path = random.choice(sorted(p for p in work.glob("shards/*/**/*") if p.is_file()))
        if path.suffix == ".json":
            spoil_json_file(random, path)
        else:
            spoil_file(random, path)


def check_shards(folder: Path, plan: Plan, codes: list[int | None]) -> str | None:
    """Compare all episodes with those of the raw files."""
    if codes[1] != 0:
        return "an unchanged run did not go on" if plan.facts["how"] == "none" else None
    (manifest,) = (folder / "case/root/local/x").glob("*/manifest.json")
    stored = read_dataset(manifest.parent)
    truth = [toy_episode(number) for number in range(SHARDS * EPISODES)]
    wanted = {
        "observation": [row for one in truth for row in one["observation"][:-1]],
        "next observation": [row for one in truth for row in one["observation"][1:]],
        "mission": [word for one in truth for word in one["mission"][:-1]],
        "action": [row for one in truth for row in one["action"]],
        "id": [one["id"] for one in truth],
    }
    found = {
        "observation": stored.before["observation", "state"],
        "next observation": stored.after["observation", "state"],
        "mission": stored.before["observation", "mission"],
        "action": stored.steps["action",],
        "id": stored.episodes["id",],
    }
    for name, values in found.items():
        if values.tolist() != wanted[name]:
            return f"{name} is {values.tolist()!r:.200}, expected {wanted[name]!r:.200}"
    return None


# ---- leaves of encoded images ----------------------------------------------------------------


def prepare_encoded(seed: int, folder: Path) -> Plan:
    """Images of a dataset as files, of which some bytes or offsets are changed; digests are right."""
    random = generator("encoded", seed)
    dataset = folder / "root" / "local" / "x" / "r"
    batch = encoded_batch((2, 1, 2), (random.choice(("png", "jpeg")), *PNG[1:]))
    write_toy(dataset, [batch])
    shutil.copytree(dataset, folder.parent / "truth")
    how = random.choice(("none", "bytes", "bytes", "offsets", "offsets", "leaf"))
    if how in {"bytes", "offsets"}:
        (file,) = (dataset / "observations").rglob(f"*pixels*.{how}")
        data = file.read_bytes()
        if how == "offsets" and random.random() < 0.6:
            numbers = np.frombuffer(data, "<i8").copy()
            at = random.randrange(len(numbers))
            numbers[at] = random.choice((0, -1, 1, 2**62, 2**63 - 1, numbers[at] + 1, numbers[-1]))
            file.write_bytes(numbers.tobytes())
        else:
            file.write_bytes(spoil_bytes(random, data))
    elif how == "leaf":
        path = dataset / "manifest.json"
        value = json.loads(path.read_text())
        leaves = value["schema"]["observations"]["leaves"]
        place = next(n for n, leaf in enumerate(leaves) if leaf["key"] == list(PIXELS))
        leaves[place] = spoil_json(random, leaves[place])
        path.write_text(json.dumps(value))
    try:
        restate(dataset)
    except (KeyError, OSError, TypeError):  # the leaf names no file, or another one
        how = "leaf"
    codes = {"none": {0}, "leaf": {0, 5}}.get(how, {0, 5})
    return Plan((("x",),), (frozenset(codes),), publishes=False, facts={"how": how})


def run_encoded(folder: Path, _number: int, _line: tuple[str, ...]) -> int:
    """Load the dataset, read all rows, and leave the pixels."""
    from offline_data.base.errors import OfflineDataError
    from offline_data.buffers.load import open_dataset

    one_thread()
    try:
        rows = open_dataset(folder / "case/root/local/x/r")[:]
        pixels = [rows.get(key).numpy() for key in (PIXELS, ("next", *PIXELS))]
    except OfflineDataError as error:
        return refused(error)
    except KeyError as error:  # of a leaf that is called otherwise
        if plan_of_case(folder).facts["how"] != "leaf":
            raise
        sys.stderr.write(repr(error))
        return 5
    np.savez(folder / "pixels.npz", *pixels)
    return 0


def check_encoded(folder: Path, plan: Plan, codes: list[int | None]) -> str | None:
    """Compare the pixels with what Pillow reads from the files, or what was written."""
    if codes[0] != 0:
        return None
    dataset = folder / ("truth" if plan.facts["how"] == "leaf" else "case/root/local/x/r")
    images = [read(data) for data in images_on_disk(dataset, whole=False)]
    lengths = (2, 1, 2)
    starts = np.cumsum([0, *(length + 1 for length in lengths)])
    rows = [
        start + t for start, length in zip(starts, lengths, strict=False) for t in range(length)
    ]
    with np.load(folder / "pixels.npz") as found:
        for shift, name in enumerate(found):
            want = np.stack([images[row + shift] for row in rows])
            if not np.array_equal(found[name], want):
                return f"{'next ' * shift}pixels are not those of the files"
    return None


# ---- leaves of videos ------------------------------------------------------------------------------


def prepare_film(seed: int, folder: Path) -> Plan:
    """A dataset of kept videos of which a file, a leaf or a digest of the manifest is changed."""
    random = generator("film", seed)
    dataset = folder / "root" / "local" / "x" / "r"
    write_toy(dataset, [film_batch(folder.parent, FILM_LENGTHS)[0]])
    shutil.copytree(dataset, folder.parent / "truth")
    ways = ("none", "frames", "frames", "times", "times", "mp4", "mp4", "leaf", "digest", "digest")
    how = random.choice(ways)
    manifest = dataset / "manifest.json"
    value = json.loads(manifest.read_text())
    if how in {"frames", "times", "mp4"}:
        file = random.choice(sorted(dataset.rglob(f"*.{how}")))
        data = file.read_bytes()
        file.unlink()  # else the film that others are linked to changes
        if how != "mp4" and random.random() < 0.7:
            numbers = np.frombuffer(data, "<i4" if how == "frames" else "<i8").copy()
            at = random.randrange(len(numbers))
            bits = 8 * numbers.itemsize - 1
            odd = (0, -1, 1, 7, 2 ** (bits - 1), 2**bits - 1, int(numbers[at]) + 1, -(2**bits))
            numbers[at] = random.choice(odd)
            file.write_bytes(numbers.tobytes())
        else:
            file.write_bytes(spoil_bytes(random, data))
        restate(dataset)
    elif how == "leaf":
        leaves = value["schema"]["observations"]["leaves"]
        place = next(n for n, leaf in enumerate(leaves) if leaf["key"] == list(FILM))
        leaves[place] = spoil_json(random, leaves[place])
    elif how == "digest":
        name = random.choice(
            [x for x in value["digests"] if x.endswith((".frames", ".times", ".mp4"))]
        )
        if random.random() < 0.5:
            value["digests"][name] = spoil_json(random, value["digests"][name])
        else:
            other = random.choice(("x.mp4", "../x.mp4", "/dev/zero", name.replace("0", "1"), ""))
            value["digests"][other] = value["digests"].pop(name)
    if how in {"leaf", "digest"}:
        value.pop("sha256", None)
        manifest.write_text(json.dumps(value))
    codes = {0} if how == "none" else {0, 5}
    return Plan((("x",),), (frozenset(codes),), publishes=False, facts={"how": how})


def run_film(folder: Path, _number: int, _line: tuple[str, ...]) -> int:
    """Verify the dataset, push and download it, load it, read all rows, and leave the frames."""
    from offline_data.base.errors import OfflineDataError
    from offline_data.buffers.load import open_dataset
    from offline_data.store.verify import verify

    one_thread()
    dataset = folder / "case/root/local/x/r"
    try:
        verify(dataset)
        run_command(folder, 0, ("push", str(dataset), str(folder / "pushed"), *ROOT))
        run_command(folder, 0, ("download", str(dataset), "--root", str(folder / "other")))
        rows = open_dataset(dataset)[:]
        frames = [rows.get(key).numpy() for key in (FILM, NEXT_FILM)]
    except OfflineDataError as error:
        return refused(error)
    except KeyError as error:  # of a leaf that is called otherwise
        if plan_of_case(folder).facts["how"] != "leaf":
            raise
        sys.stderr.write(repr(error))
        return 5
    np.savez(folder / "pixels.npz", *frames)
    return 0


def check_film(folder: Path, plan: Plan, codes: list[int | None]) -> str | None:
    """Compare the frames with those that PyAV decodes at the times of the rows."""
    if codes[0] != 0 or plan.facts["how"] == "mp4":  # what damaged bytes decode to is not defined
        return None
    dataset = folder / (
        "case/root/local/x/r" if plan.facts["how"] in {"frames", "times"} else "truth"
    )
    leaf = dataset / "observations/observation/film.frames"
    pairs = np.fromfile(leaf, "<i4").reshape(-1, 2).tolist()
    images = []
    for file, number in pairs:
        path = leaf.with_suffix(".video") / f"{file:06d}.mp4"
        time = int(np.fromfile(path.with_suffix(".times"), "<i8")[2 * number])
        with av.open(str(path)) as container:
            images += [
                x.to_ndarray(format="rgb24") for x in container.decode(video=0) if x.pts == time
            ]
    starts = np.cumsum([0, *(length + 1 for length in FILM_LENGTHS)])
    rows = [a + t for a, n in zip(starts, FILM_LENGTHS, strict=False) for t in range(n)]
    with np.load(folder / "pixels.npz") as found:
        for shift, name in enumerate(found):
            if not np.array_equal(found[name], np.stack([images[row + shift] for row in rows])):
                return f"{'next ' * shift}frames are not those of the files"
    return None


STAGED_KINDS = (
    Kind("film", prepare_film, check_film, run_film, batch=10),
    Kind("shards", prepare_shards, check_shards, run_shards),
    Kind("encoded", prepare_encoded, check_encoded, run_encoded, batch=20),
)
