"""Open report pages in Chromium and record what a reader would notice: benchmarks/records/pages.json.

python experiments/page_check.py FOLDER [PAGE…]

FOLDER has the runs that experiments/page_runs.py measures. The pages are those of real runs (digits, photographs,
compared, table, sounds, bounded), and of made-up runs with 10,000 and 100,000 samples. For each: its size, first paint,
what it logs and requests, contrast of text and marks in both themes, whether anything overflows at 360, 768 and 1,600
pixels, which controls the keyboard cannot reach or use, and the time of each interaction: until the page is painted,
until all charts on screen are redrawn, and until all charts are. Times are of the page's main thread, in milliseconds,
because others may use the machine; each is the median of three.
"""

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/report"), str(ROOT / "benchmarks")]
from browsing import CHROMIUM, CONTRASTS, MARKS, QUIET  # noqa: E402
from record import write  # noqa: E402
from runs import made_up_run  # noqa: E402

from marginattack.report import write_report  # noqa: E402

REAL = {
    "digits": ("digits",), "photographs": ("photographs",), "compared": ("plain", "trained"), "table": ("table",),
    "sounds": ("tones",), "bounded": ("bounded",),
}  # fmt: skip
MADE_UP = {  # samples, norms, classes, runs
    "10,000 samples": (10_000, ("l2", "linf"), 10, 1),
    "10,000 samples, 1,000 classes, two runs": (10_000, ("l2",), 1_000, 2),
    "100,000 samples": (100_000, ("l2",), 10, 1),
}
WIDTHS = (360, 768, 1600)
REPEATS = 3
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
PAINTED = "new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)))"
OVERFLOWING = """(width) => [...document.querySelectorAll("body *")].filter(e => e.checkVisibility()
    && !e.closest(".scroll, .visually-hidden, .skip, dialog") && e.getBoundingClientRect().right > width + 0.5)
    .map(e => e.outerHTML.slice(0, 80))"""
FOCUSABLE = """() => { let number = 0; for (const e of document.querySelectorAll(
    "a[href], button, input:not([type=radio]), input[type=radio]:checked, select, summary, [tabindex='0']"))
    if (e.checkVisibility() && !e.disabled && e.tabIndex >= 0 && !e.closest("dialog")) e.dataset.control = number++;
    return number; }"""
CONTROLS = {  # selector, and the value to set; None: click
    "theme": ("#theme", None), "unit": ("input[name=unit]:not(:checked)", None), "logarithmic axis": ("#log", None),
    "pin": ("input.pin", ("0.7", "0.05")), "class": ("#selected-class", 2), "order of classes": ("#class-order", 1),
    "details of": ("#series", 1), "legend": ("select.highlight", 1),
    "traced sample": ("select.sample", 1), "search": (".class-search", ("a", "ba")),
    "sort samples": ("#samples .group:not([hidden]) thead button", None),
    "sort classes": (".by-class thead button", None), "open sample": (".group:not([hidden]) .name", None),
    "next sample": ("dialog[open] .step[data-by='1']", None), "amplify": ("dialog[open] #gain", ("90", "30")),
    "close sample": ("dialog[open] .close", None), "group of samples": ("#group", 1),
}  # fmt: skip
SCROLL = """(selector) => [...document.querySelectorAll(selector)].find(e => e.checkVisibility())
    ?.scrollIntoView({block: "center"})"""
OPERATE = """([selector, value, round]) => {
    const control = [...document.querySelectorAll(selector)].find(e => e.checkVisibility());
    if (!control) return false;
    if (value === null) { control.click(); return true; }
    const last = (control.options?.length ?? 1) - 1;
    if (control.tagName === "SELECT") control.selectedIndex = round % 2 ? 0 : Math.min(value, last);
    else control.value = value[round % 2];
    for (const kind of ["input", "change"]) control.dispatchEvent(new Event(kind, {bubbles: true}));
    return true;
}"""


