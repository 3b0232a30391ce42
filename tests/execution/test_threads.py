"""Parts of a batch are attacked in threads of their own: the same margins, where that is safe."""

import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from models import inputs, smooth
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks import Attack
from marginattack.attacks.pgd import PGD
from marginattack.execution import threads

SEVERAL = 2
NOTES: list[set[int]] = []  # the threads that called each model for gradients; no model refers to it


class Watched(nn.Module):
    """Notes, in a set outside of it, which threads call it for gradients."""

    def __init__(self, seen: set[int]) -> None:
        super().__init__()
        self.model, self.number = smooth(dtype=torch.float32), len(NOTES)
        NOTES.append(seen)

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            NOTES[self.number].add(threading.get_ident())
        logits: Tensor = self.model(x)
        return logits


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch has several threads, and small models are worth them."""
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "LEAST_BYTES", 1)
    torch.set_num_threads(SEVERAL)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("attack", [ma.Race(), ma.MarginAttack(moves=20), PGD(eps=0.5)])
def test_threads_find_the_same_margins(several: None, attack: Attack) -> None:
    seen: set[int] = set()
    x, y = inputs(Watched(set()), n=11)
    found = ma.measure(Watched(seen), x, y, budget=60, attack=attack)
    assert len(seen - {threading.get_ident()}) == SEVERAL
    assert torch.get_num_threads() == SEVERAL
    torch.set_num_threads(1)
    seen.clear()
    alone = ma.measure(Watched(seen), x, y, budget=60, attack=attack)
    assert seen == {threading.get_ident()}
    for name in ("success", "label", "adversarial_label", "forwards", "backwards"):
        assert getattr(found, name).equal(getattr(alone, name))
    torch.testing.assert_close(found.distance, alone.distance, rtol=1e-3, atol=0)


def test_a_run_in_threads_is_reproducible(several: None) -> None:
    x, y = inputs(Watched(set()), n=8)
    first, second = (ma.measure(Watched(set()), x, y, budget=60, seed=3) for _ in range(2))
    assert first.distance.equal(second.distance)
    assert first.adversarial.equal(second.adversarial)


class Counting(Watched):
    """It changes itself in each forward."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class Buffered(Watched):
    """It changes a buffer in place in each forward."""

    calls: Tensor

    def __init__(self, seen: set[int]) -> None:
        super().__init__(seen)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class Caching(Watched):
    """It keeps features in a dictionary, under the same key in each forward."""

    def __init__(self, seen: set[int]) -> None:
        super().__init__(seen)
        self.features: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.features["input"] = x
        return super().forward(self.features["input"])


class Hooked(Watched):
    """A hook keeps features in a variable around it, when there are gradients."""

    def __init__(self, seen: set[int]) -> None:
        super().__init__(seen)
        kept: dict[str, Tensor] = {}

        def keep(module: nn.Module, arguments: tuple[Tensor]) -> None:
            if arguments[0].requires_grad:
                kept["input"] = arguments[0]

        self.model.register_forward_pre_hook(keep)


class Scripted(Watched):
    """The attributes of a scripted part cannot be seen."""

    def __init__(self, seen: set[int]) -> None:
        super().__init__(seen)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
            self.model = torch.jit.script(self.model)


@dataclass(frozen=True, kw_only=True)
class Stateful(Attack):
    """It keeps a state."""

    norms: ClassVar = ("l2",)
    state: dict[str, int] = field(default_factory=dict)

    def __call__(self, problem: ma.Problem) -> None:
        self.state["rows"] = len(problem.x0)
        ma.Race()(problem)


@pytest.mark.parametrize(
    ("model", "attack", "n"),
    [
        (Counting, ma.Race(), 8),
        (Buffered, ma.Race(), 8),
        (Caching, ma.Race(), 8),
        (Hooked, ma.Race(), 8),
        (Scripted, ma.Race(), 8),
        (Watched, Stateful(), 8),
        (Watched, ma.Race(), 7),
    ],
    ids=["counter", "buffer", "dictionary", "hook", "scripted part", "attack with a state", "few inputs"],
)
def test_what_is_not_safe_or_small_is_attacked_in_one_thread(
    several: None, model: type[Watched], attack: Attack, n: int
) -> None:
    seen: set[int] = set()
    x, y = inputs(model(set()), n=n)
    ma.measure(model(seen), x, y, budget=40, attack=attack)
    assert seen == {threading.get_ident()}


def test_a_model_that_made_tensors_in_inference_mode_is_measured(several: None) -> None:
    model = Watched(set())
    with torch.inference_mode():
        model.offset = torch.zeros(())
    x, y = inputs(model, n=8)
    assert bool(ma.measure(model, x, y, budget=40).success.all())


def test_models_whose_passes_are_short_are_attacked_in_one_thread(
    several: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "LEAST_BYTES", 1 << 20)
    seen: set[int] = set()
    x, y = inputs(Watched(set()), n=16)
    ma.measure(Watched(seen), x, y, budget=40)
    assert seen == {threading.get_ident()}


class Failing(Watched):
    """It fails in one of the threads, after a few passes."""

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and self.fails(x):
            raise RuntimeError("some kernel failed")
        return super().forward(x)

    def fails(self, x: Tensor) -> bool:
        """Whether this is the part with the marked input."""
        return bool((x.flatten(1)[:, -1] == 0.625).any())


def test_an_error_in_one_thread_ends_the_others(several: None) -> None:
    x, y = inputs(Watched(set()), n=8)
    x[-1, ..., -1] = 0.625
    with torch.no_grad():
        y = Watched(set())(x).argmax(1)
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="some kernel failed"):
        ma.measure(Failing(set()), x, y, budget=100_000)  # which would take minutes
    assert threading.active_count() == before
    assert torch.get_num_threads() == SEVERAL


def test_threads_that_start_later_have_as_many_torch_threads_as_before(several: None) -> None:
    x, y = inputs(Watched(set()), n=8)
    ma.measure(Watched(set()), x, y, budget=20)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert found == [SEVERAL]


def test_a_model_with_a_state_is_not_shared_by_the_clear_and_the_unclear_inputs(several: None) -> None:
    """Which are two parts in low precision."""

    class Coarse(Counting):
        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            low = next(self.parameters()).dtype != torch.float32
            return logits + 0.02 * torch.sin(1e4 * logits.detach()) if low else logits

    seen: set[int] = set()
    x, y = inputs(Coarse(set()), n=40)
    found = ma.measure(Coarse(seen), x, y, budget=200, precision="bf16")
    assert found.settings["precision"] == "bf16"
    assert seen == {threading.get_ident()}
