"""marginattack list: names that other commands accept."""

from typing import Annotated

from typer import Argument

from marginattack.cli.common import make_table, one_line_errors, show


@one_line_errors()
def list_(kind: Annotated[str, Argument(metavar="KIND", help="attacks, norms, presets, models or data.")]) -> None:
    """List attacks, norms, presets, models or data."""
    from marginattack.attacks import ATTACKS
    from marginattack.attacks.presets import PRESETS
    from marginattack.core.norms import NORMS
    from marginattack.sources.data import SAMPLES
    from marginattack.sources.networks import ZOO

    listings: dict[str, list[tuple[str, ...]]] = {
        "attacks": [
            ("name", "norms", "passes", "reference"),
            *((name, " ".join(attack.norms), attack.cost, attack.reference) for name, attack in ATTACKS.items()),
        ],
        "norms": [("name",), *((name,) for name in NORMS)],
        "presets": [("name", "settings"), *((name, repr(attack)) for name, (_, attack) in PRESETS.items())],
        "models": [("name", "description"), *((f"zoo:{name}", network.about) for name, network in ZOO.items())],
        "data": [("name", "description"), *((f"samples:{name}", about) for name, about in SAMPLES.items())],
    }
    if kind not in listings:
        raise ValueError(f"cannot list {kind!r}: choose from {', '.join(listings)}")
    header, *rows = listings[kind]
    show(make_table(header, rows, show_lines=kind == "attacks"))
