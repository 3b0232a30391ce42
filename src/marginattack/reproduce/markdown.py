"""Records as Markdown tables in the paper's layout, with the paper's numbers next to ours."""

from collections.abc import Iterable, Sequence
from typing import Any

from marginattack.analysis.statistics import proportion_interval
from marginattack.reproduce import paper
from marginattack.reproduce import success_rates as rates
from marginattack.reproduce.challenge import LONG, RACE
from marginattack.reproduce.readings import PGD_ROW, sign_tests
from marginattack.reproduce.records import decode
from marginattack.reproduce.timing import EARLY, END, OURS
from marginattack.reproduce.wrapped_attacks import TF32_NOTE

DASH, NOT_RUN = "–", "not run yet"
NORMS = {"l2": "ℓ2", "linf": "ℓ∞"}


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [f"| {' | '.join(map(str, line))} |" for line in (header, *rows)]
    return [lines[0], "|" + "---|" * len(header), *lines[1:]]


def _join(values: Iterable[float], form: str) -> str:
    return " / ".join(f"{value:{form}}" for value in values)


def _number(value: float | None, form: str, unit: float = 1.0) -> str:
    """Format a number of a record, in which None means infinity."""
    return "∞" if value is None else f"{unit * value:{form}}"


def _widest_interval(hits: Sequence[int], n: int) -> str:
    """The largest half-width of the 95 % Wilson intervals, in points."""
    halves = [(high - low) / 2 for low, high in (proportion_interval(hit, n) for hit in hits)]
    return f"±{100 * max(halves):.1f}"


def _gain(compared: dict[str, Any] | None) -> str:
    """Our success rate minus theirs on the same samples, in points, at each level."""
    if compared is None:
        return DASH
    pairs = zip(compared["ours"], compared["theirs"], strict=True)
    return _join([100 * (ours - theirs) / compared["n"] for ours, theirs in pairs], "+.1f")


def _name(attack: str, row: dict[str, Any]) -> str:
    """The attack, the design where older records have the exact ball under this name, and a precision below float32."""
    exact = attack == "MarginAttack" and any(f"{name}(b=" in row["settings"] for name in ("Shrink", "BallProjection"))
    return (rates.EXACT if exact else attack) + " (tf32)" * (TF32_NOTE in row["settings"])


def success_rates(data: str, numbers: dict[str, Any]) -> list[str]:
    """Tables 1 and 2 for one data set."""
    lines: list[str] = []
    for norm, name in NORMS.items():
        if norm not in numbers:
            lines += [f"**{name}**: {NOT_RUN}.", ""]
            continue
        part, unit = numbers[norm], paper.UNIT[data]
        levels, own = _join(paper.LEVELS[norm][data], "g"), _join([unit * q for q in part["quantiles"]], ".3g")
        scale = "" if unit == 1 else f", for pixels in [0, {unit:g}]"
        title = f"**{name}**: success rate in % at the paper's levels {levels} and at our quantiles {own}{scale}."
        header = ("attack", "n", "paper", "ours", "at our quantiles", "±", "median", "passes", "not found")
        lines += [title, "", *table(header, _success_rows(data, norm, part, unit)), ""]
        lines += ["Lead of MarginAttack and Race in points, on the same samples, at the eight levels:", ""]
        ours = [attack for attack in rates.OURS if attack in part["rows"]]
        named = [rates.OURS[_name(attack, part["rows"][attack])] for attack in ours]
        lines += [*table(("against", *named, "n"), _gains(part, ours)), ""]
    return lines[:-1]


