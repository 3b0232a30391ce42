"""Runs, pages and a browser that the tests share."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browsing import CHROMIUM, QUIET
from runs import HOSTILE, add_finding, made_up_run, real_run

from marginattack.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 48 digits in both norms."""
    return real_run(tmp_path_factory.mktemp("real") / "run")


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """Chromium; ``open_page`` checks that pages request nothing."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"{CHROMIUM} is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def real_page(real: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    write_report([real], out)
    return out


@pytest.fixture(scope="session")
def two_runs_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models on the same data, one with a grave finding; the other has two attacks and is not finished."""
    folder = tmp_path_factory.mktemp("two")
    one = made_up_run(folder / "one", 300, model="plain", seed=1)
    both = ("marginattack", "deepfool")
    two = made_up_run(folder / "two", 300, model="trained", seed=2, scale=1.6, attacks=both, shard=100, leave_out=1)
    add_finding(one, grade="grave", code="probabilities", seen="rows sum to 1")
    write_report([one, two], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="session")
def photos_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 named colour images of a thousand named classes."""
    folder, names = tmp_path_factory.mktemp("photos"), [f"animal {i}, with a long second name" for i in range(1000)]
    run = made_up_run(folder / "photos", 60, norms=("linf",), classes=names, shape=(3, 80, 80), named=True, scale=0.01)
    write_report([run], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="session")
def table_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of a table with named features."""
    folder = tmp_path_factory.mktemp("table")
    about = {"name": "table.csv", "digest": "0" * 64, "n": 90, "shape": [12], "classes": ["no", "yes"],
             "features": [f"feature_{i}" for i in range(12)]}  # fmt: skip
    run = made_up_run(folder / "table", 90, norms=("l2",), classes=2, shape=(12,), data=about)
    write_report([run], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="session")
def waves_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sounds of one channel."""
    folder = tmp_path_factory.mktemp("waves")
    run = made_up_run(folder / "waves", 60, norms=("l2",), classes=["low", "high"], shape=(1, 400))
    write_report([run], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="session")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with markup in every text that a user controls."""
    folder = tmp_path_factory.mktemp("hostile")
    run = made_up_run(folder / "<b>run</b>", 200, classes=HOSTILE, model="<script>window.pwned = 4</script>")
    add_finding(run, seen="<script>window.pwned = 5</script>", code="<i>")
    write_report([run], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10,000 samples in two norms."""
    return made_up_run(tmp_path_factory.mktemp("large") / "run", 10_000, shape=(1, 28, 28))
