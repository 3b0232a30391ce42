"""Hooks of mkdocs: pages link to files of the repository as on GitHub, and migration pages enter the navigation."""

import logging
import re
from pathlib import Path
from typing import Any

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
