"""Edge cases that once failed: inputs far from the boundary, masked classes, invalid settings, full batches."""

import pytest
import torch
from models import inputs, smooth
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks import FGSM, Boundary, OnePixel, Search


class Masked(nn.Module):
    """A model with an additional class that is masked out."""

    def __init__(self, model: nn.Module, mask: float) -> None:
        super().__init__()
        self.model, self.mask = model, mask

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return torch.cat([logits, torch.full_like(logits[:, :1], self.mask)], dim=1)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_inputs_far_from_the_boundary_are_found(norm: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
        images = torch.rand(10, 3, 2, 2)
    labels = model(images).argmax(1)
    assert ma.measure(model, images, labels, norm).success.double().mean() >= 0.9
    unaided = ma.measure(model, images, labels, norm, attack=ma.MarginAttack(rescue=0), diagnose=False)
    assert norm != "l2" or not bool(unaided.success.any())  # so the rescue finds them


@pytest.mark.parametrize("mask", [-1e6, -1e9])
def test_a_masked_class_changes_nothing(mask: float) -> None:
    model = smooth()
    images, labels = inputs(model)
    plain = ma.measure(model, images, labels).distance
    masked = ma.measure(Masked(model, mask), images, labels).distance
    torch.testing.assert_close(masked, plain, rtol=1e-2, atol=0)


@pytest.mark.parametrize("batch", [2, 3, 4, 6, 12])
def test_verification_uses_another_batch_size_even_for_full_batches(batch: int) -> None:
    model = smooth()
    images, labels = (part[:12] for part in inputs(model))
    right = model(images).argmax(1) == labels
    images, labels = images[right].repeat(12, 1)[: 2 * batch], labels[right].repeat(12)[: 2 * batch]
    sizes: list[int] = []
    model.register_forward_hook(lambda module, args, out: sizes.append(len(args[0])))
    ma.measure(
        model, images, labels, attack=ma.MarginAttack(moves=4, closing=0, follow=0, scans=0, rescue=0), batch=batch
    )
    assert batch in sizes
    assert sizes[-1] != batch


def test_an_attack_may_be_named() -> None:
    model = smooth()
    images, labels = inputs(model)
    assert bool(ma.measure(model, images, labels, attack="deepfool").success.any())
    with pytest.raises(ma.InputError, match=r"no attack named 'deepfoul': did you mean deepfool"):
        ma.measure(model, images, labels, attack="deepfoul")


@pytest.mark.parametrize("attack", [FGSM(), Search(), OnePixel(), Boundary()], ids=lambda attack: type(attack).__name__)
def test_attacks_that_need_finite_bounds_say_so(attack: ma.attacks.Attack) -> None:
    model = smooth()
    images, labels = inputs(model)
    with pytest.raises(ma.InputError, match="needs finite bounds"):
        ma.measure(model, images, labels, attack.norms[-1], attack=attack, bounds=(-torch.inf, torch.inf))


@pytest.mark.parametrize("setting", [{"moves": 0}, {"restarts": 0}, {"candidates": 0}, {"closing": -1}, {"rescue": -1}])
def test_settings_out_of_range_raise(setting: dict[str, int]) -> None:
    with pytest.raises(ma.InputError, match=r"\w+ is -?\d: it must be at least \d"):
        ma.MarginAttack(**setting)  # type: ignore[arg-type]


def test_the_budget_pays_for_the_scans_too() -> None:
    model = smooth()
    images, labels = inputs(model)
    for budget in (60, 120):
        found = ma.measure(model, images, labels, attack=ma.MarginAttack(follow=0, rescue=0), budget=budget)
        assert bool(found.success.all())
        assert int((found.forwards + found.backwards).max()) <= budget


def test_robust_accuracy_counts_correct_samples_also_with_targets() -> None:
    model = smooth()
    images, labels = inputs(model)
    wrong = (labels + 1) % 3
    targets = (labels + 2) % 3
    margins = ma.measure(model, images, wrong, targets=targets)
    assert margins.robust_accuracy(0.0) == margins.summary()["accuracy"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_clever_enables_gradients(mode: type[torch.no_grad]) -> None:
    from marginattack.bounds import clever

    model = smooth()
    images, labels = inputs(model)
    plain = clever(model, images[:3], labels[:3], "l2", radius=0.5, batches=5, samples=4).estimate
    with mode():
        again = clever(model, images[:3], labels[:3], "l2", radius=0.5, batches=5, samples=4).estimate
    torch.testing.assert_close(again, plain)
