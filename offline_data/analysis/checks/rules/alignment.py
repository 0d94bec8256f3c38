"""Rules on rows that are shifted against each other: actions, rewards, cameras."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from offline_data.analysis.alignment.find import Kind, align_dataset
from offline_data.analysis.checks.finding import Finding
from offline_data.analysis.checks.rule import Measured, Rule
from offline_data.base.plurals import plural


class _ShiftedLeaf(Rule):
    """Compares leaves of a sample of the episodes at lags from -5 to 5."""

    kinds: ClassVar[Sequence[Kind]]
    thresholds: ClassVar = {"rows": 20_000}
    explained: ClassVar = {"rows": "Rows to compare, of a sample of the episodes."}
    hint = "see all lags with `offline-data align`, which also shifts the feature back"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        rows = max(1, int(self.limits["rows"]))
        found = align_dataset(measured.reader, kinds=self.kinds, most_rows=rows)
        for leaf, lag in found.shifts.items():
            when, sign = ("late", "+") if lag > 0 else ("early", "-")
            yield self.finding(
                measured.reader,
                f"It is {plural(abs(lag), 'row')} {when}: the value of row t is in row "
                f"t {sign} {abs(lag)}",
                leaf=leaf,
            )


class ShiftedRows(_ShiftedLeaf):
    """Actions or rewards are stored some rows late or early.

    A model that is trained on such rows learns the effect of another action. For lags from -5 to 5, the
    next observation is predicted from this one and the action, and the reward from both, by ridge
    regression on the other episodes of a sample. A lag is reported only if it predicts better than all
    others in 99 % of bootstrap samples of the episodes, and not if actions are nearly a function of
    observations. An action that takes effect some rows later, on a robot with latency, looks the same as
    one that is stored early; the finding is harmless if that is known.
    """

    code = "RL044"
    name = "shifted-rows"
    severity = "error"
    kinds = ("action", "reward")


class ShiftedCamera(_ShiftedLeaf):
    """The images of a camera are stored some rows late or early.

    A camera has a latency, and a recorder that reads it first, or last, adds a row. For lags from -5 to
    5, the change of the other observations is predicted from that of the images, reduced to 16 × 16. At
    most 5,000 frames are decoded, fewer if they are large.
    """

    code = "RL055"
    name = "shifted-camera"
    severity = "warning"
    kinds = ("camera",)
