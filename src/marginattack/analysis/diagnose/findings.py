"""The findings of a diagnosis: for each cause its grade, what it means for the margins, and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

GRADES = ("grave", "warning", "note")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem of a model or of a run, described for the user."""

    code: str  # the cause, a key of CAUSES
    grade: str  # "grave": margins would be meaningless; "warning": they may be too large; "note"
    seen: str  # what was observed, with numbers
    samples: int  # on how many samples
    of: int  # out of how many
    meaning: str  # for the margins
    advice: str  # what to do

    def line(self) -> str:
        """Return the finding in one line."""
        return f"{self.grade}: {self.code} ({self.samples} of {self.of}): {self.seen}. {self.meaning} {self.advice}"


class Cause(NamedTuple):
    """The grade, meaning and advice of all findings with one cause."""

    grade: str
    meaning: str
    advice: str


_NO_RUN = "Nothing can be measured."
_NO_FUNCTION = "A margin is defined for a function: here a point may be adversarial in one query but not in the next."
_STUCK = "Gradient attacks cannot find a direction: margins come out too large, or none is found."
_OTHER_INPUT = "The margins would be those of a model that receives other inputs than it was trained on."
_OTHER_LABELS = "Most inputs count as misclassified, with margin 0; the others are measured from the wrong class."

