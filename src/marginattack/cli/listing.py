"""marginattack list: what can be named."""

import sys
from typing import Annotated

import typer

from marginattack.cli.common import one_line_errors


def list_(what: Annotated[str, typer.Argument(help="attacks, norms, presets, models or data")]) -> None:
    """List what can be named: attacks, norms, presets, models or data."""
    with one_line_errors():
        from rich.console import Console
        from rich.table import Table

        listing = _listings()
        if what not in listing:
            raise ValueError(f"cannot list {what!r}: choose one of {', '.join(listing)}")
        header, rows = listing[what]
        table = Table(*header, show_lines=what == "attacks")
        for row in rows:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 160).print(table)


def _listings() -> dict[str, tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Header and rows of each listing."""
    from marginattack.attacks import ATTACKS
    from marginattack.attacks.presets import PRESETS
    from marginattack.core.norms import NORMS
    from marginattack.sources.data import SAMPLES
    from marginattack.sources.networks import ZOO

    return {
        "attacks": (
            ("name", "norms", "passes", "reference"),
            [(name, " ".join(attack.norms), attack.cost, attack.reference) for name, attack in ATTACKS.items()],
        ),
        "norms": (("name",), [(name,) for name in NORMS]),
        "presets": (("name", "settings"), [(name, repr(attack)) for name, (_, attack) in PRESETS.items()]),
        "models": (("name", "what"), [(f"zoo:{name}", network.about) for name, network in ZOO.items()]),
        "data": (("name", "what"), [(f"samples:{name}", what) for name, what in SAMPLES.items()]),
    }  # fmt: skip
