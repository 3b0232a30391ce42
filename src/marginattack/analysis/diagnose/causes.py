"""The causes that a diagnosis can name: how grave each is, what it means for margins, what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass

GRADES = ("grave", "warning", "note")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong with a model or with a run, in words for its owner."""

    code: str  # the cause, a key of CAUSES
    grade: str  # "grave": margins would be meaningless; "warning": they may be too large; "note"
    seen: str  # what was seen, with numbers
    samples: int  # on how many samples
    of: int  # of how many looked at
    meaning: str  # what it means for the margins
    advice: str  # what to do

    def line(self) -> str:
        """All of it in one line."""
        return f"{self.grade}: {self.code} ({self.samples} of {self.of}): {self.seen}. {self.meaning} {self.advice}"


@dataclass(frozen=True)
class Cause:
    """What is said of every finding with this cause."""

    grade: str
    meaning: str
    advice: str


_NO_RUN = "Nothing can be measured."
_NO_FUNCTION = "A margin is a property of a function: what is adversarial in one look is not in the next."
_STUCK = "Attacks by gradient do not know where to go: margins come out too large or are not found."
_OTHER_INPUT = "The margins would be those of a model that is fed other inputs than it was made for."
_OTHER_LABELS = "Most inputs count as misclassified, with margin 0, and the others are measured from the wrong class."

