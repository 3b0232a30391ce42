"""Doubts of ``measure``: is there a gradient to follow, before it; are its results to be trusted, after it."""

from collections.abc import Sequence

import numpy as np
import torch

from marginattack.analysis.diagnose.after_run import MIN_ROWS, check_results
from marginattack.analysis.diagnose.findings import Finding, make_finding, prioritise
from marginattack.analysis.diagnose.model_runner import ModelError, ModelRunner
from marginattack.analysis.diagnose.outputs import check_values
from marginattack.attacks import ATTACKS, Attack
from marginattack.attacks.external.base import ExternalAttack
from marginattack.core.validation import PROBED, Batch
from marginattack.errors import InputError
from marginattack.execution.session import Session
from marginattack.margins import Margins

CHECKED = 64  # inputs whose logits are checked


def require_gradient(session: Session, batch: Batch, attack: Attack) -> Finding | None:
    """Return the finding that gradients are missing, from one backward on a few inputs; None if there are any.

    Raises:
        InputError: The logits have no gradient, and the attack needs one.
    """
    missing = _find_missing_gradient(session, batch)
    if missing is not None and missing.code == "detached" and attack.needs_gradient:
        hint = "Or use an attack without gradients, such as square@8/255"
        hint += "." if isinstance(attack, ExternalAttack) else ", or measure anyway with diagnose=False."
        what = f"{missing.code}, {missing.samples} of {missing.of} samples"
        raise InputError(f"nothing was measured: {missing.seen}. {missing.advice} {hint} ({what})")
    return missing


def _find_missing_gradient(session: Session, batch: Batch) -> Finding | None:
    """The finding that logits have no gradient, or that it is zero for all of a few inputs; not for constant logits."""
    classifier, few = session.classifier, batch.select(slice(PROBED))
    runner, n = ModelRunner(classifier.model, few.images, dtype=classifier.dtype, device=classifier.device), len(few)
    try:
        gradient = runner.gradient(runner.images, few.labels.to(classifier.device))
        if gradient is None:
            logits = torch.cat([runner.logits(runner.images), runner.logits(runner.noise(n, draw=1))])
            if any(finding.code == "constant-logits" for finding in check_values(logits)):
                return None
            return make_finding("detached", "the logits do not require a gradient although the input does", n, n)
    except ModelError:  # the attack will show it
        return None
    if n < MIN_ROWS or bool((gradient != 0).any()):  # a few may lie where the model is flat
        return None
    operators, _ = runner.discontinuous_operators()
    named = f" (forward calls {', '.join(operators)})" if operators else ""
    return make_finding("zero-gradients", f"the gradient of the margin is exactly zero on {n} inputs{named}", n, n)


def find_doubts(session: Session, results: Sequence[Margins], attack: Attack, missing: Finding | None) -> list[Finding]:
    """Reasons to doubt results, from the results themselves and one forward pass; the gravest first.

    ``missing`` is the finding of ``require_gradient``, which matters if the attack needs gradients and asked for them.
    """
    known = {kind: name for name, kind in ATTACKS.items()}
    asked = attack.needs_gradient and any(bool(each.backwards.any()) for each in results)
    doubts = [missing] if missing is not None and asked else []
    for margins in results:
        n, original = len(margins), margins.original
        if n < MIN_ROWS or original is None or margins.settings["targeted"]:
            continue
        columns = {name: getattr(margins, name).numpy() for name in margins.columns() if name != "adversarial"}
        name = known.get(type(attack), type(attack).__name__)
        if isinstance(attack, ExternalAttack):
            name = attack.name if attack.eps is None else f"{attack.name}@{attack.eps:.4g}"
        found = check_results({**columns, "attack": np.full(n, name), "norm": np.full(n, margins.norm)})
        restricted = session.space.fixed is not None or bool((session.space.lo == session.space.hi).any())
        doubts += [each for each in found if each.grade == "grave" and not (each.code == "not-found" and restricted)]
        doubts += check_values(session.plain_logits(original[:CHECKED]), original[:CHECKED])
    return prioritise({each.code: each for each in doubts}.values())
