"""Rules that compare a dataset with what was published of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, TypeGuard

import numpy as np

from offline_data.analysis.checks.finding import Finding
from offline_data.analysis.checks.names import options, qualities
from offline_data.analysis.checks.rule import Measured, Rule
from offline_data.base.plurals import plural
from offline_data.formats.base import CatalogEntry
from offline_data.formats.registry import get_source
from offline_data.store.manifest import Manifest
from offline_data.store.reader import DatasetReader

_WITH_COUNTS = frozenset({"minari", "openml", "openx"})  # catalogues have rows or episodes

_LARGEST = 1e300  # bound of scores: a manifest's integers may be larger than any float


class ReturnsDifferFromPublished(Rule):
    """The average return does not match the policy in the dataset's name.

    Compares the normalized score of all episodes' average return, 100 × (average − random) /
    (expert − random), by the reference returns that D4RL and Minari publish (`about.ref_min_score`,
    `about.ref_max_score`). A dataset named `random` has about 0, one named `expert` about 100; a
    score above 30, or below 60, means swapped files, as hopper's `medium` and `expert` v1 were for
    a time (https://github.com/Farama-Foundation/D4RL/issues/76), rewards of another scale, or
    episodes cut short. Names with other words for the policy (`medium`, `human`, `medium-expert`)
    imply no score; datasets made from others and selections of episodes are not compared.
    """

    code = "RL070"
    name = "returns-differ-from-published"
    severity = "warning"
    hint = "compare with the source's figures, and download again"
    thresholds: ClassVar = {"random": 30, "expert": 60}
    explained: ClassVar = {
        "random": "Maximum normalized score of a dataset named `random`.",
        "expert": "Minimum normalized score of a dataset named `expert`.",
    }

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        named, score = qualities(reader.manifest.name), _score(reader)
        if not _is_whole(reader.manifest) or score is None:
            return
        high = named == {"random"} and score > self.limits["random"]
        low = named == {"expert"} and score < self.limits["expert"]
        if high or low:
            (quality,) = named
            limit = f"{'at most' if high else 'at least'} {self.limits[quality]:g}"
            yield self.finding(
                reader,
                f"The average return has a normalized score of {score:,.1f}, expected {limit} of a "
                f"set named {quality}",
                leaf="next/reward",
                count=reader.episode_count,
            )


class CountsDifferFromPublished(Rule):
    """The number of transitions or episodes differs from the published one.

    Results are then not comparable with others', and the missing part may be the end of a file that
    was cut off. Compares the counts of the catalogue that `list SOURCE` shows: transitions and
    episodes of Minari's datasets, rows of OpenML's tables, episodes of Open X-Embodiment's. Skipped
    episodes (RL006) are counted. Files of your own, datasets made from others and selections
    (`--episodes`) are not compared. D4RL publishes no counts.
    """

    code = "RL071"
    name = "counts-differ-from-published"
    severity = "error"
    hint = "download it again: `offline-data download ID --force`"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        manifest = measured.reader.manifest
        entry = _find_published(manifest)
        if entry is None or not _is_whole(manifest):
            return
        skipped = len(manifest.skipped)
        for name, expected, found in (
            ("transition", None if skipped else entry.transitions, measured.reader.transitions),
            ("episode", entry.episodes, measured.reader.episode_count + skipped),
        ):
            if expected is not None and expected != found:
                yield self.finding(
                    measured.reader,
                    f"It has {plural(found, name)}, and {expected:,} {'is' if expected == 1 else 'are'} published",
                    count=abs(found - expected),
                    about=f"{name}s",
                )


def _is_whole(manifest: Manifest) -> bool:
    """Return True if a dataset is all of what its source has under its name."""
    given = options(manifest)
    selected = given.get("episodes") is not None or given.get("checkpoints") is not None
    return not (manifest.parents or selected)


def _find_published(manifest: Manifest) -> CatalogEntry | None:
    """Return the catalogue's entry of a dataset that was downloaded; None if there is none."""
    if manifest.source not in _WITH_COUNTS or manifest.revision.startswith("local-"):
        return None
    entries = get_source(manifest.source).catalog()
    return next((entry for entry in entries if entry.name == manifest.name), None)


def _score(reader: DatasetReader) -> float | None:
    """Return the normalized score of the average return; None without reference returns."""
    about = reader.manifest.about
    low, high = (about.get(name) for name in ("ref_min_score", "ref_max_score"))
    if not (_is_finite(low) and _is_finite(high) and low < high):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        score = 100 * (float(np.asarray(reader.episodes[("return",)]).mean()) - low) / (high - low)
    return score if math.isfinite(score) else None


def _is_finite(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < _LARGEST
