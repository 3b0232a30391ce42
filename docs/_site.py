"""The site beyond mkdocs.yml: links to files of the repository, migration pages, equations of docstrings."""

import logging
import re
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert

ROOT = Path(__file__).parents[1]
log = logging.getLogger("mkdocs.hooks")


def on_config(config: Any) -> Any:
    """List the pages ``migrate-from-*.md`` under Migrate, or leave that section out."""
    pages = sorted(path.name for path in Path(config.docs_dir).glob("migrate-from-*.md"))
    sections = [section for section in config.nav if "Migrate" not in section]
    if pages:
        sections.insert(4, {"Migrate": pages})
    config.nav = sections
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links that leave docs/, such as ../SECURITY.md, into links to the repository."""

    def absolute(match: re.Match[str]) -> str:
        path = (Path(page.file.abs_src_path).parent / match[1]).resolve()
        if path.is_relative_to(config.docs_dir):
            return match[0]
        if not path.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, match[1])
        return f"]({config.repo_url}/blob/main/{path.relative_to(ROOT)}{match[2]})"

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
