"""A search in tf32, which a GPU convolves in about twice as fast; what it finds is judged in full float32."""

from dataclasses import dataclass
from typing import ClassVar, final

from marginattack.attacks.attack import Attack
from marginattack.core.problem import Problem

NOTE = ", searched in tf32"


@final
@dataclass(frozen=True, kw_only=True)
class InTf32(Attack):
    """``attack``, looking at the model in tf32; what it finds is looked at again in full float32."""

    norms: ClassVar = ("l0", "l1", "l2", "linf")
    cost: ClassVar = "the attack's"
    reference: ClassVar = "the attack's"

    attack: Attack

    def __call__(self, problem: Problem) -> None:
        classifier, images = problem.classifier, problem.x0.unflatten(1, problem.shape)
        before = classifier.search
        classifier.search = "tf32"
        try:
            classifier.meet(images, classifier.answers(images))
            with problem.quickly():
                self.attack(problem)
        finally:
            classifier.search = before
