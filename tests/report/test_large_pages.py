"""Pages about many samples are small, paint quickly and answer quickly."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from browsing import margins, open_page, pin, records
from runs import made_up_run

from marginattack.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest_plugins = ["report_fixtures"]

PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def test_ten_thousand_samples_paint_quickly(browser: "Browser", large: Path, tmp_path: Path) -> None:
    write_report([large], tmp_path / "report.html")
    with open_page(browser, tmp_path / "report.html") as page:
        assert page.evaluate(PAINT) < 1500
        assert sum(row["count"] for row in records(page, "histogram", "count")) > 9000


def test_a_hundred_thousand_open(browser: "Browser", tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", 100_000, norms=("l2",), shape=(1, 4, 4), shard=10_000)
    write_report([run], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    found = margins(run, "l2")
    with open_page(browser, tmp_path / "report.html") as page:
        assert page.evaluate(PAINT) < 2000
        assert sum(row["count"] for row in records(page, "matrix", "count")) == np.isfinite(found).sum()
        assert "drawn in cells" in page.locator("#margins .lead").inner_text()
        eps = pin(page, "0.98765")
        assert eps == 0.98765  # as typed, and counted exactly
        summary = page.locator("output.pin-summary[data-norm=l2]").inner_text()
        assert summary.startswith("At ε = 0.98765: robust accuracy")
        assert f"{(found <= eps).sum():,} of {len(found):,} margins are within ε" in summary
