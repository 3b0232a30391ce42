"""Small tables of the documentation, each made of the numbers of records: ``python -m experiments.verify --write``."""

from collections.abc import Sequence
from math import isnan, nan
from statistics import mean, median
from typing import Any

from bars import Figure, timed_cases

from marginattack.reproduce.markdown import table

HEADER = ("model", "batch", "search of Race", "over the plain model", "over the fastest library", "which is")
DEFAULT_PASSES = ("race l2, 400 passes", "race l2, 2000 passes")
NORMS = {"l1": "ℓ1", "l2": "ℓ2", "linf": "ℓ∞"}


def core(numbers: dict[str, Any], conditions: dict[str, Any]) -> list[str]:
    """MarginAttack beside Foolbox's attacks (docs/how-to-choose.md)."""
    rows = [
        (name, row["norm"], row["n"], f"{row['median']:.4f}", f"{row['success']:.0%}", f"{row['passes']:,.0f}")
        for name, row in numbers["rows"].items()
    ]
    line = "`{command}`, {date}, {hardware}, commit {commit}:".format(**conditions)
    return [line, "", *table(("attack", "norm", "n", "median margin", "found", "passes per digit"), rows)]


def profiles(numbers: list[dict[str, Any]]) -> list[str]:
    """What Race loses by its choice of profiles, in % of the margin (docs/method.md)."""
    header = ("network", "norm", "near-linear", "masked", "Race", "all near-linear", "all curved", "all masked")
    return table(header, [
        (row["network"], NORMS[row["norm"]], f"{row['near-linear']:.0%}", f"{row['masked']:.0%}",
         f"{100 * row['loss']['Race']:.1f} ± {100 * row['standard error']:.1f}",
         *(f"{100 * row['loss'][key]:.1f}" for key in ("NEAR_LINEAR", "CURVED", "MASKED")))
        for row in numbers
    ])  # fmt: skip


def stream(numbers: list[dict[str, Any]]) -> list[str]:
    """Memory and overhead of long runs (docs/measure.md)."""
    rows = [
        (f"{row['n']:,}", row["moves"], f"{row['peak_mib']:.0f} MiB", f"{row['seconds']:.0f}", f"{row['overhead']:.1%}")
        for row in numbers
    ]
    return table(("samples", "moves", "peak memory", "seconds", "overhead"), rows)


def precision(numbers: list[dict[str, Any]]) -> list[str]:
    """Margins of a low-precision search over those of float32, where the search had a lower one (docs/speed.md)."""
    rows = [
        (row["model"], NORMS[row["norm"]], row["precision"], f"{row['ratio of means']:.4f}",
         f"{row['median ratio']:.4f}", row["above 1.05"], row["below 0.95"], f"{row['other seed: ratio of means']:.4f}")
        for row in numbers
        if row["precision"] != "float32"
    ]  # fmt: skip
    header = (
        "network", "norm", "search", "ratio of means", "median ratio", "above 1.05", "below 0.95",
        "float32, other seed: ratio of means",
    )  # fmt: skip
    return table(header, rows)


def precision_by_budget(*numbers: list[dict[str, Any]]) -> list[str]:
    """The same by attack and budget (docs/speed.md)."""
    rows = [
        (row["model"], row["attack"], NORMS[row["norm"]], row["budget"], row["precision"],
         f"{row['ratio of means']:.4f}", f"{row['± mean ratio']:.4f}", f"{row['median ratio']:.4f}",
         f"{row['worst']:.3f}", row["lost"])
        for record in numbers for row in record
    ]  # fmt: skip
    header = (
        "network", "attack", "norm", "passes", "search", "ratio of means", "± mean ratio", "median ratio", "worst",
        "lost",
    )  # fmt: skip
    return table(header, rows)


def precision_within(*numbers: list[dict[str, Any]]) -> list[str]:
    """Samples that an attack within a radius finds in one precision alone (docs/speed.md)."""
    rows = [
        (row["model"], row["attack"], NORMS[row["norm"]], row["precision"], row["lost"], row["gained"],
         row["other seed: lost"], row["other seed: gained"])
        for record in numbers for row in record
    ]  # fmt: skip
    header = (
        "network", "attack", "norm", "search", "lost", "gained", "float32, other seed: lost",
        "float32, other seed: gained",
    )  # fmt: skip
    return table(header, rows)


def randomised(numbers: dict[str, Any]) -> list[str]:
    """Points of randomised models on fresh draws (docs/randomised-models.md)."""
    rows = [
        (row["model"], row["norm"], row["stored"], row["rejected"], f"{row['hold']:.1%}",
         f"{row['lowest_rate']}, {row['median_rate']}", f"{row['forwards_without_gradient_per_sample']:,.0f}")
        for row in numbers["rows"]
    ]  # fmt: skip
    header = (
        "model", "norm", "stored points", "rejected", "hold on 200 fresh draws", "lowest rate, median rate",
        "draws of the verification per sample",
    )  # fmt: skip
    return table(header, rows)


def scale_projected(numbers: dict[str, Any]) -> list[str]:
    """An audit of 48 GPU hours on more GPUs (docs/scale.md)."""
    rows = [
        (f"{row['gpus']:,}", f"{row['shard_seconds']:.0f}", f"{row['shards']:,}", _span(row["model_s"]),
         f"{_span(row['simulated_s'])} ({_span(row['simulated_worst_s'])})",
         f"{row['gpus'] * row['simulated_s'] / 3600:.0f}", f"{row['efficiency']:.0%}")
        for row in numbers["projected"]
        if row["sized_by"] == "rule"
    ]  # fmt: skip
    header = (
        "GPUs", "seconds per shard", "shards", "model", "simulated, mean (worst of 20)", "GPU hours", "efficiency"
    )  # fmt: skip
    return table(header, rows)


