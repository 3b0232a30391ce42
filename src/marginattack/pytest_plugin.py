"""A pytest fixture that checks results against gates. The rest of the package is imported when a test uses it."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def check_margins() -> Callable[..., None]:
    """A function that fails the test unless a run folder or ``Margins`` passes gates, as `marginattack check` does.

    Example:
        >>> def test_robustness(check_margins):
        ...     check_margins("runs/mnist", accuracy=0.9, median_margin="l2:0.5", robust_accuracy="linf@8/255:0.45")
    """

    def check(result: Any, **wanted: Any) -> None:
        from marginattack.report import gates

        __tracebackhide__ = True
        rows = gates.as_rows(gates.check_result(result, gates.parse_gates(**wanted)))
        failed = [f"{gate} ({attack}): {value}, at least {least}" for state, gate, attack, value, least in rows
                  if state != "passed"]  # fmt: skip
        if failed:
            pytest.fail("; ".join(failed), pytrace=False)

    return check
