"""FGSM, BIM, PGD and the searched radius against Foolbox 3.3.4: the same steps, step sizes, starts and loss.

DAA and the logit difference have no installable public implementation, and Madry's network, on which their rates were
published, is not available here: they are compared with our own PGD on cross-entropy, with as many runs and steps.
"""

from parity_common import Comparison, run_foolbox, run_ours

from marginattack.attacks.bim import BIM
from marginattack.attacks.daa import DAA, DGF, Blob
from marginattack.attacks.fgsm import FGSM
from marginattack.attacks.logit_difference import LogitDifferenceAttack
from marginattack.attacks.pgd import PGD
from marginattack.attacks.search import Search
from marginattack.core.losses import CROSS_ENTROPY

RADII = {"linf": 0.1, "l2": 1.3, "l1": 6.0}
LARGEST = {"linf": 0.4, "l2": 6.0, "l1": 20.0}  # of a list of radii
PREFIX = {"linf": "Linf", "l2": "L2", "l1": "L1"}  # of Foolbox's class names
FOOLBOX, OUR_PGD = "Foolbox 3.3.4", "our own PGD, no public implementation"
NO_PEER = "no public implementation, and no Madry network for the published rate: compared with PGD with as many runs"


def radii(norm: str, number: int) -> list[float]:
    """Equidistant radii up to the largest."""
    return [LARGEST[norm] * (k + 1) / number for k in range(number)]


def compare(norm: str) -> list[Comparison]:
    """All comparisons with Foolbox under a norm."""
    eps, largest, prefix = RADII[norm], LARGEST[norm], PREFIX[norm]
    pgd = f"{prefix}ProjectedGradientDescentAttack"
    fgsm = Comparison(
        attack="fgsm", norm=norm, settings="cross-entropy, step searched", peer=FOOLBOX, ours=run_ours(FGSM(), norm),
        theirs=run_foolbox(f"{prefix}FastGradientAttack", norm, radii(norm, 100)),
        note=f"Foolbox: a grid of 100 step sizes up to {largest}; it finds nothing beyond",
    )  # fmt: skip
    return [
        *([fgsm] if norm != "l1" else []),
        Comparison(
            attack="bim", norm=norm, settings=f"eps {eps}, 10 steps of 0.2 eps, cross-entropy", peer=FOOLBOX,
            ours=run_ours(BIM(eps=eps), norm), fixed=True,
            theirs=run_foolbox(f"{prefix}BasicIterativeAttack", norm, [eps], steps=10, rel_stepsize=0.2),
        ),
        Comparison(
            attack="pgd", norm=norm, settings=f"eps {eps}, 40 steps of eps / 30, random start, cross-entropy",
            peer=FOOLBOX, ours=run_ours(PGD(eps=eps), norm), fixed=True,
            theirs=run_foolbox(pgd, norm, [eps], steps=40, rel_stepsize=1 / 30),
            note="Foolbox spreads an ℓ1 step over every pixel" if norm == "l1" else "",
        ),
        Comparison(
            attack="search", norm=norm, settings="PGD, 40 steps of 0.1 eps from the input, cross-entropy", peer=FOOLBOX,
            ours=run_ours(Search(attack=PGD(steps=40, step=0.1, random=False, loss=CROSS_ENTROPY)), norm),
            theirs=run_foolbox(pgd, norm, radii(norm, 20), steps=40, rel_stepsize=0.1, random_start=False),
            note=f"Foolbox has no search: PGD on a grid of 20 radii up to {largest}",
        ),
    ]  # fmt: skip


def compare_with_pgd(attack: str, ours: DAA | LogitDifferenceAttack, settings: str, restarts: int) -> Comparison:
    """An attack without a public implementation against our PGD."""
    return Comparison(
        attack=attack, norm="linf", settings=f"eps 0.1, 40 steps of eps / 30, {settings}", peer=OUR_PGD, fixed=True,
        ours=run_ours(ours, "linf"), theirs=run_ours(PGD(eps=0.1, restarts=restarts), "linf"), digits=100, note=NO_PEER,
    )  # fmt: skip


COMPARISONS: list[Comparison] = [
    *(comparison for norm in RADII for comparison in compare(norm)),
    compare_with_pgd("daa, Blob", DAA(eps=0.1, flow=Blob()), "10 particles, cross-entropy", 10),
    compare_with_pgd("daa, DGF", DAA(eps=0.1, flow=DGF()), "10 particles, cross-entropy", 10),
    compare_with_pgd("logit difference", LogitDifferenceAttack(eps=0.1), "9 classes", 9),
]
