"""Processes of tests, each a copy of one that has imported what they need.

There is one such process in a run of tests: it has the modules that were named last before it began.
Where each file of tests named its own, those of the others imported everything again in each process.
"""

from __future__ import annotations

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "__main__",
        *("tests.pipeline.jobs.cases", "tests.pipeline.record.games"),
        *("deflate", "h5py", "httpcore", "httpx", "gymnasium", "numpy.ma", "numpy.random"),
        *("pyarrow.parquet", "torch"),
        *(f"offline_data.fetch.{name}" for name in ("client", "hub", "plan", "run")),
        *("offline_data.pipeline.export.run", "offline_data.pipeline.ingest.merge"),
        *(f"offline_data.pipeline.preprocess.steps.{name}" for name in ("columns", "normalize")),
        *("offline_data.pipeline.record.recorder", "offline_data.project.share.push"),
        *("offline_data.store.join", "offline_data.store.statistics"),
        "tests.warm",
    ]
)
