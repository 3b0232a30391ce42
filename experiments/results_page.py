"""Write docs/results.md from the committed results.

python experiments/results_page.py
"""

import json
from pathlib import Path
from typing import Any

from results_text import HEAD, TEXT, TITLES

from marginattack.reproduce import EXPERIMENTS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments/results"
PAGE = ROOT / "docs/results.md"


def records() -> dict[str, dict[str, Any]]:
    """The committed results by experiment."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def page() -> str:
    """The page: each experiment's conditions, table and discussion."""
    found, parts = records(), [HEAD]
    for name, title in TITLES.items():
        parts += [f"## {title}", ""]
        if name not in found:
            parts += [f"Not run yet: `marginattack reproduce {name}`.", ""]
            continue
        where = found[name]["conditions"]
        earlier = f" ({where['earlier']})" if "earlier" in where else ""
        parts += [
            f"`{where['command']}`, {where['date']}, {where['hardware']}, commit {where['commit']}{earlier}, "
            f"torch {where['torch']}:",
            "", *EXPERIMENTS[name].markdown(found[name]["numbers"]), "", TEXT[name].strip(), "",
        ]  # fmt: skip
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
