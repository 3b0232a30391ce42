"""Diagnosis reports the right cause for every broken model of the catalogue, and nothing for healthy ones."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from catalogue import BROKEN, HEALTHY, MASKED, Before, network
from torch import Tensor, nn

import marginattack as ma
from marginattack import attacks
from marginattack.analysis.diagnose import (
    MAY_FAIL,
    Finding,
    ResultChecks,
    check_results,
    make_finding,
    preflight,
    probe,
)
from marginattack.analysis.diagnose.black_box import RandomWalk
from marginattack.analysis.diagnose.findings import CAUSES, EXPLAINS, GRADES, prioritise
from marginattack.attacks.pgd import FixedRadiusAttack
from marginattack.core.classifier import Classifier
from marginattack.core.norms import NORMS, as_norm
from marginattack.core.space import as_space
from marginattack.execution.session import Session, open_session
from marginattack.sources.data import samples

PAGE = Path(__file__).parents[1] / "docs/diagnosis.md"


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    return samples("mnist", 96)


@pytest.mark.parametrize("name", BROKEN)
def test_the_right_cause_is_reported_first(name: str, digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits
    case = BROKEN[name]()
    findings = preflight(case.model(), x, case.labels(y), **case.options)
    assert findings, "no finding"
    assert findings[0].code == case.code, [finding.line() for finding in findings]
    assert case.grade in (None, findings[0].grade)
    assert 0 < findings[0].samples <= findings[0].of <= len(x)
    assert "\n" not in findings[0].line()
    assert len(findings) == 1, "one cause, one finding"


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_has_no_findings(name: str, digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits
    model = HEALTHY[name]()
    if name == "confident":
        with torch.no_grad():
            correct = model(x).argmax(1) == y
        x, y = x[correct], y[correct]
    findings = preflight(model, x, y, expect_accuracy=0.85)
    assert findings == [], [finding.line() for finding in findings]


def test_the_catalogue_is_long_enough() -> None:
    assert len({BROKEN[name]().code for name in BROKEN}) >= 25
    assert len(HEALTHY) >= 5


def test_a_table_with_large_values_is_not_flat() -> None:
    """Its features have widths of 100 and, without an upper bound, values of 50,000."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.tensor([[30.0, 40, 50000], [40, 20, 30000], [50, 60, 90000], [22, 10, 12000]])
    space = as_space(([18, 0, 0], [100, 100, float("inf")]), [10, 5, 1e4], None)
    y = model(x).argmax(1)
    assert "saturated" in {each.code for each in preflight(model, x, y)}  # as pixels in [0, 1]
    assert not {each.code for each in preflight(model, x, y, space=space)} & {"saturated", "zero-gradients"}