# Sorted by how much a cause explains: among findings of one grade, the first here is reported first.
CAUSES: dict[str, Cause] = {
    "model-fails": Cause("grave", _NO_RUN, "Run the model on one batch of these images and fix the error."),
    "not-a-tensor": Cause("grave", _NO_RUN, "Wrap the model so that forward returns only the logits."),
    "not-floating-point": Cause("grave", "Labels and integers have no margin and no gradient.",
        "Return the floating-point logits from which the labels are computed."),
    "single-logit": Cause("grave", _NO_RUN, "Wrap the model as marginattack.TwoClass(model)."),
    "wrong-shape": Cause("grave", _NO_RUN, "Wrap the model so that it returns shape (n, classes)."),
    "non-finite-logits": Cause("grave",
        "An input with NaN or infinite logits has no predicted class and no margin; a run stops there.",
        "Look for log(0), 0/0 or an overflow on these inputs; replace a softmax followed by a log with log_softmax."),
    "stored-rows-fail": Cause("grave",
        "The stored images do not have the stored margins: files were changed, or the model was.",
        "Measure again into another folder; compare the hardware of the sessions in manifest.json."),
    "shards-set-aside": Cause("grave",
        "Their samples have no rows and are missing from everything that is computed from this run.",
        "Find the reason (manifest.json lists these shards under failed_shards) and run the same command to retry."),
    "labels-outside": Cause("grave", "Samples whose label is not a class of the model cannot be measured.",
        "Use the class indices of the dataset on which the model was trained."),
    "constant-logits": Cause("grave",
        "The prediction does not depend on the input: there is no boundary and no margin.",
        "Check that the trained weights are loaded and that the input reaches the first layer."),
    "stays-in-train-mode": Cause("grave",
        "Dropout and batch statistics stay active, so that one input has many margins.",
        "Make train() and eval() of these modules take effect (an override must call super().train(mode))."),
    "gradient-in-forward": Cause("warning",
        "The model optimises its input at test time. Gradients from outside ignore that step, so margins "
        "may be far too large.",
        "Also measure the model without that step, trust the black-box probe, and use an adaptive attack."),
    "random": Cause("grave", _NO_FUNCTION,
        "Disable dropout and noise at test time; if the noise is meant, measure with --randomized (randomized=True)."),
    "batch-dependent": Cause("grave", "The class of an input depends on the other inputs of its batch. " + _NO_FUNCTION,
        "Use batch normalisation with running statistics (track_running_stats=True, eval mode)."),
    "quantised-layers": Cause("grave", "Integer layers have no gradient. " + _STUCK,
        "Measure the floating-point model, then test its adversarial inputs on the quantised model."),
    "probabilities": Cause("grave",
        "Probabilities saturate: where the model is confident their gradients round to zero. " + _STUCK,
        "Remove the last softmax, or return its input."),
    "normalised-twice": Cause("grave", _OTHER_INPUT, "Normalise once: --normalize none, or remove it from the model."),
    "normalisation-missing": Cause("grave", _OTHER_INPUT, "Add the normalisation with --normalize."),
    "normalisation-wrong": Cause("grave", _OTHER_INPUT, "Pass the right normalisation with --normalize."),
    "expects-0-255": Cause("grave",
        _OTHER_INPUT, "Multiply by 255 in front of the model, for example with --normalize 0/0.00392157 "
        "(if the images are much too dark, they were divided by 255 twice)."),
    "inverted-pixels": Cause("grave", _OTHER_INPUT, "Pass 1 − x: black and white are exchanged."),
    "channel-order": Cause("grave", _OTHER_INPUT, "Reverse the channels: the model expects BGR, the images are RGB."),
    "labels-order": Cause("grave", _OTHER_LABELS, "Map the labels to the order of the model's outputs."),
    "step-function": Cause("grave", "The logits change in jumps, which gradients do not show. " + _STUCK,
        "Attack a smooth substitute of the step (BPDA), or trust decision-based attacks only, such as boundary."),
    "quantised-input": Cause("grave",
        "The model rounds its input, so its logits change in jumps, which gradients do not show. " + _STUCK,
        "Measure the model without the rounding; for 8-bit images, with --lattice 255."),
    "detached": Cause("grave", "No gradient flows from the logits to the input. " + _STUCK,
        "Remove detach(), no_grad(), .data, numpy or item() between input and logits."),
    "sigmoid-outputs": Cause("warning",
        "The predicted classes are correct, but where a sigmoid saturates, gradients vanish and outputs tie at "
        "0 or 1: margins may be too large.", "Return the input of the last sigmoid."),
    "saturated": Cause("grave", "Activations are so saturated that their gradient rounds to zero. " + _STUCK,
        "Measure a float64 copy, undo the scale in front of the activation, or use decision-based attacks."),
    "wrong-gradients": Cause("warning", "Backward does not return the gradient of the logits. " + _STUCK,
        "Look for a custom backward, a straight-through estimator, a gradient hook or a detach on one path."),
    "zero-gradients": Cause("grave", _STUCK, "Find the layer that loses the gradient: dead units, clamps, detach."),
    "non-finite-gradients": Cause("warning", "NaN and infinite gradients count as zero. " + _STUCK,
        "Look for sqrt(0), the norm of zero or 0/0, and add a small number inside."),
    "accuracy-at-chance": Cause("grave", "Nearly every margin is 0, and the others are chance.",
        "Check weights, preprocessing, and that labels and images belong together."),
    "accuracy-below-expected": Cause("warning",
        "Model, data or preprocessing may differ from those for which the accuracy was stated.",
        "Check weights, preprocessing, image size and split before a long run."),
    "too-few-samples": Cause("warning",
        "Misclassified samples have margin 0. Labels and preprocessing were not checked.",
        "Diagnose more samples with `marginattack diagnose --limit 256`."),
    "saturated-softmax": Cause("warning",
        "Attacks on the cross-entropy (pgd, bim and fgsm by default) have no gradient to follow and find "
        "margins that are too large. MarginAttack uses differences of logits and is not affected.",
        "Use attacks on the logits, or divide the logits by a temperature, which changes no margin."),
    "non-finite-on-noise": Cause("note",
        "Attacks that start from noise stop at such inputs.", "Look for 0/0, log(0) or an overflow."),
    "mixed-conditions": Cause("note",
        "Rounding differs between these conditions; all rows were verified under the last one.",
        "Nothing, unless results must be bitwise identical."),
    "shards-lost": Cause("note",
        "Their margins were recorded in manifest.json; they were measured again.",
        "Find out what deletes or moves files of this folder, unless you did."),
    "train-mode": Cause("note", "Margins are measured in eval mode, without dropout and with running statistics.",
        "No action needed if the model is used in eval mode; call eval() to silence this note."),
    # After a run
    "inconsistent-rows": Cause("grave",
        "Rows that contradict themselves cannot be counted.", "Measure them again, and please report it."),
    "black-box-beats-gradient": Cause("warning",
        "An attack that sees only decisions came nearer than the gradient attack: gradients may be masked or "
        "misleading, and margins may be too large.",
        "Look for steps, ripples or saturation in the model; attack a smooth substitute, or use another attack."),
    "rejected": Cause("warning",
        "These points were adversarial during the attack but not in the verification; they count as not "
        "found.", "Look for randomness or batch dependence; if there is none, measure in float64."),
    "not-found": Cause("warning",
        "In a finite box, an attack without a radius should reach another class: it failed, which does not "
        "make the inputs robust.", "Check the gradients (diagnose), raise the budget, or try another attack."),
    "nothing-tried": Cause("warning",
        "The attack gave up on these inputs without a single query.", "Raise the budget."),
    "norms-out-of-order": Cause("warning",
        "A perturbation is never larger in ℓ∞ than in ℓ2, nor in ℓ2 than in ℓ1: the larger of two "
        "contradicting margins is not minimal.", "Raise the budget or the restarts in the norm that came out larger."),
    "not-converged": Cause("warning",
        "Distances were still falling when the budget was spent: margins may be too large.",
        "Raise the budget, or the attack's number of moves."),
    "tiny-margins": Cause("warning",
        "Rounding alone moves such inputs across the boundary: usually a mistake, not a fragile model.",
        "Check the preprocessing, and whether many logits tie."),
    "accuracy-zero": Cause("grave", "Every margin is 0, because every input is misclassified.",
        "Check labels and preprocessing with marginattack diagnose."),
}  # fmt: skip

