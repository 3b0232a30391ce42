"""What callers may do to a model, and models to their input, without a wrong margin: measured right, or refused."""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
from models import Batch, Buffered, Function, inputs, smooth
from problems import line, validated
from torch import Tensor, nn

import marginattack as ma
from marginattack.core.flags import full_float32, tf32
from marginattack.core.sharing import seeded
from marginattack.execution.session import open_session

QUICK = ma.MarginAttack(moves=24, closing=4, follow=1)
CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def honest() -> tuple[nn.Module, Batch, ma.Margins]:
    """A model in float32, inputs, and their margins."""
    model = smooth(dtype=torch.float32)
    batch = inputs(model, n=10)
    return model, batch, ma.measure(model, *batch, attack=QUICK)


# Threads


def modes(model: nn.Module) -> list[bool]:
    """The modes of all modules and the flags of all parameters."""
    return [module.training for module in model.modules()] + [p.requires_grad for p in model.parameters()]


@pytest.mark.parametrize("wrapped", [False, True], ids=["the same model", "models that share modules"])
def test_threads_measure_one_model_at_the_same_time(wrapped: bool) -> None:
    model = Buffered().eval()
    images, labels = inputs(model, n=8)
    model.net.train()
    model.drop.train()
    model.norm.weight.requires_grad_(False)
    before = modes(model)
    for _ in range(2):
        found = measure_in_two_threads(model, nn.Sequential(nn.Identity(), model) if wrapped else model, images, labels)
        assert modes(model) == before
        with frozen(model), torch.no_grad():
            for margins in found:
                assert margins.success.all()
                assert (model(margins.adversarial).argmax(1) != labels).all()


def measure_in_two_threads(one: nn.Module, other: nn.Module, images: Tensor, labels: Tensor) -> list[ma.Margins]:
    """Both are measured at the same time; the first is done while the second has a batch left."""
    both, first_done = threading.Barrier(2), threading.Event()

    def first() -> ma.Margins:
        margins = ma.measure(one, images, labels, attack=QUICK, batch=4, progress=once(both.wait))
        first_done.set()
        return margins

    def second() -> ma.Margins:
        wait = once(lambda: both.wait() + first_done.wait(60))
        return ma.measure(other, images, labels, attack=QUICK, batch=4, progress=wait)

    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(first), pool.submit(second)]]


def once(wait: Callable[[], object]) -> Callable[[int], None]:
    """A progress callback that waits after the first batch."""
    left = [wait]
    return lambda done: None if not left else (left.pop()(), None)[1]


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Eval mode, by hand."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    yield
    for module, training in before:
        module.training = training


def test_full_float32_lasts_until_its_last_user_is_done() -> None:
    matmul = torch.backends.cuda.matmul
    before, blocks = matmul.fp32_precision, [full_float32(CUDA), full_float32(CUDA)]
    matmul.fp32_precision = "tf32"
    try:
        for block in blocks:
            block.__enter__()
        with pytest.raises(ma.InputError, match=r"another thread measures.* one after the other"), tf32(True):
            pass
        blocks[0].__exit__(None, None, None)
        assert matmul.fp32_precision == "ieee"
        with tf32(True):
            assert matmul.fp32_precision == "tf32"
        assert matmul.fp32_precision == "ieee"
        blocks[1].__exit__(None, None, None)
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


def test_torchs_own_random_numbers_belong_to_one_thread_at_a_time() -> None:
    """Boundary and the attacks of other libraries draw them."""
    inside = threading.Event()

    def draw(seed: int) -> Tensor:
        with seeded(seed, torch.device("cpu")):
            first = torch.rand(2)
            inside.set()
            threading.Event().wait(0.05)  # so that the other thread may disturb it
            return torch.cat([first, torch.rand(2)])

    with ThreadPoolExecutor(2) as pool:
        drawn = [future.result() for future in [pool.submit(draw, seed) for seed in (0, 1)]]
    for seed, numbers in enumerate(drawn):
        assert numbers.equal(torch.rand(4, generator=torch.Generator().manual_seed(seed)))


# What surrounds a call


@contextmanager
def default_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "float64 by default": default_float64,
    "deterministic algorithms": deterministic,
}