def test_logits_of_copies_of_one_image_are_not_called_constant(digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits
    assert preflight(network(), x[:1].expand(6, -1, -1, -1), y[:1].expand(6)) == []


def test_flat_inputs_are_counted_in_words(digits: tuple[Tensor, Tensor]) -> None:
    (finding,) = preflight(BROKEN["tanh saturated"]().model(), *digits)
    assert re.search(r"is (exactly zero on [1-9]\d*|nearly zero on [1-9]\d*|.* and .*) inputs?;", finding.seen)
    assert " on 0" not in finding.seen


def test_preflight_takes_seconds(digits: tuple[Tensor, Tensor]) -> None:
    start = time.process_time()
    preflight(network(), *samples("mnist", 256))
    assert time.process_time() - start < 15


def test_preflight_restores_everything(digits: tuple[Tensor, Tensor]) -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Dropout(0.5), nn.Linear(784, 10)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state, engine = torch.get_rng_state(), torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    x, y = digits
    images = x.clone()
    assert "train-mode" in {finding.code for finding in preflight(model, x, y)}
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training
    assert all(part.training and p.requires_grad for part in model for p in part.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.autograd._engine_run_backward is engine  # type: ignore[attr-defined]
    assert torch.equal(images, x)


def test_a_model_that_needs_gradients_to_run_is_reported(digits: tuple[Tensor, Tensor]) -> None:
    model = network()

    def step(x: Tensor) -> Tensor:
        (g,) = torch.autograd.grad(model(x).logsumexp(1).sum(), x)  # fails where gradients are off
        return x + 0.05 * g.sign()

    (finding,) = preflight(Before(step, model), *digits)
    assert (finding.code, finding.grade) == ("gradient-in-forward", "grave")


def test_a_few_images_are_enough_to_run_and_too_few_to_judge_accuracy(digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits
    assert preflight(network(), x[:1], y[:1]) == []
    (finding,) = preflight(network(), x[:20], (y[:20] + 1) % 10, expect_accuracy=None)
    assert (finding.code, finding.seen[:29]) == ("too-few-samples", "accuracy 0.0% on 20 samples, ")
    with pytest.raises(ma.InputError, match="0 images"):
        preflight(network(), x[:0], y[:0])


def test_the_right_normalisation_is_reported(digits: tuple[Tensor, Tensor]) -> None:
    case = BROKEN["normalisation missing"]()
    assert "0.5/0.5" in preflight(case.model(), *digits)[0].seen


def test_findings_are_ranked_and_consequences_omitted() -> None:
    codes = ["accuracy-at-chance", "train-mode", "sigmoid-outputs", "labels-order", "random"]
    left = [finding.code for finding in prioritise(make_finding(code, "seen", 1, 2) for code in codes)]
    assert left == ["random", "labels-order", "sigmoid-outputs", "train-mode"]
    note = make_finding("quantised-layers", "seen", 1, 2, grade="note")
    assert [f.code for f in prioritise([note, make_finding("detached", "seen", 1, 2)])] == [
        "detached",
        "quantised-layers",
    ]
    assert {cause.grade for cause in CAUSES.values()} <= set(GRADES)
    assert {*EXPLAINS, *(code for codes in EXPLAINS.values() for code in codes)} <= set(CAUSES)


def test_the_page_documents_exactly_the_causes() -> None:
    documented = set(re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE.read_text(), flags=re.MULTILINE))
    assert documented == set(CAUSES)


# After a run


def rows(n: int = 20, **changed: Any) -> dict[str, Any]:
    """Columns of a run without problems."""
    columns: dict[str, Any] = {
        "id": np.arange(n), "attack": np.full(n, "marginattack"), "norm": np.full(n, "l2"),
        "label": np.arange(n) % 10, "prediction": np.arange(n) % 10, "target": np.full(n, -1),
        "adversarial_label": (np.arange(n) + 1) % 10, "distance": np.linspace(0.5, 1.5, n),
        "success": np.ones(n, dtype=bool), "rejected": np.zeros(n, dtype=bool),
        "forwards": np.full(n, 200), "backwards": np.full(n, 200),
        "distance_at_90pct": 1.005 * np.linspace(0.5, 1.5, n),
    }  # fmt: skip
    return columns | changed


def set_first(columns: dict[str, Any], k: int, **values: Any) -> dict[str, Any]:
    """Set other values in the first k rows."""
    changed = {name: column.copy() for name, column in columns.items()}
    for name, value in values.items():
        changed[name][:k] = value
    return changed


def concatenate(*parts: dict[str, Any]) -> dict[str, Any]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def codes(columns: dict[str, Any]) -> list[str]:
    return [finding.code for finding in check_results(columns)]


INF, NAN = np.inf, np.nan
PGD = np.full(20, "pgd")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (rows(), []),
        ({name: column[:0] for name, column in rows().items()}, []),
        (set_first(rows(), 1, distance=INF), ["inconsistent-rows"]),
        (set_first(rows(), 1, distance=NAN), ["inconsistent-rows"]),
        (set_first(rows(), 1, distance=-1.0), ["inconsistent-rows"]),
        (set_first(rows(), 2, rejected=True, success=False, distance=INF, distance_at_90pct=INF), ["rejected"]),
        (set_first(rows(), 2, success=False, distance=INF, distance_at_90pct=INF), ["not-found"]),
        (set_first(rows(attack=PGD), 9, success=False, distance=INF, distance_at_90pct=INF), []),
        (
            set_first(rows(), 2, success=False, distance=INF, distance_at_90pct=INF, forwards=0, backwards=0),
            ["nothing-tried"],
        ),
        (set_first(rows(), 4, distance_at_90pct=2.0), ["not-converged"]),
        (set_first(rows(), 4, distance_at_90pct=INF), ["not-converged"]),
        (set_first(rows(), 3, distance_at_90pct=2.0), []),
        (set_first(rows(attack=np.full(20, "deepfool")), 20, distance_at_90pct=INF), []),
        (set_first(rows(attack=PGD), 20, distance_at_90pct=INF), []),
        ({name: column for name, column in rows().items() if name != "distance_at_90pct"}, []),
        (set_first(rows(), 3, distance=1e-8, distance_at_90pct=1e-8), ["tiny-margins"]),
        (set_first(rows(), 2, distance=1e-8, distance_at_90pct=1e-8), []),
        (set_first(rows(), 5, prediction=-1, distance=0.0, distance_at_90pct=0.0, forwards=0, backwards=0), []),
        (
            set_first(rows(), 20, prediction=-1, distance=0.0, distance_at_90pct=0.0, forwards=0, backwards=0),
            ["accuracy-zero"],
        ),
        (set_first(rows(), 5, target=3, prediction=3, distance=0.0, distance_at_90pct=0.0), []),
    ],
)
def test_rows_are_checked(columns: dict[str, Any], expected: list[str]) -> None:
    assert codes(columns) == expected


