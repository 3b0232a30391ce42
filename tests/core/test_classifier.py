"""The caller's model is restored, whatever happened; inputs of any shape, precision and bounds can be measured."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from models import Buffered, Function, inputs, smooth
from oracles import linear
from torch import Tensor, nn

import marginattack as ma
from marginattack.core.flags import full_float32
from marginattack.execution.session import open_session

QUICK = ma.MarginAttack(moves=24, closing=4, follow=1)


@pytest.fixture(params=[False, True], ids=["full", "tf32"])
def tf32(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Torch's flags as the caller may have set them."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    cudnn.allow_tf32 = matmul.allow_tf32 = request.param
    yield request.param
    cudnn.allow_tf32, matmul.allow_tf32 = before


def state(model: nn.Module) -> dict[str, Any]:
    """Everything of a model, and of torch, that a measurement might change."""
    return {
        "modes": {name: module.training for name, module in model.named_modules()},
        "flags": {name: p.requires_grad for name, p in model.named_parameters()},
        "grads": {name: None if p.grad is None else p.grad.tolist() for name, p in model.named_parameters()},
        "values": {name: value.tolist() for name, value in model.state_dict().items()},
        "objects": {name: id(value) for name, value in [*model.named_parameters(), *model.named_buffers()]},
        "tf32": (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32),
    }


def odd_model() -> tuple[Buffered, Tensor, Tensor]:
    """A model whose modules, flags and gradients are all mixed."""
    model = Buffered()
    model.eval()
    images, labels = inputs(model)
    model.norm.train()
    model.net.train()
    model.net[0].eval()
    first, last = (layer for layer in model.net if isinstance(layer, nn.Linear))
    first.weight.requires_grad_(False)
    last.weight.grad = torch.ones_like(last.weight)
    return model, images, labels


def measure_normally(model: Buffered, images: Tensor, labels: Tensor) -> None:
    assert bool(ma.measure(model, images, labels, attack=QUICK).success.any())


def measure_wrong_labels(model: Buffered, images: Tensor, labels: Tensor) -> None:
    with pytest.raises(ma.InputError):
        ma.measure(model, images, labels + 9, attack=QUICK)


def interrupt_measuring(model: Buffered, images: Tensor, labels: Tensor) -> None:
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ma.measure(model, images, labels, attack=QUICK, batch=5, progress=interrupt)


@pytest.mark.parametrize("run", [measure_normally, measure_wrong_labels, interrupt_measuring])
def test_modes_flags_buffers_gradients_and_tf32_are_as_before(
    run: Callable[[Buffered, Tensor, Tensor], None], tf32: bool
) -> None:
    model, images, labels = odd_model()
    before = state(model)
    run(model, images, labels)
    after = state(model)
    for what, value in before.items():
        assert after[what] == value, what


def test_a_buffer_that_each_call_replaces_is_restored() -> None:
    model = Buffered(replaced=True).eval()
    images, labels = inputs(model)
    before = state(model)
    ma.measure(model, images, labels, attack=QUICK)
    assert state(model) == before


def test_in_a_session_the_model_is_frozen_in_eval_mode() -> None:
    model, _, _ = odd_model()
    with open_session(ma.Classifier(model)) as session, open_session(session) as again:
        assert again is session
        assert not any(module.training for module in model.modules())
        assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_on_a_gpu_tf32_is_off_and_restored(setting: str) -> None:
    conv, matmul = torch.backends.cudnn.conv, torch.backends.cuda.matmul  # type: ignore[attr-defined]
    start = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(setting)
    before = conv.fp32_precision, matmul.fp32_precision, torch.backends.cudnn.allow_tf32
    try:
        with full_float32(torch.device("cuda")):
            assert (conv.fp32_precision, matmul.fp32_precision) == ("ieee", "ieee")
        assert before == (conv.fp32_precision, matmul.fp32_precision, torch.backends.cudnn.allow_tf32)
        assert torch.get_float32_matmul_precision() == setting
    finally:
        torch.set_float32_matmul_precision(start)


def test_no_pass_has_more_inputs_than_the_batch_size() -> None:
    model = smooth()
    images, labels = inputs(model)
    rows: list[int] = []
    model.register_forward_hook(lambda module, args, out: rows.append(len(args[0])))
    ma.measure(ma.Classifier(model, batch_size=8), images, labels, attack=QUICK)
    assert max(rows) == 8


def test_chunk_is_deprecated_and_works() -> None:
    with pytest.warns(DeprecationWarning, match="use batch_size"):
        classifier = ma.Classifier(smooth(), chunk=8)
    assert classifier.execution.batch_size == 8
    assert ma.measure(classifier, *inputs(smooth()), attack=QUICK).success.all()


SHAPES: dict[str, tuple[tuple[int, ...], nn.Module]] = {
    "flat": ((6,), nn.Identity()),
    "sequence": ((2, 3), nn.Flatten()),
    "grey": ((1, 2, 3), nn.Flatten()),
    "colour": ((3, 2, 1), nn.Flatten()),
    "video": ((1, 2, 1, 3), nn.Flatten()),
    "channels last": ((2, 1, 3), nn.Flatten()),
}


@pytest.mark.parametrize(("shape", "first"), SHAPES.values(), ids=SHAPES)
def test_margins_do_not_depend_on_the_shape_of_the_input(shape: tuple[int, ...], first: nn.Module) -> None:
    model = smooth()
    images, labels = inputs(model)
    flat = ma.measure(model, images, labels, "linf", attack=QUICK)
    shaped = ma.measure(nn.Sequential(first, model), images.reshape(-1, *shape), labels, "linf", attack=QUICK)
    assert shaped.adversarial.shape == (20, *shape)
    assert shaped.distance.equal(flat.distance)


def test_channels_last_memory_gives_the_same_margins() -> None:
    first = nn.Conv2d(2, 2, 1, bias=False, dtype=torch.float64)
    nn.init.eye_(first.weight[:, :, 0, 0])
    model = nn.Sequential(first, nn.Flatten(), smooth(d=8))
    images, labels = inputs(model, (2, 2, 2))
    plain, last = (
        ma.measure(model, images.contiguous(memory_format=layout), labels, attack=QUICK)
        for layout in (torch.contiguous_format, torch.channels_last)
    )
    assert plain.success.all()
    torch.testing.assert_close(last.distance, plain.distance, rtol=1e-6, atol=0)


@pytest.mark.parametrize("given", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("of_model", "used"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)],
)
def test_the_model_decides_the_precision(given: torch.dtype, of_model: torch.dtype, used: torch.dtype) -> None:
    model = smooth(dtype=of_model)
    images, _ = inputs(model)
    seen: set[torch.dtype] = set()
    model.register_forward_hook(lambda module, args, out: seen.add(args[0].dtype))
    with torch.no_grad():
        labels = model(images.to(given).to(used).to(of_model)).argmax(1)
    margins = ma.measure(model, images.to(given), labels, attack=QUICK)
    assert seen == {of_model}
    assert margins.adversarial.dtype == used
    assert margins.distance.dtype == torch.float64
    assert margins.success.double().mean() >= 0.9
    with torch.no_grad():
        wrong = model(margins.adversarial.to(of_model)).argmax(1) != labels
    assert wrong.equal(margins.success)


def test_a_model_without_parameters_keeps_the_precision_of_the_images() -> None:
    model = Function(lambda x: torch.stack([x.sum(1), 3 - x.sum(1)], 1))
    for dtype in (torch.float32, torch.float64):
        images = torch.full((2, 6), 0.3, dtype=dtype)
        margins = ma.measure(model, images, torch.tensor([0, 0]), attack=QUICK)
        assert margins.adversarial.dtype == dtype
        assert margins.distance.tolist() == pytest.approx([0.3 / 6**0.5] * 2, rel=1e-4)


def test_each_coordinate_may_have_its_own_bounds() -> None:
    model = nn.Linear(3, 2, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]]))
        model.bias.zero_()
    images, labels = torch.tensor([[0.5, 0.5, 0.5]]), torch.tensor([0])
    bounds = torch.tensor([0.5, -9.0, 0.4]), torch.tensor([0.6, 9.0, 9.0])  # pixels 0 and 2 can fall by 0 and 0.1
    margins = ma.measure(model, images, labels, "linf", bounds=bounds, attack=QUICK)
    assert margins.distance.item() == pytest.approx(1.4, rel=1e-6)
    assert margins.adversarial[0].tolist() == pytest.approx([0.5, -0.9, 0.4], rel=1e-5)


def test_bounds_per_channel_apply_to_all_its_pixels() -> None:
    model = nn.Sequential(nn.Flatten(), smooth(d=8))
    images, labels = inputs(model, (2, 2, 2))
    lo, hi = torch.tensor([0.05, 0.0]).reshape(2, 1, 1), torch.tensor([0.95, 1.0]).reshape(2, 1, 1)
    margins = ma.measure(model, images, labels, "linf", bounds=(lo, hi), attack=QUICK)
    assert bool(((margins.adversarial >= lo) & (margins.adversarial <= hi)).all())
    assert bool(margins.success.all())


def test_infinite_bounds_are_no_bounds() -> None:
    oracle = linear(0, n=20, boxed=False, dtype=torch.float64)
    attack = ma.MarginAttack(moves=24, closing=8, follow=0)
    for bounds in [(-torch.inf, torch.inf), (-torch.inf, 1e6)]:
        for norm in ("l1", "l2", "linf"):
            margins = ma.measure(oracle.model, oracle.images, oracle.labels, norm, bounds=bounds, attack=attack)
            assert margins.distance.tolist() == pytest.approx(oracle.exact(norm).tolist(), rel=1e-5)
