"""The site is built without a warning and without a dead link, and the reference has every public name."""

import inspect
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import marginattack as ma

ROOT = Path(__file__).parents[1]


class Links(HTMLParser):
    """What a page links to and loads, and the places in it that can be linked to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.loaded: set[str] = set()
        self.places: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        for name in ("href", "src"):
            if name in values:
                (self.targets if tag == "a" else self.loaded).add(values[name])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, in the folder that SITE names (``make docs``) or a temporary one."""
    folder = ROOT / os.environ["SITE"] if "SITE" in os.environ else tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "default"}
    built = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    found = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(found) > 20
    return found


def test_no_dead_links(site: Path, pages: dict[Path, Links]) -> None:
    """Links inside the site, places in pages included; mkdocs has checked those that leave it for the repository."""
    for page, links in pages.items():
        for link in links.targets | links.loaded:
            if link.startswith(("http:", "https:", "data:", "mailto:")):
                continue
            path, place = urldefrag(unquote(link))
            target = (page.parent / path).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page.relative_to(site)}: {link}"
            if place and target in pages:
                assert place in pages[target].places, f"{page.relative_to(site)}: {link}"


def test_pages_load_nothing_from_elsewhere(site: Path, pages: dict[Path, Links]) -> None:
    for page, links in pages.items():
        own = ("https://marginattack.github.io/marginattack/",)  # canonical addresses
        foreign = {link for link in links.loaded if link.startswith(("http", "//")) and not link.startswith(own)}
        assert not foreign, f"{page.relative_to(site)}: {foreign}"


def test_every_public_name_is_in_the_reference(site: Path, pages: dict[Path, Links]) -> None:
    page = site / "reference/index.html"
    places, text = pages[page].places, page.read_text()
    for name in ma.__all__:
        value = getattr(ma, name)
        documented = inspect.isclass(value) or inspect.isfunction(value)
        assert f"marginattack.{name}" in places if documented else f"ma.{name}" in text, f"docs/reference.md: {name}"
    for attack in ma.ATTACKS.values():
        name = attack.__name__
        if attack.__module__.startswith("marginattack."):
            assert {f"marginattack.{name}", f"marginattack.attacks.{name}"} & places, f"docs/reference.md: {name}"


def test_equations_of_docstrings_are_rendered(site: Path) -> None:
    text = (site / "reference/index.html").read_text()
    assert "<math" in text
    assert "math::" not in text
