"""Diagnosis names the right cause for every model of the catalogue, and says nothing of the healthy ones."""

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from catalogue import BROKEN, HEALTHY, MASKED, Before, network
from torch import Tensor, nn

import marginattack as ma
from marginattack.analysis.diagnose import Finding, afterwards, preflight, probe
from marginattack.analysis.diagnose.blackbox import _Walk
from marginattack.analysis.diagnose.causes import CAUSES, EXPLAINS, GRADES, found, settled
from marginattack.core.classifier import Classifier
from marginattack.core.norms import NORMS, as_norm
from marginattack.sources.data import samples

PAGE = Path(__file__).parents[1] / "docs/diagnosis.md"


@pytest.fixture(scope="module")
def some() -> tuple[Tensor, Tensor]:
    return samples("mnist", 96)


@pytest.mark.parametrize("name", BROKEN)
def test_the_right_cause_is_named_first(name: str, some: tuple[Tensor, Tensor]) -> None:
    x, y = some
    case = BROKEN[name]()
    findings = preflight(case.model(), x, case.labels(y), **case.about)
    assert findings, "silent"
    assert findings[0].code == case.code, [finding.line() for finding in findings]
    assert case.grade in (None, findings[0].grade)
    assert 0 < findings[0].samples <= findings[0].of <= len(x)
    assert "\n" not in findings[0].line()
    assert len(findings) == 1, "one cause, one finding"


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_said_of_a_healthy_model(name: str, some: tuple[Tensor, Tensor]) -> None:
    x, y = some
    model = HEALTHY[name]()
    if name == "sure":
        with torch.no_grad():
            right = model(x).argmax(1) == y
        x, y = x[right], y[right]
    findings = preflight(model, x, y, expect_accuracy=0.85)
    assert findings == [], [finding.line() for finding in findings]


def test_the_catalogue_is_long_enough() -> None:
    assert len({BROKEN[name]().code for name in BROKEN}) >= 25
    assert len(HEALTHY) >= 5


def test_a_preflight_takes_seconds(some: tuple[Tensor, Tensor]) -> None:
    began = time.process_time()
    preflight(network(), *samples("mnist", 256))
    assert time.process_time() - began < 15


def test_a_preflight_leaves_no_trace(some: tuple[Tensor, Tensor]) -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Dropout(0.5), nn.Linear(784, 10)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state, grad = torch.get_rng_state(), torch.autograd.grad
    x, y = some
    images = x.clone()
    assert "train-mode" in {finding.code for finding in preflight(model, x, y)}
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training
    assert all(part.training and p.requires_grad for part in model for p in part.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.autograd.grad is grad
    assert torch.equal(images, x)


def test_a_model_that_needs_gradients_to_run_is_told_so(some: tuple[Tensor, Tensor]) -> None:
    model = network()

    def step(x: Tensor) -> Tensor:
        (g,) = torch.autograd.grad(model(x).logsumexp(1).sum(), x)  # fails where gradients are off
        return x + 0.05 * g.sign()

    (finding,) = preflight(Before(step, model), *some)
    assert (finding.code, finding.grade) == ("gradient-in-forward", "grave")


def test_a_few_images_are_enough_to_run_and_too_few_to_judge_accuracy(some: tuple[Tensor, Tensor]) -> None:
    x, y = some
    assert preflight(network(), x[:1], y[:1]) == []
    assert preflight(network(), x[:20], (y[:20] + 1) % 10, expect_accuracy=None) == []
    with pytest.raises(ma.InputError, match="0 images"):
        preflight(network(), x[:0], y[:0])


def test_the_right_normalisation_is_named(some: tuple[Tensor, Tensor]) -> None:
    case = BROKEN["normalisation missing"]()
    assert "0.5/0.5" in preflight(case.model(), *some)[0].seen


def test_findings_are_ordered_and_explained_ones_left_out() -> None:
    codes = ["accuracy-at-chance", "train-mode", "sigmoid-outputs", "labels-order", "random"]
    left = [finding.code for finding in settled(found(code, "seen", 1, 2) for code in codes)]
    assert left == ["random", "labels-order", "sigmoid-outputs", "train-mode"]
    note = found("quantised-layers", "seen", 1, 2, grade="note")
    assert [f.code for f in settled([note, found("detached", "seen", 1, 2)])] == ["detached", "quantised-layers"]
    assert {cause.grade for cause in CAUSES.values()} <= set(GRADES)
    assert {*EXPLAINS, *(code for codes in EXPLAINS.values() for code in codes)} <= set(CAUSES)


def test_the_page_tells_of_every_cause_and_of_no_other() -> None:
    told = set(re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE.read_text(), flags=re.MULTILINE))
    assert told == set(CAUSES)


