r"""Evidence that a margin is a local minimum if bounds are loose: the residual of the KKT conditions.

At the adversarial point x with constraint c, the boundary is replaced by its tangent plane:

.. math:: d = \min_z \|z - x_0\| \quad \text{s.t.} \quad \nabla c(x)^\top (z - x) = 0, \; z \in [lo, hi]^d

x satisfies the KKT conditions (−∇c lies in the normal cone of ball and box) if and only if no point of the plane is
nearer, that is, if the residual 1 − d / ‖x − x₀‖ is 0. In ℓ2 without a box it is 1 − cos of the angle between ∇c and
the perturbation.
"""

from typing import Any

import torch
from torch import Tensor, nn

from marginattack.core.box import Box
from marginattack.core.classifier import Bounds, Classifier
from marginattack.core.norms import as_norm
from marginattack.core.queries import input_gradient
from marginattack.errors import InputError
from marginattack.execution.session import Session, open_session
from marginattack.margins import Margins


def kkt_residual(
    model: nn.Module | Classifier | Session, images: Any, margins: Margins, *, bounds: Bounds | None = None
) -> Tensor:
    """Compute how far each adversarial point is from a local minimum of the distance, with one query per sample.

    A residual of 0.02 means that, judged by the slope at the point, a point 2 % nearer exists. It is evidence, not a
    bound: it is 0 at every local minimum, global or not, and curvature makes it pessimistic.

    Args:
        model: The model that was measured; or its ``Classifier``, or an open ``Session``.
        images: The inputs that were measured.
        margins: What ``ma.measure`` returned for them, in "l1", "l2" or "linf".
        bounds: The box of a model that is not a Classifier, (lo, hi), by default (0, 1).

    Returns:
        (n,) float64 between 0 and 1; NaN if nothing was found or the input is misclassified.

    Raises:
        InputError: The margins are in l0, or do not belong to the images.

    Example:
        >>> import torch
        >>> import marginattack as ma
        >>> model, images = torch.nn.Flatten(), torch.tensor([[0.9, 0.2]])
        >>> margins = ma.measure(model, images, [0], norm="l2")
        >>> bool(ma.bounds.kkt_residual(model, images, margins) < 1e-3)
        True
    """
    norm = as_norm(margins.norm)
    if norm.name == "l0":
        raise InputError("margins are in l0, which has no KKT conditions: give margins in l1, l2 or linf")
    if isinstance(model, Classifier | Session) and bounds is not None:
        raise InputError("bounds are given twice: omit them, since the Classifier has its own")
    with open_session(
        model if isinstance(model, Classifier | Session) else Classifier(model, bounds=bounds)
    ) as session:
        session.space.require_plain("kkt_residual")
        x = session.validate(images, margins.label).images
        if margins.adversarial.shape != x.shape:
            shapes = f"{tuple(margins.adversarial.shape)} and {tuple(x.shape)}"
            raise InputError(f"margins and images have shapes {shapes}: give the images that were measured")
        residual = torch.full((len(x),), torch.nan, dtype=torch.float64)
        found = (margins.success & (margins.distance > 0)).nonzero()[:, 0]
        for rows in found.split(session.batch_size):
            leaf = margins.adversarial[rows].to(x.dtype).to(session.classifier.device).requires_grad_()
            logits = session.evaluator().logits(leaf)
            goal, label = (each[rows].to(leaf.device)[:, None] for each in (margins.adversarial_label, margins.label))
            c = logits.gather(1, label) - logits.gather(1, goal)
            g = input_gradient(c.sum(), leaf, keep=False).double().flatten(1).cpu()
            start, point = x[rows].double().flatten(1), leaf.detach().cpu().double().flatten(1)
            box = Box(*(each.double().reshape(1, -1) for each in session.classifier.bounds_for(x)))
            r = (g * (start - point)).sum(1, keepdim=True)
            nearest = norm.size(norm.onto_plane(start, g, r, box) - start)
            residual[rows] = (1 - nearest / norm.size(point - start))[:, 0].clamp(0, 1)
    return residual