def _success_rows(data: str, norm: str, part: dict[str, Any], unit: float) -> list[list[str]]:
    rows = []
    for attack in dict.fromkeys([*paper.SUCCESS[norm], *rates.OURS]):
        published = paper.SUCCESS[norm].get(attack, {}).get(data)
        row, theirs = part["rows"].get(attack), _join(published, "g") if published else DASH
        if row:
            n, hits = row["n"], row["hits"]
            at_levels, at_quantiles = (_join([100 * hit / n for hit in half], ".1f") for half in (hits[:4], hits[4:]))
            rows.append(
                [_name(attack, row), f"{n:,}", theirs, at_levels, at_quantiles, _widest_interval(hits, n),
                 _number(row["median"], ".4g", unit), f"{row['passes']:,.0f}", f"{row['not_found']:,}"]
            )  # fmt: skip
        elif published:
            rows.append([attack, DASH, theirs, NOT_RUN, *[DASH] * 5])
    return rows


def _gains(part: dict[str, Any], ours: Iterable[str]) -> list[list[str]]:
    rows = []
    for attack, row in part["rows"].items():
        if attack not in rates.OURS:
            compared = [row["beside"].get(each) for each in ours]
            counts = [f"{each['n']:,}" for each in compared if each is not None]
            rows.append([attack, *map(_gain, compared), ", ".join(counts if len({*counts}) > 1 else counts[:1])])
    return rows


def challenge(numbers: dict[str, Any]) -> list[str]:
    """Table 3."""
    rows = []
    for attack in [*paper.TABLE_3, rates.EXACT, "MarginAttack, our defaults", LONG, RACE]:
        published, row = paper.TABLE_3.get(attack), numbers["rows"].get(attack)
        theirs = DASH if published is None else f"{published:g}"
        if row is None:
            if published:
                rows.append([attack, theirs, NOT_RUN, *[DASH] * 4])
            continue
        rate, low, high = (
            100 * value for value in (row["hits"] / row["n"], *proportion_interval(row["hits"], row["n"]))
        )
        compared = [row["beside"].get(ours) for ours in ("MarginAttack", "MarginAttack, our defaults")]
        both = [f"{c['theirs'][0]}, {c['ours'][0]} of {c['n']:,}" if c else DASH for c in compared]
        rows.append(
            [_name(attack, row), theirs, f"{rate:.1f} ({low:.1f} to {high:.1f})", f"{row['n']:,}", *both,
             f"{row['passes']:,.0f}"]
        )  # fmt: skip
    header = ("attack", "paper", "ours (95 %)", "n", "hits, MarginAttack's hits", "hits, our defaults' hits", "passes")
    union = numbers["any"]
    names = "; ".join(union["attacks"])
    return [*table(header, rows), "", f"Union of {names}, on the first {union['n']:,} digits: {union['hits']} hits."]


def timing(numbers: dict[str, Any]) -> list[str]:
    """Table 4, with each attack's time as a multiple of MarginAttack's."""
    header, rows = ["attack"], []
    for data, n in paper.TIMED.items():
        header += [f"{data}, {n} images: paper", "ours"]
    cw = [f"CW {number}{ending}" for ending in ("", END) for number in paper.CW_SEARCHES["mnist"]]
    for attack in (*cw, OURS, EARLY, "DeepFool", "PGD", "FGSM"):
        row = [attack]
        for data in paper.TIMED:
            published, ours = paper.TABLE_4.get(attack.removesuffix(END), {}).get(data), numbers.get(data, {})
            base = paper.TABLE_4["MarginAttack"][data]
            row.append(DASH if published is None else f"{published:.2f} ({published / base:.2f})")
            if attack in ours:
                row.append(_timing_cell(ours[attack], ours.get(OURS)))
            else:
                row.append(DASH if published is None and attack.startswith("CW") else NOT_RUN)
        rows.append(row)
    return table(header, rows)


def _timing_cell(row: dict[str, Any], base: dict[str, Any] | None) -> str:
    times = row["times"]
    spread = f" [{min(times):.2f} to {max(times):.2f}]" if len(times) > 1 else ""
    ratio = "" if base is None else f" ({row['seconds'] / base['seconds']:.2f})"
    return f"{row['seconds']:.2f}{spread}{ratio}, {row['passes']:,.0f} passes"


