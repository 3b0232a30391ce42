"""A search in tf32, which a GPU convolves in about twice as fast; what it finds is judged in full float32."""

from dataclasses import dataclass
from typing import ClassVar, final

from marginattack.attacks.attack import Attack
from marginattack.classifier import tf32
from marginattack.problem import Problem

NOTE = ", searched in tf32"


@final
@dataclass(frozen=True, kw_only=True)
class InTf32(Attack):
    """``attack``, looking at the model in tf32. The check of what it found comes after it, in full float32.

    What tf32 changes of the logits at the inputs counts as what other company changes: labels must lead by twice
    that during the search, or the check would refuse the points that are nearest to the boundary.
    """

    norms: ClassVar = ("l0", "l1", "l2", "linf")
    cost: ClassVar = "the attack's"
    reference: ClassVar = "the attack's"

    attack: Attack

    def __call__(self, problem: Problem) -> None:
        classifier, images = problem.classifier, problem.x0.unflatten(1, problem.shape)
        full, company = classifier.answers(images), classifier.company
        with tf32(True):
            classifier.company = max(company, float((classifier.answers(images) - full).abs().max()))
            try:
                self.attack(problem)
            finally:
                classifier.company = company
