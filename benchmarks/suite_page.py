"""Write docs/benchmark-results.md and its figures, docs/img/suite-NORM.svg, from the suite's records.

python benchmarks/suite_page.py
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from overall import AT, MEASURES, MOST, NORMS, OURS, Cell, Row, cells, curves, figured, firsts, records, sums
from record import RECORDS

ROOT = Path(__file__).parents[1]
PAGE, IMAGES = ROOT / "docs/benchmark-results.md", ROOT / "docs/img"
HEAD = """# The benchmark's results

`race` is our default attack. A **peer** is an attack of another library (`advlib:`, `foolbox:`, `secml:`) or the
paper's MarginAttack with the paper's settings (`preset:`); our other attacks are counted apart. A **cell** is a model,
a norm and a budget of passes. Excess is the mean over samples of d / d_best − 1, d_best the least distance that any run
found for the sample; optimality is AttackBench's local optimality. [How it is measured](benchmark.md). This page is
written by benchmarks/suite_page.py from benchmarks/records/suite-*.json; a test fails when they disagree.
"""
SUMMARY = """## Summary

Means over the models on which `race` and a peer ran. "Best on average" is the peer with the least mean excess among
those that ran on every one of these models; "best of each cell" takes another peer for every model, whichever was best
there (the least excess, the highest optimality). The ratio is the excess of `race` to that of the best of each cell;
"with shorter runs" counts what peers found with smaller budgets as well, since a long run that the time limit ended can
be worse than a short one. "First" counts the cells in which nothing is better (ties count), among the peers and among
everything that ran.
"""
FIGURE = f"""## Norm by norm