# In order of how much each one explains: among findings of one grade, the first is named first.
CAUSES: dict[str, Cause] = {
    "model-fails": Cause("grave", _NO_RUN, "Run the model on one batch of these images by hand and mend what it says."),
    "changes-its-input": Cause(
        "grave", "The images themselves are altered by each look, and gradients cannot be taken.",
        "Replace the operation in place at the start of forward by one that returns a new tensor."),
    "not-a-tensor": Cause("grave", _NO_RUN, "Wrap the model so that forward returns the logits alone."),
    "not-floating-point": Cause(
        "grave", "Labels or integers have no margin and no gradient.",
        "Return the floating-point logits that the labels were taken from."),
    "single-logit": Cause("grave", _NO_RUN, "Wrap the model as marginattack.TwoClass(model)."),
    "wrong-shape": Cause("grave", _NO_RUN, "Wrap the model so that it returns (n, classes)."),
    "non-finite-logits": Cause(
        "grave", "An input with NaN or infinite logits has no predicted class, so no margin; a run stops there.",
        "Look for log(0), 0/0 or an overflow on those inputs, or for a softmax followed by a log: use log_softmax."),
    "stored-rows-fail": Cause(
        "grave", "Their images do not show these margins: the files were changed, or the model answers otherwise.",
        "Measure again into another folder; compare the hardware of the sessions in manifest.json."),
    "shards-set-aside": Cause(
        "grave", "Their samples have no rows: whatever is computed from this run leaves them out.",
        "Find out why (manifest.json lists all of them under failed_shards); the same command tries them again."),
    "labels-outside": Cause(
        "grave", "Labels that the model has no class for cannot be measured.",
        "Use the class numbers of the data set that the model was trained on."),
    "constant-logits": Cause(
        "grave", "The prediction does not depend on the input: there is no boundary, and so no margin.",
        "Check that the trained weights were loaded and that the input reaches the first layer."),
    "stays-in-train-mode": Cause(
        "grave", "Dropout and batch statistics stay on, so one input has many margins.",
        "Let train() and eval() of these modules take effect (call super().train(mode) in an override)."),
    "gradient-in-forward": Cause(
        "warning", "A model that optimises at test time changes its own input: the gradient from outside leaves out "
        "that step, and margins may be far too large.",
        "Measure the model without that step as well, believe the black-box probe, and use an attack adapted to it."),
    "random": Cause(
        "grave", _NO_FUNCTION,
        "Turn dropout or noise off at test time, or measure the mean of many looks with their draws fixed."),
    "batch-dependent": Cause(
        "grave", "An input's class depends on its company. " + _NO_FUNCTION,
        "Use batch normalisation with running statistics (track_running_stats=True, eval mode)."),
    "quantised-layers": Cause(
        "grave", "Integer layers pass no gradient back. " + _STUCK,
        "Measure the model in floating point, then check its adversarial inputs on the quantised one."),
    "probabilities": Cause(
        "grave", "Probabilities saturate: where the model is sure their gradients round to zero. " + _STUCK,
        "Remove the last softmax, or return its input."),
    "normalised-twice": Cause("grave", _OTHER_INPUT, "Normalise once: --normalize none, or take it out of the model."),
    "normalisation-missing": Cause("grave", _OTHER_INPUT, "Put the normalisation in front, with --normalize."),
    "normalisation-wrong": Cause("grave", _OTHER_INPUT, "State the right one with --normalize."),
    "expects-0-255": Cause(
        "grave", _OTHER_INPUT,
        "Multiply by 255 in front of the model, e.g. --normalize 0/0.00392157 (if the images are far too dark, they "
        "were divided by 255 twice)."),
    "inverted-pixels": Cause("grave", _OTHER_INPUT, "Give it 1 − x: what is black here was white in training."),
    "channel-order": Cause("grave", _OTHER_INPUT, "Turn the channels round: it was trained on BGR, these are RGB."),
    "labels-order": Cause("grave", _OTHER_LABELS, "Bring the labels into the order of the model's outputs."),
    "step-function": Cause(
        "grave", "The logits move in jumps, which no gradient shows. " + _STUCK,
        "Attack a smooth stand-in for the step (BPDA), and believe only attacks from decisions, such as boundary."),
    "quantised-input": Cause(
        "grave", "The model rounds its input, so its logits move in jumps, which no gradient shows. " + _STUCK,
        "Measure the model without the rounding; on 8-bit images, with --lattice 255."),
    "detached": Cause(
        "grave", "The logits carry no gradient back to the input. " + _STUCK,
        "Remove detach(), no_grad(), .data, numpy or item() between input and logits."),
    "sigmoid-outputs": Cause(
        "warning", "The classes stay the same, but where a sigmoid saturates gradients vanish and outputs tie at 0 or "
        "1: margins may be too large.", "Return the input of the last sigmoid."),
    "saturated": Cause(
        "grave", "Activations are so far out on their flat ends that the slope rounds to zero. " + _STUCK,
        "Measure a copy in float64, undo the scale in front of the activation, or believe attacks from decisions."),
    "wrong-gradients": Cause(
        "warning", "What backward returns is not the slope of the logits. " + _STUCK,
        "Look for a custom backward, a straight-through estimate, a gradient hook or a detach on one of the paths."),
    "zero-gradients": Cause("grave", _STUCK, "Find the layer where the gradient is lost: dead units, clamps, detach."),
    "non-finite-gradients": Cause(
        "warning", "NaN or infinite slopes count as zero. " + _STUCK,
        "Look for sqrt(0), a norm of zero or 0/0: add a small number inside."),
    "accuracy-at-chance": Cause(
        "grave", "Nearly every margin is 0, and the others are luck.",
        "Check weights, preprocessing, and that labels and images belong together."),
    "accuracy-below-expected": Cause(
        "warning", "This may not be the model, the data or the preprocessing that the claim was about.",
        "Check weights, preprocessing, image size and the split before you spend the passes."),
    "saturated-softmax": Cause(
        "warning", "Attacks that descend the cross-entropy (pgd, bim and fgsm by default) have nothing to follow and "
        "find margins that are too large; MarginAttack descends the difference of logits, which is not touched.",
        "Use attacks on the logits, or divide the logits by a temperature: it changes no margin."),
    "non-finite-on-noise": Cause(
        "note", "Attacks that start from noise will stop at such inputs.", "Look for 0/0, log(0) or an overflow."),
    "mixed-conditions": Cause(
        "note", "Rounding differs between these; every row was checked again under the last of them.",
        "Nothing, unless results must be the same to the bit."),
    "train-mode": Cause(
        "note", "Margins are measured in eval mode, with dropout off and running statistics.",
        "Nothing, if that is how the model is used; call eval() to silence this."),
    # After a run
    "inconsistent-rows": Cause(
        "grave", "Rows that contradict themselves cannot be counted.", "Run these samples again; please report it."),
    "black-box-beats-gradient": Cause(
        "warning", "An attack that sees decisions alone came nearer than the gradient attack: gradients are masked or "
        "mislead, and the margins are too large.",
        "Look for steps, ripples or saturation in the model; attack a smooth stand-in, or use another attack."),
    "rejected": Cause(
        "warning", "These points were adversarial in the attack and not when looked at again; they count as not found.",
        "Look for randomness or dependence on the batch; if there is none, measure in float64."),
    "not-found": Cause(
        "warning", "In a finite box a search without a radius should reach another class: the attack failed, "
        "which does not make the inputs robust.",
        "Check the gradients (diagnose), raise the budget, or try another attack."),
    "nothing-tried": Cause(
        "warning", "The attack gave up on these inputs without a look at the model.", "Raise the budget."),
    "norms-out-of-order": Cause(
        "warning", "A perturbation is never larger in ℓ∞ than in ℓ2, nor in ℓ2 than in ℓ1: the larger of two "
        "contradicting margins is not the smallest.",
        "Raise the budget or the restarts in the norm that came out larger."),
    "not-converged": Cause(
        "warning", "The best distances were still falling when the passes were spent: margins may be too large.",
        "Raise the budget, or the attack's number of moves."),
    "tiny-margins": Cause(
        "warning", "Rounding alone moves such inputs over the boundary: more often a mistake than fragility.",
        "Check the preprocessing, and whether many logits tie."),
    "accuracy-zero": Cause(
        "grave", "Every margin is 0 because every input is misclassified.",
        "Check labels and preprocessing with marginattack diagnose."),
}  # fmt: skip

