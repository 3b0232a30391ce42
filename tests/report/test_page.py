"""The page in a real browser: every control works, and nothing is requested."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from browsing import VIEW, open_page, signal
from runs import HOSTILE, made_up_run

from marginattack.report import write_report
from marginattack.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest_plugins = ["report_fixtures"]


def records(page: "Page", chart: str, field: str, norm: str = "l2") -> list[dict[str, Any]]:
    """Return the rows of the chart's last dataset that has this field."""
    script = """([view, field]) => {
        const every = view.getState({signals: () => false, data: () => true, recurse: false}).data;
        const has = (name) => Array.isArray(view.data(name)) && view.data(name)[0]?.[field] !== undefined;
        const found = Object.keys(every).filter(has);
        return found.length ? view.data(found.at(-1)).map(row => ({...row})) : [];
    }"""
    handle = page.evaluate_handle(f"[{VIEW.format(norm=norm, chart=chart)}, '{field}']")
    found: list[dict[str, Any]] = page.evaluate(script, handle)
    return found


def wait_for_charts(page: "Page") -> None:
    page.evaluate("Promise.all([...report.views.values()].map(v => v.view.runAsync())).then(() => null)")


def locate(page: "Page", chart: str, x: float, y: float, norm: str = "l2") -> tuple[float, float]:
    """Return the screen position of a point in the plot area, given from 0 to 1 from the left and the top."""
    box = page.locator(f".chart[data-chart='{chart}'][data-norm='{norm}'] canvas")
    box.scroll_into_view_if_needed()
    corner = box.bounding_box()
    assert corner is not None
    left, top = page.evaluate(f"{VIEW.format(norm=norm, chart=chart)}.origin()")
    width, height = signal(page, chart, "width", norm), signal(page, chart, "height", norm)
    return corner["x"] + left + x * width, corner["y"] + top + y * height


def margins(run: Path, norm: str) -> np.ndarray:
    """Return the margins of the correctly classified samples."""
    store = RunFolder(run)
    column = store.numeric_columns(store.find(norm=norm))
    kept: np.ndarray = column["distance"][column["label"] == column["prediction"]].numpy()
    return kept


def pin(page: "Page", value: str, norm: str = "l2") -> float:
    field = page.locator(f"input.pin[data-norm='{norm}']")
    field.fill(value)
    field.press("Enter")
    wait_for_charts(page)
    return float(page.evaluate(f"report.state.shared['{norm}'].pin"))


def test_hovering_shows_values(browser: "Browser", real_page: Path, real: Path) -> None:
    with open_page(browser, real_page) as page:
        x, y = locate(page, "curve", 0.5, 0.5)
        page.mouse.move(x, y)
        page.mouse.move(x + 2, y)
        tooltip = page.locator("#vg-tooltip-element.visible")
        tooltip.wait_for()
        keys, values = (tooltip.locator(which).all_inner_texts() for which in (".key", ".value"))
        shown = {key.strip(" :"): value for key, value in zip(keys, values, strict=True)}
        eps = float(shown["ε"])
        share = 100 * (margins(real, "l2") > eps).sum() / 48
        assert float(shown["robust accuracy, %"]) == pytest.approx(share, abs=0.06)
        assert float(shown["95 % CI from"]) < share < float(shown["to"])


RULES = """(view) => {
    const found = [];
    const walk = (item) => {
        if (item.marktype === "rule") found.push(...item.items.map(({datum}) => datum?.x ?? datum?.y));
        for (const child of item.items ?? []) walk(child);
    };
    walk(view.scenegraph().root);
    return found.filter(Number.isFinite);
}"""


