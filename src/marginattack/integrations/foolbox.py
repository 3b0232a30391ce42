"""Our attacks as attacks of Foolbox: ``raw, clipped, success = Race("l2")(fmodel, images, labels, epsilons=[…])``.

A ``foolbox.PyTorchModel`` can also be passed directly to ``ma.measure``.
"""

from typing import Any

import torch

from marginattack import attacks
from marginattack.core.norms import NormLike, as_norm
from marginattack.errors import InputError, MissingDependencyError
from marginattack.measuring import as_attack, measure

try:
    import eagerpy
    from foolbox import criteria, distances
    from foolbox.attacks.base import MinimizationAttack, get_criterion, raise_if_kwargs
except ModuleNotFoundError as error:
    hint = "pip install 'marginattack[peers]'"
    raise MissingDependencyError(f"this module needs Foolbox ({error.name} is not installed): {hint}") from None

DISTANCES = {"l0": distances.l0, "l1": distances.l1, "l2": distances.l2, "linf": distances.linf}
BEYOND = 1 + 1e-5  # Foolbox adds the perturbation to the image again, which rounds: points are moved past the boundary


class Minimization(MinimizationAttack):  # type: ignore[misc]
    """Any minimum-norm attack of this package as one of Foolbox.

    Args:
        attack: An attack or its name, as in ``ma.measure``.
        norm: The norm of the distances.
        budget: Forwards + backwards per sample.
        seed: Seed of the random draws.

    Example:
        >>> import torch, foolbox as fb
        >>> from marginattack.integrations.foolbox import Minimization
        >>> model = fb.PyTorchModel(torch.nn.Identity().eval(), bounds=(0, 1), device="cpu")
        >>> images, labels = torch.tensor([[0.9, 0.2], [0.5, 0.1]]), torch.tensor([0, 0])
        >>> attack = Minimization("race", "linf", budget=100)
        >>> raw, clipped, success = attack(model, images, labels, epsilons=[0.1, 0.3])
        >>> success.tolist()
        [[False, False], [False, True]]
    """

    def __init__(self, attack: Any = "race", norm: NormLike = "l2", *, budget: int = 2000, seed: int = 0) -> None:
        self.attack, self.norm, self.budget, self.seed = as_attack(attack), as_norm(norm), budget, seed
        self.attack.check_norm(self.norm)

    @property
    def distance(self) -> Any:
        """Foolbox's object for the norm."""
        return DISTANCES[self.norm.name]

    def run(self, model: Any, inputs: Any, criterion: Any, *, early_stop: float | None = None, **others: Any) -> Any:
        """The nearest adversarial inputs found; the input itself if none was found."""
        raise_if_kwargs(others)
        x, restore_type = eagerpy.astensor_(inputs)
        images, wanted = x.raw, get_criterion(criterion)
        if isinstance(wanted, criteria.Misclassification):
            labels, targets = wanted.labels.raw, None
        elif isinstance(wanted, criteria.TargetedMisclassification):
            targets = wanted.target_classes.raw
            labels = torch.where(targets == 0, 1, 0)  # any other class: a targeted attack does not use it
        else:
            raise InputError(f"{wanted!r} is not supported: use Misclassification or TargetedMisclassification")
        found = measure(
            model, images, labels, self.norm, attack=self.attack, budget=self.budget, seed=self.seed,
            enough=early_stop and early_stop / BEYOND, targets=targets, diagnose=False,
        )  # fmt: skip
        lower, upper = model.bounds
        points = images + BEYOND * (found.adversarial.to(images) - images)
        return restore_type(eagerpy.astensor(points.clamp(lower, upper)))


class Race(Minimization):
    """``Race``, the default attack."""

    def __init__(self, norm: NormLike = "l2", *, budget: int = 2000, seed: int = 0, **settings: Any) -> None:
        super().__init__(attacks.Race(**settings), norm, budget=budget, seed=seed)


class MarginAttack(Minimization):
    """``MarginAttack``, the paper's."""

    def __init__(self, norm: NormLike = "l2", *, budget: int = 2000, seed: int = 0, **settings: Any) -> None:
        super().__init__(attacks.MarginAttack(**settings), norm, budget=budget, seed=seed)
