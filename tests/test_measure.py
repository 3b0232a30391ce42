"""measure(): independent of the batch, verified on the plain model, and correct in any unit."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from models import Fickle, Function, inputs, smooth
from problems import line, validated
from torch import Tensor, nn

import marginattack as ma
from marginattack.execution import session as sessions
from marginattack.execution.session import Session

QUICK = ma.MarginAttack(moves=24, closing=4, follow=2)
RANDOM = ma.MarginAttack(moves=32, closing=8, follow=1, restarts=2, radius=0.1)
NORMS = ["l1", "l2", "linf"]


def same(a: ma.Margins, b: ma.Margins) -> bool:
    """To the bit, settings included."""
    return a.settings == b.settings and all(
        value.nan_to_num(-1.0).equal(vars(b)[name].nan_to_num(-1.0))
        for name, value in vars(a).items()
        if isinstance(value, Tensor)
    )


@pytest.mark.parametrize("norm", NORMS)
def test_draws_belong_to_the_sample_whatever_the_batch(norm: str) -> None:
    model = smooth()
    images, labels = inputs(model, n=10)

    def measure(batch: int, batch_size: int) -> ma.Margins:
        classifier = ma.Classifier(model, batch_size=batch_size)
        return ma.measure(classifier, images, labels, norm, attack=RANDOM, batch=batch)

    together = measure(10, 10)
    assert together.success.all()
    for batch, batch_size in [(1, 10), (7, 3)]:
        other = measure(batch, batch_size)
        torch.testing.assert_close(other.distance, together.distance, rtol=1e-6, atol=0)
        assert other.forwards.equal(together.forwards)


@pytest.mark.parametrize("norm", NORMS)
def test_a_repeated_run_is_identical_and_another_seed_is_not(norm: str) -> None:
    model = smooth(dtype=torch.float32)
    images, labels = inputs(model)
    short = ma.MarginAttack(moves=4, closing=2, follow=0, radius=0.1)
    torch.manual_seed(1)
    first = ma.measure(model, images, labels, norm, attack=short, seed=5)
    torch.manual_seed(2)
    assert same(first, ma.measure(model, images, labels, norm, attack=short, seed=5))
    other = ma.measure(model, images, labels, norm, attack=short, seed=6)
    assert (first.distance != other.distance).double().mean() > 0.5


def test_the_callers_random_numbers_are_left_alone() -> None:
    model = smooth()
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    ma.measure(model, *inputs(model), attack=RANDOM)
    assert torch.random.get_rng_state().equal(before)


def test_a_misclassified_input_has_distance_zero_and_costs_nothing() -> None:
    model = smooth()
    images, labels = inputs(model)
    labels[:5] = (labels[:5] + 1) % 4
    margins = ma.measure(model, images, labels, attack=QUICK)
    assert margins.distance[:5].tolist() == [0.0] * 5
    assert margins.adversarial_label[:5].equal(margins.prediction[:5])
    assert (margins.distance[5:] > 0).all()
    assert not (margins.forwards + margins.backwards)[:5].any()
    assert margins.summary()["accuracy"] == 0.75
    assert margins.summary()["measured"] == 15


VALIDATION = 21  # calls of the model for five inputs; the last five tell memory and look for a gradient
FICKLE: dict[str, Callable[[int, int, bool], bool]] = {
    "wrong where a gradient is wanted": lambda call, rows, gradient: gradient,
    "wrong in batches of that size": lambda call, rows, gradient: rows == 5 and call > VALIDATION,
    "wrong about the inputs themselves": lambda call, rows, gradient: call == VALIDATION + 1,
}


@pytest.mark.parametrize("when", FICKLE.values(), ids=FICKLE)
def test_points_that_the_plain_model_does_not_confirm_are_rejected(when: Callable[[int, int, bool], bool]) -> None:
    images = torch.tensor([[0.1, 0.5]] * 5)
    model = Fickle(Function(line), when)
    margins = ma.measure(model, images, torch.zeros(5, dtype=torch.int64), attack=QUICK)
    assert margins.rejected.all()
    assert not margins.success.any()
    assert margins.distance.tolist() == [torch.inf] * 5
    assert margins.adversarial.equal(images)
    assert margins.adversarial_label.equal(margins.prediction)
    assert margins.summary()["rejected"] == 5
    honest = ma.measure(Function(line), images, torch.zeros(5, dtype=torch.int64), attack=QUICK)
    assert honest.success.all()
    assert not honest.rejected.any()


def test_a_target_is_at_least_as_far_as_any_class() -> None:
    model = smooth()
    images, labels = inputs(model)
    attack = ma.MarginAttack(follow=3)
    free = ma.measure(model, images, labels, attack=attack).distance
    towards = [ma.measure(model, images, labels, attack=attack, targets=(labels + k) % 4).distance for k in (1, 2, 3)]
    nearest = torch.stack(towards).amin(0)
    assert (nearest >= free * (1 - 1e-4)).all()
    assert (nearest / free).median().item() == pytest.approx(1, rel=1e-3)


def test_a_misclassified_input_is_measured_towards_a_target_that_it_has_not_reached() -> None:
    images = torch.tensor([[0.2, 0.5]], dtype=torch.float64)
    corner = Function(lambda x: torch.stack([0 * x[:, 0], 0.5 - x[:, 0], x[:, 0] - 0.5], 1))  # predicts 1 for the image
    margins = ma.measure(corner, images, torch.tensor([0]), attack=QUICK, targets=torch.tensor([2]))
    assert margins.prediction.item() == 1
    assert margins.distance.item() == pytest.approx(0.3, rel=1e-5)
    already = ma.measure(corner, images, torch.tensor([0]), attack=QUICK, targets=torch.tensor([1]))
    assert (already.distance.item(), already.forwards.item()) == (0, 0)


def test_numpy_lists_and_a_classifier_give_the_same_as_tensors_and_a_model() -> None:
    model = smooth()
    images, labels = inputs(model)
    margins = ma.measure(model, images, labels, attack=QUICK)
    assert same(margins, ma.measure(model, images.numpy(), labels.numpy(), attack=QUICK))
    assert same(margins, ma.measure(model, images.tolist(), labels.tolist(), ma.L2, attack=QUICK))
    assert same(margins, ma.measure(ma.Classifier(model), images, labels, attack=QUICK, bounds=None))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_computed_where_the_caller_has_disabled_them(
    mode: Callable[[], AbstractContextManager[None]],
) -> None:
    model = smooth()
    images, labels = inputs(model)
    plain = ma.measure(model, images, labels, attack=QUICK)
    with mode():
        assert ma.measure(model, images, labels, attack=QUICK).distance.equal(plain.distance)


def test_the_input_is_not_changed() -> None:
    model = smooth()
    images, labels = inputs(model)
    copies = images.clone(), labels.clone()
    margins = ma.measure(model, images, labels, attack=QUICK)
    margins.adversarial.zero_()
    margins.label.zero_()
    assert images.equal(copies[0])
    assert labels.equal(copies[1])


@pytest.mark.parametrize("norm", NORMS)
def test_margins_are_in_the_unit_of_the_pixels(norm: str) -> None:
    model = smooth()
    images, labels = inputs(model)
    scaled = Function(lambda x: model((x + 128) / 255))
    unit = ma.measure(model, images, labels, norm, attack=QUICK)
    wide = ma.measure(scaled, 255 * images - 128, labels, norm, attack=QUICK, bounds=(-128, 127))
    torch.testing.assert_close(wide.distance, 255 * unit.distance, rtol=1e-5, atol=0)
    assert wide.settings["bounds"] == [-128, 127]


def test_defaults_and_progress() -> None:
    model = smooth()
    steps: list[int] = []
    margins = ma.measure(model, *inputs(model), batch=8, progress=steps.append)
    assert steps == [8, 8, 4]
    assert (margins.norm, margins.settings["attack"]) == ("l2", repr(ma.Race()))  # the defaults


class Jittery(nn.Module):
    """Large batches change its logits a little, as other algorithms for large batches do on a GPU."""

    def __init__(self, by: float = 2e-4) -> None:
        super().__init__()
        self.model, self.by = smooth(), by

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        jitter = self.by * (len(x) % 7) if len(x) > 16 else 0.0
        return logits + jitter * torch.arange(logits.shape[1])


def test_batch_noise_rejects_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = inputs(smooth(), n=60)
    assert not ma.measure(Jittery(), x, y, "l2", batch=60, budget=200).rejected.any()
    monkeypatch.setattr(Session, "calibrate", lambda session, images, *_, **__: session.evaluator(dtype=images.dtype))
    assert ma.measure(Jittery(), x, y, "l2", batch=60, budget=200).rejected.any()


def test_a_point_that_rounding_rejects_is_tried_a_little_further_out(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = inputs(smooth(), n=60)
    monkeypatch.setattr(Session, "calibrate", lambda session, images, *_, **__: session.evaluator(dtype=images.dtype))
    found = ma.measure(Jittery(by=1e-6), x, y, "l2", batch=60, budget=200)
    assert found.success.all()
    assert not found.rejected.any()
    monkeypatch.setattr(sessions, "EXTEND_TO", ())
    strict = ma.measure(Jittery(by=1e-6), x, y, "l2", batch=60, budget=200, diagnose=False)
    assert strict.rejected.any()
    confirmed = ~strict.rejected
    assert found.distance[confirmed].equal(strict.distance[confirmed])


def test_points_outside_the_box_are_not_verified() -> None:
    x, y = torch.tensor([[0.2, 0.5]] * 4, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    points = torch.tensor([[0.6, 0.5], [0.4, 0.5], [0.6, 1.01], [1.01, -0.01]], dtype=torch.float64)
    with validated(ma.Classifier(Function(line)), x, y) as (session, batch):
        holds, label = session.verify(batch, points)
    assert holds.tolist() == [True, False, False, False]
    assert label.tolist() == [1, 0, 1, 1]
