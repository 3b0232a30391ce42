"""The bundled networks load and classify; the adversarially trained ones are robust, the others are not."""

from importlib.resources import files

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from marginattack.sources.data import samples
from marginattack.sources.networks import ZOO, ResNet32, zoo

SOURCES = files("marginattack.sources")

# samples, minimum accuracy on the first fifty, radius, and the range of the accuracy under five steps of PGD
EXPECTED = {
    "mnist-cnn": ("mnist", 0.97, 0.3, 0.0, 0.2),
    "mnist-cnn-adv": ("mnist", 0.97, 0.3, 0.9, 1.0),
    "cifar10-resnet32": ("cifar10", 0.88, 8 / 255, 0.0, 0.05),
    "cifar10-resnet32-adv": ("cifar10", 0.7, 8 / 255, 0.35, 0.65),
}


def pgd(model: nn.Module, images: Tensor, labels: Tensor, radius: float) -> Tensor:
    """Five steps of PGD without a random start."""
    x = images
    for _ in range(5):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(model(x), labels), x)
        x = torch.clamp(x + radius / 3 * gradient.sign(), images - radius, images + radius).clamp(0, 1)
    return x.detach()


def test_every_network_is_tested() -> None:
    assert set(EXPECTED) == set(ZOO)


@pytest.mark.parametrize("name", ZOO)
def test_accuracy_clean_and_attacked(name: str) -> None:
    if not (SOURCES / "zoo" / f"{name}.safetensors").is_file():
        pytest.skip(f"{name} is not trained yet: experiments/train")
    name_of_samples, least, radius, low, high = EXPECTED[name]
    images, labels = samples(name_of_samples, 50)
    model = zoo(name)
    assert not model.training
    assert all(weight.dtype == torch.float32 for weight in model.parameters())
    assert (model(images).argmax(1) == labels).float().mean() >= least
    under = (model(pgd(model, images, labels, radius)).argmax(1) == labels).float().mean()
    assert low <= under <= high


def test_resnet32_has_the_size_of_the_paper() -> None:
    assert sum(p.numel() for p in ResNet32().parameters()) == 464_154
    assert ResNet32().eval()(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_resnet32_normalises_pixels_itself() -> None:
    """An image of CIFAR-10's mean colour is all zeros to the convolutions."""
    model = ResNet32().eval()
    assert torch.allclose(model(model.mean.expand(1, 3, 32, 32)), model.logits(torch.zeros(1, 3, 32, 32)))
