"""JSMA, one pixel and CLEVER against ART 1.20.1: the same digits, targets, steps, populations and numbers of points."""

from functools import partial
from typing import Any

import numpy as np
import torch
from rows import Bench, Row
from torch import Tensor, nn

import marginattack as ma
from marginattack.attacks.jsma import JSMA
from marginattack.attacks.one_pixel import OnePixel
from marginattack.bounds import clever
from marginattack.core.losses import LOG_ODDS, OWN
from marginattack.core.norms import L0

POOL = 10  # ART draws its maxima from 10 × samples gradients; ours takes as many gradients in all


def _art(bench: Bench) -> Any:
    from art.estimators.classification import PyTorchClassifier

    shape, classes = tuple(bench.images.shape[1:]), _logits(bench).shape[1]
    return PyTorchClassifier(
        bench.model, nn.CrossEntropyLoss(), shape, classes, clip_values=(0.0, 1.0),
        device_type="gpu" if bench.images.is_cuda else "cpu",
    )  # fmt: skip


@torch.no_grad()
def _logits(bench: Bench) -> Tensor:
    logits: Tensor = bench.model(bench.images)
    return logits


def _runner_up(bench: Bench) -> Tensor:
    return _logits(bench).scatter(1, bench.labels[:, None], -torch.inf).argmax(1)


@torch.no_grad()
def _distance(bench: Bench, adversarial: np.ndarray[Any, Any], targets: Tensor | None) -> Tensor:
    points = torch.as_tensor(adversarial).to(bench.images)
    label = bench.model(points).argmax(1)
    reached = label != bench.labels if targets is None else label == targets
    return torch.where(reached, L0.size((points - bench.images).flatten(1))[:, 0], torch.inf)


def _jsma(bench: Bench, *, theta: float, gamma: float, art_rule: bool) -> Tensor:
    attack = JSMA(theta=theta, gamma=gamma, of=(OWN,) if art_rule else (LOG_ODDS,), both=False)
    return ma.measure(bench.model, bench.images, bench.labels, "l0", attack=attack, targets=_runner_up(bench)).distance


def _art_jsma(bench: Bench, *, theta: float, gamma: float) -> Tensor:
    from art.attacks.evasion import SaliencyMapMethod

    targets = _runner_up(bench)
    attack = SaliencyMapMethod(_art(bench), theta=theta, gamma=gamma, batch_size=len(targets), verbose=False)
    return _distance(bench, attack.generate(bench.images.cpu().numpy(), y=targets.cpu().numpy()), targets)


def _pixel(bench: Bench, *, pixels: int, generations: int) -> Tensor:
    attack = OnePixel(pixels=pixels, generations=generations)
    return ma.measure(bench.model, bench.images, bench.labels, "l0", attack=attack).distance


def _art_pixel(bench: Bench, *, pixels: int, generations: int) -> Tensor:
    from art.attacks.evasion import PixelAttack

    np.random.seed(0)  # the only seed that it takes
    attack = PixelAttack(_art(bench), th=pixels, es=1, max_iter=generations)
    return _distance(bench, attack.generate(bench.images.cpu().numpy(), y=bench.labels.cpu().numpy()), None)


def _clever(bench: Bench, *, norm: str, radius: float, batches: int, samples: int, targeted: bool) -> Tensor:
    each = POOL * samples // batches
    targets = _runner_up(bench) if targeted else None
    result = clever(
        bench.model, bench.images, bench.labels, norm, radius=radius, batches=batches, samples=each, targets=targets
    )
    return result.estimate


def _art_clever(bench: Bench, *, norm: str, radius: float, batches: int, samples: int, targeted: bool) -> Tensor:
    from art.metrics import clever_t, clever_u

    np.random.seed(0)
    art, order = _art(bench), {"l1": 1, "l2": 2, "linf": np.inf}[norm]
    settings = {"nb_batches": batches, "batch_size": samples, "radius": radius, "norm": order, "pool_factor": POOL}
    images = bench.images.cpu().numpy()
    if targeted:
        pairs = zip(images, _runner_up(bench).tolist(), strict=True)
        return torch.tensor([float(clever_t(art, image, target, **settings)) for image, target in pairs])
    return torch.tensor([float(clever_u(art, image, verbose=False, **settings)) for image in images])


def _jsma_row(theta: float, gamma: float, *, art_rule: bool, fixed: bool = False) -> Row:
    rule = "ART's map" if art_rule else "default map"
    return Row(
        attack="jsma", norm="l0", peer="ART 1.20.1", fixed=fixed,
        settings=f"θ={theta:g}, γ={gamma:g}, pairs, towards the runner-up, {rule}",
        ours=partial(_jsma, theta=theta, gamma=gamma, art_rule=art_rule),
        theirs=partial(_art_jsma, theta=theta, gamma=gamma),
        note="ART's map is the target's logit alone: it takes the two features that raise it most. "
        "It stops only after more than γ·d features, ours before",
    )  # fmt: skip


def _pixel_row(pixels: int, generations: int) -> Row:
    settings: dict[str, Any] = {"pixels": pixels, "generations": generations}
    return Row(
        attack="one-pixel", norm="l0", peer="ART 1.20.1", fixed=True,
        settings=f"k={pixels}, {generations} generations of 400",
        ours=partial(_pixel, **settings), theirs=partial(_art_pixel, **settings),
        note="ART lowers the logit of the true class alone, ours its log odds",
    )  # fmt: skip


def _clever_row(norm: str, radius: float, targeted: bool, digits: int) -> Row:
    settings: dict[str, Any] = {"norm": norm, "radius": radius, "batches": 32, "samples": 32, "targeted": targeted}
    return Row(
        attack="clever", norm=norm, peer="ART 1.20.1", digits=digits,
        settings=f"R={radius:g}, 320 gradients, 32 maxima, " + ("towards the runner-up" if targeted else "untargeted"),
        ours=partial(_clever, **settings), theirs=partial(_art_clever, **settings),
        note="The distance is the estimate, so lower is not better. ART draws its 32 maxima with "
        "replacement from one pool of 320 gradients; half of them are equal, and its fit returns the largest gradient "
        "seen (less in 1 of 10): it does not extrapolate. Ours are of 10 fresh points each and do, as in the paper",
    )  # fmt: skip


ROWS: list[Row] = [
    _jsma_row(1.0, 1.0, art_rule=True),
    _jsma_row(1.0, 1.0, art_rule=False),
    _jsma_row(1.0, 0.02, art_rule=False, fixed=True),
    _pixel_row(1, 10),
    _pixel_row(5, 15),
    _pixel_row(15, 20),
    _clever_row("l2", 5.0, targeted=True, digits=200),
    _clever_row("l1", 40.0, targeted=True, digits=50),
    _clever_row("linf", 0.3, targeted=True, digits=50),
    _clever_row("l2", 5.0, targeted=False, digits=5),
]
