"""Adversarial Robustness Toolbox 1.20 (IBM): its attacks, with AttackBench's settings if it has them."""

import random
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack.attacks.external.base import ExternalAttack, ProblemInfo
from marginattack.attacks.external.problem_module import ProblemModule

EPS = 0.3  # its own default
PGD_STEP = 2.5  # total length of the steps of PGD, in radii


def run(function: str, settings: dict[str, Any], model: ProblemModule) -> Tensor:
    """Call the attack and return its points."""
    problem, images = model.problem, model.images
    classifier = import_module("art.estimators.classification").PyTorchClassifier(
        model.eval(), torch.nn.CrossEntropyLoss(), tuple(images.shape[1:]), problem.evaluator.classes,
        clip_values=(0.0, 1.0), device_type="cpu" if images.device.type == "cpu" else "gpu",
    )  # fmt: skip
    attack = getattr(import_module("art.attacks.evasion"), function)(
        classifier, batch_size=len(images), verbose=False, **settings
    )
    before, before_python = np.random.get_state(), random.getstate()  # it draws from both global generators
    np.random.seed(problem.draws.seed % 2**32)
    random.seed(problem.draws.seed)
    try:
        points = attack.generate(images.cpu().float().numpy(), model.labels.cpu().numpy())
    finally:
        np.random.set_state(before)
        random.setstate(before_python)
    return torch.from_numpy(points).to(images)


def pgd(info: ProblemInfo) -> dict[str, Any]:
    """Two passes per step."""
    eps = info.eps or EPS
    return {"norm": info.p, "eps": eps, "eps_step": PGD_STEP * eps / info.steps, "max_iter": info.steps}


def apgd(info: ProblemInfo) -> dict[str, Any]:
    """One run; each step costs two forwards and a backward."""
    eps = info.eps or EPS
    steps = max(2, (info.budget - 6) // 4)
    return {"norm": info.p, "eps": eps, "eps_step": 2 * eps, "max_iter": steps, "nb_random_init": 1}


def cw(info: ProblemInfo) -> dict[str, Any]:
    """Searches for the constant as for Foolbox's CW; a step may halve or double its rate, with one forward each."""
    searches = 9 if info.budget >= 1000 else 2 if info.budget >= 300 else 1
    steps = max(1, info.budget // (8 * searches))
    return {"binary_search_steps": searches, "max_iter": steps, "initial_const": 1.0}


def deepfool(info: ProblemInfo) -> dict[str, Any]:
    """The published overshoot, 2 %; a step costs two forwards, and a backward per class."""
    classes = min(10, info.classes)
    return {"max_iter": max(1, info.budget // (classes + 2)), "nb_grads": classes, "epsilon": 0.02}


def square(info: ProblemInfo) -> dict[str, Any]:
    """One forward per step, and some before the first."""
    return {"norm": info.p, "eps": info.eps, "max_iter": max(1, info.budget // 2)}


def make(
    name: str, function: str, norms: tuple[str, ...], settings: Callable[[ProblemInfo], Any], eps: float | None
) -> ExternalAttack:
    """An attack under this name."""
    library, load = "adversarial-robustness-toolbox 1.20", partial(import_module, "art.attacks.evasion")
    return ExternalAttack(
        f"art:{name}", function, norms, settings, library, load, run, eps=eps, gradient_free=name == "square"
    )


ATTACKS = (
    make("pgd", "ProjectedGradientDescentPyTorch", ("l2", "linf"), pgd, EPS),
    make("apgd", "AutoProjectedGradientDescent", ("l1", "l2", "linf"), apgd, EPS),
    make("square", "SquareAttack", ("l2", "linf"), square, EPS),
    make("cw", "CarliniL2Method", ("l2",), cw, None),
    make("deepfool", "DeepFool", ("l2",), deepfool, None),
)