def test_clicking_pins_and_filters(browser: "Browser", real_page: Path, real: Path) -> None:
    with open_page(browser, real_page) as page:
        all_in_matrix = sum(row["count"] for row in records(page, "matrix", "count"))
        page.mouse.click(*locate(page, "curve", 0.55, 0.4))
        page.wait_for_function("report.state.shared.l2?.pin > 0")
        wait_for_charts(page)
        eps = page.evaluate("report.state.shared.l2.pin")
        nearer = int((margins(real, "l2") <= eps).sum())
        assert 0 < nearer < all_in_matrix == len(margins(real, "l2"))
        assert (
            f"{nearer} of {all_in_matrix} margins are within ε"
            in page.locator("output.pin-summary[data-norm=l2]").inner_text()
        )
        bars = records(page, "histogram", "side")
        assert sum(row["count"] for row in bars if row["side"] == "below") == nearer
        assert sum(row["count"] for row in bars if row["side"] == "above") == all_in_matrix - nearer
        assert sum(row["count"] for row in records(page, "matrix", "count")) == nearer
        assert signal(page, "confidence", "pin") == signal(page, "strips", "pin") == eps
        for chart in ("curve", "histogram", "strips", "confidence"):
            rules = page.evaluate(RULES, page.evaluate_handle(VIEW.format(norm="l2", chart=chart)))
            assert eps in rules, chart  # the line at the pinned ε
        assert signal(page, "histogram", "pin", "linf") is None  # the other norm has its own
        page.locator(".unpin[data-norm=l2]").click()
        wait_for_charts(page)
        assert sum(row["count"] for row in records(page, "matrix", "count")) == all_in_matrix


def test_pinning_by_keyboard(browser: "Browser", real_page: Path) -> None:
    with open_page(browser, real_page) as page:
        eps = pin(page, "0.07", "linf")
        assert eps == 0.07
        assert signal(page, "matrix", "pin", "linf") == eps
        assert page.locator("output.pin-summary[data-norm=linf]").inner_text().startswith("At ε = 0.07:")
        page.locator(".unpin[data-norm=linf]").focus()
        page.keyboard.press("Enter")
        assert page.locator("output.pin-summary[data-norm=linf]").inner_text() == "No ε is pinned."


def test_log_switch_keeps_the_pin(browser: "Browser", real_page: Path) -> None:
    kind = f"{VIEW.format(norm='l2', chart='curve')}.scale('x').type"
    with open_page(browser, real_page) as page:
        eps = pin(page, "1")
        assert page.evaluate(kind) == "linear"
        page.locator("#log").focus()
        page.keyboard.press("Space")
        page.wait_for_function(f"{kind} === 'log'")
        assert signal(page, "curve", "pin") == eps


def test_unit_switch(browser: "Browser", real_page: Path) -> None:
    with open_page(browser, real_page) as page:
        median = page.locator(".card .num").first
        before = float(median.inner_text())
        domain = f"{VIEW.format(norm='l2', chart='histogram')}.scale('x').domain()[1]"
        end = page.evaluate(domain)
        eps = pin(page, "1")
        page.get_by_label("255").check()
        wait_for_charts(page)
        assert float(median.inner_text()) == pytest.approx(255 * before, rel=1e-3)
        assert page.evaluate(domain) == pytest.approx(255 * end)
        assert float(page.locator("input.pin[data-norm=l2]").input_value()) == pytest.approx(255 * eps, rel=1e-3)
        assert signal(page, "matrix", "pin") == eps


def test_classes_are_sorted_and_filtered(browser: "Browser", real_page: Path) -> None:
    order = f"{VIEW.format(norm='l2', chart='strips')}.scale('y').domain()"
    with open_page(browser, real_page) as page:
        assert page.evaluate(order) == sorted(page.evaluate(order))
        page.locator("#class-order").select_option("median")
        wait_for_charts(page)
        medians = {row["from"]: row["q2"] for row in records(page, "strips", "q2")}
        assert page.evaluate(order) == sorted(medians, key=lambda name: medians[name])
        eps = pin(page, "1.2")
        page.locator("#class-order").select_option("below")
        wait_for_charts(page)
        rows = records(page, "strips", "below")
        shares = {row["from"]: row["below"] / row["of"] for row in rows}
        assert eps > 0
        assert len(set(shares.values())) > 2
        assert [shares[name] for name in page.evaluate(order)] == sorted(shares.values(), reverse=True)
        page.locator("#selected-class").select_option("3")
        wait_for_charts(page)
        of = next(row["of"] for row in rows if row["from"] == "3")
        assert sum(row["count"] for row in records(page, "histogram", "count")) == of


