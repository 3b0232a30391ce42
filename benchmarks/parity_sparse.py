"""JSMA, one pixel and CLEVER against ART 1.20.1: the same digits, targets, steps, populations and numbers of points."""

from typing import Any

import numpy as np
import torch
from parity_common import Comparison, Inputs, run_ours
from torch import Tensor, nn

from marginattack.attacks.jsma import JSMA
from marginattack.attacks.one_pixel import OnePixel
from marginattack.bounds import clever
from marginattack.core.losses import LOG_ODDS, OWN
from marginattack.core.norms import L0

ART = "ART 1.20.1"
POOL = 10  # ART draws its maxima from 10 × samples gradients; ours uses as many gradients in total


def art_classifier(inputs: Inputs) -> Any:
    """The model as ART expects it."""
    from art.estimators.classification import PyTorchClassifier

    return PyTorchClassifier(
        inputs.model, nn.CrossEntropyLoss(), tuple(inputs.images.shape[1:]), 10, clip_values=(0.0, 1.0),
        device_type="gpu" if inputs.images.is_cuda else "cpu",
    )  # fmt: skip


@torch.no_grad()
def runner_up(inputs: Inputs) -> Tensor:
    """The class with the second highest logit."""
    logits: Tensor = inputs.model(inputs.images)
    return logits.scatter(1, inputs.labels[:, None], -torch.inf).argmax(1)


@torch.no_grad()
def l0_distance(inputs: Inputs, adversarial: np.ndarray[Any, Any], targets: Tensor | None) -> Tensor:
    """The ℓ0 distance of ART's points, infinity where they are not adversarial."""
    points = torch.as_tensor(adversarial).to(inputs.images)
    label = inputs.model(points).argmax(1)
    reached = label != inputs.labels if targets is None else label == targets
    return torch.where(reached, L0.size((points - inputs.images).flatten(1))[:, 0], torch.inf)


def compare_jsma(theta: float, gamma: float, *, art_map: bool, fixed: bool = False) -> Comparison:
    """JSMA towards the runner-up."""

    def theirs(inputs: Inputs) -> Tensor:
        from art.attacks.evasion import SaliencyMapMethod

        targets = runner_up(inputs)
        attack = SaliencyMapMethod(
            art_classifier(inputs), theta=theta, gamma=gamma, batch_size=len(targets), verbose=False
        )
        return l0_distance(inputs, attack.generate(inputs.images.cpu().numpy(), y=targets.cpu().numpy()), targets)

    ours = JSMA(theta=theta, gamma=gamma, of=(OWN,) if art_map else (LOG_ODDS,), both=False)
    saliency = "ART's map" if art_map else "default map"
    return Comparison(
        attack="jsma", norm="l0", peer=ART, fixed=fixed,
        settings=f"θ={theta:g}, γ={gamma:g}, pairs, towards the runner-up, {saliency}",
        ours=run_ours(ours, "l0", targets=runner_up), theirs=theirs,
        note="ART's map is the target's logit alone: it chooses the two features that raise it most. "
        "It stops only after more than γ·d features, ours before",
    )  # fmt: skip


def compare_one_pixel(pixels: int, generations: int) -> Comparison:
    """The one-pixel attack, untargeted."""

    def theirs(inputs: Inputs) -> Tensor:
        from art.attacks.evasion import PixelAttack

        np.random.seed(0)  # the only seed that it takes
        attack = PixelAttack(art_classifier(inputs), th=pixels, es=1, max_iter=generations)
        points = attack.generate(inputs.images.cpu().numpy(), y=inputs.labels.cpu().numpy())
        return l0_distance(inputs, points, None)

    return Comparison(
        attack="one-pixel", norm="l0", peer=ART, fixed=True, theirs=theirs,
        settings=f"k={pixels}, {generations} generations of 400",
        ours=run_ours(OnePixel(pixels=pixels, generations=generations), "l0"),
        note="ART lowers the logit of the true class alone, ours its log odds",
    )  # fmt: skip


def compare_clever(norm: str, radius: float, *, targeted: bool, digits: int) -> Comparison:
    """CLEVER from 320 gradients and 32 maxima."""
    batches, samples = 32, 32

    def ours(inputs: Inputs) -> Tensor:
        return clever(
            inputs.model, inputs.images, inputs.labels, norm, radius=radius, batches=batches,
            samples=POOL * samples // batches, targets=runner_up(inputs) if targeted else None,
        ).estimate  # fmt: skip

    def theirs(inputs: Inputs) -> Tensor:
        from art.metrics import clever_t, clever_u

        np.random.seed(0)
        art, order = art_classifier(inputs), {"l1": 1, "l2": 2, "linf": np.inf}[norm]
        settings = {"nb_batches": batches, "batch_size": samples, "radius": radius, "norm": order, "pool_factor": POOL}
        images = inputs.images.cpu().numpy()
        if targeted:
            pairs = zip(images, runner_up(inputs).tolist(), strict=True)
            return torch.tensor([float(clever_t(art, image, target, **settings)) for image, target in pairs])
        return torch.tensor([float(clever_u(art, image, verbose=False, **settings)) for image in images])

    return Comparison(
        attack="clever", norm=norm, peer=ART, digits=digits, ours=ours, theirs=theirs,
        settings=f"R={radius:g}, 320 gradients, 32 maxima, " + ("towards the runner-up" if targeted else "untargeted"),
        note="The distance is the estimate, so lower is not better. ART draws its 32 maxima with "
        "replacement from one pool of 320 gradients; half of them are equal, and its fit returns the largest gradient "
        "seen (less in 1 of 10): it does not extrapolate. Ours are of 10 fresh points each and do, as in the paper",
    )  # fmt: skip


COMPARISONS: list[Comparison] = [
    compare_jsma(1.0, 1.0, art_map=True),
    compare_jsma(1.0, 1.0, art_map=False),
    compare_jsma(1.0, 0.02, art_map=False, fixed=True),
    compare_one_pixel(1, 10),
    compare_one_pixel(5, 15),
    compare_one_pixel(15, 20),
    compare_clever("l2", 5.0, targeted=True, digits=200),
    compare_clever("l1", 40.0, targeted=True, digits=50),
    compare_clever("linf", 0.3, targeted=True, digits=50),
    compare_clever("l2", 5.0, targeted=False, digits=5),
]
