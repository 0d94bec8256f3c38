"""Every recipe of `docs/recipes`, run as written, over a small dataset under the id that it names."""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed

from offline_data import RandomSampler, TextOptions, load_dataset
from offline_data.base.config import resolve_settings
from offline_data.base.ids import DatasetId
from offline_data.base.progress import SILENT
from offline_data.episode import EpisodeBatch
from offline_data.formats.options import Options
from offline_data.pipeline.ingest.in_memory import convert_in_memory
from offline_data.testing.toy import write_toy
from offline_data.text.dataset import TextDataset
from tests.forks import FORKS
from tests.formats.test_ogbench import read
from tests.toys.ogbench import toy_arrays, write_ogbench
from tests.toys.text import SENTENCES, write_tokenizer

PAGES = {page.stem: page.read_text("utf-8") for page in Path("docs/recipes").glob("*.md")}
LENGTHS = [30, 17, 25, 40, 9, 30, 30, 21]
ROWS = sum(LENGTHS)

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork\\(\\)")  # torch has one thread here


def codes(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL)


@pytest.fixture(autouse=True)
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes of an expert whose action is a function of the observation; no network."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(ROWS + len(LENGTHS), 5)).astype(np.float32)
    last = np.cumsum(LENGTHS) - 1
    rows = np.delete(np.arange(len(observations)), last + np.arange(len(LENGTHS)) + 1)
    action = np.tanh(observations[rows] @ rng.normal(size=(5, 2)).astype(np.float32))
    terminated, truncated = np.zeros((2, ROWS, 1), bool)
    terminated[last[::2]] = truncated[last[1::2]] = True
    episodes = EpisodeBatch(
        lengths=np.array(LENGTHS),
        steps={
            ("action",): action,
            ("next", "reward"): rng.normal(1, 0.1, (ROWS, 1)).astype(np.float32),
            ("next", "terminated"): terminated,
            ("next", "truncated"): truncated,
        },
        observations={("observation",): observations},
        final_observation=np.ones(len(LENGTHS), bool),
    )
    folder = tmp_path / "root" / "d4rl" / "halfcheetah-medium-v2" / "1"
    write_toy(folder, [episodes], dataset="d4rl:halfcheetah-medium-v2@1")
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(tmp_path / "root"))
    monkeypatch.setenv("OFFLINE_DATA_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


def run(code: str, **constants: int) -> dict[str, Any]:
    """Run a recipe with some of its constants, `STEPS, K = 1000, 20`, smaller; return its names."""
    tree = ast.parse(code)
    for node in (node for node in tree.body if isinstance(node, ast.Assign)):
        target: Any = node.targets[0]
        value: Any = node.value
        several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        pairs = zip(target.elts, value.elts, strict=True) if several else [(target, value)]
        for name, constant in pairs:
            if isinstance(name, ast.Name) and name.id in constants:
                constant.value = constants[name.id]
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(tree, "recipe", "exec"), names)  # noqa: S102 - the page is ours
    return names


@pytest.mark.parametrize("page", PAGES)
def test_recipes_are_short(page: str) -> None:
    assert codes(page)
    for code in codes(page):
        lines = [line for line in code.splitlines() if line.strip()]
        own = [line for line in lines if not line.startswith(("import ", "from ", "#"))]
        assert len(own) < 30
        assert max(map(len, lines)) <= 100