def test_clicking_a_class_filters(browser: "Browser", real_page: Path) -> None:
    with open_page(browser, real_page) as page:
        row = max(records(page, "strips", "share"), key=lambda row: row["share"])
        where = f"{VIEW.format(norm='l2', chart='strips')}"
        y = page.evaluate(f"{where}.scale('y')('{row['from']}') + {where}.scale('y').bandwidth() * 0.2")
        x = page.evaluate(f"{where}.scale('x')({(row['x'] + row['x2']) / 2})")
        left, top = locate(page, "strips", 0, 0)
        page.mouse.click(left + x, top + y)
        page.wait_for_function(f"report.state.shared.linf?.selected_class === '{row['from']}'")
        assert page.locator("#selected-class").input_value() == row["from"]
        wait_for_charts(page)
        assert sum(bar["count"] for bar in records(page, "histogram", "count")) == row["of"]


def test_tables_are_sorted_by_keyboard(browser: "Browser", real_page: Path) -> None:
    with open_page(browser, real_page) as page:
        page.locator("#classes details").first.locator("summary").click()
        table = page.locator("#classes table").first
        head = table.locator("th").filter(has_text="median")
        for expected in ("ascending", "descending"):
            head.locator("button").focus()
            page.keyboard.press("Enter")
            assert head.get_attribute("aria-sort") == expected
            values = [float(text) for text in table.locator("tbody td:nth-child(3)").all_inner_texts()]
            assert len(values) > 5
            assert values == sorted(values, reverse=expected == "descending")


def test_detail_view(browser: "Browser", real_page: Path) -> None:
    with open_page(browser, real_page) as page:
        item = page.locator("#gallery .item").first
        small = item.locator("img").first.bounding_box()
        item.locator("button").focus()
        page.keyboard.press("Enter")
        dialog = page.locator("dialog[open]")
        large = dialog.locator("img").first.bounding_box()
        assert small is not None
        assert large is not None
        assert large["width"] > 2 * small["width"]
        assert dialog.locator("img").count() == 3
        text = dialog.inner_text()
        assert all(word in text for word in ("Label", "Adversarial class", "Margin, ℓ2", "Passes", "Input fingerprint"))
        page.keyboard.press("ArrowRight")
        assert dialog.inner_text() != text
        page.keyboard.press("ArrowLeft")
        assert dialog.inner_text() == text
        page.keyboard.press("Escape")
        page.wait_for_function("!document.querySelector('dialog').open")
        assert page.evaluate("document.activeElement === document.querySelector('#gallery .item button')")


def test_convergence_follows_the_sample(browser: "Browser", real_page: Path) -> None:
    with open_page(browser, real_page) as page:
        moves = {row["move"] for row in records(page, "distance", "move")}
        assert {"restoration", "projection", "closing"} <= moves
        options = page.locator("select.sample[data-norm=l2] option").all_inner_texts()
        page.locator("select.sample[data-norm=l2]").select_option(options[2])
        wait_for_charts(page)
        assert {row["id"] for row in records(page, "constraint", "query")} == {int(options[2])}


def test_several_runs(browser: "Browser", two_runs_page: Path) -> None:
    with open_page(browser, two_runs_page) as page:
        first = page.locator("main > *:not(.banner)").first
        assert first.get_attribute("id") == "findings"  # a grave one comes first
        assert first.locator(".grade").first.inner_text() == "GRAVE"
        assert "Partial." in page.locator(".banner").inner_text()
        names = page.locator("#series option").all_inner_texts()
        assert len(names) == 3
        assert {row["series"] for row in records(page, "curve", "robust")} == set(names)
        assert page.locator("p.comparison").count() == 4
        page.locator("#series").select_option(names[1])
        wait_for_charts(page)
        assert {row["series"] for row in records(page, "matrix", "pair")} == {names[1]}
        shown = page.locator("#gallery .of-series:visible").evaluate_all("all => all.map(e => e.dataset.series)")
        assert shown == [names[1]] * 2


