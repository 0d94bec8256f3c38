"""The peers of `rlds`, for an interpreter with TensorFlow: a line of stdin is a job.

Prints its CPU seconds and its sums to stdout."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf
import tensorflow_datasets as tfds

tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)

BUILDER = tfds.builder_from_directory(sys.argv[1])
IMAGES = ("image_0", "image_1")


def alone(dataset: Any) -> Any:
    """Limit a pipeline to one thread."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    options.deterministic = True
    return dataset.with_options(options)


def parsed(*, decode: bool) -> list[float]:
    """Minimal tf.data: records parsed to dense tensors by name."""
    floats = {"action": 7, "observation/state": 8, "language_embedding": 512}
    spec: dict[str, Any] = {
        f"steps/{name}": tf.io.FixedLenSequenceFeature([size], tf.float32, allow_missing=True)
        for name, size in floats.items()
    }
    for name in ("reward", "discount"):
        spec[f"steps/{name}"] = tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True)
    for name in ("is_first", "is_last", "is_terminal"):
        spec[f"steps/{name}"] = tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)
    for name in ("language_instruction", *(f"observation/{image}" for image in IMAGES)):
        spec[f"steps/{name}"] = tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True)
    spec["episode_metadata/file_path"] = tf.io.FixedLenFeature([], tf.string)

    def read(record: Any) -> Any:
        found = tf.io.parse_single_example(record, spec)
        for image in IMAGES if decode else ():
            key = f"steps/observation/{image}"
            found[key] = tf.map_fn(tf.io.decode_jpeg, found[key], fn_output_signature=tf.uint8)
        return found

    files = sorted(str(path) for path in Path(sys.argv[1]).glob("*.tfrecord*"))
    total, steps = 0.0, 0
    for episode in alone(tf.data.TFRecordDataset(files).map(read)):
        action = episode["steps/action"].numpy()
        total, steps = total + action.sum(dtype=float), steps + len(action)
    return [float(total), float(steps)]


def as_tfds(*, decode: bool) -> list[float]:
    """Usual TFDS: episodes, with the steps of each batched to one."""
    skip = None
    if not decode:
        images = dict.fromkeys(IMAGES, tfds.decode.SkipDecoding())
        skip = {"steps": {"observation": images}}
    config = tfds.ReadConfig(num_parallel_calls_for_decode=1, interleave_cycle_length=1)
    dataset = BUILDER.as_dataset("train", decoders=skip, read_config=config)

    def whole(episode: Any) -> Any:
        return {**episode, "steps": episode["steps"].batch(100_000).get_single_element()}

    total, steps = 0.0, 0
    for episode in alone(dataset.map(whole)):
        action = episode["steps"]["action"].numpy()
        total, steps = total + action.sum(dtype=float), steps + len(action)
    return [float(total), float(steps)]


JOBS = {"parsed": parsed, "tfds": as_tfds}

for line in sys.stdin:
    name, decode = line.split()
    before = time.process_time()
    sums = JOBS[name](decode=decode == "1")
    print(json.dumps([time.process_time() - before, sums]), flush=True)
