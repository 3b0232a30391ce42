"""MarginAttack as the paper ran it: every column of its hyperparameter table, with rows a and b swapped back.

Values are in the paper's pixel units: 0 to 1 for MNIST, 0 to 255 for CIFAR-10 and ImageNet. α is 1 in the closing
moves, where the table's 0.2 for ℓ∞ would leave c uncorrected.
"""

from dataclasses import replace

from marginattack.attacks.marginattack import (
    ActiveSet,
    BallProjection,
    LinearProjection,
    MarginAttack,
    TangentProjection,
)
from marginattack.core.schedules import Constant, Power
from marginattack.errors import InputError, choose

_OFFSET = Constant(-0.01)
_PAPER = MarginAttack(follow=0, rescue=0, offset=_OFFSET, closing_offset=_OFFSET, projection=TangentProjection())
_L2 = replace(_PAPER, alpha=Constant(1.0), beta=Power(0.5))
_LINF = replace(_PAPER, projection=LinearProjection(b=0.1), alpha=Constant(0.2), beta=Power(1.0))
_AUTHOR = replace(_PAPER, offset=Constant(-0.1), closing_offset=Constant(-0.1), restoration=ActiveSet(5), scans=11)
_AUTHOR_L2 = replace(_AUTHOR, beta=Power(0.3, stride=2), scan_near="iterate")
_AUTHOR_LINF = replace(_AUTHOR_L2, beta=Power(1.0, stride=2), alpha=Constant(0.2), closing_alpha=0.2)

# name: (width of the paper's pixels, settings)
PRESETS: dict[str, tuple[float, MarginAttack]] = {
    "mnist-l2": (1.0, replace(_L2, restarts=10, radius=0.05)),
    "mnist-linf": (1.0, replace(_LINF, restarts=10, radius=0.05)),
    "cifar10-l2": (255.0, replace(_L2, restarts=10, radius=0.1)),
    "cifar10-linf": (255.0, replace(_LINF, projection=LinearProjection(b=1.0), restarts=10, radius=0.1)),
    "imagenet-l2": (255.0, _L2),
    "imagenet-linf": (255.0, replace(_LINF, projection=LinearProjection(b=0.3))),
    # The MNIST challenge: 50 starts over the whole ball, 500 moves.
    "challenge": (1.0, replace(_LINF, projection=LinearProjection(b=5.0), moves=500, restarts=50, radius=0.3)),
    # Rosen's gradient projection (1961): its line search for the smallest d along the tangent plane ends at β = 1.
    "rosen": (1.0, replace(_L2, beta=Constant(1.0), scans=0)),
    # The first author's implementation, where it differs from the text: β counts moves, so projection k has the
    # (2k + 2)-th value, scans are the moves up to the 20th, and in ℓ∞ the second design ends on the ball.
    "author-l2": (1.0, _AUTHOR_L2),
    "author-linf": (1.0, replace(_AUTHOR_LINF, projection=BallProjection(b=0.1))),
}


def with_exact_ball(attack: MarginAttack) -> MarginAttack:
    """The same attack with the second design made exact, as in the first author's implementation."""
    if not isinstance(attack.projection, LinearProjection):
        return attack
    return replace(attack, projection=BallProjection(attack.projection.b))


def preset(name: str, bounds: tuple[float | int, float | int] = (0.0, 1.0)) -> MarginAttack:
    """MarginAttack with settings of the paper.

    Args:
        name: A key of ``marginattack.attacks.presets.PRESETS``, such as "mnist-l2".
        bounds: Lower and upper bound of the inputs; lengths are converted from the paper's pixels to these.

    Returns:
        The attack.

    Raises:
        InputError: There is no such preset.

    Example:
        >>> import marginattack as ma
        >>> ma.preset("cifar10-linf", bounds=(0, 255)).radius
        0.1
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise InputError(f"no preset named {name!r}: {choose(str(name), PRESETS)}")
    width, attack = PRESETS[name]
    unit = (bounds[1] - bounds[0]) / width
    projection = attack.projection
    if isinstance(projection, BallProjection | LinearProjection):
        projection = replace(projection, b=projection.b * unit)
    return replace(attack, radius=attack.radius * unit, projection=projection)
