"""Open a page in a browser and query its charts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marginattack.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

VIEW = "[...report.views.values()].find(v => v.norm === '{norm}' && v.chart === '{chart}').view"


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
    return float(page.evaluate(f"report.state.shared['{norm}'].pin"))
