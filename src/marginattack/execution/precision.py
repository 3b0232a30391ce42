"""Which precision a search may have: found out on a few inputs, never taken on trust."""

import time

import torch
from torch import Tensor

from marginattack.attacks.attack import Attack
from marginattack.core.classifier import SEARCHES, Classifier
from marginattack.core.norms import Norm
from marginattack.core.problem import Problem
from marginattack.core.types import Labels, Scalars
from marginattack.errors import InputError

FEW, MANY = 64, 512  # inputs that are tried, and below which trying does not pay
LOSS = 1e-3  # by which share margins may be longer on average


def quickest(classifier: Classifier, x: Tensor, y: Labels, norm: Norm, attack: Attack, budget: int | None) -> str:
    """The precision whose search is quickest and loses less than a thousandth of a margin, on the first inputs.

    Call it while the classifier is held and has accepted the inputs. On a CPU it is float32.
    """
    if classifier.device.type != "cuda" or len(x) < MANY:
        return "float32"
    right = (classifier.predict(x[: 2 * FEW]) == y[: 2 * FEW]).nonzero()[:FEW, 0]
    tried = {search: tried_in(search, classifier, x[right], y[right], norm, attack, budget) for search in SEARCHES}
    return chosen(tried)


def tried_in(
    search: str, classifier: Classifier, x: Tensor, y: Labels, norm: Norm, attack: Attack, budget: int | None
) -> tuple[float, Scalars]:
    """Seconds and distances; infinity for all where the model cannot be run in that precision."""
    classifier.search = search
    try:
        classifier.meet(x, classifier.answers(x))
        for _ in range(2):  # the first captures
            began = time.perf_counter()
            problem = Problem(classifier, x, y, norm, budget=budget)
            problem.solve(attack)
            distance = problem.distance.cpu()
        label = classifier.recheck(problem.best.unflatten(1, x.shape[1:]).cpu(), x)
        return time.perf_counter() - began, torch.where((label != y)[:, None], distance, torch.inf)
    except (RuntimeError, InputError):
        return torch.inf, torch.full((len(x), 1), torch.inf)
    finally:
        classifier.search = "float32"


def chosen(tried: dict[str, tuple[float, Scalars]]) -> str:
    """The quickest of those that lose nearly nothing against float32."""
    full = tried["float32"][1]
    met = torch.isfinite(full)
    good = {
        search: seconds
        for search, (seconds, distance) in tried.items()
        if bool((torch.isfinite(distance) >= met).all()) and float((distance / full)[met].mean()) <= 1 + LOSS
    }
    return min(good, key=lambda search: good[search], default="float32")
