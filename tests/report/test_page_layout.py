"""Themes, contrast, widths and text alternatives of the page in a real browser."""

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browsing import BOXES, CONTRASTS, MARKS, open_page, pin

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest_plugins = ["report_fixtures"]


def test_themes(browser: "Browser", real_page: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with open_page(browser, real_page, scheme="dark") as page:
        assert page.evaluate(ground) == "rgb(18, 20, 24)"
        assert page.evaluate("report.state.theme") == "dark"
        page.locator("#theme").click()
        page.wait_for_function(f"{ground} === 'rgb(245, 246, 248)'")
        assert page.evaluate("report.state.theme") == "light"
        assert page.locator("#theme").inner_text() == "Dark theme"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(browser: "Browser", two_runs_page: Path, scheme: str) -> None:
    with open_page(browser, two_runs_page, scheme=scheme) as page:
        found = page.evaluate(CONTRASTS)
        assert len(found) > 300
        assert [(ratio, text) for ratio, text in found if ratio < 4.5] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["real_page", "two_runs_page"])
def test_marks_have_contrast(browser: "Browser", request: pytest.FixtureRequest, name: str, scheme: str) -> None:
    """Marks of charts stand out from the ground, opacity included, with and without a pinned ε."""
    with open_page(browser, request.getfixturevalue(name), scheme=scheme) as page:
        for eps in ("", "1.1"):
            pin(page, eps)
            found = page.evaluate(MARKS)
            assert len(found) > 500
            assert {(round(ratio, 2), *what) for ratio, *what in found if ratio < 3} == set()


@pytest.mark.parametrize(
    "name", ["real_page", "two_runs_page", "hostile_page", "photos_page", "table_page", "waves_page"]
)
def test_widths(browser: "Browser", request: pytest.FixtureRequest, name: str) -> None:
    """Nothing overflows or overlaps on a phone, a tablet and a desktop."""
    with open_page(browser, request.getfixturevalue(name), width=1600) as page:
        for width in (1600, 768, 360):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function(f"document.documentElement.scrollWidth <= {width}")
            check_boxes(page, width)


def check_boxes(page: "Page", width: int) -> None:
    for selector in ("main > *", ".panel", ".card", ".finding", ".toolbar > *", "#samples .scroll"):
        boxes = page.evaluate(BOXES, selector)
        assert boxes or selector in (".card", ".finding")
        for a, b in combinations(boxes, 2):
            assert a[2] <= b[0] + 1 or b[2] <= a[0] + 1 or a[3] <= b[1] + 1 or b[3] <= a[1] + 1, (selector, a, b)
    fits = "[...report.views].every(([element, {view}]) => view.width() <= element.clientWidth)"
    page.wait_for_function(f"report.views.size > 0 && {fits}")
    for left, _, right, _ in page.evaluate(BOXES, ".panel, .card, .chart"):
        assert left >= 0
        assert right <= width
    assert min(page.evaluate("[...report.views.values()].map(v => v.view.signal('width'))")) > 120


def test_everything_has_a_text_alternative(browser: "Browser", real_page: Path) -> None:
    with open_page(browser, real_page) as page:
        assert page.locator(".trio canvas:not([role=img]), .trio canvas:not([aria-label])").count() == 0
        assert page.locator(".chart:not([role=img]), .chart:not([aria-label])").count() == 0
        unlabelled = "all => all.filter(b => !b.ariaLabel && !b.textContent.trim()).length"
        assert page.locator("button").evaluate_all(unlabelled) == 0
        tabulated = "all => all.every(figure => figure.querySelector('details table'))"
        assert page.locator("figure").count() == 8
        assert page.locator("figure").evaluate_all(tabulated)
        assert page.locator("h1").count() == 1
        assert page.evaluate("document.documentElement.lang") == "en"


@pytest.mark.parametrize("name", ["real_page", "two_runs_page", "photos_page", "table_page", "waves_page"])
def test_phones(browser: "Browser", request: pytest.FixtureRequest, name: str) -> None:
    """Captions are in view however wide their tables are, and samples are listed without scrolling."""
    with open_page(browser, request.getfixturevalue(name), width=360) as page:
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        captions = page.evaluate(BOXES, ".caption")
        assert len(captions) > 3
        assert max(right for _, _, right, _ in captions) <= 360
        assert max(right for _, _, right, _ in page.evaluate(BOXES, "#samples .item > *")) <= 360
        assert "margin: " in page.evaluate(
            "getComputedStyle(document.querySelector('td[data-head=margin]'), '::before').content"
        ).replace('"', "")


def test_print(browser: "Browser", real_page: Path) -> None:
    """On paper a dark page is light, charts are vectors that fit, and pictures are drawn."""
    with open_page(browser, real_page, scheme="dark") as page:
        page.evaluate("report.pictured")
        painted = "all => all.filter(c => c.checkVisibility()).every(c => c.width !== 300)"  # 300: never drawn
        assert page.locator("#samples .trio canvas").evaluate_all(painted)
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 688, "height": 1000})  # A4 within its margins
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 31, 36)"
        papers = page.locator(".chart .paper svg")
        assert papers.count() == page.evaluate("report.views.size") > 8
        assert not page.locator(".chart canvas").first.is_visible()
        boxes = page.evaluate(BOXES, ".panel, .chart svg, table")
        assert max(right for _, _, right, _ in boxes) <= 688
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert papers.count() == 0
