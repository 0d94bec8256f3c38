"""An assertion for tests of projects that use datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.base.errors import UsageError

if TYPE_CHECKING:
    from offline_data.analysis.checks.finding import Severity
    from offline_data.api.arguments import DatasetLike, OnDisk


def assert_clean(
    *datasets: DatasetLike | OnDisk, fail_on: Severity = "warning", **options: Any
) -> None:
    """Raise `AssertionError` if datasets on this disk have findings; see `offline_data.check`.

    ```python
    from offline_data.testing import assert_clean


    def test_data():
        assert_clean("local:mine", ignore=["RL021"])
    ```

    Args:
        datasets: Ids, paths, or loaded datasets.
        fail_on: Least severity of findings that matter.
        options: Arguments of `offline_data.check`: `select`, `ignore`, `thresholds`, `reward`,
            `root`, `settings`, `progress`.

    Raises:
        AssertionError: The message lists the findings.
        NotFoundError, UsageError, AccessError: See `offline_data.check`.
    """
    __tracebackhide__ = True
    from offline_data import api
    from offline_data.analysis.checks.finding import SEVERITIES
    from offline_data.analysis.checks.formats import Findings, count_findings

    if fail_on not in SEVERITIES:
        raise UsageError(f"fail_on is {fail_on!r}; expected one of {', '.join(SEVERITIES)}")
    least = SEVERITIES.index(fail_on)
    found = api.check(*datasets, **{"progress": False, **options})
    wrong = [one for one in found if SEVERITIES.index(one.severity) >= least]
    if wrong:
        raise AssertionError(f"\n{Findings(wrong, count_findings(wrong))!r}")