def scale_measured(numbers: dict[str, Any]) -> list[str]:
    """Measured runs beside their simulation (docs/scale.md)."""
    rows = [
        (row["workers"], f"{row['measured_s']:.1f} s", f"{row['simulated_s']:.1f} s")
        for row in numbers["against_measured"]
    ]
    return table(("workers", "measured", "simulated"), rows)


def scale_trouble(numbers: dict[str, Any]) -> list[str]:
    """Runs with stragglers and lost workers beside their simulation (docs/scale.md)."""
    rows = [
        (row["lost"], f"{row['again']:.1f} s", f"{row['seconds']:.2f}", f"{row['spread']:.0%}",
         f"{row['measured_s']:.1f} s", f"{row['simulated_s']:.1f} s ({row['least_s']:.1f} to {row['most_s']:.1f})",
         f"{row['model_s']:.1f} s")
        for row in numbers["troubled"]
    ]  # fmt: skip
    header = (
        "workers lost", "away each", "seconds per shard", "spread", "measured", "simulated, mean (of 20)", "model"
    )  # fmt: skip
    return table(header, rows)


def scale_memory(numbers: dict[str, Any]) -> list[str]:
    """The memory of the driver by the number of samples (docs/scale.md)."""
    rows = [
        (f"{row['n']:,}", f"{row['peak_measuring']:.0f} MiB", f"{row['peak_mib']:.0f} MiB")
        for row in numbers["measured"]["memory"]
    ]
    return table(("samples", "driver's peak after measuring", "after diagnosis"), rows)


def million(numbers: dict[str, Any]) -> list[str]:
    """The driver's work on a million samples (docs/scale.md)."""
    run, report = numbers["run"], numbers["report"]
    whole = 1000 * run["total_s"] / run["shards"]
    rows = [
        ("driver, per shard, while workers measure", f"{run['driver_cpu_measuring_ms']:.1f} ms",
         f"{run['overhead_ms']:.1f} ms"),
        ("driver, per shard, whole run", f"{run['driver_cpu_ms']:.1f} ms", f"{whole:.0f} ms"),
        ("report", f"{report['cpu_s']:.1f} s", f"{report['s']:.0f} s"),
    ]  # fmt: skip
    return table(("what", "CPU time", "wall-clock time"), rows)


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def exact_excess(numbers: dict[str, Any]) -> list[str]:
    """The excess of Race over exact margins (docs/limits.md)."""
    rows = []
    for budget in sorted({cell["budget"] for cell in numbers["cells"]}):
        excess = [each for cell in numbers["cells"] if cell["budget"] == budget for each in cell["excess"]]
        shares = statistics(excess)
        within = sum(each <= 1e-3 for each in excess) / len(excess)
        rows.append((f"{budget:,}", *(f"{100 * value:z.2f} %" for value in shares), f"{within:.0%}"))
    return table(("passes", "mean", "trimmed mean", "median", "worst digit", "within 0.1 %"), rows)


def statistics(values: list[float]) -> tuple[float, float, float, float]:
    """Mean, mean without the tenth at either end, median and largest."""
    ordered, cut = sorted(values), len(values) // 10
    return mean(values), mean(ordered[cut : len(ordered) - cut]), median(values), ordered[-1]


def bars(results: list[dict[str, Any]]) -> list[str]:
    """Each figure that a release must reach on a GPU (docs/speed.md)."""
    rows = []
    for figure in (figure for result in results for figure in result["figures"]):
        each = Figure(figure["name"], nan if figure["value"] is None else figure["value"], figure["most"])
        rows.append((each.name, "—" if isnan(each.value) else f"{each.value:.2f}", f"{each.most:g}", each.verdict))
    return table(("figure", "measured", "at most", ""), rows)


def pass_ratios(cuda: list[dict[str, Any]], bars: list[dict[str, Any]]) -> list[str]:
    """The time of a pass of Race on an H200 over that of the plain model and of the fastest library (docs/speed.md)."""
    names = ("race l2", *DEFAULT_PASSES, "race l2 bf16", "race l2 bf16 compiled")
    return table(HEADER, _ratio_rows([*cuda, *timed_cases(bars)], names))


def default_pass_ratios(bars: list[dict[str, Any]]) -> list[str]:
    """The same with the default settings (README)."""
    return table(HEADER[:-1], [row[:-1] for row in _ratio_rows(timed_cases(bars), DEFAULT_PASSES)])


def _ratio_rows(cases: list[dict[str, Any]], names: Sequence[str]) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = []
    models = [case["model"] for case in cases]
    for case in sorted(cases, key=lambda each: (models.index(each["model"]), each["batch"])):
        by_name = {row["name"]: row for row in case["rows"]}
        libraries = [
            row for name, row in by_name.items() if name.split()[0] in ("adv-lib", "foolbox") and "bf16" not in name
        ]
        fastest, bare = min(libraries, key=lambda row: float(row["ms"])), by_name["bare graph float32"]
        for name in (each for each in names if each in by_name):
            pair = (f"{_ratio(by_name[name], other):.2f}" for other in (bare, fastest))
            rows.append((case["model"], case["batch"], _search(name, case), *pair, fastest["name"]))
    return rows


def _search(name: str, case: dict[str, Any]) -> str:
    """The precision of the search of a row."""
    known = case.get("execution", {}).get("", {}).get("precision")
    mode, _, passes = name.removeprefix("race l2").partition(",")
    return f"{mode.strip() or known or 'float32'}{',' if passes else ''}{passes}"


def _ratio(row: dict[str, Any], other: dict[str, Any]) -> float:
    """The median over the rounds of their ratio."""
    return float(median(a / b for a, b in zip(row["rounds"], other["rounds"], strict=True)))