_ACCURACY = ("accuracy-at-chance", "accuracy-below-expected", "too-few-samples")
GRADIENTS = ("saturated", "saturated-softmax", "zero-gradients", "wrong-gradients", "step-function", "quantised-input",
             "detached", "non-finite-gradients")  # fmt: skip
_INPUTS = ("normalised-twice", "normalisation-missing", "normalisation-wrong", "expects-0-255", "inverted-pixels",
           "channel-order", "labels-order")  # fmt: skip

# Consequences of a cause, which are not reported together with it.
EXPLAINS: dict[str, tuple[str, ...]] = {
    "constant-logits": (*_ACCURACY, *GRADIENTS, "probabilities", "sigmoid-outputs"),
    "labels-outside": (*_ACCURACY, "labels-order"),
    "stays-in-train-mode": ("random", "batch-dependent", "train-mode", *_ACCURACY, *GRADIENTS),
    "random": ("batch-dependent", *_ACCURACY, *GRADIENTS),
    "batch-dependent": (*_ACCURACY, *GRADIENTS),
    "gradient-in-forward": GRADIENTS,
    "quantised-layers": ("batch-dependent", *GRADIENTS),
    "probabilities": (*GRADIENTS, "sigmoid-outputs"),
    "sigmoid-outputs": ("saturated", "saturated-softmax", "zero-gradients"),
    **dict.fromkeys(_INPUTS, _ACCURACY),
    **dict.fromkeys(
        ("saturated", "zero-gradients", "wrong-gradients", "step-function", "quantised-input"), ("saturated-softmax",)
    ),
    "accuracy-at-chance": ("accuracy-below-expected",),
    "accuracy-zero": ("not-found", "tiny-margins"),
}


def make_finding(code: str, seen: str, samples: int, of: int, *, grade: str | None = None) -> Finding:
    """Return a finding with the text of its cause; ``grade`` overrides that of the cause."""
    cause = CAUSES[code]
    texts = {"meaning": cause.meaning, "advice": cause.advice}
    return Finding(code=code, grade=grade or cause.grade, seen=seen, samples=samples, of=of, **texts)


def prioritise(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that no other one explains, the gravest and most informative first."""
    findings = list(findings)
    explained = {code for finding in findings if finding.grade != "note" for code in EXPLAINS.get(finding.code, ())}
    rank = list(CAUSES)
    left = [finding for finding in findings if finding.code not in explained]
    return sorted(left, key=lambda finding: (GRADES.index(finding.grade), rank.index(finding.code)))