def main(folder: str, *wanted: str) -> None:
    numbers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        for name in wanted or (*REAL, *MADE_UP):
            page = Path(scratch) / "page.html"
            if name in REAL:
                write_report([str(Path(folder) / run) for run in REAL[name]], page)
            else:
                count, norms, classes, several = MADE_UP[name]
                write_report([
                    made_up_run(Path(scratch) / f"{name} {number}", count, norms=norms, classes=classes, seed=number,
                                shape=(1, 28, 28), shard=10_000, model=f"model {number}")
                    for number in range(several)
                ], page)  # fmt: skip
            numbers[name] = check_page(browser, page)
            print(name, numbers[name], flush=True)
        browser.close()
    write("pages", numbers)


def check_page(browser: Browser, path: Path) -> dict[str, Any]:
    """Open a page in both themes and at all widths, and operate it by keyboard and by mouse."""
    tab, noticed = open_tab(browser, path, "light")
    result: dict[str, Any] = {"bytes": path.stat().st_size, "first paint, ms": first_paint(tab)}
    result["interactions, ms"] = time_interactions(tab)
    result["keyboard"] = use_keyboard(browser, path, noticed)
    for scheme in ("light", "dark"):
        other, noticed_too = open_tab(browser, path, scheme)
        marks = other.evaluate(MARKS)
        result[f"contrast, {scheme}"] = {
            "texts": summarize(other.evaluate(CONTRASTS), 4.5), "marks": summarize(marks, 3.0),
        }  # fmt: skip
        noticed += noticed_too
        other.context.close()
    overflowing = {}
    for width in WIDTHS:
        other, noticed_too = open_tab(browser, path, "light", width)
        other.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        inside = other.evaluate("document.documentElement.scrollWidth") <= width
        overflowing[str(width)] = other.evaluate(OVERFLOWING, width) if inside else ["the page"]
        noticed += noticed_too
        other.context.close()
    tab.context.close()
    return {**result, "overflow": overflowing, "logged or requested": noticed}


