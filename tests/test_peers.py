"""Attacks of other libraries under our counting: each sample keeps its passes and its points."""

import pytest
import torch
from models import inputs, smooth
from strangers import stranger
from torch import Tensor, nn

import marginattack as ma
from marginattack.core.classifier import Classifier
from marginattack.core.norms import L2, as_norm
from marginattack.core.problem import Finished, Problem
from marginattack.errors import InputError
from marginattack.integrations import PEERS, missing, peer
from marginattack.integrations.guest import Guest, in_order
from marginattack.integrations.peer import Plan

HERE = [name for name in PEERS if not missing(name) and not PEERS[name].entry.needs]  # numba compiles for a minute


class Tagged(nn.Module):
    """Two logits of one number an input; the sample of a row is written in its first coordinate."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 1] - 0.5, 0.5 - x[:, 1]], dim=1)


def guest_of(n: int, budget: int) -> tuple[Guest, Tensor]:
    x = torch.full((n, 2), 0.9)
    x[:, 0] = torch.arange(n) / n
    classifier = Classifier(Tagged())
    classifier.classes = 2
    problem = Problem(classifier, x, torch.zeros(n, dtype=torch.int64), L2, budget=budget)
    return Guest(problem), x


def test_rows_of_a_smaller_batch_belong_to_their_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    originals = torch.rand(60, 5, generator=generator)
    wrong_by_nearest = 0
    for trial in range(50):
        kept = (torch.rand(60, generator=generator) < 0.5).nonzero()[:, 0]
        noise = 0.25 * torch.rand(len(kept), 5, generator=generator)
        near = torch.cdist(originals[kept] + noise, originals).argmin(1)
        wrong_by_nearest += int((near != kept).sum())
        found = in_order(originals[kept] + noise, originals)
        assert (found.diff() > 0).all(), trial
        cost = (originals[found] - originals[kept] - noise).norm(dim=1).sum()
        assert cost <= noise.norm(dim=1).sum() + 1e-4
    assert wrong_by_nearest > 0
    kept = torch.tensor([3, 4, 17, 59])
    assert in_order(originals[kept] + 0.05, originals).tolist() == kept.tolist()


def test_dropped_samples_are_not_charged_and_others_keep_their_place() -> None:
    guest, x = guest_of(8, budget=6)
    guest(x)
    some = torch.tensor([1, 4, 6])
    moved = x[some].clone()
    moved[:, 1] = torch.tensor([0.45, 0.7, 0.2])
    leaf = moved.requires_grad_()
    torch.autograd.grad(guest(leaf)[:, 0].sum(), leaf)
    problem = guest.problem
    assert problem.forwards.tolist() == [1, 2, 1, 1, 2, 1, 2, 1]
    assert problem.backwards.tolist() == [0, 1, 0, 0, 1, 0, 1, 0]
    assert torch.isfinite(problem.distance[:, 0]).nonzero()[:, 0].tolist() == [1, 6]
    torch.testing.assert_close(problem.distance[[1, 6], 0], torch.tensor([0.45, 0.7]))


def test_points_beyond_the_budget_do_not_count() -> None:
    guest, x = guest_of(3, budget=2)
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(guest(leaf)[:, 0].sum(), leaf)
    assert (slope[:, 1] == 1).all()
    near = x.clone()
    near[:, 1] = 0.4
    with pytest.raises(Finished):
        guest(near)
    assert torch.isinf(guest.problem.distance).all()
    assert (guest.problem.forwards + guest.problem.backwards).tolist() == [2, 2, 2]


def test_a_spent_sample_is_answered_without_a_look() -> None:
    guest, x = guest_of(3, budget=2)
    guest(x)
    leaf = x[:1].clone().requires_grad_()
    answer = guest(leaf)  # the second and last pass of sample 0: nothing is left for a slope
    (slope,) = torch.autograd.grad(answer[:, 0].sum(), leaf)
    assert (slope == 0).all()
    assert guest.problem.forwards.tolist() == [2, 1, 1]
    assert guest.problem.backwards.tolist() == [0, 0, 0]
    answer = guest(x)
    assert answer[0].argmax() == 1  # as if it were adversarial
    assert (answer[1:].argmax(1) == 0).all()


def test_a_point_outside_the_box_by_rounding_counts_and_others_do_not() -> None:
    guest, x = guest_of(2, budget=10)
    x = x.clone()
    x[:, 1] = torch.tensor([-1e-8, -1e-3])
    guest(x)
    assert torch.isfinite(guest.problem.distance[:, 0]).tolist() == [True, False]
    assert guest.problem.best[0, 1] == 0


def test_what_an_attack_returns_costs_a_look_only_where_it_is_new() -> None:
    guest, x = guest_of(3, budget=10)
    points = x.clone()
    points[:, 1] = 0.4
    guest(points)
    points[2, 1] = 0.45
    guest.offer(points)
    assert guest.problem.forwards.tolist() == [1, 1, 2]
    assert guest.problem.distance[2, 0] == pytest.approx(0.45)


def test_more_rows_than_samples_are_refused() -> None:
    guest, x = guest_of(3, budget=10)
    with pytest.raises(ValueError, match="4 rows for 3 samples"):
        guest(torch.cat([x, x[:1]]))


def test_best_point_on_the_way_counts_not_the_returned_one() -> None:
    model = smooth(dtype=torch.float32)
    x, y = inputs(model)
    good = ma.measure(model, x, y, "l2")

    def forgetful(guest: Guest) -> Tensor:
        guest(good.adversarial)
        return guest.images

    found = ma.measure(model, x, y, "l2", attack=stranger(forgetful), budget=5)
    torch.testing.assert_close(found.distance, good.distance)


def test_targets_are_refused() -> None:
    model = smooth(dtype=torch.float32)
    x, y = inputs(model)
    with pytest.raises(InputError, match="untargeted"):
        ma.measure(model, x, y, "l2", attack=stranger(lambda guest: guest.images), targets=(y + 1) % 4)


def test_norms_that_a_peer_is_not_made_for_are_refused() -> None:
    model = smooth(dtype=torch.float32)
    x, y = inputs(model)
    with pytest.raises(InputError, match="stranger is made for l2, not linf"):
        ma.measure(model, x, y, "linf", attack=stranger(lambda guest: guest.images))


@pytest.mark.parametrize("name", PEERS)
def test_settings_of_every_peer_use_the_budget(name: str) -> None:
    for norm in PEERS[name].entry.norms:
        for passes in (100, 400, 2000):
            settings = PEERS[name].settings(Plan(norm, passes, 10, 100, True))
            numbers = [v for v in settings.values() if isinstance(v, int) and not isinstance(v, bool)]
            assert settings or name == ""
            assert all(number >= 1 for number in numbers), settings


@pytest.mark.parametrize("name", HERE)
def test_every_peer_that_is_here(name: str) -> None:
    """Each sample stays its own, the budget is hard, what was found holds, and it is worth something."""
    model = smooth(dtype=torch.float32)
    x, y = inputs(model, n=12)
    for norm in PEERS[name].entry.norms:
        found = ma.measure(model, x, y, norm, attack=PEERS[name], budget=101)
        assert int((found.forwards + found.backwards).max()) <= 101
        assert not found.rejected.any()
        size = as_norm(norm).size((found.adversarial - x).flatten(1))[:, 0]
        here = found.success
        torch.testing.assert_close(size[here].double(), found.distance[here], rtol=1e-4, atol=1e-6)
        with torch.no_grad():
            assert (model(found.adversarial[here]).argmax(1) != y[here]).all()
        # adv-lib's tr steps by 0.001 only: with 30 steps it reaches the nearest boundaries alone
        assert here.double().mean() >= (0.05 if name == "advlib:tr" else 0.9)
        again = ma.measure(model, x, y, norm, attack=PEERS[name], budget=101)
        torch.testing.assert_close(again.distance, found.distance)


def test_peers_that_are_not_here_say_why() -> None:
    for name in PEERS:
        if not (why := missing(name)):
            continue
        assert "cannot be imported" in why
        with pytest.raises(InputError, match="pip install"):
            peer(name)
    with pytest.raises(InputError, match="no peer named 'advlib:magic'"):
        peer("advlib:magic")
