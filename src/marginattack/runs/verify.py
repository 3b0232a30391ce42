"""Verification of stored rows: every shard is read and checked on the plain model."""

import hashlib

import numpy as np
import torch
from torch import Tensor

from marginattack.core.consistency import most_batch_noise
from marginattack.core.norms import NORMS, Norm
from marginattack.core.types import Labels, Mask
from marginattack.core.validation import NO_LABEL
from marginattack.execution.session import Session
from marginattack.storage.run_folder import Part, RunFolder, numeric_columns


def fingerprints(images: Tensor) -> list[str]:
    """A digest of the pixels of each image, the same in any run."""
    pixels = np.ascontiguousarray(images.float().numpy()).reshape(len(images), -1)
    return [hashlib.blake2b(image.data, digest_size=8).hexdigest() for image in pixels]


def verify_shard(
    folder: RunFolder, session: Session, part: Part, shard: int, samples: tuple[Tensor, Tensor, Tensor]
) -> tuple[int, int]:
    """Count the rows of a shard and those that fail; ``samples`` are its ids, images and labels in the data."""
    margins = folder.read(part, shard)
    images, column = folder.images(part, shard, margins=margins), numeric_columns(margins)
    if len(margins) == 0:
        return 0, 0
    ids, x, y = samples
    if len(ids) > len(margins):  # --only-correct leaves samples out
        x, y = (each[torch.isin(ids, column["id"])] for each in (x, y))
    same = torch.from_numpy(np.array(fingerprints(x)) == np.array(margins.column("input").to_pylist()))
    same &= (images["original"].float() == x).flatten(1).all(1) & (column["label"] == y)
    verified = same & _verify_rows(images, column, NORMS[part.norm], session)
    return len(verified), int((~verified).sum())


def _verify_rows(images: dict[str, Tensor], column: dict[str, Tensor], norm: Norm, session: Session) -> Mask:
    """Whether the labels, confidence and distance of each row are correct, and its point is inside the box."""
    x, adversarial = images["original"], images["adversarial"]
    session.seed_draws(-1, column["id"])  # other draws than those the points were found with
    if session.randomized is None:
        same = _matches_logits(session.plain_logits(x), column, session)
    else:
        same = _agrees(x, column["prediction"], column, session)
    if "adversarial_255" in images:
        points = (images["adversarial_255"] / 255).to(x)
        distance = norm.size((points - x).double().flatten(1))[:, 0]
        close = torch.isclose(distance, column["distance_255"], rtol=1e-6, atol=1e-9)
        reached_255 = _reached(session.plain_labels(points), column)
        same &= torch.isinf(column["distance_255"]) | (reached_255 & close)
    distance = session.space.distance(norm, x, adversarial)
    inside = session.space.contains(x, adversarial)
    close = torch.isclose(distance, column["distance"], rtol=1e-9, atol=0)
    label = column["adversarial_label"]
    adversarial_holds = _reached(label, column) & _agrees(adversarial, label, column, session) & inside & close
    return same & torch.where(column["success"], adversarial_holds, torch.isinf(column["distance"]))


def _reached(label: Labels, column: dict[str, Tensor]) -> Mask:
    """Whether these labels are the target, or any wrong class if untargeted."""
    wanted = torch.where(column["target"] >= 0, label == column["target"], label != column["label"])
    return wanted & (label != NO_LABEL)


def _agrees(points: Tensor, stored: Labels, column: dict[str, Tensor], session: Session) -> Mask:
    """Whether the plain model gives the points their stored labels; a randomised one must not contradict them."""
    if session.randomized is None:
        return session.plain_labels(points) == stored
    return ~_reached(stored, column) | session.holds_again(points, lambda label: _reached(label, column))


def _matches_logits(logits: Tensor, column: dict[str, Tensor], session: Session) -> Mask:
    """Whether prediction and confidence are those of the plain model, up to batch noise."""
    limit = most_batch_noise(session.classifier.rounding_unit(logits.dtype))
    change = (column["confidence"] - logits.double().softmax(1).amax(1)).abs()
    return (logits.argmax(1) == column["prediction"]) & (change <= limit * logits.double().abs().amax(1))