# After a run


def rows(n: int = 20, **changed: Any) -> dict[str, Any]:
    """Columns of a run in which all is well."""
    columns: dict[str, Any] = {
        "id": np.arange(n), "attack": np.full(n, "marginattack"), "norm": np.full(n, "l2"),
        "label": np.arange(n) % 10, "prediction": np.arange(n) % 10, "target": np.full(n, -1),
        "adversarial_label": (np.arange(n) + 1) % 10, "distance": np.linspace(0.5, 1.5, n),
        "success": np.ones(n, dtype=bool), "rejected": np.zeros(n, dtype=bool),
        "forwards": np.full(n, 200), "backwards": np.full(n, 200), "distance_at_90pct": 1.005 * np.linspace(0.5, 1.5, n),
    }  # fmt: skip
    return columns | changed


def first(columns: dict[str, Any], k: int, **values: Any) -> dict[str, Any]:
    """The columns with other values in their first k rows."""
    changed = {name: column.copy() for name, column in columns.items()}
    for name, value in values.items():
        changed[name][:k] = value
    return changed


def joined(*parts: dict[str, Any]) -> dict[str, Any]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def codes(columns: dict[str, Any]) -> list[str]:
    return [finding.code for finding in afterwards(columns)]


INF, NAN = np.inf, np.nan
PGD = np.full(20, "pgd")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (rows(), []),
        ({name: column[:0] for name, column in rows().items()}, []),
        (first(rows(), 1, distance=INF), ["inconsistent-rows"]),
        (first(rows(), 1, distance=NAN), ["inconsistent-rows"]),
        (first(rows(), 1, distance=-1.0), ["inconsistent-rows"]),
        (first(rows(), 2, rejected=True, success=False, distance=INF, distance_at_90pct=INF), ["rejected"]),
        (first(rows(), 2, success=False, distance=INF, distance_at_90pct=INF), ["not-found"]),
        (first(rows(attack=PGD), 9, success=False, distance=INF, distance_at_90pct=INF), []),
        (
            first(rows(), 2, success=False, distance=INF, distance_at_90pct=INF, forwards=0, backwards=0),
            ["nothing-tried"],
        ),
        (first(rows(), 4, distance_at_90pct=2.0), ["not-converged"]),
        (first(rows(), 4, distance_at_90pct=INF), ["not-converged"]),
        (first(rows(), 3, distance_at_90pct=2.0), []),
        (first(rows(attack=np.full(20, "deepfool")), 20, distance_at_90pct=INF), []),
        (first(rows(attack=PGD), 20, distance_at_90pct=INF), []),
        ({name: column for name, column in rows().items() if name != "distance_at_90pct"}, []),
        (first(rows(), 3, distance=1e-8, distance_at_90pct=1e-8), ["tiny-margins"]),
        (first(rows(), 2, distance=1e-8, distance_at_90pct=1e-8), []),
        (first(rows(), 5, prediction=-1, distance=0.0, distance_at_90pct=0.0, forwards=0, backwards=0), []),
        (
            first(rows(), 20, prediction=-1, distance=0.0, distance_at_90pct=0.0, forwards=0, backwards=0),
            ["accuracy-zero"],
        ),
        (first(rows(), 5, target=3, prediction=3, distance=0.0, distance_at_90pct=0.0), []),
    ],
)
def test_rows_are_judged(columns: dict[str, Any], expected: list[str]) -> None:
    assert codes(columns) == expected