def test_margins_in_several_norms_must_be_in_order() -> None:
    l2 = rows()
    linf = rows(norm=np.full(20, "linf"), distance=0.1 * l2["distance"], distance_at_90pct=0.1 * l2["distance"])
    l1 = rows(norm=np.full(20, "l1"), distance=9 * l2["distance"], distance_at_90pct=9 * l2["distance"])
    assert codes(concatenate(l2, linf, l1)) == []
    (finding,) = check_results(concatenate(l2, set_first(linf, 2, distance=3.0, distance_at_90pct=3.0), l1))
    assert (finding.code, finding.samples, finding.of) == ("norms-out-of-order", 2, 20)
    other_target = set_first(linf, 2, distance=3.0, distance_at_90pct=3.0, target=7)
    assert codes(concatenate(l2, other_target, l1)) == []


def test_attacks_within_a_radius_may_fail() -> None:
    within = {name for name, kind in ma.ATTACKS.items() if issubclass(kind, FixedRadiusAttack)}
    assert {"pgd", "apgd", "square"} <= within <= MAY_FAIL


def test_shards_give_the_findings_of_all_rows() -> None:
    l2 = set_first(rows(), 6, distance_at_90pct=2.0)
    l2 = set_first(l2, 3, success=False, rejected=True, distance=INF, distance_at_90pct=INF)
    linf = rows(norm=np.full(20, "linf"), distance=2 * rows()["distance"], distance_at_90pct=2 * rows()["distance"])
    every = concatenate(l2, set_first(linf, 1, distance=NAN))
    checks = ResultChecks()
    for first in range(0, 20, 7):
        shard = (every["id"] >= first) & (every["id"] < first + 7)
        checks.add({name: column[shard] for name, column in every.items()})
    expected = check_results(every)
    assert {finding.code for finding in expected} == {"inconsistent-rows", "rejected", "norms-out-of-order"}
    assert [replace(found, seen="") for found in checks.findings()] == [replace(found, seen="") for found in expected]


def columns_of(margins: ma.Margins, attack: str) -> dict[str, Any]:
    n = len(margins)
    columns = {name: value.numpy() for name, value in vars(margins).items() if isinstance(value, Tensor)}
    return columns | {"id": np.arange(n), "attack": np.full(n, attack), "norm": np.full(n, margins.norm)}


def test_a_real_run_has_no_findings_and_one_cut_short_has(digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits[0][:4], digits[1][:4]
    good = [columns_of(ma.measure(network(), x, y, norm), "marginattack") for norm in ("linf", "l2", "l1")]
    assert codes(concatenate(*good)) == []
    short = columns_of(ma.measure(network(), x, y, "l2", budget=8, attack="marginattack"), "marginattack")
    assert "not-found" in codes(short)


# Without gradients


def run_probe(model: nn.Module, norm: str, n: int = 6, *, seed: int = 0, **how: Any) -> Finding | None:
    x, y = samples("mnist", n)
    measured = ma.measure(model, x, y, norm, **how)
    with open_session(Classifier(model)) as session:
        batch = session.validate(x, y)
        return probe(session, batch, measured.adversarial, measured.distance, as_norm(norm), seed=seed)


@pytest.mark.parametrize("norm", NORMS)
def test_the_probe_finds_nothing_on_the_network(norm: str) -> None:
    assert run_probe(network(), norm, n=4, budget=200) is None


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_probe_finds_masked_gradients_that_preflight_cannot(
    name: str, norm: str, digits: tuple[Tensor, Tensor]
) -> None:
    model = MASKED[name]()
    assert preflight(model, *digits) == []
    finding = run_probe(model, norm, budget=200, attack=attacks.MarginAttack())  # which relies on gradients alone
    assert finding is not None
    assert finding.code == "black-box-beats-gradient"
    assert finding.samples >= finding.of / 2
    assert finding.seen.startswith(f"in {norm} a decision-based attack ")


def test_the_probe_finds_an_attack_that_stopped_early() -> None:
    assert run_probe(network(), "l2", attack=attacks.PGD(eps=10.0)) is not None


def test_the_walk_depends_on_the_seed_only(digits: tuple[Tensor, Tensor]) -> None:
    def run_walk(session: Session, rows: Tensor, seed: int) -> Tensor:
        walk = RandomWalk(session, digits[0][rows], digits[1][rows], as_norm("l2"), rows, seed)
        walk.start(walk.x0, torch.zeros(len(rows), dtype=torch.bool))
        walk.run(60)
        return walk.best

    with open_session(Classifier(network())) as session:
        session.validate(*digits)
        once, again, other = (run_walk(session, torch.arange(4), seed) for seed in (0, 0, 1))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
