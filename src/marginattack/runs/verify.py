"""Verification of stored rows: every shard is read back and checked on the plain model."""

import hashlib

import numpy as np
import torch
from torch import Tensor

from marginattack.core.norms import NORMS, Norm
from marginattack.core.types import Labels, Mask
from marginattack.core.validation import NO_LABEL
from marginattack.execution.session import Session
from marginattack.storage.run_folder import Part, RunFolder


def fingerprint(image: Tensor) -> str:
    """A digest of the pixels, the same in any run."""
    return hashlib.blake2b(np.ascontiguousarray(image.float().numpy()).tobytes(), digest_size=8).hexdigest()


def verify_shard(folder: RunFolder, session: Session, part: Part, shard: int) -> tuple[int, int]:
    """How many rows a shard has, and how many of them fail."""
    inputs = folder.table(["input"], part, shard).column("input").to_pylist()
    images, column = folder.images(part, shard), folder.numeric_columns(part, shard)
    if not inputs:
        return 0, 0
    verified = _verify_rows(images, column, inputs, NORMS[part.norm], session)
    return len(verified), int((~verified).sum())


def _verify_rows(
    images: dict[str, Tensor], column: dict[str, Tensor], inputs: list[str], norm: Norm, session: Session
) -> Mask:
    """Whether the input, distance and adversarial label of each row are right, and its point is inside the box."""
    x, adversarial = images["original"], images["adversarial"]
    session.seed_draws(-1, column["id"])  # not the draws that the points were found with
    same = torch.tensor([fingerprint(image) == stored for image, stored in zip(x, inputs, strict=True)])
    same &= (images["id"] == column["id"]) & _agrees(x, column["prediction"], column, session)
    if "adversarial_255" in images:
        points = (images["adversarial_255"] / 255).to(x)
        distance = norm.size((points - x).double().flatten(1))[:, 0]
        close = torch.isclose(distance, column["distance_255"], rtol=1e-6, atol=1e-9)
        reached_255 = _reached(session.plain_labels(points), column)
        same &= torch.isinf(column["distance_255"]) | (reached_255 & close)
    distance = norm.size((adversarial.double() - x.double()).flatten(1))[:, 0]
    inside = ((adversarial >= 0) & (adversarial <= 1)).flatten(1).all(1)
    close = torch.isclose(distance, column["distance"], rtol=1e-9, atol=0)
    label = column["adversarial_label"]
    adversarial_holds = _reached(label, column) & _agrees(adversarial, label, column, session) & inside & close
    return same & torch.where(column["success"], adversarial_holds, torch.isinf(column["distance"]))


def _reached(label: Labels, column: dict[str, Tensor]) -> Mask:
    """Whether these labels are the target, or any wrong class if untargeted."""
    wanted = torch.where(column["target"] >= 0, label == column["target"], label != column["label"])
    return wanted & (label != NO_LABEL)


def _agrees(points: Tensor, stored: Labels, column: dict[str, Tensor], session: Session) -> Mask:
    """Whether the plain model gives the points their stored labels; for a randomised one, nothing contradicts them."""
    if session.randomized is None:
        return session.plain_labels(points) == stored
    return ~_reached(stored, column) | session.holds_again(points, lambda label: _reached(label, column))
