"""Models for the bundled digits that are broken or misleading, each in one way, and healthy ones."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from models import After, Function, constant
from torch import Tensor, nn
from torch.nn import functional

from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

MNIST = (0.1307, 0.3081)
ORDER = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]


class Before(nn.Module):
    """A model behind a function of its input."""

    def __init__(self, function: Callable[[Tensor], Tensor], model: nn.Module) -> None:
        super().__init__()
        self.function, self.model = function, model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(self.function(x))
        return logits


@dataclass
class Case:
    """A model, the cause that must be reported first, and further arguments of preflight."""

    code: str
    model: Callable[[], nn.Module]
    options: dict[str, Any] = field(default_factory=dict)
    labels: Callable[[Tensor], Tensor] = lambda y: y
    grade: str | None = None


def to_signed(x: Tensor) -> Tensor:
    """Map [0, 1] to [−1, 1]."""
    return (x - 0.5) / 0.5


def expects_signed(*inside: Callable[[Tensor], Tensor]) -> nn.Module:
    """The network as if trained on pixels in [−1, 1], behind these functions of its input."""
    model: nn.Module = Before(lambda x: (x + 1) / 2, network())
    for function in inside:
        model = Before(function, model)
    return model


def normalise(x: Tensor) -> Tensor:
    return (x - MNIST[0]) / MNIST[1]


def network() -> nn.Module:
    return zoo("mnist-cnn")


def needs_normalisation(mean: float, std: float) -> nn.Module:
    """A small network that needs this normalisation."""
    return train(nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 10)), mean, std)


def train(model: nn.Module, mean: float = 0.0, std: float = 1.0, epochs: int = 15) -> nn.Module:
    """Train a model on digits that the tests do not use."""
    x, y = samples("mnist")
    x, y = (x[256:] - mean) / std, y[256:]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for part in model.modules():
            if isinstance(part, nn.Linear | nn.Conv2d):
                part.reset_parameters()
        optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
        model.train()
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(64):
                optimiser.zero_grad()
                functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimiser.step()
    return model.eval()


class Noisy(nn.Module):
    """A network with noise on its input."""

    def __init__(self) -> None:
        super().__init__()
        self.model = network()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x + 0.05 * torch.randn_like(x))
        return logits


class AlwaysOn(nn.Dropout):
    """Dropout that ignores eval()."""

    def train(self, mode: bool = True) -> "AlwaysOn":
        self.training = True
        return self


class IgnoresEval(AlwaysOn):
    """A model that ignores eval()."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, 100:110]


def dropout_that_ignores_eval() -> nn.Module:
    model: Any = network()
    return nn.Sequential(model.features, AlwaysOn(0.3), model.head).eval()


def batch_norm_network(*, running: bool) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.BatchNorm2d(8, track_running_stats=running), nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2), nn.BatchNorm2d(16, track_running_stats=running), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 16, 10),
    )  # fmt: skip


class Sign(nn.Module):
    """A step as activation."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sign(x)


class SteepTanh(nn.Module):
    """A saturated activation."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(1e4 * x)


def with_activation(activation: nn.Module) -> nn.Module:
    """A trained network whose smooth activation is then replaced."""
    model: Any = train(nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 10)))
    model[2] = activation
    return nn.Sequential(*model)


class _Rounding(torch.autograd.Function):
    """Rounds, and passes the gradient straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x * 15) / 15

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _FlippedGradient(torch.autograd.Function):
    """The identity with a reversed gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.flip(-1)


class Purified(nn.Module):
    """A defence that moves its input by its own gradient to where the model is more confident."""

    def __init__(self) -> None:
        super().__init__()
        self.model = network()

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            loss = self.model(leaf).logsumexp(1).sum()
            (g,) = torch.autograd.grad(loss, leaf)
        logits: Tensor = self.model((x + 0.05 * g.sign()).clamp(0, 1))
        return logits


def apply_dropout(x: Tensor) -> Tensor:
    return functional.dropout(x, 0.2, training=True)