def _of_design(name: str, part: dict[str, Any]) -> str:
    """The name of a table; older ones, which do not state the settings, have the exact ball in ℓ∞."""
    older = not any("settings" in row for row in part["moves"].values())
    return f"{name}, exact ball" if older and "linf, the paper's settings" in name else name


def convergence(numbers: dict[str, Any]) -> list[str]:
    """The median margin by number of moves, and one image's path."""

    def cell(row: dict[str, Any] | None, unit: float) -> str:
        if row is None:
            return DASH
        return _number(row["median"], ".4g", unit) + ("" if row["found"] > 0.9995 else f" ({row['found']:.0%})")

    moves = sorted({int(m) for part in numbers["tables"].values() for m in part["moves"]})
    rows = [
        [
            _of_design(name, part),
            part["n"],
            *(cell(part["moves"].get(str(m)), paper.UNIT[name.split()[0]]) for m in moves),
        ]
        for name, part in numbers["tables"].items()
    ]
    lines, path = table(("median margin by number of moves", "n", *moves), rows), numbers["path"]
    if path is None:
        return lines
    points = [k for k in (*range(21), 30, 50, 100, 150, 199) if k < len(path["distance"])]
    steps = [
        (k, path["move"][k] or "start", f"{255 * path['distance'][k]:.2f}", f"{path['c'][k]:+.3f}") for k in points
    ]
    title = "One CIFAR-10 image, the paper's settings for ℓ2: norm (pixels in [0, 255]) and constraint after each move."
    return [*lines, "", title, "", *table(("move", "kind", "norm", "constraint"), steps)]


def readings(numbers: dict[str, Any]) -> list[str]:
    """Hits of each reading, and the samples that it and PGD fool alone."""
    lines: list[str] = []
    for data, part in numbers.items():
        unit = paper.UNIT.get(data, 1.0)
        levels = _join([unit * level for level in part["levels"]], "g")
        header = (f"{data}, at {levels}", "n", "% (±)", "median", "passes", "fooled alone, by PGD alone (p)")
        rows = []
        for reading, row in part["rows"].items():
            n, hits = row["n"], row["hits"]
            distances = [decode(part["rows"][each]["distances"]) for each in (reading, PGD_ROW) if each in part["rows"]]
            tests = sign_tests(distances[0], distances[1], part["levels"]) if len(distances) == 2 else []
            paired = " / ".join(f"{t['ours']}, {t['theirs']} ({t['p']:.2g})" for t in tests)
            rows.append(
                [reading, f"{n:,}", f"{_join([100 * hit / n for hit in hits], '.1f')} ({_widest_interval(hits, n)})",
                 _number(row["median"], ".4g", unit), f"{row['passes']:,.0f}", paired if reading != "PGD" else DASH]
            )  # fmt: skip
        lines += [*table(header, rows), ""]
    return lines[:-1]


def _variant(norm: str, variant: str, row: dict[str, Any]) -> str:
    """A variant; in older records those of ℓ∞ differ from the exact ball, not from the text."""
    if norm != "linf" or "projection=Shrink(b=0.1" not in row["settings"]:
        return variant
    return "exact ball" + f", {variant}" * (variant != "text, corrected")


def ablations(numbers: dict[str, Any]) -> list[str]:
    """Each choice and its alternatives."""
    lines: list[str] = []
    for norm, part in numbers.items():
        rows = [
            [_variant(norm, variant, row), _number(row["median"], ".4f"), _number(row["excess_median"], ".1%"),
             f"{row['found']:.0%}", f"{row['passes']:,.0f}"]
            for variant, row in part["rows"].items()
        ]  # fmt: skip
        header = (f"{NORMS[norm]}, n = {part['n']}", "median margin", "median excess over the best", "found", "passes")
        lines += [*table(header, rows), ""]
    return lines[:-1]