_ACCURACY = ("accuracy-at-chance", "accuracy-below-expected")
SLOPES = ("saturated", "saturated-softmax", "zero-gradients", "wrong-gradients", "step-function", "quantised-input",
          "detached", "non-finite-gradients")  # fmt: skip
_INPUTS = ("normalised-twice", "normalisation-missing", "normalisation-wrong", "expects-0-255", "inverted-pixels",
           "channel-order", "labels-order")  # fmt: skip

# What follows from a cause, and is not said again where that was found.
EXPLAINS: dict[str, tuple[str, ...]] = {
    "constant-logits": (*_ACCURACY, *SLOPES, "probabilities", "sigmoid-outputs"),
    "labels-outside": (*_ACCURACY, "labels-order"),
    "stays-in-train-mode": ("random", "batch-dependent", "train-mode", *_ACCURACY, *SLOPES),
    "random": ("batch-dependent", *_ACCURACY, *SLOPES),
    "batch-dependent": (*_ACCURACY, *SLOPES),
    "gradient-in-forward": SLOPES,
    "quantised-layers": ("batch-dependent", *SLOPES),
    "probabilities": (*SLOPES, "sigmoid-outputs"),
    "sigmoid-outputs": ("saturated", "saturated-softmax", "zero-gradients"),
    "saturated": ("saturated-softmax",),
    "zero-gradients": ("saturated-softmax",),
    "wrong-gradients": ("saturated-softmax",),
    **dict.fromkeys(_INPUTS, _ACCURACY),
    "step-function": ("saturated-softmax",),
    "quantised-input": ("saturated-softmax",),
    "accuracy-at-chance": ("accuracy-below-expected",),
    "accuracy-zero": ("not-found", "tiny-margins"),
}


def found(code: str, seen: str, samples: int, of: int, *, grade: str | None = None) -> Finding:
    """A finding with what CAUSES says of its cause, of that grade or of the cause's own."""
    cause = CAUSES[code]
    return Finding(
        code=code, grade=grade or cause.grade, seen=seen, samples=samples, of=of,
        meaning=cause.meaning, advice=cause.advice,
    )  # fmt: skip


def settled(findings: Iterable[Finding]) -> list[Finding]:
    """The findings without those that another one explains, the gravest and most telling first."""
    findings = list(findings)
    telling = [finding for finding in findings if finding.grade != "note"]
    explained = {code for finding in telling for code in EXPLAINS.get(finding.code, ())}
    rank = list(CAUSES)
    left = [finding for finding in findings if finding.code not in explained]
    return sorted(left, key=lambda finding: (GRADES.index(finding.grade), rank.index(finding.code)))