def test_behaviour_cloning(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(codes("behaviour-cloning")[0], STEPS=300)
    assert found["loss"].item() < 0.05
    assert len(found["best"].episodes) == 1
    assert capsys.readouterr().out.startswith("0 0.")


@pytest.mark.parametrize("page", ["td3-bc", "iql"])
def test_actor_critics(page: str) -> None:
    found = run(codes(page)[0], STEPS=60)
    batch = found["ds"][:]
    policy = found["policy"] if page == "iql" else found["nets"]["pi"]
    error = (policy(batch["observation"]) - batch["action"]).square().mean()
    assert error < 0.8 * batch["action"].square().mean()


def test_hindsight(tmp_path: Path) -> None:
    """Walks in straight lines, of which none comes to the goal: the policy then walks to a goal."""
    turn = np.random.default_rng(0).uniform(0, 2 * np.pi, (60, 1, 1))
    direction = np.concatenate([np.cos(turn), np.sin(turn)], 2).repeat(21, 1).astype(np.float32)
    way = direction * np.arange(21, dtype=np.float32)[:, None] / 5
    ends = np.tile(np.arange(20) == 19, 60)[:, None]
    walks = EpisodeBatch(
        lengths=np.full(60, 20),
        steps={
            ("action",): direction[:, 1:].reshape(-1, 2),
            ("info", "goal"): np.full((1200, 2), 9.0),
            ("next", "reward"): np.zeros((1200, 1), np.float32),
            ("next", "terminated"): np.zeros_like(ends),
            ("next", "truncated"): ends,
        },
        observations={("observation",): np.pad(way.reshape(-1, 2), ((0, 0), (0, 3)))},
        final_observation=np.ones(60, bool),
    )
    folder = tmp_path / "root" / "d4rl" / "antmaze-umaze-v2" / "1"
    write_toy(folder, [walks], dataset="d4rl:antmaze-umaze-v2@1")
    found = run(codes("hindsight")[0], STEPS=150)
    batch = found["ds"][:]
    assert set(batch["next", "reward"].flatten().tolist()) == {0, 1}
    goals = torch.tensor([[3.0, 0.0], [0.0, 3.0], [-3.0, 0.0], [0.0, -3.0]])
    walked = found["policy"](torch.cat([torch.zeros(4, 5), goals], 1))
    assert (torch.cosine_similarity(walked, goals) > 0.7).all()


def test_decision_transformer() -> None:
    found = run(codes("decision-transformer")[0], STEPS=12, B=16, D=16)
    assert found["loss"].isfinite()
    mask = found["mask"]
    assert mask.any(1).all()
    assert not mask.all()
    assert not found["batch"]["action"][~mask].any()


def test_plain_loader() -> None:
    assert run(codes("dataloader")[0])["rows"] == ROWS


def put_batch(ds: Any, answers: Any) -> None:
    answers.put(tuple(ds.sample()["index"].tolist()))


@pytest.mark.slow
def test_processes() -> None:
    """Each draws batches of its own; with a buffer that was made before, all draw the same ones."""
    drawn = set(map(tuple, run(codes("dataloader")[2])["drawn"]))
    assert len(drawn) == 8
    fork = multiprocessing.get_context("fork")
    for sampler in (None, RandomSampler(seed=0)):
        ds = load_dataset("d4rl:halfcheetah-medium-v2", batch_size=64, sampler=sampler)
        ds.sample()
        answers: Any = fork.SimpleQueue()
        children = [fork.Process(target=put_batch, args=(ds, answers)) for _ in range(8)]
        for child in children:
            child.start()
        assert len({answers.get() for _ in children}) == 1
        for child in children:
            child.join()


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_lightning() -> None:
    pytest.importorskip("lightning")
    found = run(codes("dataloader")[1])
    trainer, train = found["trainer"], found["parts"]["train"]
    assert trainer.global_step == 3 * -(-len(train) // 64)
    assert trainer.callback_metrics["val"] < 1


@pytest.mark.filterwarnings("ignore")  # of these libraries
@pytest.mark.parametrize(
    ("number", "library", "epochs"),
    [(0, "accelerate", 2), (1, "transformers", 2), (2, "torchdata", 1)],
)
def test_other_loops(number: int, library: str, epochs: int) -> None:
    pytest.importorskip("accelerate" if number < 2 else library)
    pytest.importorskip(library)
    found = run(codes("other-loops")[number], EPOCHS=epochs)
    if number == 1:
        assert found["result"].global_step == epochs
    else:
        assert len(list(found["loader"])) == 1


@pytest.mark.slow
def test_torchrl_losses() -> None:
    pytest.importorskip("torchrl")
    found = run(codes("torchrl-losses")[0], STEPS=60)
    batch = found["ds"][:]
    error = (found["policy"](batch["observation"]) - batch["action"]).square().mean()
    assert error < 0.8 * batch["action"].square().mean()
    assert found["losses"]["loss_qvalue"].isfinite()


class Walk:
    """An environment of five numbers that an episode leaves after four steps, or ends in."""

    def __init__(self) -> None:
        self.steps = self.resets = 0

    def reset(self, **_seed: int) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        self.steps, self.resets = 0, self.resets + 1
        return np.full(5, float(self.resets)), {}

    def step(self, action: np.ndarray[Any, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.shape == (2,)
        self.steps += 1
        last = self.steps == 4
        even = self.resets % 2 == 0
        return np.full(5, self.resets + self.steps / 4), 1.0, last and even, last and not even, {}


def test_offline_to_online(monkeypatch: pytest.MonkeyPatch) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    monkeypatch.setattr(gymnasium, "make", lambda _: Walk())
    found = run(codes("offline-to-online")[0], STEPS=10)
    written = found["data"].online_buffer[:]
    first = [1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.25]  # of four steps an episode
    assert written["observation"][:, 0].tolist() == first
    assert written["next", "terminated"][:, 0].nonzero().flatten().tolist() == [7]
    assert found["data"].offline_fraction == 0
    assert found["loss"].isfinite()


def rank(number: int, environment: dict[str, str], code: str, found: Any) -> None:
    """Run the page's program as `torchrun` would."""
    torch.set_num_threads(1)
    os.environ |= environment | {"RANK": str(number), "LOCAL_RANK": str(number)}
    names = run(code, EPOCHS=2)
    found.put(([one.tolist() for one in names["seen"]], names["net"].weight.tolist()))


@pytest.mark.slow
def test_two_ranks() -> None:
    """In processes without the threads of this one, of which one may hold a lock."""
    found: Any = FORKS.Queue()
    store: Any = distributed.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    environment = {**os.environ, "WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    (code,) = codes("two-ranks")
    ranks = [FORKS.Process(target=rank, args=(n, environment, code, found)) for n in range(2)]
    for one in ranks:
        one.start()
    (seen, weight), (other, same) = (found.get(timeout=120) for _ in ranks)
    for one in ranks:
        one.join()
    assert weight == same
    assert len(seen) == len(other) == 2
    for mine, theirs in zip(seen, other, strict=True):
        assert sorted(mine + theirs) == list(range(ROWS))


def test_resume() -> None:
    (code,) = codes("resume")
    torch.manual_seed(0)
    whole = run(code, STEPS=25)
    Path("checkpoint.pt").unlink()
    torch.manual_seed(0)
    run(code, STEPS=20)
    again = run(code, STEPS=25)
    assert torch.equal(again["model"].weight, whole["model"].weight)
    assert torch.equal(again["batch"]["index"], whole["batch"]["index"])


@pytest.mark.slow
def test_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    code = codes("jax")[0].replace("1_000_000", "200")
    show = "import json, sys; assert 'torch' not in sys.modules\n"
    show += "print(json.dumps([float(losses[0]), float(losses[-1]), count]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, last, count = json.loads(done.stdout)
    assert last < first / 10
    assert count == ROWS


def test_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    """The cells in order, in one namespace; what the last line of each shows is made, too."""
    names: dict[str, Any] = {}
    shown = []
    for number, code in enumerate(codes("notebook")):
        tree = ast.parse(code)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)  # noqa: S102 - the page is ours
        if last is not None:
            shown.append(eval(ast.unparse(last), names))  # noqa: S307
    assert capsys.readouterr().out.count("d4rl:halfcheetah-medium-v") == len(names["found"]) > 0
    assert names["about"].episodes == len(LENGTHS)
    ds, episode, spread = shown
    assert f"<dt>Steps</dt><dd>{ROWS}</dd>" in ds._repr_html_()
    assert episode.return_ == ds.episodes["return"].max()
    assert f"<h3>Episode {episode.number}</h3>" in episode._repr_html_()
    good = sorted(ds.episodes["return"].tolist())[-len(names["good"].episodes) :]
    assert names["stored"].episodes == len(good) < len(LENGTHS)
    assert (spread.min, spread.max) == pytest.approx((good[0], good[-1]))


def test_provenance_goes_through_yaml() -> None:
    """A run's configuration is YAML in each of the trackers."""
    yaml = pytest.importorskip("yaml")
    ds = load_dataset("d4rl:halfcheetah-medium-v2")
    found = ds.provenance()
    assert yaml.safe_load(yaml.safe_dump(found)) == found
    assert {type(value) for value in found.values()} <= {str, int, type(None)}
    assert {f"`{name}`" for name in found} <= {*re.findall(r"`\w+`", PAGES["trackers"])}


def test_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    found = run(codes("trackers")[0])
    kept = dict(found["run"].config)
    assert kept["dataset"] == found["parts"]["train"].provenance()
    assert kept["dataset"]["view"] != found["parts"]["val"].provenance()["view"]
    (log,) = Path("wandb").glob("offline-run-*/*.wandb")
    assert kept["dataset"]["content_digest"].encode() in log.read_bytes()


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'runs'}")
    found = run(codes("trackers")[1])
    kept = mlflow.get_run(found["run"].info.run_id).data.params
    expected = found["ds"].provenance()
    assert kept == {f"dataset.{name}": str(value) for name, value in expected.items()}


def test_omegaconf() -> None:
    pytest.importorskip("omegaconf")
    (code,) = codes("trackers")[2:]
    before = run(code)
    assert run(code)["config"] == before["config"]
    text = Path("config.yaml").read_text()
    digest = before["ds"].provenance()["content_digest"]
    Path("config.yaml").write_text(text.replace(digest, f"sha256:{'0' * 64}"))
    with pytest.raises(SystemExit, match="d4rl:halfcheetah-medium-v2@1 of other content"):
        run(code)


def test_corl() -> None:
    found = run(codes("arrays")[0])
    assert [len(one["rewards"]) for one in found["trajectories"]] == LENGTHS
    assert np.allclose(found["returns"], found["ds"].episodes["return"])


def test_d3rlpy() -> None:
    pytest.importorskip("d3rlpy")
    assert run(codes("arrays")[1])["lengths"] == LENGTHS


def test_ogbench(tmp_path: Path) -> None:
    for rows, part in enumerate(("v0", "v0-val"), 3):
        file = tmp_path / f"antmaze-large-navigate-{part}.npz"
        path = write_ogbench(file, toy_arrays("antmaze", [rows, 2]))
        name = f"antmaze-large-navigate-singletask-{part}"
        folder = tmp_path / "root" / "ogbench" / name / "1"
        write_toy(folder, read(name, path), dataset=f"ogbench:{name}@1")
    found = run(codes("arrays")[2])
    for rows, part in enumerate(("train", "val"), 3):
        assert found[part]["terminals"].tolist() == [0] * (rows - 2) + [1, 1]
        assert found[part]["masks"].shape == (rows,)


def tokenized(name: str, folder: Path, rows: list[dict[str, str]], **options: Any) -> None:
    """Write rows as the dataset `hf:NAME`, tokenized in this process."""
    pytest.importorskip("tokenizers")
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = TextOptions(str(write_tokenizer(folder)), **options)
    raw = TextDataset(folder, [("train.jsonl", None)], text, name)
    convert_in_memory(raw, DatasetId("hf", name), resolve_settings(), Options(), SILENT)


def test_preferences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of each pair, the text about a cat is better."""
    words = np.random.default_rng(0).choice(["the", "sat", "on", "mat", "moon"], (200, 3))
    rows = [
        {"prompt": " ".join(some[:2]), "chosen": f" cat {some[2]}", "rejected": f" dog {some[2]}"}
        for some in words
    ]
    tokenized("Anthropic/hh-rlhf", tmp_path, rows, pad=True, max_length=16)
    found = run(codes("preferences")[0], STEPS=20, D=16)
    assert found["right"] > 0.9
    assert "of unseen pairs" in capsys.readouterr().out


def test_language_model(tmp_path: Path) -> None:
    """The first token of each sentence, which is not predicted, tells the rest."""
    tokenized("roneneldan/TinyStories", tmp_path, [{"text": one} for one in SENTENCES * 20])
    found = run(codes("language-model")[0], STEPS=30, BATCH=6, D=32, HEADS=2)
    assert found["loss"] < 2  # without context at least 2.5, the entropy of a token
