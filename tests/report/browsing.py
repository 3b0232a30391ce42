"""Open a page in a browser and query its charts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marginattack.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
QUIET = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
VIEW = "[...report.views.values()].find(v => v.norm === '{norm}' && v.chart === '{chart}').view"

LIGHT = """
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const linear = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
        if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
"""
# of every text with what is behind it: contrast ratio and markup
CONTRASTS = f"""() => {{{LIGHT}
    document.querySelectorAll("details").forEach(d => d.open = true);
    return [...document.querySelectorAll("body *")].filter(e => e.offsetParent && !e.disabled
        && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).map(e =>
        [ratio(light(parse(getComputedStyle(e).color)), light(ground(e))), e.outerHTML.slice(0, 80)]);
}}"""
# of every mark of every chart with its ground, opacity included: contrast ratio of its fill or outline, chart and kind.
# Shades are left out: strips and matrices, whose density is in tooltips and tables, confidence bands, and the bands
# below the stripes of phases.
MARKS = f"""() => {{{LIGHT}
    const shades = {{strips: ["rect"], matrix: ["rect"], curve: ["area"], "curve-log": ["area"]}};
    const rgb = (colour) => {{
        const context = Object.assign(document.createElement("canvas"), {{width: 1, height: 1}}).getContext("2d");
        context.fillStyle = colour;
        return context.fillStyle.match(/[0-9a-f]{{2}}/g).map(c => parseInt(c, 16));
    }};
    const known = new Map(), found = [];
    const contrast = (colour, opacity, behind) => {{
        const key = `${{colour}} ${{opacity}} ${{behind}}`;
        const mixed = () => rgb(colour).map((c, i) => opacity * c + (1 - opacity) * behind[i]);
        if (!known.has(key)) known.set(key, ratio(light(mixed()), light(behind)));
        return known.get(key);
    }};
    for (const [element, {{view, chart}}] of report.views) {{
        const behind = ground(element).slice(0, 3);
        const walk = (node) => {{
            const {{marktype, role}} = node;
            if (marktype && marktype !== "group" && ["mark", "legend-symbol"].includes(role)) {{
                if ((shades[chart] ?? []).includes(marktype)) return;
                for (const {{fill, stroke, opacity = 1, fillOpacity = 1, strokeOpacity = 1}} of node.items) {{
                    if (opacity === 0 || (marktype === "rect" && opacity === 0.1)) continue; // on hover; below stripes
                    const seen = [[fill, fillOpacity], [stroke, strokeOpacity]]
                        .filter(([colour]) => colour && colour !== "transparent");
                    const best = Math.max(...seen.map(([colour, own]) => contrast(colour, opacity * own, behind)));
                    if (seen.length) found.push([best, chart, marktype]);
                }}
            }}
            for (const child of node.items ?? []) if (child.items) walk(child);
        }};
        walk(view.scenegraph().root);
    }}
    return found;
}}"""
BOXES = """(selector) => [...document.querySelectorAll(selector)].filter(e => e.offsetParent)
    .map(e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; })"""


@contextmanager
def open_page(browser: "Browser", path: Path, *, width: int = 1600, scheme: str = "light") -> Iterator["Page"]:
    """Open a page and wait for its charts; on exit, fail if it logged anything or requested anything remote."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    messages, requests = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.evaluate("report.ready")
    yield page
    assert messages == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    context.close()


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


def signal(page: "Page", chart: str, name: str, norm: str = "l2") -> Any:
    return page.evaluate(f"{VIEW.format(norm=norm, chart=chart)}.signal('{name}')")


def margins(run: Path, norm: str) -> np.ndarray:
    """Return the margins of the correctly classified samples."""
    store = RunFolder(run)
    column = store.numeric_columns(store.find(norm=norm))
    kept: np.ndarray = column["distance"][column["label"] == column["prediction"]].numpy()
    return kept


def wait_for_charts(page: "Page") -> None:
    page.evaluate("Promise.all([...report.views.values()].map(v => v.view.runAsync())).then(() => null)")


def pin(page: "Page", value: str, norm: str = "l2") -> float:
    field = page.locator(f"input.pin[data-norm='{norm}']")
    field.fill(value)
    field.press("Enter")
    wait_for_charts(page)
    return float(page.evaluate(f"report.state.shared['{norm}']?.pin") or 0)
