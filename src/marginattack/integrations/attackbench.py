"""Our attacks with the interface of AttackBench: ``attackbench.run_attack(model, loader, attack("race"), "l2")``.

It does not import AttackBench (PyPI: attackbenchlib), which counts the queries of the model that it passes.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from marginattack.errors import InputError
from marginattack.measuring import as_attack, measure

BUDGET = 2000  # AttackBench's
CHECKS = 18  # forwards of ``measure`` besides the attack, at most: validation, calibration, verification


def attack(attack: Any = "race", *, budget: int = BUDGET, seed: int = 0) -> Callable[..., Tensor]:
    """An attack for ``attackbench.run_attack`` and ``create_custom_attack``.

    Args:
        attack: An attack of this package or its name, as in ``ma.measure``.
        budget: Forwards + backwards per sample that AttackBench allows; some of them go to checks of the model.
        seed: Seed of the random draws.

    Returns:
        A function of model, inputs, labels and threat_model that returns the adversarial inputs.

    Raises:
        InputError: There is no such attack, or the budget is too small.

    Example:
        >>> import torch
        >>> from marginattack.integrations import attackbench
        >>> images, labels = torch.tensor([[0.9, 0.2]]), torch.tensor([0])
        >>> attackbench.attack("race", budget=100)(torch.nn.Identity(), images, labels, threat_model="linf").argmax(1)
        tensor([1])
    """
    if budget <= CHECKS:
        raise InputError(f"budget is {budget}, but checks of the model take {CHECKS} passes: give a larger budget")
    chosen = as_attack(attack)

    def run(
        model: nn.Module, inputs: Tensor, labels: Tensor, threat_model: str = "l2", targets: Tensor | None = None,
        targeted: bool = False,
    ) -> Tensor:  # fmt: skip
        found = measure(
            model, inputs, labels, threat_model, attack=chosen, budget=budget - CHECKS, seed=seed,
            targets=targets if targeted else None, batch=len(inputs), diagnose=False,
        )  # fmt: skip
        return found.adversarial.to(inputs)

    run.__name__ = type(chosen).__name__.lower()
    return run
