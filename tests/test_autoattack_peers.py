"""Attacks of other libraries within a radius: counted, verified; AutoAttack the same as on the plain model."""

import pytest
import torch
from models import inputs, smooth
from torch import Tensor, nn

import marginattack as ma
from marginattack.analysis.benchmarking import attack_by_name
from marginattack.attacks.external import EXTERNAL_ATTACKS, external_attack
from marginattack.attacks.external.base import ProblemInfo
from marginattack.errors import InputError

NAMES = [name for name, attack in EXTERNAL_ATTACKS.items() if attack.eps and not attack.why_unavailable()]
RADII = {"linf": 0.06, "l2": 0.5, "l1": 3.0}


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, Tensor]:
    """A network with images of one channel that it classifies correctly."""
    pytest.importorskip("pyautoattack", reason="its adapters run it")
    model = nn.Sequential(nn.Flatten(), smooth(d=225, classes=5, dtype=torch.float32))
    return (model, *inputs(model, (1, 15, 15), n=8))


@pytest.mark.parametrize(
    ("name", "norm"), [(name, n) for name in NAMES for n in EXTERNAL_ATTACKS[name].supported_norms]
)
def test_the_budget_is_hard_and_what_is_found_is_verified(
    digits: tuple[nn.Module, Tensor, Tensor], name: str, norm: str
) -> None:
    model, x, y = digits
    attack = f"{name}@{RADII[norm]}"
    found = ma.measure(model, x, y, norm, attack=attack, budget=60)
    assert not found.rejected.any()
    assert int((found.forwards + found.backwards).max()) <= 60
    assert (found.backwards == 0).all() == name.endswith(":square")
    with torch.no_grad():
        assert (model(found.adversarial[found.success]).argmax(1) != y[found.success]).all()
    within = found.distance <= RADII[norm] * (1 + 1e-5)  # FAB also finds points beyond the radius
    assert within.double().mean() >= 0.2 or (name, norm) == ("autoattack:standard", "l1")  # starts at three times ε
    if norm == "linf" or name == "art:square":  # whose draws in l2 are of Python's generator, too
        again = ma.measure(model, x, y, norm, attack=attack, budget=60)
        assert torch.equal(again.distance, found.distance)


def test_autoattack_is_the_same_as_on_the_plain_model(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = digits
    from pyautoattack import AutoAttack
    from pyautoattack.autopgd_base import APGDAttack_targeted

    with torch.random.fork_rng():
        points, _ = AutoAttack(model, eps=0.04, seed=0).run_standard_evaluation(x, y, batch_size=len(x))
        few = APGDAttack_targeted(model, eps=0.012, seed=0, n_target_classes=4, n_iter=20, device="cpu").perturb(x, y)
    m = ma.measure(model, x, y, "linf", attack=external_attack("autoattack:standard@0.04"))
    assert (model(points).argmax(1) != y).all()
    assert (m.distance <= (points - x).flatten(1).abs().amax(1) + 1e-6).all()
    m = ma.measure(model, x, y, "linf", attack=external_attack("autoattack:apgd-t@0.012"), budget=176)  # 20 steps
    fooled = model(few).argmax(1) != y
    assert 0 < int(fooled.sum()) < len(x)
    assert torch.equal(m.success, fooled)


def test_the_radius_is_in_the_unit_of_the_distance(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    """The same problem in twice the unit, and shifted, has the same result."""
    model, x, y = digits
    attack = external_attack("autoattack:apgd-ce@0.015")
    expected = ma.measure(model, x, y, "linf", attack=attack, budget=60)
    assert expected.success.any()
    again = ma.measure(model, x, y, "linf", attack="autoattack:apgd-ce@0.0075", scale=2, budget=60)
    torch.testing.assert_close(again.distance, expected.distance / 2, rtol=1e-5, atol=0)
    shifted = nn.Sequential(Shift(), model)
    again = ma.measure(shifted, 4 * x - 1, y, "linf", attack="autoattack:apgd-ce@0.06", bounds=(-1, 3), budget=60)
    torch.testing.assert_close(again.distance, 4 * expected.distance, rtol=1e-4, atol=0)


class Shift(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return (images + 1) / 4


def test_unsupported_inputs_raise(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = digits
    flat = model[1]  # type: ignore[index]
    two = nn.Sequential(nn.Flatten(), smooth(d=225, classes=2, dtype=torch.float32))
    with pytest.raises(InputError, match="needs 4 classes"):
        ma.measure(
            two, *inputs(two, (1, 15, 15), n=2), "linf", attack=external_attack("autoattack:apgd-t@0.3"), budget=9
        )
    with pytest.raises(InputError, match="needs images"):
        ma.measure(flat, x.flatten(1), y, "linf", attack=external_attack("autoattack:square@0.3"), budget=9)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("autoattack:square@", "needs a radius above 0"), ("autoattack:square@-1", "needs a radius above 0"),
        ("autoattack:magic@0.1", "no attack named 'autoattack:magic@0.1'"), ("advlib:ddn@1", "advlib"),
    ],
)  # fmt: skip
def test_wrong_radii_raise(digits: object, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        attack_by_name(name, 400)


def test_the_standard_settings_are_autoattacks() -> None:
    info = ProblemInfo("linf", 5000, 10, grayscale=False)
    settings = {name: EXTERNAL_ATTACKS[f"autoattack:{name}"].settings(info) for name in ("apgd-t", "fab-t", "square")}
    assert settings["apgd-t"] == {"norm": "Linf", "eps": 0.3, "n_target_classes": 9, "n_iter": 100}
    assert settings["fab-t"]["n_iter"] == 100
    assert settings["square"] == {
        "norm": "Linf", "eps": 0.3, "n_queries": 5000, "p_init": 0.8, "resc_schedule": False
    }  # fmt: skip
