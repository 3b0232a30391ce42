"""Gates for CI: the minimum accuracy, robust accuracy and median margin of a result."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch

from marginattack.analysis.statistics import robust_accuracy
from marginattack.core.norms import as_norm
from marginattack.core.rounding import rounded_up
from marginattack.core.space import as_space
from marginattack.errors import InputError
from marginattack.margins import Margins
from marginattack.report.numbers import format_distance
from marginattack.report.series import load_series
from marginattack.report.text import summarize_series
from marginattack.runs.levels import Level
from marginattack.runs.settings import as_number
from marginattack.storage.paths import StoragePath
from marginattack.storage.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A quantity of a result and its minimum value."""

    quantity: str  # accuracy, robust accuracy or median margin
    least: float
    norm: str | None = None
    eps: float = 0.0

    def __str__(self) -> str:
        at = f"at {self.norm} ≤ {format_distance(self.eps)}"
        where = at if self.quantity == "robust accuracy" else f"in {self.norm}"
        return f"{self.quantity} {where}" if self.norm else self.quantity


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a gate for one attack of a result."""

    gate: str
    attack: str
    least: float
    value: float | None  # None: there are no samples to compute it from

    @property
    def passed(self) -> bool:
        return self.value is not None and self.value >= self.least


def parse_gates(
    *, accuracy: Any = None, robust_accuracy: str | Sequence[str] = (), median_margin: str | Sequence[str] = ()
) -> list[Gate]:
    """Parse gates as the command line takes them: 0.9, linf@8/255:0.45 and l2:0.5."""
    gates = [] if accuracy is None else [Gate(quantity="accuracy", least=_number("accuracy", accuracy))]
    for text in [robust_accuracy] if isinstance(robust_accuracy, str) else robust_accuracy:
        where, colon, least = text.rpartition(":")
        norm, at, eps = where.partition("@")
        if not colon or not at:
            raise InputError(f"robust accuracy {text!r}: write NORM@EPS:ACCURACY, for example linf@8/255:0.45")
        level = Level(_number("robust accuracy", eps), eps.strip())
        number = _number("robust accuracy", least)
        gates.append(Gate(quantity="robust accuracy", norm=as_norm(norm).name, least=number, eps=level))
    for text in [median_margin] if isinstance(median_margin, str) else median_margin:
        norm, colon, least = text.partition(":")
        if not colon:
            raise InputError(f"median margin {text!r}: write NORM:MARGIN, for example l2:0.5")
        gates.append(Gate(quantity="median margin", norm=as_norm(norm).name, least=_number("median margin", least)))
    if not gates:
        raise InputError("nothing to check: give an accuracy, a robust accuracy or a median margin")
    for gate in gates:
        if "accuracy" in gate.quantity and not 0 <= gate.least <= 1:
            raise InputError(f"{gate} must be at least {gate.least:g}: give a share from 0 to 1, such as 0.9")
    return gates


def _number(what: str, value: Any) -> float:
    try:
        return as_number(str(value))
    except ValueError as error:
        raise InputError(f"{what} of a gate: {error}") from None


def check_result(result: str | StoragePath | Margins, gates: Sequence[Gate]) -> list[Outcome]:
    """Check a finished run folder, or a ``Margins``, against gates: one outcome per gate and attack.

    Raises:
        InputError: A run is not finished or failed its verification, or has no margins in the norm of a gate.
    """
    levels = [gate.eps for gate in gates]
    if not isinstance(result, Margins):
        _check_levels(RunFolder(result).manifest, gates)
    measured = list(_summarize(result, levels))
    outcomes = []
    for number, gate in enumerate(gates):
        matching = [each for each in measured if gate.norm in (None, each["norm"])]
        if not matching:
            norms = list(dict.fromkeys(each["norm"] for each in measured))
            known = f"{', '.join(norms)} {'was' if len(norms) == 1 else 'were'} measured"
            raise InputError(f"{gate} cannot be checked: only {known}; measure {gate.norm} too")
        if radius := next((each["radius"] for each in matching if each.get("radius")), None):
            _check_radius(gate, radius)
        if enough := next((each["enough"] for each in matching if each.get("enough")), None):
            _check_enough(gate, enough)
        for each in matching[: 1 if gate.quantity == "accuracy" else None]:  # accuracy is the same for all attacks
            values = {"accuracy": each["accuracy"], "median margin": each["median"]}
            value = values.get(gate.quantity, each["robust"][number]["accuracy"])
            outcomes.append(Outcome(gate=str(gate), attack=each["attack"], least=gate.least, value=value))
    return outcomes


def _check_levels(manifest: dict[str, Any], gates: Sequence[Gate]) -> None:
    """Raise InputError for a distance, such as linf@8, that is too large for pixels in [0, 1]."""
    if "space" not in manifest["identity"]:
        image = torch.zeros(1, *manifest["data"]["shape"])
        for gate in gates:
            if gate.norm and gate.eps:
                as_space(None, None, None).check_distance(as_norm(gate.norm), image, gate.eps)


def _check_radius(gate: Gate, radius: float) -> None:
    """Raise InputError for a gate that an attack within a radius cannot judge."""
    if gate.quantity == "median margin" or gate.eps > rounded_up(radius):
        raise InputError(
            f"{gate} cannot be checked: an attack searched within {format_distance(radius)} only; measure with race"
        )


def _check_enough(gate: Gate, enough: float) -> None:
    """Raise InputError for a gate below the distance at which samples stopped."""
    if gate.quantity == "median margin" or 0 < rounded_up(gate.eps) < enough:
        raise InputError(
            f"{gate} cannot be checked: samples stopped within {format_distance(enough)}; measure without enough"
        )


def _summarize(result: str | StoragePath | Margins, eps: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Summarize each attack under each norm of a run, or one result."""
    if isinstance(result, Margins):
        figures = result.summary()
        margins = result.distance[result.prediction == result.label].numpy()
        robust = [each._asdict() for each in robust_accuracy(margins, len(result), np.array(eps, float))]
        median = figures["median"] if figures["measured"] else None
        yield {**figures, "median": median, "norm": result.norm, "attack": result.settings["attack"], "robust": robust,
               "radius": result.settings.get("within"), "enough": result.settings.get("enough")}  # fmt: skip
        return
    store = RunFolder(result)
    if missing := store.count_missing().total():
        raise InputError(f"{store.path} is not finished: {missing} shards are missing; run its `measure` command again")
    if store.manifest.get("verified") is None:
        raise InputError(f"{store.path} is not finished: it was not verified; run its `measure` command again")
    if store.manifest["verified"]["failed"]:
        raise InputError(f"{store.path} has rows that failed their verification: measure again into another folder")
    for series in load_series(store):
        yield summarize_series(series, eps)


def as_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, str, str, str, str]]:
    """The outcomes as cells of a table, failed ones first: result, gate, attack, value and minimum."""
    return [
        ("passed" if each.passed else "FAILED", each.gate, each.attack,
         "–" if each.value is None else f"{each.value:.4g}", f"{each.least:.4g}")
        for each in sorted(outcomes, key=lambda each: each.passed)
    ]  # fmt: skip


HEADER = ("", "gate", "attack", "value", "at least")


def as_markdown(name: str, outcomes: Sequence[Outcome]) -> str:
    """A table for the summary of a GitHub job."""
    rows = [HEADER, ("---",) * len(HEADER), *as_rows(outcomes)]
    table = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
    return f"### marginattack: {name}\n\n{table}\n"


def as_junit(name: str, outcomes: Sequence[Outcome]) -> bytes:
    """JUnit XML with one test case per outcome."""
    failed = sum(not each.passed for each in outcomes)
    suite = ElementTree.Element("testsuite", name="marginattack", tests=str(len(outcomes)), failures=str(failed))
    for each in outcomes:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=f"{each.gate} ({each.attack})")
        if not each.passed:
            ElementTree.SubElement(case, "failure", message=f"{each.value} is below {each.least:g}")
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))