In the figures lines are the mean excess in the course of a run, the longest that there is of each attack, and dots what
runs with just that budget ended with. An attack that plans for its budget, as `race` does, is behind in the middle of a
long run: compare dots. Shown are `race` and the best {MOST} peers at {AT} passes, one library an attack, those that ran
on the most models first. In the tables "best peer" is the one with the least excess; a higher optimality of another
stands in brackets. Bold: nothing among the peers is better. "Cut": ended by the time limit, what it found counts.
"""


def table(head: str, rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [f"| {head} |", "|---" * len(head.split(" | ")) + "|"]
    return [*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]


def summary(found: list[Row]) -> list[str]:
    """The table over the models, and the cells in which ours is not first."""
    head = "norm | passes | models | `race`: excess | optimality | best peer on average | excess | optimality | "
    head += "best of each cell: excess | optimality | ratio | with shorter runs | first among peers: excess | "
    head += "optimality | among all: excess | optimality"
    rows = [
        (
            NORMS[s.norm], f"{s.budget:,}", s.models, *(f"**{cell}**" for cell in measures(s.race)),
            *((s.peer["attack"], *measures(s.peer)) if s.peer else ("none", "", "")), *measures(s.best),
            f"{s.ratio:.2f}", f"{s.ratio_within:.2f}", *(f"{won} of {s.models}" for won in s.first + s.first_of_all),
        )
        for s in sums(found)
    ]  # fmt: skip
    return [SUMMARY, *table(head, rows), *behind(cells(found))]


def measures(row: Row) -> list[str]:
    return [f"{row[key]:{form}}" for key, _, form in MEASURES]


def behind(every: list[Cell]) -> list[str]:
    """The cells in which a peer, or another attack of ours, is ahead."""
    parts = []
    for who in ("peers", "own"):
        lines = []
        for cell in every:
            found = [(key, form, cell.ahead(key, sign, getattr(cell, who))) for key, sign, form in MEASURES]
            told = [
                f"{key} {cell.race[key]:{form}} against {row[key]:{form}} ({row['attack']})"
                for key, form, row in found
                if row
            ]
            lines += [f"- {cell.name}: {'; '.join(told)}"] if told else []
        words = {"peers": "a peer", "own": "another attack of ours"}[who]
        parts += [f"Cells in which {words} is ahead of `race`: {len(lines)} of {len(every)}.", "", *lines, ""]
    return parts


def words(found: list[Row]) -> str:
    """What the numbers say."""
    every, rows = cells(found), sums(found)
    if not every:
        return "There is no cell yet in which `race` and a peer ran."
    alone, with_own, within = (firsts(every, *who) for who in (["peers"], ["peers", "own"], ["peers", "shorter"]))
    best, *_, worst = 2 * sorted(rows, key=lambda s: s.ratio_within)
    missed = [cell.name for cell in every if cell.race["success"] < max(row["success"] for row in cell.peers)]
    counts = {
        budget: [len(c.peers) for c in every if c.budget == budget] for budget in sorted({c.budget for c in every})
    }
    told = (
        f"`race` has the least mean excess of all peers in {alone[0]} of {len(every)} cells and the highest local "
        f"optimality in {alone[1]}; with the peers' shorter runs counted as well in {within[0]} and {within[1]}, with "
        f"our other attacks as rivals in {with_own[0]} and {with_own[1]}. Its mean excess is at most half of that of "
        f"the best peer of each cell in {sum(s.ratio <= 0.5 for s in rows)} of the {len(rows)} lines of the table, "
        f"with shorter runs in {sum(s.ratio_within <= 0.5 for s in rows)}; with these the ratio goes from "
        f"{best.ratio_within:.2f} ({NORMS[best.norm]}, {best.budget:,} passes) to {worst.ratio_within:.2f} "
        f"({NORMS[worst.norm]}, {worst.budget:,}). It finds a point for every sample in "
        f"{sum(c.race['success'] == 1 for c in every)} cells; "
        f"a peer succeeds more often in {'; '.join(missed) or 'none'}. Keep in mind: the number of peers differs, "
        + ", ".join(f"{min(n)} to {max(n)} a cell at {budget:,} passes" for budget, n in counts.items())
        + f"; the time limit ended `race` in {sum(c.race['cut'] for c in every)} cells and some peer in "
        f"{sum(any(row['cut'] for row in c.peers) for c in every)}; and the pooled best contains what `race` found, so "
        "an excess near 0 says that nothing better is known, not that there is nothing better."
    )
    return fill(told, 120, break_on_hyphens=False, break_long_words=False)


def by_cell(found: list[Row], norm: str) -> list[str]:
    """The table of a norm."""
    head = "model | passes | `race`: excess | optimality | success | best peer | excess | optimality | success | "
    head += "peers run | notes"
    rows = []
    for c in sorted((c for c in cells(found) if c.norm == norm), key=lambda c: (c.model, c.budget)):
        peer, other = min(c.peers, key=lambda row: row["excess"]), max(c.peers, key=lambda row: row["optimality"])
        more = f" ({other['attack']} {other['optimality']:.4f})" if other["optimality"] > peer["optimality"] else ""
        cut = [row["attack"] for row in (c.race, *c.peers) if row["cut"]]
        notes = [f"cut: {', '.join(cut)}"] * bool(cut) + ["hardware differs"] * c.mixed
        bold = ["**" * (not c.ahead(key, sign, c.peers)) for key, sign, _ in MEASURES]
        ours = [f"{mark}{told}{mark}" for mark, told in zip(bold, measures(c.race), strict=True)]
        ours, theirs = [*ours, f"{c.race['success']:.1%}"], [*measures(peer), f"{peer['success']:.1%}"]
        theirs[1] += more
        rows.append((c.model, f"{c.budget:,}", *ours, peer["attack"], *theirs, len(c.peers), "; ".join(notes)))
    return table(head, rows)


def digest(points: list[Row]) -> str:
    """What tells a figure of other points."""
    return hashlib.sha256(json.dumps(points).encode()).hexdigest()[:16]


def chart(points: list[Row], names: list[str]) -> Any:
    """Small multiples by model, mean excess against passes."""
    import altair as alt

    from marginattack.report.theme import DASHES, PALETTE, vega_config

    legend = alt.Legend(title=None, symbolType="stroke", symbolSize=500, columns=6, labelFontSize=13)
    passes = alt.Scale(type="log", nice=False, domain=[10, max(point["passes"] for point in points)])
    scales = {
        "color": alt.Color("attack:N", legend=legend, scale=alt.Scale(domain=names, range=PALETTE[: len(names)])),
        "x": alt.X("passes:Q", title="passes", scale=passes,
                   axis=alt.Axis(values=[10, 100, 400, 2000, 10000], format=",d", grid=False)),
        "y": alt.Y("excess:Q", title="mean excess", scale=alt.Scale(type="log", nice=False),
                   axis=alt.Axis(values=[10.0**k for k in range(-5, 3)], format="~%")),
    }  # fmt: skip
    dashes = alt.StrokeDash("attack:N", legend=legend, scale=alt.Scale(domain=names, range=DASHES[: len(names)]))
    ours = alt.when(f"datum.attack === '{OURS}'")
    width, size = (ours.then(alt.value(a)).otherwise(alt.value(b)) for a, b in ((3, 1.5), (65, 30)))
    lines = alt.Chart().mark_line().encode(**scales, strokeDash=dashes, strokeWidth=width)
    ends = alt.Chart().mark_point(filled=True, opacity=1).encode(**scales, size=size)
    both = alt.layer(lines.transform_filter("!datum.end"), ends.transform_filter("datum.end"))
    both = both.properties(width=250, height=190, data=alt.InlineData(values=points))
    heads = alt.Header(labelFontSize=13, labelFontWeight=600, title=None)
    faceted = both.facet(facet=alt.Facet("model:N", header=heads), columns=3)
    return {**faceted.to_dict(), "config": {**vega_config("light", "sans-serif"), "background": "white", "padding": 8}}


def figure(found: list[Row], norm: str) -> str:
    """The figure of a norm as SVG, with the digest of its data."""
    import vl_convert

    from marginattack.report.vega import vega_lite_version

    points = curves(found, norm)
    svg = vl_convert.vegalite_to_svg(chart(points, figured(found, norm)), vl_version=vega_lite_version())
    return f"{svg}\n<!-- data {digest(points)} -->\n"


def conditions(found: list[Row]) -> list[str]:
    """Samples, where and how the rows were made, who did not run and what failed."""
    by_model, made = defaultdict[str, dict[str, Row]](dict), defaultdict[str, list[tuple[str, str]]](list)
    for each in found:
        by_model[each["model"]][each["norm"]] = each
        for row in each["rows"]:
            made[json.dumps(each["on"][row["on"]], sort_keys=True)].append((row["attack"], each["model"]))
    names = ", ".join(NORMS.values())
    head = f"model | n | median of the pooled best: {names} | its largest | runs pooled"
    rows = []
    for model, norms in by_model.items():
        pools = [norms[norm]["pool"] if norm in norms else {} for norm in NORMS]
        told = (", ".join(str(pool.get(key, "—")) for pool in pools) for key in ("median", "d_max", "runs"))
        rows.append((model, "/".join(str(n) for n in sorted({each["n"] for each in norms.values()})), *told))
    parts = ["## Conditions", "", *table(head, rows)]
    for text, pairs in made.items():
        on, attacks, models = json.loads(text), *(sorted(set(names)) for names in zip(*pairs, strict=True))
        who = f"{len(attacks)} attacks" if len(attacks) > 3 else ", ".join(attacks)
        parts.append(
            f"- {len(pairs)} rows ({who}; {', '.join(models)}): `{on['command']}`, {on['date']}, {on['hardware']}, "
            f"commit {on['commit']}, Python {on['python']}, torch {on['torch']}"
        )
    return [*parts, "", *absent(found), *failed(found)]


def absent(found: list[Row]) -> list[str]:
    """Who ran on how many models, a line a norm and budget."""
    parts = ["On how many of the models each attack ran, where not on all; the rest has not been run:", ""]
    for norm in NORMS:
        ran = [{(row["attack"], row["budget"]) for row in each["rows"]} for each in found if each["norm"] == norm]
        for budget in sorted({budget for each in ran for _, budget in each}):
            count = {
                name: sum((name, budget) in each for each in ran)
                for name in sorted({n for each in ran for n, _ in each})
            }
            told = ", ".join(f"{name} {n}" for name, n in count.items() if n < len(ran)) or "all on all"
            parts.append(f"- {NORMS[norm]}, {budget:,} passes, {len(ran)} models: {told}")
    return [*parts, ""]


def failed(found: list[Row]) -> list[str]:
    reasons = defaultdict(list)
    for each in found:
        for name, why in each["failed"].items():
            reasons[why].append(f"{name} ({each['model']}, {NORMS[each['norm']]})")
    return [*(f"Failed: {', '.join(who)}: {why}" for why, who in reasons.items())] or ["The records name no failure."]


def page(found: list[Row]) -> str:
    """The page."""
    parts = [HEAD, *summary(found), "## In words", "", words(found), "", FIGURE]
    for norm, name in NORMS.items():
        if any(each["norm"] == norm for each in found):
            parts += [f"### {name}", "", f"![Mean excess against passes, {name}](img/suite-{norm}.svg)", ""]
            parts += by_cell(found, norm)
    return "\n".join([*parts, *conditions(found)]).rstrip() + "\n"


def main() -> None:
    found = records(RECORDS)
    PAGE.write_text(page(found))
    for norm in {each["norm"] for each in found}:
        (IMAGES / f"suite-{norm}.svg").write_text(figure(found, norm))


if __name__ == "__main__":
    main()
