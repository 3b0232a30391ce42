"""Our kernels against the plain formulas, in Triton's interpreter: run by test_kernels.py in a process of its own."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from models import inputs, smooth
from standins import Replayed
from torch import Tensor

from marginattack.attacks import Race
from marginattack.attacks.legs import Descent
from marginattack.core import losses, norms
from marginattack.core.classifier import Classifier
from marginattack.core.history import Anytime
from marginattack.core.norms import L2, LINF, Norm
from marginattack.core.problem import Problem
from marginattack.execution import graphs, kernels


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def of(norm: Norm) -> kernels.Kernels:
    return kernels.Kernels(level=norm is LINF)


def plane(norm: Norm, d: int) -> None:
    x, g, r = torch.rand(5, d), torch.randn(5, d), torch.randn(5, 1)
    g[1], g[2, ::2], r[3], r[4] = 0, 0, 0, 1e6
    for lo, hi in ((torch.zeros(1, 1), torch.ones(1, 1)), (-0.1 * torch.rand(1, d), torch.ones(1, 1))):
        close(of(norm).onto_plane(x, g, r, lo, hi), norm.onto_plane(x, g, r, lo, hi))


def descent(norm: Norm, d: int) -> None:
    x0, v, g, c, now = torch.rand(5, d), torch.randn(5, d), torch.randn(5, d), torch.randn(5, 1), torch.rand(5, 3)
    problem = Problem(Classifier(torch.nn.Linear(d, 2)), x0, torch.zeros(5, dtype=torch.int64), norm)
    x = problem.clamp(x0 + 0.1 * torch.randn(5, d))
    x[0], g[1], v[1], now[2, 2] = x0[0], 0, 0, 0
    state = (x, v, torch.tensor([[0.0], [0.2], [0.3], [0.4], [9.0]]), torch.zeros(5, 1), torch.ones(5, 1))
    expected = Descent(norm, memory=0.25, growth=0.5).moved(problem, now.split(1, dim=1), c, g, *state)
    found = of(norm).descended(state, now.split(1, dim=1), c, g, x0, problem.lo, problem.hi, memory=0.25, growth=0.5)
    for a, b in zip(found, expected, strict=True):
        close(a, b)


def margin(classes: int) -> None:
    logits, label = 5 * torch.randn(6, classes), torch.randint(0, classes, (6,))
    logits[3], logits[4], logits[5, 0] = logits[3].round(), 0, torch.nan
    sign = torch.tensor([1, -1, 0, 1, -1, 1])
    leaf = logits.clone().requires_grad_()
    expected = sign * losses.MARGIN(leaf, label)
    (slopes,) = torch.autograd.grad(expected.sum(), leaf)
    own, other = losses.compared(logits, label)
    lead = (1e-5 * losses.scale(logits, own, other)).clamp(min=1e-3)
    value, crossed, found = kernels.margin(logits, torch.stack([label, sign], 1), 1e-5, 1e-3)
    close(value, (expected.detach() + lead).nan_to_num(0.0))
    assert crossed.equal(sign * (own - other) + lead < 0)
    close(found[:5], slopes[:5])
    assert not found[5].any()


def judged(norm: Norm, d: int) -> None:
    x0 = torch.rand(6, d)
    x = (x0 + 0.01 * torch.randn(6, d)).clamp(0, 1)
    x[1, 0], x[2, 0] = 1.5, torch.nan
    sign = torch.tensor([1, 1, 1, 0, -1, 1])
    crossed, records = torch.tensor([True, True, True, False, True, True]), [Anytime(6, x0), Anytime(6, x0)]
    for record in records:
        record.passes[:] = torch.tensor([0, 5, 100, 7, 1000, 10**7])
    problem = Problem(Classifier(torch.nn.Linear(d, 2)), x0, torch.zeros(6, dtype=torch.int64), norm)
    problem.distance[4] = 1e-9
    best, distance = problem.best.clone(), problem.distance.clone()
    records[0].see(None, 2 * sign.abs(), problem._judge(x, crossed))
    aim = torch.stack([torch.zeros_like(sign), sign], 1)
    of(norm).judged(x, x0, problem.lo, problem.hi, crossed, best, distance, records[1], aim, 2)
    close(best, problem.best)
    close(distance, problem.distance)
    for name in ("passes", "best", "seen"):
        close(getattr(records[1], name), getattr(records[0], name))


def raced(norm: Norm, patch: pytest.MonkeyPatch) -> None:
    """A whole race, its graphs stood in for, with kernels and without."""
    classifier, found = Classifier(smooth()), []
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))

    def captured(function: Any, *_: Any) -> tuple[Any, Any]:
        graph = Replayed(function)
        return graph, graph.answer

    patch.setattr(graphs, "_captured", captured)
    with classifier.held():
        x, y, _ = classifier.accept(*inputs(smooth(), n=4))
        for at_hand in (False, True):
            patch.setattr(graphs, "possible", lambda points, at_hand=at_hand: at_hand)
            patch.setattr(norms, "fused", lambda tensor, at_hand=at_hand: kernels if at_hand else None)
            problem = Problem(classifier, x, y, norm, budget=40)
            problem.solve(Race())
            found.append(problem)
    assert not classifier.graphs.why
    close(found[1].distance, found[0].distance)
    assert found[1].anytime.passes.equal(found[0].anytime.passes)


def main() -> None:
    torch.cuda.device_of = lambda tensor: nullcontext()  # type: ignore[assignment, misc, return-value]
    torch.manual_seed(0)
    for norm in (L2, LINF):
        for d in (7, 5000, 20_000):
            plane(norm, d)
            descent(norm, d)
            judged(norm, d)
        with pytest.MonkeyPatch.context() as patch:
            raced(norm, patch)
    for classes in (2, 10, 5000):
        margin(classes)
    print("as the plain ones")


if __name__ == "__main__":
    main()
