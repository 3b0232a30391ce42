"""Open a page in a browser and query its charts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def signal(page: "Page", chart: str, name: str, norm: str = "l2") -> Any:
    return page.evaluate(f"{VIEW.format(norm=norm, chart=chart)}.signal('{name}')")
