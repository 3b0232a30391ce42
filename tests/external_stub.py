"""An external attack made from a function."""

from collections.abc import Callable

from torch import Tensor

from marginattack.attacks.external.base import ExternalAttack
from marginattack.attacks.external.problem_module import ProblemModule


def external_stub(run: Callable[[ProblemModule], Tensor]) -> ExternalAttack:
    return ExternalAttack(
        "stub:attack", "attack", ("l2",), lambda info: {}, distribution="no library", load=lambda: None,
        run=lambda function, settings, model: run(model),
    )  # fmt: skip
