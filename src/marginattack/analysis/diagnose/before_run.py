"""preflight: checks of a model before a run, on a few images."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.analysis.diagnose import accuracy, gradients, outputs
from marginattack.analysis.diagnose.findings import EXPLAINS, GRADIENTS, Finding, make_finding, prioritise
from marginattack.analysis.diagnose.model_runner import ModelError, ModelRunner
from marginattack.core.classifier import Classifier
from marginattack.core.freezing import frozen_eval
from marginattack.core.sharing import seeded
from marginattack.core.space import Space
from marginattack.errors import InputError, describe

MAX_IMAGES = 256  # for forwards; gradients are checked on fewer


@dataclass(frozen=True, kw_only=True)
class Examination:
    """The findings before a run, and how many of the samples that were used are classified correctly."""

    findings: list[Finding]
    samples: int
    correct: int | None = None  # None: the model returns no logits


def preflight(module: nn.Module, images: Any, labels: Any, **options: Any) -> list[Finding]:
    """The findings of ``examine``, the most important first; empty if there is none.

    Example:
        >>> for finding in preflight(model, images, labels, expect_accuracy=0.99):  # doctest: +SKIP
        ...     print(finding.line())
    """
    return examine(module, images, labels, **options).findings


def examine(
    module: nn.Module,
    images: Any,
    labels: Any,
    *,
    bare: nn.Module | None = None,
    was_training: bool = False,
    preprocessing: Mapping[str, Any] | None = None,
    expect_accuracy: float | None = None,
    randomized: bool = False,
    space: Space | None = None,
) -> Examination:
    """Check a model for problems that make margins meaningless or too large.

    The model is restored afterwards; its exceptions become findings.

    Args:
        module: The model, for pixels in [0, 1] or inputs in ``space``.
        images: Up to 256 images are used.
        labels: Their class indices.
        bare: The model without the normalisation that was put in front of it.
        was_training: Whether the model was loaded in train mode.
        preprocessing: That normalisation, with "mean" and "std" (None if there is none).
        expect_accuracy: The accuracy that the model should have, 0 to 1.
        randomized: Whether the model is intended to be random, so that randomness is not a finding.
        space: The bounds and scale of the inputs, by default those of pixels.

    Returns:
        The findings, the most important first, and the accuracy.

    Raises:
        InputError: There is no image, or not one label per image.
    """
    x, y = torch.as_tensor(images)[:MAX_IMAGES], torch.as_tensor(labels)[:MAX_IMAGES].long()
    n = len(x)
    if n == 0 or n != len(y):
        raise InputError(f"{n} images and {len(y)} labels: give at least one image, and one label per image")
    classifier = Classifier(module)
    runner = ModelRunner(module, x, dtype=classifier.dtype, device=classifier.device, space=space)
    was_training = was_training or (module.training and _depends_on_mode(module))
    with seeded(0, classifier.device), ExitStack() as stack:
        try:
            stack.enter_context(frozen_eval(module, classifier.device))
            if bare is not None:
                stack.enter_context(frozen_eval(bare, classifier.device))
        except InputError:
            seen = f"{type(module).__name__} is in train mode after eval()"
            return Examination(findings=[make_finding("stays-in-train-mode", seen, n, n)], samples=n)
        except Exception as error:
            seen = f"eval() raises {describe(error)}"
            return Examination(findings=[make_finding("model-fails", seen, n, n)], samples=n)
        findings, correct = outputs.check_structure(runner), None
        if not findings:
            findings, correct = _check_logits(runner, y.to(classifier.device), bare, preprocessing, expect_accuracy)
    if was_training:
        findings.append(make_finding("train-mode", "the model was passed in train mode", n, n))
    intended = ("random", "stays-in-train-mode") if randomized else ()
    reported = [finding for finding in prioritise(findings) if finding.code not in intended]
    return Examination(findings=reported, samples=n, correct=correct)


def _check_logits(
    runner: ModelRunner, labels: Tensor, bare: nn.Module | None, preprocessing: Any, expect_accuracy: float | None
) -> tuple[list[Finding], int | None]:
    """Run all checks on a model that returns logits, until it fails; also count the correct predictions."""
    findings: list[Finding] = []
    correct = None
    try:
        logits = runner.logits(runner.images)
        correct = int((logits.argmax(1) == labels).sum())
        findings += outputs.check_autograd_in_forward(runner)
        findings += outputs.check_finite(runner, logits)
        finite = torch.isfinite(logits).all(1)
        if not bool(finite.any()):
            return findings, correct
        runner.images, logits, labels = runner.images[finite], logits[finite], labels[finite]
        findings += outputs.check_values(logits, runner.images)
        findings += outputs.check_determinism(runner)
        findings += accuracy.check_labels(labels, logits.shape[1])
        findings += accuracy.check_preprocessing(
            runner, logits, labels, bare, preprocessing
        ) or accuracy.check_label_order(logits, labels)
        findings += accuracy.check_expected_accuracy(logits, labels, expect_accuracy)
        findings += _check_gradients(runner, logits, {finding.code for finding in findings if finding.grade != "note"})
    except ModelError as error:
        n = len(runner.images)
        findings.append(make_finding("model-fails", f"after some forwards: {error}", n, n))
    return findings, correct


def _check_gradients(runner: ModelRunner, logits: Tensor, known: set[str]) -> list[Finding]:
    """Check the gradients, unless a known cause explains all that they could show; report quantised layers."""
    layers = outputs.find_quantised_layers(runner.module)
    if not layers and any(set(GRADIENTS) <= set(EXPLAINS.get(code, ())) for code in known):
        return []
    findings = list(gradients.check_gradients(runner, logits))
    if layers:
        n = len(runner.images)
        effect, grade = (findings[0].seen, findings[0].grade) if findings else ("gradients are correct", "note")
        seen = f"quantised layers {', '.join(layers)}; {effect}"
        findings.append(make_finding("quantised-layers", seen, n, n, grade=grade))
    return findings


def _depends_on_mode(module: nn.Module) -> bool:
    """Whether a dropout or normalisation layer is in train mode."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
    return any(part.training for part in module.modules() if isinstance(part, kinds))
