"""Sampling padded rows of tokens: this package, `datasets` with torch format, and TorchRL.

All return the tokens and the mask of 64 uniformly drawn rows of 1,024 tokens from files that are
mapped; batches of the same rows are compared first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from benchmarks.memory import added_mib
from benchmarks.sampling import setting
from benchmarks.sampling_data import OURS, calls_for, torchrl
from benchmarks.timing import Row, interleaved
from offline_data import open_dataset
from offline_data.episode import EpisodeBatch
from offline_data.testing.toy import write_toy

ROWS, LENGTH, BATCH = 20_000, 1024, 64
KEYS = ["input_ids", "attention_mask"]
TARGETS = "≥ 10× datasets"
BATCHES = 1000
"""Batches whose memory is measured."""

_IMPORT = "import torch; from offline_data import open_dataset; from benchmarks import tokens"
_WORK = """\
ds = open_dataset(Path(sys.argv[1]), keys=tokens.KEYS)
for _ in range(tokens.BATCHES): ds.sample(tokens.BATCH)
"""


def run(folder: Path, *, repeats: int, scale: float) -> Iterator[Row]:
    """Sample from the same rows in each way, and measure the memory of this package's."""
    print(f"tokens: {setting()}")
    rows = int(ROWS * scale)
    samplers = _open(folder, rows)
    _compare(samplers, rows)
    rng = np.random.default_rng(0)

    def job(name: str) -> Any:
        sampler = samplers[name]
        if name.startswith("datasets"):
            return sampler[rng.integers(0, rows, BATCH)]
        return sampler.sample(BATCH)

    jobs = {name: partial(job, name) for name in samplers}
    seconds = interleaved(jobs, repeats=repeats, calls=calls_for(jobs["TorchRL"]))
    case = f"{BATCH} of {rows:,} rows of {LENGTH:,} tokens"
    for name, each in seconds.items():
        goal = TARGETS if name == OURS else ""
        yield Row(case, name, f"{each / seconds[OURS]:.1f}×", f"{each * 1e6:,.0f} µs", goal)
    path = folder / "ours"
    whole = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) >> 20
    added = added_mib(_IMPORT, _WORK, path, field="RssAnon")
    case = f"memory of opening {whole} MiB and {BATCHES:,} batches"
    yield Row(case, OURS, "", f"{added} MiB", "O(batch)")


def _open(folder: Path, rows: int) -> dict[str, Any]:
    """Write the same rows for each and open them."""
    from datasets import Dataset, Features, Sequence, Value, disable_progress_bars, load_from_disk

    disable_progress_bars()
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50_000, (rows, LENGTH)).astype(np.int32)
    mask = np.arange(LENGTH) < rng.integers(10, LENGTH + 1, rows)[:, None]
    ended = np.ones((rows, 1), bool)
    steps = {
        ("input_ids",): ids,
        ("attention_mask",): mask,
        ("next", "reward"): np.zeros((rows, 1), np.float32),
        ("next", "terminated"): ended,
        ("next", "truncated"): ~ended,
    }
    write_toy(folder / "ours", [EpisodeBatch(np.ones(rows, np.int64), steps, {}, ended[:, 0])])
    leaves = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
    mapped = TensorDict(leaves, [rows]).memmap_(str(folder / "torchrl"))
    types = {"input_ids": "int32", "attention_mask": "bool"}
    features = Features({k: Sequence(Value(v), length=LENGTH) for k, v in types.items()})
    saved = Dataset.from_dict({"input_ids": ids, "attention_mask": mask}, features=features)
    saved.save_to_disk(str(folder / "datasets"))
    return {
        OURS: open_dataset(folder / "ours", keys=KEYS),
        "datasets, torch format": load_from_disk(str(folder / "datasets")).with_format("torch"),
        "TorchRL": torchrl(mapped),
    }


def _compare(samplers: dict[str, Any], rows: int) -> None:
    """Read all rows in each way, so that all files are in memory, and compare them."""
    for begin in range(0, rows, 1000):
        some = np.arange(begin, min(begin + 1000, rows))
        batches = [sampler[some] for sampler in samplers.values()]
        for key in KEYS:
            if not all(torch.equal(batches[0][key], other[key]) for other in batches[1:]):
                raise SystemExit(f"{key} differs")
