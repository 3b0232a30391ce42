"""The tables of docs/results.md, each made of the numbers of records (``python -m experiments.verify --write``)."""

from collections.abc import Sequence
from functools import partial
from math import sqrt
from typing import Any

from marginattack.analysis.statistics import proportion_interval
from marginattack.reproduce import EXPERIMENTS
from marginattack.reproduce.markdown import table
from marginattack.reproduce.readings import PGD_ROW, sign_tests
from marginattack.reproduce.records import decode
from marginattack.reproduce.success_rates import EXACT, count_hits

Numbers = dict[str, Any]
Cells = list[Sequence[object]]
PUBLISHED = "the paper's settings"
Z = 1.96  # of 95 %


def __getattr__(name: str) -> Any:
    """The table of an experiment, by its name."""
    if name not in EXPERIMENTS:
        raise AttributeError(name)
    return partial(with_conditions, name)


def with_conditions(name: str, numbers: Numbers, conditions: Numbers) -> list[str]:
    """How an experiment was measured, and its table."""
    earlier = f" ({conditions['earlier']})" if "earlier" in conditions else ""
    line = (
        f"`{conditions['command']}`, {conditions['date']}, {conditions['hardware']}, commit {conditions['commit']}"
        f"{earlier}, torch {conditions['torch']}:"
    )
    return [line, "", *EXPERIMENTS[name].markdown(numbers)]


def unpaired(ours: int, theirs: int, n: int) -> tuple[float, float, float]:
    """The difference of two rates and its 95 % interval (Newcombe), in points, for independent samples.

    On the same samples, where both attacks tend to fool the same ones, it is too wide.
    """
    p, q, (low, high), (least, most) = (
        ours / n, theirs / n, proportion_interval(ours, n), proportion_interval(theirs, n)
    )  # fmt: skip
    below, above = sqrt((p - low) ** 2 + (most - q) ** 2), sqrt((high - p) ** 2 + (q - least) ** 2)
    return 100 * (p - q), 100 * (p - q - below), 100 * (p - q + above)


def paired(ours: int, theirs: int, n: int) -> tuple[float, float, float]:
    """The difference of two rates and its 95 % interval (Agresti and Min), in points.

    From the samples that one attack alone fools, half a sample added to each; two more samples in all.
    """
    a, b, m = ours + 0.5, theirs + 0.5, n + 2
    centre, half = (a - b) / m, Z * sqrt(a + b - (a - b) ** 2 / m) / m
    return 100 * (ours - theirs) / n, 100 * (centre - half), 100 * (centre + half)


def leads(mnist: Numbers, cifar10: Numbers, imagenet: Numbers, readings: Numbers, race: Numbers) -> list[str]:
    """What the paper claims of Tables 1 and 2: the lead at its four levels, with intervals."""
    rows: Cells = []
    for data, numbers in (("MNIST", mnist), ("CIFAR-10", cifar10), ("ImageNet", imagenet)):
        for norm, others in (("l2", ("CW 10", "CW 5", "DeepFool")), ("linf", ("PGD", "FGSM"))):
            found = numbers[norm]["rows"]
            against = [name for name in others if name in found and not (name == "CW 5" and "CW 10" in found)]
            for other in against:
                for ours, settings in _ours(norm):
                    if (pair := found[other]["beside"].get(ours)) is None:
                        continue
                    counts = list(zip(pair["ours"], pair["theirs"], strict=True))[:4]
                    rows.append(_lead_row(f"{data} {norm}", settings, other, pair["n"], counts, unpaired))
    rows += _race_rows(mnist, race)
    for reading, row in readings["mnist"]["rows"].items():
        if reading != PGD_ROW:
            part = readings["mnist"]
            tests = sign_tests(decode(row["distances"]), decode(part["rows"][PGD_ROW]["distances"]), part["levels"])
            counts = [(test["ours"], test["theirs"]) for test in tests]
            rows.append(_lead_row("MNIST linf", reading, "PGD, paired", tests[0]["n"], counts, paired))
    return table(("data, norm", "ours", "against", "n", "lead in points, and its 95 % interval", "above"), rows)


def _ours(norm: str) -> list[tuple[str, str]]:
    exact = PUBLISHED + ", exact ball" * (norm == "linf")
    return [("MarginAttack", exact), ("MarginAttack, our defaults", "our defaults")]


def _race_rows(mnist: Numbers, race: Numbers) -> Cells:
    rows: Cells = []
    for norm, other in (("l2", "CW 10"), ("linf", "PGD")):
        theirs, own = mnist[norm]["rows"][other], race["rows"].get(norm)
        if own and own["n"] == theirs["n"]:
            hits = [count_hits(decode(own["distances"]), level) for level in mnist[norm]["levels"]]
            counts = list(zip(hits, theirs["hits"], strict=False))
            rows.append(_lead_row(f"MNIST {norm}", "Race, 400 passes", other, own["n"], counts, unpaired))
    return rows


def _lead_row(
    data: str, ours: str, other: str, n: int, counts: Sequence[tuple[int, int]], interval: Any
) -> Sequence[object]:
    found = [interval(*pair, n) for pair in counts]
    cells = " / ".join(f"{value:+.1f} [{low:+.1f}, {high:+.1f}]" for value, low, high in found)
    above, clearly = sum(value > 0 for value, _, _ in found), sum(low > 0 for _, low, _ in found)
    return data, ours, other, f"{n:,}", cells, f"{above} of {len(found)}, {clearly} clearly"


def challenge_leads(challenge: Numbers) -> list[str]:
    """What the paper claims of Table 3: the lead over each attack within 0.3.

    An attack with as many hits as all together finds every digit that another finds: its pairs are known.
    """
    rows: Cells = []
    within = ("DAA", "Logit difference", "PGD, cross-entropy", "PGD, CW loss")
    for ours, row in challenge["rows"].items():
        if ours in within:
            continue
        name = EXACT if ours == "MarginAttack" else ours
        others = [challenge["rows"][other]["hits"] for other in within]
        all_found = row["hits"] == challenge["any"]["hits"] and row["n"] == challenge["any"]["n"]
        found = [
            paired(row["hits"] - other, 0, row["n"]) if all_found else unpaired(row["hits"], other, row["n"])
            for other in others
        ]
        cells = [f"{value:+.1f} [{low:+.1f}, {high:+.1f}]" for value, low, high in found]
        rows.append((name, f"{row['n']:,}", row["hits"], *cells))
    return table(("ours", "n", "hits", *(f"lead over {other}" for other in within)), rows)
