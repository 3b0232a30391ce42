"""Records as tables in Markdown, in the paper's form, its figures beside ours."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from marginattack.analysis.statistics import proportion_interval
from marginattack.reproduce import paper, tables
from marginattack.reproduce.challenge import LONG, RACE
from marginattack.reproduce.fast import NOTE
from marginattack.reproduce.timing import EARLY, END, OURS

DASH = "–"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def percents(hits: Sequence[int], n: int) -> str:
    return " / ".join(f"{100 * hit / n:.1f}" for hit in hits)


def widest(hits: Sequence[int], n: int) -> str:
    """The largest half-width of Wilson's 95 % intervals, in points."""
    halves = [(high - low) / 2 for low, high in (proportion_interval(hit, n) for hit in hits)]
    return f"±{100 * max(halves):.1f}"


def gain(beside: dict[str, Any] | None) -> str:
    """Ours less theirs on the same samples, in points, level by level."""
    if beside is None:
        return DASH
    points = [100 * (a - b) / beside["n"] for a, b in zip(beside["ours"], beside["theirs"], strict=True)]
    return " / ".join(f"{point:+.1f}" for point in points)


def named(attack: str, row: dict[str, Any]) -> str:
    """The attack, and in what it searched if not in float32."""
    return f"{attack} (tf32)" if NOTE in row["settings"] else attack


def success(data: str, numbers: dict[str, Any]) -> list[str]:
    """Tables 1 and 2 for one data set."""
    lines: list[str] = []
    for norm, name in (("l2", "ℓ2"), ("linf", "ℓ∞")):
        if norm not in numbers:
            lines += [f"**{name}**: not run yet.", ""]
            continue
        part, unit = numbers[norm], paper.UNIT[data]
        levels = " / ".join(f"{level:g}" for level in paper.LEVELS[norm][data])
        own = " / ".join(f"{unit * q:.3g}" for q in part["quantiles"])
        scale = "" if unit == 1 else f", pixels to {unit:g}"
        lines += [f"**{name}**: success in % at the paper's levels {levels} and at our quantiles {own}{scale}.", ""]
        header = ("attack", "n", "paper", "ours", "at our quantiles", "±", "median", "passes", "not found")
        lines += [*table(header, _success_rows(data, norm, part, unit)), ""]
        lines += ["Points by which MarginAttack and Race are above, on the same samples, at the eight levels:", ""]
        ours = {attack: told for attack, told in tables.OURS.items() if attack in part["rows"]}
        lines += [*table(("against", *ours.values(), "n"), _gains(part, ours)), ""]
    return lines[:-1]


def _success_rows(data: str, norm: str, part: dict[str, Any], unit: float) -> list[list[str]]:
    rows = []
    for attack in dict.fromkeys([*paper.SUCCESS[norm], *tables.OURS]):
        told = paper.SUCCESS[norm].get(attack, {}).get(data)
        row, theirs = part["rows"].get(attack), " / ".join(f"{rate:g}" for rate in told) if told else DASH
        if row is None:
            if told:
                rows.append([attack, DASH, theirs, "not run yet", *[DASH] * 5])
            continue
        median = "∞" if row["median"] is None else f"{unit * row['median']:.4g}"
        rows.append(
            [named(attack, row), f"{row['n']:,}", theirs, percents(row["hits"][:4], row["n"]),
             percents(row["hits"][4:], row["n"]), widest(row["hits"], row["n"]), median,
             f"{row['passes']:,.0f}", f"{row['not_found']:,}"]
        )  # fmt: skip
    return rows


def _gains(part: dict[str, Any], ours: Iterable[str]) -> list[list[str]]:
    rows = []
    for attack, row in part["rows"].items():
        if attack in tables.OURS:
            continue
        besides = [row["beside"].get(each) for each in ours]
        counts = [f"{beside['n']:,}" for beside in besides if beside is not None]
        rows.append([attack, *map(gain, besides), ", ".join(counts if len({*counts}) > 1 else counts[:1])])
    return rows


