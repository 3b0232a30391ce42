"""What the forwards alone show: shape and kind of the outputs, and whether the model is a function of its input."""

import torch
from torch import Tensor, nn

from marginattack.analysis.diagnose.causes import Finding, found
from marginattack.analysis.diagnose.subject import Broken, Subject, backward_calls
from marginattack.errors import describe

LOOKS = 4  # forwards of one batch, to tell a random model


def structure(subject: Subject) -> list[Finding]:
    """What makes every further look pointless."""
    x = subject.images[:8]
    n = len(x)
    given = x.clone()
    try:
        with torch.no_grad():
            output = subject.module(given)
    except Exception as error:
        return [_failure(subject, x, error)]
    if not torch.equal(given, x):
        changed = int((given != x).flatten(1).any(1).sum())
        return [found("changes-its-input", "the images are other ones after a forward", changed, n)]
    if not isinstance(output, Tensor):
        return [found("not-a-tensor", f"the model returns a {type(output).__name__}", n, n)]
    if not output.is_floating_point():
        kind = str(output.dtype).removeprefix("torch.")
        return [found("not-floating-point", f"the model returns {kind}", n, n)]
    shape = tuple(output.shape)
    if shape in {(n,), (n, 1)}:
        return [found("single-logit", f"the model returns shape {shape} for {n} inputs", n, n)]
    if output.ndim != 2 or len(output) != n:
        return [found("wrong-shape", f"the model returns shape {shape} for {n} inputs", n, n)]
    return []


def _failure(subject: Subject, x: Tensor, error: Exception) -> Finding:
    """Why a forward without gradients failed: because the model wants them, or for good."""
    line = describe(error)
    try:
        with torch.enable_grad(), backward_calls() as calls:
            subject.module(x.clone().requires_grad_())
    except Exception:
        calls = []
    if calls:
        seen = f"forward runs only with gradients enabled, because it calls autograd itself; without: {line}"
        return found("gradient-in-forward", seen, len(x), len(x), grade="grave")
    return found("model-fails", f"on inputs of shape {tuple(x.shape[1:])}: {line}", len(x), len(x))


def own_gradients(subject: Subject) -> list[Finding]:
    """Whether forward calls autograd."""
    x = subject.images[:4]
    with backward_calls() as calls:
        subject.call(x)
    if not calls:
        return []
    times = calls.count("_engine_run_backward") or len(calls)
    return [found("gradient-in-forward", f"one forward calls autograd {times} times", len(x), len(x))]


def finite(subject: Subject, logits: Tensor) -> list[Finding]:
    """NaN or infinite logits, on the images and on noise."""
    wrong = ~torch.isfinite(logits).all(1)
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        seen = f"NaN or infinite logits, first for image {first}"
        return [found("non-finite-logits", seen, int(wrong.sum()), len(logits))]
    strange = int((~torch.isfinite(subject.logits(subject.noise(8, draw=1))).all(1)).sum())
    if strange:
        return [found("non-finite-on-noise", "NaN or infinite logits for images of uniform noise", strange, 8)]
    return []


def kind(logits: Tensor) -> list[Finding]:
    """Constant logits, and outputs that are no logits. Log-probabilities are as good as logits and not named."""
    n = len(logits)
    scale = float(logits.abs().max())
    if n > 1 and float((logits.amax(0) - logits.amin(0)).max()) <= 1e-7 * scale:
        return [found("constant-logits", "the logits are the same for every image", n, n)]
    unit = float(logits.min()) >= 0 and scale <= 1 + 1e-6
    if unit and float((logits.sum(1) - 1).abs().max()) < 1e-3:
        sure = int((logits.amax(1) == 1).sum())
        seen = f"the outputs are positive and sum to 1; {sure} of {n} images have one that is exactly 1"
        return [found("probabilities", seen, n, n)]
    if unit and n >= 8 and scale > 0.5:
        ends = float(((logits < 1e-6) | (logits > 1 - 1e-6)).double().mean())
        seen = f"all outputs lie between 0 and 1 and do not sum to 1; {ends:.0%} of them within 1e-6 of an end"
        return [found("sigmoid-outputs", seen, n, n)]
    return []


def function(subject: Subject) -> list[Finding]:
    """Whether the same input always gets the same logits: in a second look, and in other company."""
    x = subject.images[:32]
    n = len(x)
    first = subject.logits(x)
    scale = float(first.nan_to_num(0, 0, 0).abs().max()) or 1.0
    training = [type(module).__name__ for module in subject.module.modules() if module.training]
    again = torch.stack([subject.logits(x) for _ in range(LOOKS - 1)])
    change = (again - first).nan_to_num(0, 0, 0).abs().amax((0, 2))
    differ = int((change > 64 * subject.epsilon * scale).sum())
    what = f"two looks at one image in eval mode differ by up to {float(change.max()) / scale:.1e} of the largest logit"
    if differ:
        if training:
            return [found("stays-in-train-mode", f"{_names(training)} ignore eval(), and {what}", differ, n)]
        return [found("random", what, differ, n)]
    moved, what = _company(subject, x, first, scale)
    if moved:
        if training:
            return [found("stays-in-train-mode", f"{_names(training)} ignore eval(), and {what}", moved, n)]
        return [found("batch-dependent", what, moved, n)]
    if training:
        seen = f"{_names(training)} ignore eval(), without effect on the logits"
        return [found("stays-in-train-mode", seen, n, n, grade="note")]
    return []


def _company(subject: Subject, x: Tensor, logits: Tensor, scale: float) -> tuple[int, str]:
    """How many images have other logits alone, or in a batch turned round, and by how much."""
    alone = min(4, len(x))
    try:
        single = torch.cat([subject.logits(image[None]) for image in x[:alone]])
    except Broken as broken:
        return alone, f"a batch of one image fails ({broken})"
    turned = subject.logits(x[1:].flip(0)).flip(0)
    change = torch.zeros_like(logits[:, 0])
    change[:alone] = (single - logits[:alone]).nan_to_num(0, 0, 0).abs().amax(1)
    change[1:] = torch.maximum(change[1:], (turned - logits[1:]).nan_to_num(0, 0, 0).abs().amax(1))
    moved = int((change > min(1024 * subject.epsilon, 0.1) * scale).sum())
    return (
        moved,
        f"one image gets logits that differ by {float(change.max()) / scale:.1e} of the largest in other batches",
    )


def _names(training: list[str]) -> str:
    kinds = sorted(set(training))
    return f"{len(training)} modules ({', '.join(kinds[:3])}{', …' if len(kinds) > 3 else ''})"


def quantised(module: nn.Module) -> list[str]:
    """The kinds of quantised layers in the model."""
    kinds = set()
    for part in module.modules():
        home = type(part).__module__
        if ".quantized" in home and ".qat" not in home:
            kinds.add(type(part).__name__)
        tensors = [*part._parameters.items(), *part._buffers.items()]
        for name, tensor in tensors:
            integer = tensor is not None and tensor.dtype in (torch.int8, torch.uint8) and name.endswith("weight")
            if tensor is not None and (tensor.is_quantized or integer):
                kinds.add(type(part).__name__)
    return sorted(kinds)