def open_tab(browser: Browser, path: Path, scheme: str, width: int = 1600) -> tuple[Page, list[str]]:
    """Open a page; the list fills with what it logs and what it requests from elsewhere."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    tab, noticed = context.new_page(), list[str]()
    tab.on("console", lambda message: noticed.append(message.text))
    tab.on("pageerror", lambda error: noticed.append(str(error)))
    tab.on("request", lambda request: noticed.append(request.url) if request.url[:5] not in LOCAL else None)
    tab.goto(path.as_uri())
    tab.evaluate("report.pictured.then(() => null)")
    return tab, noticed


LOCAL = ("file:", "data:", "blob:")


def first_paint(tab: Page) -> float:
    times = []
    for _ in range(REPEATS):
        tab.reload()
        tab.evaluate("report.pictured.then(() => null)")
        times.append(float(tab.evaluate(PAINT)))
    return round(median(times))


def summarize(found: list[Any], least: float) -> dict[str, Any]:
    """The number of contrasts, the least, and those that are too low."""
    low = sorted({(round(ratio, 2), *map(str, what)) for ratio, *what in found if ratio < least})
    return {"checked": len(found), "least": round(min(ratio for ratio, *_ in found), 2), "below": low[:10]}


def time_interactions(tab: Page) -> dict[str, list[float]]:
    """Of each control, milliseconds until the page is painted, charts on screen are redrawn, and all charts are."""
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    times: dict[str, list[float]] = {}
    for name, (selector, value) in CONTROLS.items():
        if not selector.startswith("dialog"):
            tab.evaluate(SCROLL, selector)
        rounds = []
        for number in range(REPEATS + 1):  # the first compiles
            if name == "open sample" and number:
                tab.evaluate("document.querySelector('dialog').close()")
            if name == "close sample" and number:
                break
            measured = time_one(tab, session, partial(tab.evaluate, OPERATE, [selector, value, number]))
            if measured is None:
                break
            rounds.append(measured)
        if rounds:
            times[name] = [round(1000 * median(each)) for each in zip(*(rounds[1:] or rounds), strict=True)]
    times["hover"] = hover(tab, session)
    return times


def time_one(tab: Page, session: CDPSession, act: Callable[[], Any]) -> tuple[float, float, float] | None:
    tab.evaluate("report.settled()")
    tab.evaluate(PAINTED)
    start, ends = busy(session), []
    if act() is False:
        return None
    for wait in (PAINTED, "report.shown()", "report.settled()"):
        tab.evaluate(wait)
        ends.append(busy(session) - start)
    return ends[0], ends[1], ends[2]


def hover(tab: Page, session: CDPSession) -> list[float]:
    """Point at the curve, at one place after the other."""
    chart = tab.locator(".chart[data-chart=curve] canvas").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    rounds = []
    for number in range(REPEATS + 1):
        x, y = box["x"] + box["width"] * (0.3 + 0.1 * number), box["y"] + box["height"] / 2
        rounds.append(time_one(tab, session, partial(tab.mouse.move, x, y)))
    return [round(1000 * median(each)) for each in zip(*(each for each in rounds[1:] if each), strict=True)]


def busy(session: CDPSession) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def use_keyboard(browser: Browser, path: Path, noticed: list[str]) -> dict[str, Any]:
    """Reach every control with Tab, and use one of each kind."""
    tab, logged = open_tab(browser, path, "light")
    noticed += logged
    count, reached = tab.evaluate(FOCUSABLE), set()
    for _ in range(count + 3):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.activeElement.dataset.control ?? null"))
    missed = [str(number) for number in range(count) if str(number) not in reached]
    names = [tab.locator(f"[data-control='{number}']").evaluate("e => e.outerHTML.slice(0, 80)") for number in missed]
    used = {name: use for name, keys, before in KEYS if (use := try_keys(tab, keys, before)) is not None}
    tab.context.close()
    return {"controls": count, "not reached": names, "not usable": [name for name, works in used.items() if not works],
            "used": len(used)}  # fmt: skip


# name; selector and keys; what must change
KEYS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("theme", ("#theme", "Enter"), "report.state.theme"),
    ("logarithmic axis", ("#log", "Space"), "report.state.log"),
    ("unit", ("input[name=unit]:checked", "ArrowRight"), "report.state.unitScale"),
    ("class", ("#selected-class", "ArrowDown"), "Object.values(report.state.shared).map(s => s.selected_class).join()"),
    ("order", ("#class-order", "ArrowDown"), "Object.values(report.state.shared).map(s => s.class_order).join()"),
    ("details of", ("#series", "ArrowDown"), "Object.values(report.state.shared).map(s => s.series).join()"),
    ("legend", ("select.highlight", "ArrowDown"), "Object.values(report.state.shared).map(s => s.highlight).join()"),
    ("pin", ("input.pin", "1", "Enter"), "Object.values(report.state.shared).map(s => s.pin).join()"),
    ("unpin", (".unpin:enabled", "Enter"), "Object.values(report.state.shared).map(s => s.pin).join()"),
    ("table", ("#curves summary", "Enter"), "document.querySelector('#curves details').open"),
    ("sort", ("#curves details[open] thead button", "Enter"), "document.querySelectorAll('[aria-sort]').length"),
    ("search", (".class-search", "a", "b"), "[...document.querySelectorAll('.class-search')].map(e => e.value).join()"),
    ("traced sample", ("select.sample", "ArrowDown"), "Object.values(report.state.shared).map(s => s.sample).join()"),
    ("open sample", (".group:not([hidden]) .name", "Enter"), "document.querySelector('dialog').open"),
    ("next sample", ("dialog .step[data-by='1']", "ArrowRight"), "document.querySelector('dialog .title').textContent"),
    ("amplify", ("dialog #gain", "Home"), "document.querySelector('#gain-text').textContent"),
    ("close sample", ("dialog .close", "Escape"), "document.querySelector('dialog').open"),
    ("group", ("#group", "ArrowDown"), "document.querySelector('#group')?.value"),
)


def try_keys(tab: Page, keys: tuple[str, ...], state: str) -> bool | None:
    """Whether keys change something; None where the page has no such control."""
    control = tab.locator(f"{keys[0]} >> visible=true").first
    if not control.count():
        return None
    before = tab.evaluate(state)
    control.focus()
    for key in keys[1:]:
        tab.keyboard.press(key)
    tab.evaluate("report.settled()")
    return bool(tab.evaluate(state) != before)


if __name__ == "__main__":
    main(*sys.argv[1:])
