"""The batch that fits: from what a forward keeps, and the memory at hand."""

import pytest
import torch
from torch import nn

from marginattack import Classifier
from marginattack.execution import memory as batches

IMAGE = torch.zeros(3, 8, 8)
CPU = torch.device("cpu")


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * width, 10)).eval()


def test_an_inputs_bytes_grow_with_the_activations_and_not_with_the_weights() -> None:
    narrow, wide = (batches.bytes_an_input(Classifier(network(width)), IMAGE) for width in (8, 64))
    assert wide - narrow == (64 - 8) * 64 * 4  # what ReLU keeps
    assert (
        batches.bytes_an_input(Classifier(network(8)), IMAGE)
        < sum(p.numel() for p in network(8).parameters()) * 4 + 24 * 192 * 4
    )


@pytest.mark.parametrize(("free", "batch"), [(0, 1), (100_000, 2), (10_000_000, 128), (1 << 40, 256)])
def test_the_batch_is_a_power_of_two_that_fits(monkeypatch: pytest.MonkeyPatch, free: int, batch: int) -> None:
    monkeypatch.setattr(batches, "free_memory", lambda device: free)
    found = batches.fitting_batch(Classifier(network(8)), IMAGE)
    assert found == batch
    assert found == 1 or found * batches.bytes_an_input(Classifier(network(8)), IMAGE) <= free * batches.SHARE


def test_the_memory_at_hand_is_that_of_a_machine() -> None:
    assert 1 << 24 < batches.free_memory(CPU) < 1 << 44


def test_a_model_in_half_precision_is_weighed_in_its_own() -> None:
    model = network(8).to(torch.bfloat16)
    assert 0 < batches.bytes_an_input(Classifier(model), IMAGE) < batches.bytes_an_input(Classifier(network(8)), IMAGE)
