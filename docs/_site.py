"""The site beyond mkdocs.yml: links to files of the repository, migration pages, equations of docstrings."""

import logging
import re
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert

import marginattack as ma

ROOT = Path(__file__).parents[1]
log = logging.getLogger("mkdocs.hooks")


def on_config(config: Any) -> Any:
    """Put the pages that the navigation does not name into it: migrate-from-*.md under Migrate, others under Guides."""
    named = set(re.findall(r"[\w/-]+\.md", str(config.nav)))
    rest = sorted({path.name for path in Path(config.docs_dir).glob("*.md")} - named)
    for section in config.nav:
        section.get("Migrate", []).extend(name for name in rest if name.startswith("migrate-from-"))
        if "Guides" in section:
            section["Guides"].extend(name for name in rest if not name.startswith("migrate-from-"))
    config.nav = [section for section in config.nav if section.get("Migrate") != []]
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links that leave docs/, such as ../SECURITY.md, into links to the repository; complete the reference."""

    def absolute(match: re.Match[str]) -> str:
        path = (Path(page.file.abs_src_path).parent / match[1]).resolve()
        if path.is_relative_to(config.docs_dir):
            return match[0]
        if not path.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, match[1])
        return f"]({config.repo_url}/blob/main/{path.relative_to(ROOT)}{match[2]})"

    if page.file.src_uri == "reference.md":
        missing = [name for name in ma.__all__ if not re.search(rf"(marginattack|ma)\.{name}\b", markdown)]
        markdown += "".join(["\n## More\n" if missing else "", *(f"\n::: marginattack.{name}\n" for name in missing)])
    return re.sub(r"\]\((\.\./[^)#]+)(#[^)]*|)\)", absolute, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Notebooks link to pages as on GitHub, ../bounds.md; mkdocs translates such links in Markdown files only."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    return re.sub(r'href="\.\./([\w-]+)\.md(#[^"]*|)"', r'href="../../\1/\2"', html)


class Equations(griffe.Extension):
    """Render ``.. math::`` and ``:math:`` of docstrings as MathML, which browsers show without scripts."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Replace the equations in the docstring of one object."""
        if obj.docstring is not None:
            text = re.sub(r"^\.\. math::((?: .+|\n    .+)+)", _block, obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r":math:`(.+?)`", lambda match: convert(match[1]), text)


def _block(match: re.Match[str]) -> str:
    return convert(" ".join(match[1].split()), display="block")
