"""Pages about many samples are small, paint quickly and answer quickly."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from browsing import margins, open_page, pin, records
from runs import made_up_run

from marginattack.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, CDPSession, Page

pytest_plugins = ["report_fixtures"]

PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
PAINTED = "new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)))"
CHANGE = """([selector, value]) => {
    const control = document.querySelector(selector);
    if (value === null) control.click();
    else { control.value = value; control.dispatchEvent(new Event("change")); }
}"""
CONTROLS = {
    "theme": ("#theme", None), "unit": ("input[name=unit]:not(:checked)", None), "log": ("#log", None),
    "pin": ("input.pin", "0.7"), "class": ("#selected-class", "3"), "order": ("#class-order", "median"),
    "samples": ("#group", "Most robust"), "lightbox": (".group:not([hidden]) .name", None),
}  # fmt: skip


def first_paint(page: "Page") -> float:
    """Return the milliseconds to the first paint, the least of three loads: others may use the machine."""
    times = []
    for _ in range(3):
        page.reload()
        page.evaluate("report.ready")
        times.append(page.evaluate(PAINT))
    return float(min(times))


def slow_controls(page: "Page", limit: float = 0.1) -> dict[str, float]:
    """Return the controls after which the page computes for longer than the limit, in seconds, before it paints."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # of the processor: others may use the machine
    slow = {}
    for name, control in CONTROLS.items():
        times = []
        for _ in range(2):
            page.evaluate(PAINTED)
            start = _busy(session)
            page.evaluate(CHANGE, control)
            page.evaluate(PAINTED)
            times.append(_busy(session) - start)
            page.wait_for_timeout(300)
        if min(times) >= limit:
            slow[name] = min(times)
    return slow


def _busy(session: "CDPSession") -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def test_ten_thousand_samples_are_quick(browser: "Browser", large: Path, tmp_path: Path) -> None:
    write_report([large], tmp_path / "report.html")
    with open_page(browser, tmp_path / "report.html") as page:
        assert first_paint(page) < 1000
        assert sum(row["count"] for row in records(page, "histogram", "count")) > 9000
        assert slow_controls(page) == {}


def test_a_hundred_thousand_open(browser: "Browser", tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", 100_000, norms=("l2",), shape=(1, 4, 4), shard=10_000)
    write_report([run], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    found = margins(run, "l2")
    with open_page(browser, tmp_path / "report.html") as page:
        assert first_paint(page) < 1500
        assert sum(row["count"] for row in records(page, "matrix", "count")) == np.isfinite(found).sum()
        assert "drawn in cells" in page.locator("#margins .lead").inner_text()
        eps = pin(page, "0.98765")
        assert eps == 0.98765  # as typed, and counted exactly
        summary = page.locator("output.pin-summary[data-norm=l2]").inner_text()
        assert summary.startswith("At ε = 0.98765: robust accuracy")
        assert f"{(found <= eps).sum():,} of {len(found):,} margins are within ε" in summary