LEGEND = """(view) => {
    const labels = [];
    const walk = (item, x, y) => {
        const [left, top] = [x + (item.x ?? 0), y + (item.y ?? 0)];
        if (item.mark?.role === "legend-label") labels.push([left, top, item.text]);
        for (const child of item.items ?? []) walk(child, item.marktype ? x : left, item.marktype ? y : top);
    };
    walk(view.scenegraph().root, ...view.origin());
    return labels;
}"""


def test_legend_selects(browser: "Browser", two_runs_page: Path) -> None:
    with open_page(browser, two_runs_page) as page:
        labels = page.evaluate(LEGEND, page.evaluate_handle(VIEW.format(norm="l2", chart="curve")))
        assert len(labels) == 3
        x, y, name = labels[1]
        box = page.locator(".chart[data-chart=curve][data-norm=l2] canvas")
        box.scroll_into_view_if_needed()
        corner = box.bounding_box()
        assert corner is not None
        page.mouse.click(corner["x"] + x + 8, corner["y"] + y)
        page.wait_for_function(f"{VIEW.format(norm='l2', chart='curve')}.signal('legend').series?.length === 1")
        assert signal(page, "curve", "legend")["series"] == [name]


def test_markup_in_names_is_shown_and_never_run(browser: "Browser", hostile_page: Path) -> None:
    with open_page(browser, hostile_page) as page:
        for name in HOSTILE:
            page.locator("#selected-class").select_option(name)
        wait_for_charts(page)
        row = max(records(page, "matrix", "count"), key=lambda row: row["count"])
        where = VIEW.format(norm="l2", chart="matrix")
        middle = f"(name, axis) => {where}.scale(axis)(name) + {where}.scale(axis).bandwidth() * 0.2"
        x, y = page.evaluate(f"(row) => [({middle})(row.to, 'x'), ({middle})(row.from, 'y')]", row)
        left, top = locate(page, "matrix", 0, 0)
        page.mouse.move(left + x, top + y)
        page.mouse.move(left + x + 1, top + y)
        tooltip = page.locator("#vg-tooltip-element.visible")
        tooltip.wait_for()
        assert row["from"] in tooltip.inner_text()
        page.locator("#gallery .item button").first.click()
        assert page.evaluate("window.pwned") is None
        assert page.locator("h1").inner_text() == "<script>window.pwned = 4</script> on made-up"
        text = page.locator("body").inner_text()
        assert "<script>window.pwned = 5</script>" in text
        assert re.search(r"<b>run</b>", text)
        page.keyboard.press("Escape")


def test_ten_thousand_samples_paint_quickly(browser: "Browser", large: Path, tmp_path: Path) -> None:
    write_report([large], tmp_path / "report.html")
    with open_page(browser, tmp_path / "report.html") as page:
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        assert paint < 1500
        assert sum(row["count"] for row in records(page, "histogram", "count")) > 9000


def test_a_hundred_thousand_open(browser: "Browser", tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", 100_000, norms=("l2",), shape=(1, 4, 4), shard=10_000)
    write_report([run], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 2_000_000
    found = margins(run, "l2")
    with open_page(browser, tmp_path / "report.html") as page:
        assert sum(row["count"] for row in records(page, "matrix", "count")) == np.isfinite(found).sum()
        assert "drawn in cells" in page.locator("#margins .lead").inner_text()
        eps = pin(page, "1")
        summary = page.locator("output.pin-summary[data-norm=l2]").inner_text()
        assert f"{(found <= eps).sum():,} of {len(found):,} margins are within ε" in summary
