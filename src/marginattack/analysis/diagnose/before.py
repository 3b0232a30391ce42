"""preflight: what can be describe of a model before a run, from a few images."""

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.analysis.diagnose import accuracy, forwards, gradients
from marginattack.analysis.diagnose.causes import EXPLAINS, SLOPES, Finding, found, settled
from marginattack.analysis.diagnose.subject import Broken, Subject, own_randomness
from marginattack.core.classifier import Classifier
from marginattack.errors import InputError, describe

MOST = 256  # images that are looked at; gradients on fewer


def preflight(
    module: nn.Module,
    images: Any,
    labels: Any,
    *,
    bare: nn.Module | None = None,
    was_training: bool = False,
    preprocessing: Mapping[str, Any] | None = None,
    expect_accuracy: float | None = None,
) -> list[Finding]:
    """What is wrong with this model on these images, pixels in [0, 1]; nothing, if nothing is.

    bare: the model without the normalisation that was put in front of it; preprocessing: that normalisation, with
    "mean" and "std" (None where there is none). was_training: it was handed over in train mode.
    The model is as it was afterwards, and whatever it raises is a finding.
    """
    x, y = torch.as_tensor(images)[:MOST], torch.as_tensor(labels)[:MOST].long()
    if len(x) == 0 or len(x) != len(y):
        raise InputError(f"{len(x)} images and {len(y)} labels: give at least one image, and one label each")
    classifier = Classifier(module)
    subject = Subject(module, x, dtype=classifier.model_dtype, device=classifier.device)
    trained = was_training or (module.training and _minds_mode(module))
    with own_randomness(classifier.device), ExitStack() as held:
        held.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # what a model warns of is what is looked for here
        try:
            held.enter_context(classifier.held())
            if bare is not None:
                held.enter_context(Classifier(bare).held())
        except InputError:
            seen = f"{type(module).__name__} is in train mode after eval()"
            return [found("stays-in-train-mode", seen, len(x), len(x))]
        except Exception as error:
            return [found("model-fails", f"eval() raises {describe(error)}", len(x), len(x))]
        findings = forwards.structure(subject)
        if not findings:
            findings = _checks(subject, y.to(classifier.device), bare, preprocessing, expect_accuracy)
    if trained:
        findings.append(found("train-mode", "the model was handed over in train mode", len(x), len(x)))
    return settled(findings)


def _checks(
    subject: Subject,
    labels: Tensor,
    bare: nn.Module | None,
    preprocessing: Mapping[str, Any] | None,
    expect: float | None,
) -> list[Finding]:
    """All checks on a model that returns logits, as far as it lets them run."""
    findings: list[Finding] = []
    try:
        logits = subject.logits(subject.images)
        findings += forwards.own_gradients(subject)
        findings += forwards.finite(subject, logits)
        good = torch.isfinite(logits).all(1)
        if not bool(good.any()):
            return findings
        subject.images, logits, labels = subject.images[good], logits[good], labels[good]
        findings += forwards.kind(logits) + forwards.function(subject)
        findings += _labels(subject, logits, labels, bare, preprocessing, expect)
        findings += _slopes(subject, logits, {finding.code for finding in findings if finding.grade != "note"})
    except Broken as broken:
        seen = f"after some forwards: {broken}"
        findings.append(found("model-fails", seen, len(subject.images), len(subject.images)))
    return findings


def _labels(
    subject: Subject, logits: Tensor, labels: Tensor, bare: nn.Module | None,
    preprocessing: Mapping[str, Any] | None, expect: float | None,
) -> list[Finding]:  # fmt: skip
    """The checks by accuracy: the labels' range, the feeding, the order of the classes, the claim."""
    n, classes = logits.shape
    outside = (labels < 0) | (labels >= classes)
    findings = []
    if bool(outside.any()):
        seen = f"labels hold {int(labels[outside][0])}, but the model has classes 0 to {classes - 1}"
        findings.append(found("labels-outside", seen, int(outside.sum()), n))
    prediction = logits.argmax(1)
    right = prediction == labels
    fed = accuracy.feeding(subject, right, labels, bare, preprocessing)
    inside = ~outside
    ordered = fed or accuracy.labelling(prediction[inside], labels[inside], classes)
    return findings + ordered + accuracy.claim(right, classes, expect)


def _slopes(subject: Subject, logits: Tensor, named: set[str]) -> list[Finding]:
    """The checks of the gradients, unless what was found explains all that they could show; and quantised layers."""
    kinds = forwards.quantised(subject.module)
    if not kinds and any(set(SLOPES) <= set(EXPLAINS.get(code, ())) for code in named):
        return []
    findings = gradients.slopes(subject, logits)
    if kinds:
        n = len(subject.images)
        effect = findings[0].seen if findings else "gradients are right all the same"
        grade = findings[0].grade if findings else "note"
        findings.append(found("quantised-layers", f"layers {', '.join(kinds)}, and {effect}", n, n, grade=grade))
    return findings


def _minds_mode(module: nn.Module) -> bool:
    """Whether a layer whose work depends on it is in train mode."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
    return any(part.training for part in module.modules() if isinstance(part, kinds))
