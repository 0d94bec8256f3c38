"""Rules that compare a dataset with what its source publishes about it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.checks.rule import Measured, Rule
from offline_data.errors import OfflineDataError
from offline_data.ids import parse_id
from offline_data.sources.registry import get_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from offline_data.checks.finding import Finding
    from offline_data.store.manifest import Manifest

_PLAUSIBLE: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "random": (-30, 30),
        "medium": (5, 100),
        "expert": (60, 200),
    }
)
"""Normalised returns, in percent, that sets of these names have on average; wide on purpose."""


def _number(value: Any) -> float | None:
    """Return a finite number of a manifest, or None."""
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < np.inf
    return float(value) if usable else None


def _is_part(manifest: Manifest) -> bool:
    """Return True if only some episodes or checkpoints were asked for, or it is made from others."""
    options = manifest.converter.get("options") or {}
    return bool(
        manifest.parents
        or manifest.skipped
        or options.get("episodes")
        or options.get("checkpoints")
    )


class ReturnsDiffer(Rule):
    """The mean return does not fit the quality that the name of a D4RL dataset states.

    The return of each episode is normalised by D4RL's reference scores, 0 for a random policy and 100
    for an expert. Compared are sets whose name has `random`, `medium` or `expert` alone (`-replay-`
    and mixtures have no such figure), if their episodes are as long as the environment's limit allows.
    """

    code = "RL070"
    name = "returns-differ"
    severity = "warning"
    hint = "compare rewards and episode ends with the source"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """Yield one finding."""
        reader, manifest = measured.reader, measured.reader.manifest
        low, high = (_number(manifest.about.get(f"ref_{end}_score")) for end in ("min", "max"))
        words = set(manifest.name.replace("/", "-").split("-"))
        named = [quality for quality in _PLAUSIBLE if quality in words]
        if len(named) != 1 or words & {"replay", "mixed", "full"} or _is_part(manifest):
            return
        if low is None or high is None or low == high:
            return
        returns = np.asarray(reader.episodes[("return",)], np.float64)
        score = 100 * (float(np.mean(returns[np.isfinite(returns)])) - low) / (high - low)
        least, greatest = _PLAUSIBLE[named[0]]
        if not least <= score <= greatest:
            yield self.finding(
                reader,
                f"The mean normalised return is {score:.1f}; for {named[0]} data it is usually "
                f"between {least:g} and {greatest:g}",
                leaf="next/reward",
            )


class CountsDiffer(Rule):
    """The dataset has another number of transitions or episodes than its source publishes.

    The figures are those of the metadata beside the data (Minari's `total_steps` and
    `total_episodes`), or of the catalogue of this package. Parts of a dataset are not compared.
    """

    code = "RL071"
    name = "counts-differ"
    severity = "error"
    hint = "convert the dataset again; if it stays, the source has changed"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        """Yield a finding for each figure that differs."""
        reader, manifest = measured.reader, measured.reader.manifest
        if _is_part(manifest):
            return
        found = {"transitions": reader.transitions, "episodes": reader.episode_count}
        for name, expected in _published(manifest).items():
            if expected is not None and expected != found[name]:
                yield self.finding(
                    reader,
                    f"{found[name]:,} {name}; its source publishes {expected:,.0f}",
                    about=name,
                )


def _published(manifest: Manifest) -> dict[str, float | None]:
    """Return the published numbers of transitions and episodes, None where there is none."""
    about = manifest.about
    stated = {
        "transitions": _number(about.get("total_steps")),
        "episodes": _number(about.get("total_episodes")),
    }
    if any(value is not None for value in stated.values()):
        return stated
    try:
        listed = get_source(parse_id(manifest.id).source).catalog()
    except OfflineDataError:  # a source of another package, which is not installed
        return stated
    entry = next((one for one in listed if one.name == manifest.name), None)
    return {name: getattr(entry, name, None) for name in stated}
