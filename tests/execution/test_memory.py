"""The batch size that fits: from what a forward keeps, and the free memory."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import marginattack as ma
from marginattack import Classifier
from marginattack.execution import memory, probe
from marginattack.execution.session import open_session

IMAGE = torch.zeros(3, 8, 8)
CPU = torch.device("cpu")


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * width, 10)).eval()


def bytes_per_input(model: nn.Module) -> int:
    with open_session(Classifier(model)) as session:
        return memory.bytes_per_input(session, IMAGE)


def test_bytes_per_input_grow_with_the_activations_and_not_with_the_weights() -> None:
    narrow, wide = (bytes_per_input(network(width)) for width in (8, 64))
    assert wide - narrow == (64 - 8) * 64 * 4  # what ReLU keeps
    assert narrow < sum(p.numel() for p in network(8).parameters()) * 4 + 24 * 192 * 4


def test_weights_that_a_model_computes_are_not_counted_per_input() -> None:
    def wide(make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
        return nn.Sequential(nn.Flatten(), make(nn.Linear(192, 500)), nn.ReLU(), nn.Linear(500, 10)).eval()

    assert bytes_per_input(wide(weight_norm)) == bytes_per_input(wide(lambda layer: layer))


@pytest.mark.parametrize(("free", "size"), [(0, 1), (100_000, 2), (10_000_000, 128), (1 << 40, 256)])
def test_the_batch_size_is_a_power_of_two_that_fits(monkeypatch: pytest.MonkeyPatch, free: int, size: int) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: free)
    with open_session(Classifier(network(8))) as session:
        assert memory.fitting_batch_size(session, IMAGE) == size
    assert size == 1 or size * bytes_per_input(network(8)) <= free * memory.SHARE


def test_free_memory_is_that_of_a_machine() -> None:
    assert 1 << 24 < memory.free_memory(CPU) < 1 << 44


def test_a_model_in_half_precision_needs_less() -> None:
    assert 0 < bytes_per_input(network(8).to(torch.bfloat16)) < bytes_per_input(network(8))


@pytest.mark.parametrize(("batch", "largest"), [(None, 4), (8, 8)])
def test_on_a_cpu_measure_attacks_as_many_inputs_as_fit_unless_it_is_told(
    monkeypatch: pytest.MonkeyPatch, batch: int | None, largest: int
) -> None:
    """Where memory is overcommitted a process is killed, instead of an error that could be caught."""
    model, images = network(8), torch.rand(16, *IMAGE.shape)
    with torch.no_grad():
        labels = model(images).argmax(1)
    monkeypatch.setattr(memory, "free_memory", lambda device: 8 * bytes_per_input(model))
    done: list[int] = []
    ma.measure(model, images, labels, budget=20, batch=batch, progress=done.append)
    assert done == [largest] * (16 // largest)


@pytest.mark.parametrize(("block", "rows"), [(1 << 30, 16), (3 * 8 * 64 * 4, 3), (1, 1)])
def test_on_a_cpu_no_pass_keeps_a_larger_tensor(monkeypatch: pytest.MonkeyPatch, block: int, rows: int) -> None:
    """An attack takes as many inputs as before, in smaller passes, and finds the same points up to rounding."""
    torch.manual_seed(0)
    model, images = network(8), torch.rand(16, *IMAGE.shape)
    with torch.no_grad():
        labels = model(images).argmax(1)
    expected = ma.measure(model, images, labels, budget=20).distance
    sizes: list[int] = []
    model.register_forward_hook(lambda _, args, output: sizes.append(len(output)) if output.requires_grad else None)
    monkeypatch.setattr(probe, "LARGEST_BLOCK", block)
    done: list[int] = []
    distance = ma.measure(model, images, labels, budget=20, batch=16, progress=done.append).distance
    assert done == [16]
    assert max(sizes[4:]) == rows  # the first pairs tell the memory that an input needs
    assert (distance / expected - 1).abs().median() < 1e-3


class PerSampleGradient(nn.Module):
    """It differentiates in its forward, where torch allows no hooks on saved tensors."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = torch.func.vmap(torch.func.grad(lambda row: (row**2).sum()))(x.flatten(1))
        return scores[:, :3]


def test_a_model_that_excludes_hooks_is_measured() -> None:
    x = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    margins = ma.measure(PerSampleGradient(), x, x[:, :3].argmax(1), budget=40)
    assert bool(margins.success.all())
