"""DeepFool, Carlini–Wagner, L-BFGS and Boundary against Foolbox 3.3.4, and in ℓ∞ adv-lib, with the same settings."""

import torch
from parity_common import Comparison, Inputs, run_advlib, run_foolbox, run_ours
from torch import Tensor

from marginattack.attacks.boundary import Boundary
from marginattack.attacks.carlini_wagner import CarliniWagner
from marginattack.attacks.deepfool import DeepFool
from marginattack.attacks.lbfgs import LBFGS
from marginattack.core.draws import uniform

DEEPFOOL_STEPS, CANDIDATES, OVERSHOOT = 50, 10, 0.02
SEARCHES, CW_STEPS, RATES, INITIAL = 9, 300, (0.05, 0.01), 1e-3
BOUNDARY_STEPS = 300
FEW = 20  # digits for attacks that run one sample at a time
LINF_STEPS = 387  # with 9 searches, about the passes of adv-lib's with 100 steps per multiplier


def run_foolbox_boundary(inputs: Inputs) -> Tensor:
    """Foolbox's Boundary, one digit at a time, seeded like ours: the same walk without our adapter."""
    images, labels = inputs.images, inputs.labels
    seeds = uniform(torch.arange(len(images)), images[0].numel(), seed=0, draw=torch.tensor(1), like=images[:1])[:, 0]
    run = run_foolbox("BoundaryAttack", "l2", steps=BOUNDARY_STEPS)
    distances = []
    for row, seed in enumerate(seeds):
        torch.manual_seed(int(seed * 2**24))
        distances.append(run(Inputs(inputs.model, images[row : row + 1], labels[row : row + 1])))
    return torch.cat(distances)


DEEPFOOL = DeepFool(steps=DEEPFOOL_STEPS, candidates=CANDIDATES, overshoot=OVERSHOOT)

COMPARISONS: list[Comparison] = [
    *(
        Comparison(
            attack="DeepFool", norm=norm, peer=f"Foolbox 3.3.4 {name}",
            settings=f"{DEEPFOOL_STEPS} steps, {CANDIDATES} classes, overshoot {OVERSHOOT}",
            ours=run_ours(DEEPFOOL, norm),
            theirs=run_foolbox(name, norm, steps=DEEPFOOL_STEPS, candidates=CANDIDATES, overshoot=OVERSHOOT),
        )
        for norm, name in (("l2", "L2DeepFoolAttack"), ("linf", "LinfDeepFoolAttack"))
    ),
    *(
        Comparison(
            attack="Carlini–Wagner", norm="l2", peer="Foolbox 3.3.4 L2CarliniWagnerAttack",
            settings=f"{SEARCHES} × {CW_STEPS} steps, rate {rate}, first m {INITIAL}",
            ours=run_ours(CarliniWagner(searches=SEARCHES, steps=CW_STEPS, rate=rate, initial=INITIAL), "l2"),
            theirs=run_foolbox(
                "L2CarliniWagnerAttack", "l2", binary_search_steps=SEARCHES, steps=CW_STEPS, stepsize=rate,
                initial_const=INITIAL,
            ),
            note="both stop searches early, ours per sample",
        )
        for rate in RATES
    ),
    Comparison(
        attack="Carlini–Wagner", norm="linf", peer="adv_lib 0.2.8 carlini_wagner_linf", digits=10,
        settings=f"rate 0.01; ours {SEARCHES} × {LINF_STEPS} steps, theirs 100 per multiplier and τ, equal passes",
        ours=run_ours(CarliniWagner(searches=SEARCHES, steps=LINF_STEPS, rate=0.01), "linf"),
        theirs=run_advlib("carlini_wagner_linf", "linf", max_iterations=100, learning_rate=0.01),
        note="theirs lowers τ after each descent, ours at every step",
    ),
    Comparison(
        attack="L-BFGS", norm="l2", settings=repr(LBFGS()), digits=FEW,
        peer=f"our own Carlini–Wagner, {SEARCHES} × {CW_STEPS} steps, rate 0.05, no public implementation",
        ours=run_ours(LBFGS(), "l2"),
        theirs=run_ours(CarliniWagner(searches=SEARCHES, steps=CW_STEPS, rate=0.05, initial=INITIAL), "l2"),
        note="no maintained library implements it (Foolbox dropped it in version 3), so it is compared with another "
        "method at four times the passes",
    ),
    Comparison(
        attack="Boundary", norm="l2", settings=f"{BOUNDARY_STEPS} steps", peer="Foolbox 3.3.4 BoundaryAttack",
        ours=run_ours(Boundary(steps=BOUNDARY_STEPS), "l2"), theirs=run_foolbox_boundary, digits=FEW,
        note="ours is an adapter: the same walk from the same seeds, one digit at a time; far from converged",
    ),
]  # fmt: skip
