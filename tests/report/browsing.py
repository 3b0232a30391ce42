"""A page opened in a browser, and how its charts are asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

VIEW = "[...report.views.values()].find(v => v.norm === '{norm}' && v.chart === '{chart}').view"


@contextmanager
def opened(browser: "Browser", path: Path, *, width: int = 1600, scheme: str = "light") -> Iterator["Page"]:
    """The page with every chart drawn; at the end, nothing may have left it or gone wrong."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.evaluate("report.drawn")
    yield page
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    context.close()


def signal(page: "Page", chart: str, name: str, norm: str = "l2") -> Any:
    return page.evaluate(f"{VIEW.format(norm=norm, chart=chart)}.signal('{name}')")
