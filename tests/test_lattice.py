"""Images that are adversarial at 8 bits: on the grid, adversarial there, and hardly further than the attack's point."""

import pytest
import torch
from torch import Tensor, nn

import marginattack as ma
from marginattack.core.norms import NORMS
from marginattack.execution.session import open_session
from marginattack.runs.lattice import search_lattice


@pytest.mark.parametrize("norm", ["l0", "l1", "l2", "linf"])
@pytest.mark.parametrize("targeted", [False, True])
def test_points_are_on_the_grid_and_adversarial(
    network: nn.Module, digits: tuple[Tensor, Tensor], norm: str, targeted: bool
) -> None:
    images, labels = (each[:6] for each in digits)
    targets = (labels + 1) % 10 if targeted else None
    margins = ma.measure(network, images, labels, norm, attack=ma.MarginAttack(moves=40), targets=targets)
    with open_session(ma.Classifier(network)) as session:
        batch = session.validate(images, labels, targets)
        points, distance = search_lattice(session, batch, margins.adversarial, NORMS[norm])
        label = session.predict(points.float() / 255)
    assert points.dtype == torch.uint8
    assert torch.isfinite(distance).all()
    assert ((label == targets) if targets is not None else (label != labels)).all()
    size = NORMS[norm].size((points.double() / 255 - images.double()).flatten(1))[:, 0]
    if norm == "l0":
        size = (points != (255 * images).round().to(torch.uint8)).flatten(1).sum(1).double()
    assert torch.allclose(distance, size)
    excess = distance / margins.distance - 1
    assert float(excess.median()) < {"l0": 0.1, "l1": 0.01, "l2": 0.01, "linf": 0.05}[norm]


def test_distance_is_infinite_without_an_adversarial_grid_point(digits: tuple[Tensor, Tensor]) -> None:
    images, _ = (each[:3] for each in digits)
    head = nn.Linear(784, 10)
    with torch.no_grad():
        head.bias[4] = 1000.0
    model = nn.Sequential(nn.Flatten(), head)
    labels = torch.full((3,), 4)
    with open_session(ma.Classifier(model)) as session:
        points, distance = search_lattice(session, session.validate(images, labels), images, ma.L2)
    assert torch.isinf(distance).all()
    assert points.equal((images * 255).round().to(torch.uint8))


class Undefined(nn.Module):
    """Two classes that meet where the first pixel is 153/255; NaN on the grid just behind that boundary."""

    def forward(self, images: Tensor) -> Tensor:
        level = 255 * images.flatten(1)[:, :1]
        undefined = ((level - level.round()).abs() < 1e-3) & (level > 152.5) & (level < 156.5)
        return torch.where(undefined, torch.nan, torch.cat([153 - level, level - 153], dim=1))


def test_candidates_with_nan_logits_are_skipped() -> None:
    images, adversarial = torch.full((1, 4), 127.6 / 255), torch.full((1, 4), 127.6 / 255)
    adversarial[0, 0] = 153.2 / 255
    with open_session(ma.Classifier(Undefined())) as session:
        batch = session.validate(images, torch.tensor([0]))
        points, distance = search_lattice(session, batch, adversarial, ma.L2)
    assert 157 <= int(points[0, 0]) <= 160
    assert torch.allclose(distance, (points / 255 - images).double().norm(dim=1))