@pytest.mark.parametrize("surrounding", SURROUNDINGS.values(), ids=SURROUNDINGS)
def test_what_surrounds_a_call_changes_no_margin(
    surrounding: Callable[[], AbstractContextManager[object]], honest: tuple[nn.Module, Batch, ma.Margins]
) -> None:
    model, batch, expected = honest
    with surrounding():
        found = ma.measure(model, *batch, attack=QUICK)
    with open_session(ma.Classifier(model)) as session, surrounding():
        again = ma.measure(session, *batch, attack=QUICK)
    assert found.distance.equal(expected.distance)
    assert again.distance.equal(expected.distance)
    assert found.adversarial.equal(expected.adversarial)


# Models that edit their input


def halve(x: Tensor) -> Tensor:
    return x.mul_(0.5)


def write_data(x: Tensor) -> Tensor:
    x.data.mul_(0.5)
    return x


EDITS: dict[str, tuple[nn.Module, nn.Module]] = {  # one that edits its input, and the same without
    "x *= 0.5": (Function(halve), Function(lambda x: 0.5 * x)),
    "x.sub_(mean)": (Function(lambda x: x.sub_(0.2)), Function(lambda x: x - 0.2)),
    "ReLU(inplace)": (nn.ReLU(inplace=True), nn.ReLU()),
    "x.data": (Function(write_data), Function(lambda x: x + (0.5 * x - x).detach())),
}


@pytest.mark.parametrize(("edits", "same"), EDITS.values(), ids=EDITS)
def test_a_model_that_edits_its_input_has_the_margins_of_one_that_does_not(edits: nn.Module, same: nn.Module) -> None:
    model = smooth(dtype=torch.float32)
    images, labels = inputs(nn.Sequential(same, model))
    given = images.clone()
    found, expected = (
        ma.measure(nn.Sequential(first, model), images, labels, "linf", attack=QUICK) for first in (edits, same)
    )
    assert images.equal(given)
    assert found.success.any()
    assert found.distance.equal(expected.distance)
    assert found.adversarial.equal(expected.adversarial)


def test_a_captured_model_that_edits_its_input(graphs_made: list[object]) -> None:
    model = smooth(dtype=torch.float32)
    images, labels = inputs(nn.Sequential(Function(lambda x: 0.5 * x), model))
    found, expected = (
        ma.measure(nn.Sequential(Function(first), model), images, labels, budget=60)
        for first in (halve, lambda x: 0.5 * x)
    )
    assert graphs_made
    assert found.success.any()
    assert found.distance.equal(expected.distance)


def test_a_model_that_edits_through_numpy_and_only_later_inputs() -> None:
    def edit(x: Tensor) -> Tensor:
        pixels = x.detach().numpy()
        pixels[pixels < 0.3] = 0.3
        return x

    def same(x: Tensor) -> Tensor:
        return x + (x.detach().clamp(min=0.3) - x.detach())

    model = smooth(dtype=torch.float32)
    images, _ = inputs(model)
    images = torch.cat([images.clamp(0.35, 1)[:8], images.clamp(0, 1)[:4]])
    labels = nn.Sequential(Function(same), model)(images).argmax(1)
    found, expected = (
        ma.measure(nn.Sequential(Function(first), model), images, labels, attack=QUICK) for first in (edit, same)
    )
    torch.testing.assert_close(found.distance, expected.distance)


# Models that are no function of each input


class Mixed(nn.Module):
    """Shifts its inputs by a share of their mean, in batches of at least ``least``."""

    def __init__(self, share: float, least: int = 2) -> None:
        super().__init__()
        self.model, self.share, self.least = smooth(dtype=torch.float32), share, least

    def forward(self, x: Tensor) -> Tensor:
        shift = self.share * (x.mean(0) - 0.5) if len(x) >= self.least else 0.0
        logits: Tensor = self.model(x + shift)
        return logits