def add_background_class(logits: Tensor) -> Tensor:
    """Prepend a class that is never predicted, as in networks with 1,001 classes for ImageNet."""
    return functional.pad(logits, (1, 0), value=-30.0)


def in_place(x: Tensor) -> Tensor:
    return x.sub_(0.0).mul_(0.999)


def nan_for_some(x: Tensor) -> Tensor:
    """Bright images become NaN."""
    return torch.where(x.flatten(1).mean(1).view(-1, 1, 1, 1) > 0.15, torch.nan, x)


def detach_half(x: Tensor) -> Tensor:
    """The left half carries no gradient."""
    left = torch.arange(28) < 14
    return torch.where(left, x.detach(), x)


def square_root(x: Tensor) -> Tensor:
    """√ of pixels: infinitely steep at black."""
    return x.sqrt()


def quantise() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: nn.Module = torch.ao.quantization.quantize_dynamic(network(), {nn.Linear}, dtype=torch.qint8)
    return model


class Raises(nn.Module):
    """A model that cannot be run."""

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no kernel\nfor this device")


class Rippled(nn.Module):
    """The network's predictions with rippled confidences: gradients follow the ripple, not the way to the boundary.

    The logits around their mean are scaled by a positive factor that changes quickly with the input. The gradient is
    right everywhere, and nearly all of it is the factor's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.model = network()
        w = torch.randn(784, generator=torch.Generator().manual_seed(0))
        self.register_buffer("w", w / w.norm())

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        ripple = 1 + 0.9 * torch.sin(2e3 * (x.flatten(1) @ self.get_buffer("w").to(x.dtype)))
        return (logits - logits.mean(1, keepdim=True)) * ripple[:, None]


class Winners(nn.Module):
    """Only the largest tenth of the units pass, and a tiny change selects others (Xiao et al. 2020)."""

    def forward(self, x: Tensor) -> Tensor:
        least = x.topk(x.shape[1] // 10, dim=1).values[:, -1:]
        return torch.where(x >= least, x, 0)


def winners() -> nn.Module:
    return train(
        nn.Sequential(
            nn.Flatten(), nn.Linear(784, 1000), Winners(), nn.Linear(1000, 500), Winners(), nn.Linear(500, 10)
        ),
        epochs=6,
    )


def bare_and_preprocessed() -> tuple[nn.Module, nn.Module]:
    """A network that normalises its input, and the same behind a second normalisation."""
    bare = Before(normalise, needs_normalisation(*MNIST))
    return bare, Before(lambda x: (x - 0.5) / 0.1, bare)


def _normalised_twice_with_bare() -> Case:
    bare, module = bare_and_preprocessed()
    options = {"bare": bare, "preprocessing": {"mean": [0.5], "std": [0.1]}}
    return Case("normalised-twice", lambda: module, options)


BROKEN: dict[str, Callable[[], Case]] = {
    "softmax": lambda: Case("probabilities", lambda: After(network(), lambda z: z.softmax(1))),
    "saturated softmax": lambda: Case("probabilities", lambda: After(network(), lambda z: (100 * z).softmax(1))),
    "sigmoid": lambda: Case("sigmoid-outputs", lambda: After(network(), torch.sigmoid)),
    "dropout on": lambda: Case("random", lambda: Before(apply_dropout, network())),
    "dropout ignores eval": lambda: Case("stays-in-train-mode", dropout_that_ignores_eval),
    "model ignores eval": lambda: Case("stays-in-train-mode", lambda: IgnoresEval(0.0), grade="grave"),
    "noise": lambda: Case("random", Noisy),
    "batch statistics": lambda: Case("batch-dependent", lambda: train(batch_norm_network(running=False), epochs=4)),
    "normalised twice": lambda: Case("normalised-twice", lambda: Before(to_signed, expects_signed(to_signed))),
    "normalised twice, one of them ours": _normalised_twice_with_bare,
    "normalisation missing": lambda: Case("normalisation-missing", expects_signed),
    "0 to 255": lambda: Case("expects-0-255", lambda: Before(lambda x: x / 255, network())),
    "inverted": lambda: Case("inverted-pixels", lambda: Before(lambda x: 1 - x, network())),
    "quantised input": lambda: Case("quantised-input", lambda: Before(lambda x: torch.round(x * 7) / 7, network())),
    "8-bit input": lambda: Case("quantised-input", lambda: Before(lambda x: torch.floor(x * 255) / 255, network())),
    "straight-through rounding": lambda: Case("quantised-input", lambda: Before(_Rounding.apply, network())),
    "sign activation": lambda: Case("step-function", lambda: with_activation(Sign())),
    "comparison": lambda: Case("step-function", lambda: with_activation(Function(lambda x: (x > 0).to(x) * 2 - 1))),
    "tanh saturated": lambda: Case("saturated", lambda: with_activation(SteepTanh())),
    "temperature": lambda: Case("saturated-softmax", lambda: After(network(), lambda z: 1e4 * z)),
    "wrong gradients": lambda: Case("wrong-gradients", lambda: Before(_FlippedGradient.apply, network())),
    "half the gradient": lambda: Case("wrong-gradients", lambda: Before(detach_half, network())),
    "constant": lambda: Case("constant-logits", lambda: Before(lambda x: x, constant(0.0, 1.0, *[0.5] * 8))),
    "NaN for some": lambda: Case("non-finite-logits", lambda: Before(nan_for_some, network())),
    "labels permuted": lambda: Case("labels-order", lambda: After(network(), lambda z: z[:, ORDER])),
    "labels shifted": lambda: Case("labels-order", lambda: After(network(), add_background_class)),
    "labels outside": lambda: Case("labels-outside", network, labels=lambda y: y + 1),
    "labels shuffled": lambda: Case("accuracy-at-chance", network, labels=lambda y: y[torch.randperm(
        len(y), generator=torch.Generator().manual_seed(0))]),
    "claim": lambda: Case("accuracy-below-expected", lambda: train(nn.Sequential(nn.Flatten(), nn.Linear(784, 10))),
                          {"expect_accuracy": 0.99}),
    "gradient in forward": lambda: Case("gradient-in-forward", Purified),
    "detached": lambda: Case("detached", lambda: Before(lambda x: x.detach(), network())),
    "infinite slope": lambda: Case("non-finite-gradients", lambda: Before(square_root, network())),
    "int8 layers": lambda: Case("quantised-layers", quantise),
    "raises": lambda: Case("model-fails", Raises),
    "tuple": lambda: Case("not-a-tensor", lambda: After(network(), lambda z: (z, z))),
    "labels as output": lambda: Case("not-floating-point", lambda: After(network(), lambda z: z.argmax(1))),
    "one logit": lambda: Case("single-logit", lambda: After(network(), lambda z: z[:, 0])),
    "feature maps": lambda: Case("wrong-shape", lambda: After(network(), lambda z: z[:, :, None, None])),
    "train mode": lambda: Case("train-mode", network, {"was_training": True}),
}  # fmt: skip


def confident() -> nn.Module:
    """The network with logit gaps of about fifty."""
    return After(network(), lambda z: 4 * z)


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "mnist-cnn": network,
    "tanh": lambda: needs_normalisation(0.0, 1.0),
    "GELU": lambda: train(nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.GELU(), nn.Linear(64, 10))),
    "linear": lambda: train(nn.Sequential(nn.Flatten(), nn.Linear(784, 10))),
    "normalises inside": lambda: Before(normalise, needs_normalisation(*MNIST)),
    "batch normalisation": lambda: train(batch_norm_network(running=True), epochs=8),
    "float64": lambda: network().double(),
    "log-probabilities": lambda: After(network(), lambda z: z.log_softmax(1)),
    "confident": confident,
    "edits its input in place": lambda: Before(in_place, network()),
    "clamps its input": lambda: Before(lambda x: x.clamp(0, 1), network()),
    "rounds to float32 inside": lambda: Before(lambda x: x.float().double(), network().double()),
}

# Their gradients are right where they are checked, and lead nowhere: only an attack without gradients shows it.
MASKED: dict[str, Callable[[], nn.Module]] = {"rippled": Rippled, "k winners": winners}