def challenge(numbers: dict[str, Any]) -> list[str]:
    """Table 3."""
    rows = []
    for attack in [*paper.TABLE_3, "MarginAttack, our defaults", LONG, RACE]:
        told, row = paper.TABLE_3.get(attack), numbers["rows"].get(attack)
        theirs = DASH if told is None else f"{told:g}"
        if row is None:
            rows.append([attack, theirs, "not run yet", *[DASH] * 4])
            continue
        low, high = proportion_interval(row["hits"], row["n"])
        pairs = [row["beside"].get(ours) for ours in ("MarginAttack", "MarginAttack, our defaults")]
        both = [f"{b['theirs'][0]}, {b['ours'][0]} of {b['n']:,}" if b else DASH for b in pairs]
        rows.append(
            [named(attack, row), theirs, f"{100 * row['hits'] / row['n']:.1f} ({100 * low:.1f} to {100 * high:.1f})",
             f"{row['n']:,}", *both, f"{row['passes']:,.0f}"]
        )  # fmt: skip
    header = (
        "attack", "paper", "ours (95 %)", "n", "hits, then MarginAttack's", "hits, then our defaults'", "passes",
    )  # fmt: skip
    every = numbers["any"]
    names = "; ".join(every["attacks"])
    any_of = f"Any of {names}, on the first {every['n']:,} digits: {every['hits']} hits."
    return [*table(header, rows), "", any_of]


def timing(numbers: dict[str, Any]) -> list[str]:
    """Table 4, and each attack's seconds over MarginAttack's."""
    rows = []
    cw = [f"CW {number}{ending}" for ending in ("", END) for number in tables.SEARCHES]
    for attack in (*cw, OURS, EARLY, "DeepFool", "PGD", "FGSM"):
        row = [attack]
        for data in paper.TIMED:
            told, ours = paper.TABLE_4.get(attack.removesuffix(END), {}).get(data), numbers.get(data, {})
            base = ours.get(OURS, {}).get("seconds")
            theirs = DASH if told is None else f"{told:.2f} ({told / paper.TABLE_4['MarginAttack'][data]:.2f})"
            if attack not in ours:
                row += [theirs, DASH if told is None and attack.startswith("CW") else "not run yet"]
                continue
            cell = ours[attack]
            times = cell["times"]
            spread = f" [{min(times):.2f} to {max(times):.2f}]" if len(times) > 1 else ""
            ratio = "" if base is None else f" ({cell['seconds'] / base:.2f})"
            row += [theirs, f"{cell['seconds']:.2f}{spread}{ratio}, {cell['passes']:,.0f} passes"]
        rows.append(row)
    header = ["attack"]
    for data, n in paper.TIMED.items():
        header += [f"{data}, {n} images: paper", "ours"]
    return table(header, rows)


def convergence(numbers: dict[str, Any]) -> list[str]:
    """The median margin by moves, and one image's path."""
    moves = sorted({int(m) for part in numbers["tables"].values() for m in part["moves"]})
    rows = []
    for name, part in numbers["tables"].items():
        unit = 255 if name.startswith("cifar10") else 1
        cells = []
        for m in moves:
            cell = part["moves"].get(str(m))
            found = "" if cell is None or cell["found"] > 0.9995 else f" ({cell['found']:.0%})"
            median = DASH if cell is None else "∞" if cell["median"] is None else f"{unit * cell['median']:.4g}"
            cells.append(median + found)
        rows.append([name, str(part["n"]), *cells])
    lines = table(("median margin with so many moves", "n", *map(str, moves)), rows)
    looks = numbers["path"]
    if looks is None:
        return lines
    chosen = [*range(0, 21), *(k for k in (30, 50, 100, 150, 199) if k < len(looks["distance"]))]
    path = [[str(k), looks["move"][k] or "start", f"{255 * looks['distance'][k]:.2f}", f"{looks['c'][k]:+.3f}"]
            for k in chosen if k < len(looks["distance"])]  # fmt: skip
    told = "One CIFAR-10 image, the paper's settings for ℓ2: norm (pixels to 255) and constraint after each move."
    return [*lines, "", told, "", *table(("move", "kind", "norm", "constraint"), path)]


def ablations(numbers: dict[str, Any]) -> list[str]:
    """Each choice beside its alternatives."""
    lines: list[str] = []
    for norm, name in (("l2", "ℓ2"), ("linf", "ℓ∞")):
        if norm not in numbers:
            continue
        part = numbers[norm]
        rows = [
            [variant, "∞" if row["median"] is None else f"{row['median']:.4f}",
             "∞" if row["excess_median"] is None else f"{row['excess_median']:.1%}", f"{row['found']:.0%}",
             f"{row['passes']:,.0f}"]
            for variant, row in part["rows"].items()
        ]  # fmt: skip
        header = (f"{name}, n = {part['n']}", "median margin", "above the best of all, median", "found", "passes")
        lines += [*table(header, rows), ""]
    return lines[:-1]


def _of(data: str) -> Callable[[dict[str, Any]], list[str]]:
    return lambda numbers: success(data, numbers)


SHOW: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    **{data: _of(data) for data in paper.UNIT},
    "challenge": challenge,
    "timing": timing,
    "convergence": convergence,
    "ablations": ablations,
}
