"""FGSM, BIM, PGD and the searched radius against Foolbox 3.3.4: the same steps, step sizes, starts and loss.

DAA and the logit difference have no peer that can be installed, and Madry's network, on which their rates were
published, is not here: they stand against our own PGD on the cross-entropy with as many runs of as many steps.
"""

from functools import partial
from importlib import import_module

import torch
from rows import Bench, Row
from torch import Tensor

import marginattack as ma
from marginattack.attacks.bim import BIM
from marginattack.attacks.daa import DAA, DGF, Blob
from marginattack.attacks.fgsm import FGSM
from marginattack.attacks.logit_difference import LogitDifferenceAttack
from marginattack.attacks.pgd import PGD
from marginattack.attacks.search import Search
from marginattack.core.losses import CROSS_ENTROPY
from marginattack.core.norms import as_norm

RADII = {"linf": 0.1, "l2": 1.3, "l1": 6.0}
REACH = {"linf": 0.4, "l2": 6.0, "l1": 20.0}  # the largest radius of a list of radii
FOOLBOX, OUR_PGD = "Foolbox 3.3.4", "our own PGD, no public peer"
PREFIX = {"linf": "Linf", "l2": "L2", "l1": "L1"}  # of Foolbox's class names


def _ours(bench: Bench, *, norm: str, attack: ma.attacks.Attack) -> Tensor:
    return ma.measure(bench.model, bench.images, bench.labels, norm, attack=attack).distance


def _foolbox(bench: Bench, *, norm: str, attack: str, radii: list[float], **settings: float | bool) -> Tensor:
    """The distance of the nearest success over a list of radii."""
    foolbox = import_module("foolbox")
    model = foolbox.PyTorchModel(bench.model, bounds=(0, 1), device=bench.images.device)
    run = getattr(foolbox.attacks, PREFIX[norm] + attack)(**settings)
    _, points, success = run(model, bench.images, bench.labels, epsilons=radii)
    distance = torch.stack([as_norm(norm).size((p - bench.images).flatten(1))[:, 0] for p in points])
    return torch.where(success, distance, torch.inf).amin(0).cpu()


def _list(norm: str, number: int) -> list[float]:
    return [REACH[norm] * (k + 1) / number for k in range(number)]


FGSM_ROWS = [
    Row(
        attack="fgsm", norm=norm, settings="cross-entropy, step searched", peer=FOOLBOX,
        ours=partial(_ours, norm=norm, attack=FGSM()),
        theirs=partial(_foolbox, norm=norm, attack="FastGradientAttack", radii=_list(norm, 100)),
        note=f"Foolbox: 100 step sizes up to {REACH[norm]}; it finds nothing beyond, and its distances are that grid's",
    )
    for norm in ("linf", "l2")
]  # fmt: skip

BIM_ROWS = [
    Row(
        attack="bim", norm=norm, settings=f"eps {RADII[norm]}, 10 steps of 0.2 eps, cross-entropy", peer=FOOLBOX,
        ours=partial(_ours, norm=norm, attack=BIM(eps=RADII[norm])),
        theirs=partial(
            _foolbox, norm=norm, attack="BasicIterativeAttack", radii=[RADII[norm]], steps=10, rel_stepsize=0.2
        ),
        fixed=True,
    )
    for norm in RADII
]  # fmt: skip

PGD_ROWS = [
    Row(
        attack="pgd", norm=norm, settings=f"eps {RADII[norm]}, 40 steps of eps / 30, random start, cross-entropy",
        peer=FOOLBOX, ours=partial(_ours, norm=norm, attack=PGD(eps=RADII[norm])),
        theirs=partial(
            _foolbox, norm=norm, attack="ProjectedGradientDescentAttack", radii=[RADII[norm]], steps=40,
            rel_stepsize=1 / 30,
        ),
        fixed=True,
        note="Foolbox spreads an ℓ1 step over every pixel" if norm == "l1" else "",
    )
    for norm in RADII
]  # fmt: skip

SEARCH_ROWS = [
    Row(
        attack="search", norm=norm, settings="PGD, 40 steps of 0.1 eps from the input, cross-entropy", peer=FOOLBOX,
        ours=partial(
            _ours, norm=norm, attack=Search(attack=PGD(steps=40, step=0.1, random=False, loss=CROSS_ENTROPY))
        ),
        theirs=partial(
            _foolbox, norm=norm, attack="ProjectedGradientDescentAttack", radii=_list(norm, 20), steps=40,
            rel_stepsize=0.1, random_start=False,
        ),
        note=f"Foolbox has no search: PGD at 20 radii up to {REACH[norm]}, and its distances are that grid's",
    )
    for norm in RADII
]  # fmt: skip

UNPAIRED = "no installable peer, and no Madry network here for the published rate: against our PGD with as many runs"
FLOWS = {"daa, Blob": DAA(eps=0.1, flow=Blob()), "daa, DGF": DAA(eps=0.1, flow=DGF())}
UNPAIRED_ROWS = [
    Row(
        attack=name, norm="linf", settings="eps 0.1, 40 steps of eps / 30, 10 particles, cross-entropy", peer=OUR_PGD,
        ours=partial(_ours, norm="linf", attack=attack),
        theirs=partial(_ours, norm="linf", attack=PGD(eps=0.1, restarts=10)),
        fixed=True, digits=100, note=UNPAIRED,
    )
    for name, attack in FLOWS.items()
] + [
    Row(
        attack="logit difference", norm="linf", settings="eps 0.1, 40 steps of eps / 30, 9 classes", peer=OUR_PGD,
        ours=partial(_ours, norm="linf", attack=LogitDifferenceAttack(eps=0.1)),
        theirs=partial(_ours, norm="linf", attack=PGD(eps=0.1, restarts=9)),
        fixed=True, digits=100, note=UNPAIRED,
    )
]  # fmt: skip

ROWS: list[Row] = FGSM_ROWS + BIM_ROWS + PGD_ROWS + SEARCH_ROWS + UNPAIRED_ROWS
