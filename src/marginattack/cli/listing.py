"""marginattack list: names that other commands accept."""

from dataclasses import fields, is_dataclass
from typing import Annotated, Any

from typer import Argument

from marginattack.cli.common import dump_json, make_table, one_line_errors, show
from marginattack.cli.options import AsJson
from marginattack.errors import choose

KINDS = ("attacks", "norms", "presets", "models", "data")


@one_line_errors()
def list_(
    kind: Annotated[str, Argument(metavar="KIND", help="attacks, norms, presets, models or data.")],
    as_json: AsJson = False,
) -> None:
    """List attacks, norms, presets, models or data."""
    if kind not in KINDS:
        raise ValueError(f"cannot list {kind!r}: {choose(kind, KINDS)}")
    rows = _rows(kind)
    if as_json:
        print(dump_json(rows))
    else:
        show(make_table(rows[0], (row.values() for row in rows), show_lines=kind == "attacks"))


def _rows(kind: str) -> list[dict[str, str]]:
    """One row per name, with its description."""
    from marginattack.core.norms import NORMS
    from marginattack.sources.data import SAMPLES
    from marginattack.sources.networks import ZOO

    if kind == "attacks":
        return _attack_rows()
    if kind == "presets":
        return _preset_rows()
    if kind == "models":
        return [{"name": f"zoo:{name}", "description": network.about} for name, network in ZOO.items()]
    if kind == "data":
        return [{"name": f"samples:{name}", "description": about} for name, about in SAMPLES.items()]
    return [{"name": name} for name in NORMS]


def _attack_rows() -> list[dict[str, str]]:
    """Our attacks, then those of other libraries, with a note if a library is not installed."""
    from marginattack.attacks import ATTACKS
    from marginattack.attacks.external import EXTERNAL_ATTACKS
    from marginattack.attacks.pgd import FixedRadiusAttack

    missing = {each.distribution: "" if each.installed() else ", not installed" for each in EXTERNAL_ATTACKS.values()}
    return [
        {"name": name + "@EPS" * issubclass(attack, FixedRadiusAttack), "norms": " ".join(attack.norms),
         "passes": attack.cost, "reference": attack.reference}
        for name, attack in ATTACKS.items()
    ] + [
        {"name": name + "@EPS" * (attack.eps is not None), "norms": " ".join(attack.supported_norms),
         "passes": attack.cost, "reference": attack.distribution + missing[attack.distribution]}
        for name, attack in EXTERNAL_ATTACKS.items()
    ]  # fmt: skip


def _preset_rows() -> list[dict[str, str]]:
    """The presets with the settings in which they differ; lengths are in the stated range of pixels."""
    from marginattack.attacks.presets import PRESETS

    shown = ("moves", "restarts", "radius", "alpha", "beta", "projection")
    settings = {name: _settings(attack) for name, (_, attack) in PRESETS.items()}
    usual = next(iter(settings.values()))
    return [
        {"name": f"preset:{name}", "pixels": f"0 to {PRESETS[name][0]:g}", **{key: values[key] for key in shown},
         "others": " ".join(f"{k}={v}" for k, v in values.items() if k not in shown and v != usual[k])}
        for name, values in settings.items()
    ]  # fmt: skip


def _settings(value: Any) -> dict[str, str]:
    return {each.name: _format(getattr(value, each.name)) for each in fields(value)}


def _format(value: Any) -> str:
    """Format a setting: Power(0.5) instead of Power(exponent=0.5, stride=1), a constant as its number."""
    if not is_dataclass(value):
        return str(value)
    changed = [each for each in fields(value) if getattr(value, each.name) != each.default]
    inner = ", ".join(_format(getattr(value, each.name)) for each in changed)
    name = type(value).__name__
    return inner if name == "Constant" else f"{name}({inner})" if inner else name