def test_margins_in_several_norms_must_be_in_order() -> None:
    l2 = rows()
    linf = rows(norm=np.full(20, "linf"), distance=0.1 * l2["distance"], distance_at_90pct=0.1 * l2["distance"])
    l1 = rows(norm=np.full(20, "l1"), distance=9 * l2["distance"], distance_at_90pct=9 * l2["distance"])
    assert codes(joined(l2, linf, l1)) == []
    (finding,) = afterwards(joined(l2, first(linf, 2, distance=3.0, distance_at_90pct=3.0), l1))
    assert (finding.code, finding.samples, finding.of) == ("norms-out-of-order", 2, 20)
    other_target = first(linf, 2, distance=3.0, distance_at_90pct=3.0, target=7)
    assert codes(joined(l2, other_target, l1)) == []


def columns_of(found: ma.Margins, attack: str) -> dict[str, Any]:
    n = len(found)
    names = ("label", "prediction", "adversarial_label", "distance", "success", "rejected", "forwards", "backwards")
    columns = {name: getattr(found, name).numpy() for name in names}
    if hasattr(found, "distance_at_90pct"):
        columns["distance_at_90pct"] = found.distance_at_90pct.numpy()
    return columns | {"id": np.arange(n), "attack": np.full(n, attack), "norm": np.full(n, found.norm)}


def test_a_real_run_is_above_suspicion_and_one_cut_short_is_not(some: tuple[Tensor, Tensor]) -> None:
    x, y = some[0][:6], some[1][:6]
    good = [columns_of(ma.measure(network(), x, y, norm), "marginattack") for norm in ("linf", "l2", "l1")]
    assert codes(joined(*good)) == []
    short = columns_of(ma.measure(network(), x, y, "l2", budget=8, attack="marginattack"), "marginattack")
    assert "not-found" in codes(short)


# Without gradients


def probed(model: nn.Module, norm: str, n: int = 6, *, seed: int = 0, **how: Any) -> Finding | None:
    x, y = samples("mnist", n)
    measured = ma.measure(model, x, y, norm, **how)
    classifier = Classifier(model)
    with classifier.held():
        x, y, _ = classifier.accept(x, y)
        return probe(classifier, x, y, measured.adversarial, measured.distance, as_norm(norm), seed=seed)


@pytest.mark.parametrize("norm", NORMS)
def test_the_probe_is_silent_on_the_network(norm: str) -> None:
    assert probed(network(), norm) is None


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_probe_finds_masked_gradients_that_preflight_cannot_see(
    name: str, norm: str, some: tuple[Tensor, Tensor]
) -> None:
    model = MASKED[name]()
    assert preflight(model, *some) == []
    finding = probed(model, norm, budget=200)
    assert finding is not None
    assert finding.code == "black-box-beats-gradient"
    assert finding.samples >= finding.of / 2


def test_the_probe_sees_an_attack_that_stopped_early() -> None:
    assert probed(network(), "l2", attack=ma.attacks.PGD(eps=10.0)) is not None


def test_the_walk_is_the_same_for_the_same_seed(some: tuple[Tensor, Tensor]) -> None:
    classifier = Classifier(network())

    def walked(rows: Tensor, seed: int) -> Tensor:
        walk = _Walk(classifier, some[0][rows], some[1][rows], as_norm("l2"), rows, seed)
        walk.start(walk.x0, torch.zeros(len(rows), dtype=torch.bool))
        walk.go(60)
        return walk.best

    with classifier.held():
        classifier.accept(*some)
        once, again, other = (walked(torch.arange(4), seed) for seed in (0, 0, 1))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
