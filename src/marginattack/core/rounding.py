"""Rounding of distances: which count as within a radius."""

ROUNDING = (3e-5, 1e-6)  # of float32 points on the surface of a ball: at most these fractions of ε and of max(ε, 1)


def rounded_up(eps: float) -> float:
    """The largest distance that counts as within ε: pixels are rounded to float32."""
    return eps + min(ROUNDING[0] * eps, ROUNDING[1] * max(eps, 1.0))