class Noisy(nn.Module):
    """Adds noise of this share of the largest logit."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.model, self.share = smooth(dtype=torch.float32), share

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits + self.share * logits.abs().max() * torch.randn_like(logits)


INCONSISTENT: dict[str, tuple[nn.Module, int, str]] = {
    "noise of 0.3 %": (Noisy(0.003), 12, r"random: .* (\S+) of the largest, for \d+ of 12 inputs; .*randomized=True"),
    "noise of 0.01 %": (Noisy(1e-4), 12, r"random: .* (\S+) of the largest"),
    "mean of the batch": (Mixed(0.02), 47, r"batch-dependent: .* (\S+) of the largest, for \d+ of 32 inputs"),
    "mean of the batch, one input": (Mixed(0.2), 1, r"batch-dependent: .* (\S+) of the largest, for 1 of 1 inputs"),
    "in large batches alone": (Mixed(0.05, 40), 47, r"batch-dependent: .* (\S+) of the largest, for \d+ of 5 inputs"),
}


@pytest.mark.parametrize(("model", "n", "message"), INCONSISTENT.values(), ids=INCONSISTENT)
def test_a_model_that_is_no_function_of_each_input_is_refused(model: nn.Module, n: int, message: str) -> None:
    images, labels = inputs(smooth(dtype=torch.float32), n=n)
    with pytest.raises(ma.InputError) as caught:
        ma.measure(model, images, labels, attack=QUICK)
    found = re.search(message, str(caught.value))
    assert found, caught.value
    assert 1e-5 < float(found[1]) < 1


def test_a_small_effect_of_the_batch_is_tolerated_and_every_success_holds_alone() -> None:
    model = Mixed(5e-4)
    images, labels = inputs(smooth(dtype=torch.float32), n=24)
    margins = ma.measure(model, images, labels, attack=QUICK)
    with torch.no_grad():
        alone = torch.cat([model(point).argmax(1) for point in margins.adversarial.split(1)])
    assert margins.success.all()
    assert (alone != labels).all()


def test_the_check_takes_fewer_inputs_where_memory_runs_out() -> None:
    def forward(x: Tensor) -> Tensor:
        if len(x) > 12:
            raise MemoryError
        return line(x)

    margins = ma.measure(Function(forward), torch.full((24, 2), 0.3), [0] * 24, attack=QUICK, diagnose=False)
    assert margins.success.all()


# Bounds and logits


@pytest.mark.parametrize(
    ("value", "bounds"), [(-5.0, (0, 1e6)), (1e6 + 5, (0, 1e6)), (-0.01, (0, 255)), (-1e-4, (0, 1))]
)
def test_inputs_outside_the_bounds_are_refused(value: float, bounds: tuple[float, float]) -> None:
    images = torch.tensor([[value, bounds[1] / 2]], dtype=torch.float64)
    with pytest.raises(ma.InputError, match="outside the bounds"):
        ma.measure(nn.Identity(), images, [1], bounds=bounds)


@pytest.mark.parametrize("bounds", [(0, 2), (0, 255), (0, 65535), (0, 1e6), (-2.1179, 2.64), (-torch.inf, torch.inf)])
def test_inputs_that_rounding_puts_outside_the_bounds_are_clamped(bounds: tuple[float, float]) -> None:
    lo, hi = (torch.tensor(bound, dtype=torch.float32) for bound in bounds)
    images = torch.stack([torch.nextafter(lo, -torch.tensor(torch.inf)), torch.nextafter(hi, torch.tensor(torch.inf))])
    if bounds[1] == torch.inf:
        images = torch.tensor([-3e30, 3e30])
    with validated(ma.Classifier(nn.Identity(), bounds=bounds), images[None], torch.tensor([1])) as (_, batch):
        assert batch.images.equal(images[None].clamp(lo, hi))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("targets", [None, [1, 1, 1]])
def test_logits_that_are_not_finite_are_not_adversarial(value: float, targets: list[int] | None) -> None:
    def model(x: Tensor) -> Tensor:
        """Beyond the boundary finite only where a gradient is wanted, which is not so in the verification."""
        logits = line(x)
        broken = (logits[:, 1] > logits[:, 0]) & torch.tensor(not x.requires_grad)
        return torch.where(broken[:, None], torch.tensor([-1.0, value]), logits)

    images = torch.tensor([[0.2, 0.5], [0.3, 0.5], [0.4, 0.5]])
    margins = ma.measure(Function(model), images, [0, 0, 0], attack=QUICK, targets=targets)
    assert margins.rejected.all()
    assert not margins.success.any()


# Batches


def test_search_depends_neither_on_the_batch_nor_on_the_order() -> None:
    attack = ma.attacks.Search(attack=ma.attacks.PGD(steps=8, step=0.2, restarts=3), levels=4, expansions=4)
    model = smooth(d=12)
    images, labels = inputs(model, (12,), n=4)
    order = torch.tensor([3, 0, 2, 1])

    def measure(rows: Tensor, batch: int) -> ma.Margins:
        return ma.measure(model, images[rows], labels[rows], "l1", attack=attack, budget=57, ids=rows, batch=batch)

    together = measure(torch.arange(4), 4)
    for found, rows in ((measure(torch.arange(4), 1), torch.arange(4)), (measure(order, 3), order)):
        torch.testing.assert_close(found.distance, together.distance[rows], rtol=1e-9, atol=0)
        assert found.forwards.equal(together.forwards[rows])
        assert found.backwards.equal(together.backwards[rows])
