"""The page in a real browser: every control works, and nothing is requested."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from browsing import VIEW, margins, open_page, pin, records, signal, wait_for_charts
from runs import HOSTILE, made_up_run, real_run

from marginattack.report import write_report
from marginattack.report.page import render_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest_plugins = ["report_fixtures"]


def locate(page: "Page", chart: str, x: float, y: float, norm: str = "l2") -> tuple[float, float]:
    """Return the screen position of a point in the plot area, given from 0 to 1 from the left and the top."""
    box = page.locator(f".chart[data-chart='{chart}'][data-norm='{norm}'] canvas")
    box.scroll_into_view_if_needed()
    corner = box.bounding_box()
    assert corner is not None
    left, top = page.evaluate(f"{VIEW.format(norm=norm, chart=chart)}.origin()")
    width, height = signal(page, chart, "width", norm), signal(page, chart, "height", norm)
    return corner["x"] + left + x * width, corner["y"] + top + y * height


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
        texts = page.locator(".num[data-v]").all_text_contents()
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
        page.get_by_role("radio", name="1", exact=True).check()
        assert page.locator(".num[data-v]").all_text_contents() == texts  # as the file has them


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
        text = page.locator("p.comparison").first.inner_text()
        gained, lost = (int(n) for n in re.findall(r", (\d+) become robust and (\d+) no longer are", text)[0])
        assert gained > lost  # margins of the second model are larger
        page.locator("#compare details summary").first.click()
        assert page.locator("#compare details").first.locator("tbody tr").count() >= min(gained, 8)
        assert {row["series"] for row in records(page, "paired", "a_text")} == set(names[1:])
        page.locator("#series").select_option(names[1])
        wait_for_charts(page)
        assert {row["series"] for row in records(page, "matrix", "pair")} == {names[1]}
        shown = page.locator("#samples .of-series:visible").evaluate_all("all => all.map(e => e.dataset.series)")
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
        page.wait_for_function(f"report.state.shared.l2.highlight === {name!r}")
        control = page.locator("select.highlight[data-norm=l2]")
        assert control.input_value() == name
        control.focus()  # the same by keyboard
        page.keyboard.press("Home")
        wait_for_charts(page)
        assert signal(page, "curve", "highlight") is None
        page.keyboard.press("ArrowDown")
        assert signal(page, "curve", "highlight") == labels[0][2]


def test_sides_follow_the_pinned_eps(browser: "Browser", two_runs_page: Path) -> None:
    with open_page(browser, two_runs_page) as page:
        sentence, table = page.locator(".sides[data-norm=l2]").first, page.locator("details.changed").first
        table.locator("summary").click()
        before = sentence.inner_text(), table.inner_text()
        eps = pin(page, "1.6")
        name = sentence.get_attribute("data-series")
        points = page.evaluate("""([name, eps]) => {
            const {columns, names} = report.page.datasets.paired_l2, sides = [0, 0];
            columns.series.forEach((number, i) => {
                const [a, b] = [columns.a[i] ?? Infinity, columns.b[i] ?? Infinity];
                if (names.series[number] === name && a > eps !== b > eps) sides[b > eps ? 0 : 1]++;
            });
            return sides;
        }""", [name, eps])  # fmt: skip
        assert min(points) > 0
        assert sentence.inner_text() == (
            f"At the pinned ε = 1.6, {points[0]} become robust and {points[1]} no longer are."
        )
        assert table.locator("tbody tr").count() == sum(min(count, 8) for count in points)
        first, second = table.locator("tbody tr").first.locator("td .num").all_inner_texts()
        assert float(first) <= eps < float(second)
        assert "with a margin up to the pinned ε = 1.6 are counted" in page.locator(".matrix-note").first.inner_text()
        page.locator(".unpin[data-norm=l2]").click()
        assert (sentence.inner_text(), table.inner_text()) == before


def test_at_most_five_runs_are_compared_and_the_page_says_so(tmp_path: Path) -> None:
    runs = [made_up_run(tmp_path / f"run{i}", 30, norms=("l2",), model=f"model{i}", seed=i) for i in range(6)]
    page = render_page(runs)
    assert "<strong>Not compared sample by sample:</strong> model5." in page
    assert page.count('class="sides"') == 4


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
        page.locator("#samples .item .name").first.click()
        assert page.evaluate("window.pwned") is None
        assert page.locator("h1").inner_text() == "<script>window.pwned = 4</script> on made-up"
        text = page.locator("body").inner_text()
        assert "<script>window.pwned = 5</script>" in text
        assert re.search(r"<b>run</b>", text)
        page.keyboard.press("Escape")


def test_nothing_found(browser: "Browser", tmp_path: Path) -> None:
    """A run without any adversarial example says so, draws no empty charts and logs nothing."""
    run = real_run(tmp_path / "run", digits=2, norms=("l2",), attacks=["race"], attack={}, budget=4)
    assert not np.isfinite(margins(run, "l2")).any()
    write_report([run], tmp_path / "report.html")
    with open_page(browser, tmp_path / "report.html") as page:
        assert "No adversarial example was found for these samples." in page.locator("#convergence").inner_text()
        assert page.locator("#group").count() == 0
        assert page.locator("#samples .no-group").inner_text() == "No samples."
        assert "not found to" not in page.locator("main").inner_text()
