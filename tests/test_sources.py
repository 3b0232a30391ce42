"""The bundled networks and samples: small, complete and accurate."""

from importlib.resources import files
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from marginattack.sources.data import SAMPLES, samples
from marginattack.sources.networks import ZOO, zoo

HERE = Path(str(files("marginattack.sources")))


def test_the_network_is_accurate_on_the_bundled_digits(network: nn.Module) -> None:
    images, labels = samples("mnist")
    with torch.no_grad():
        accuracy = (network(images).argmax(1) == labels).double().mean().item()
    assert accuracy >= 0.992


def test_the_network_has_the_papers_layers(network: nn.Module) -> None:
    sizes = [tuple(p.shape) for p in network.parameters() if p.ndim > 1]
    assert sizes == [(32, 1, 5, 5), (64, 32, 5, 5), (1024, 3136), (10, 1024)]


def test_each_call_returns_a_new_network(network: nn.Module) -> None:
    other = zoo("mnist-cnn")
    with torch.no_grad():
        next(other.parameters()).zero_()
    assert next(network.parameters()).any()


def test_the_digits_are_those_of_the_test_set_in_official_order() -> None:
    images, labels = samples("mnist")
    assert images.shape == (1000, 1, 28, 28)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert (images.min().item(), images.max().item()) == (0.0, 1.0)
    assert (images * 255 - (images * 255).round()).abs().max() < 1e-4
    assert labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert labels.unique().tolist() == list(range(10))


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_a_limit_returns_the_first_samples(limit: int) -> None:
    images, labels = samples("mnist", limit)
    every: tuple[Tensor, Tensor] = samples("mnist")
    assert images.equal(every[0][:limit])
    assert labels.equal(every[1][:limit])


@pytest.mark.parametrize("name", ZOO)
def test_weights_are_small(name: str) -> None:
    assert (HERE / "zoo" / f"{name}.safetensors").stat().st_size < 8_000_000


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_small(name: str) -> None:
    assert (HERE / "samples" / f"{name}.npz").stat().st_size < 300_000
