"""Every stored row is read back and checked on the bare model: whoever computed it, wherever."""

import torch
from torch import Tensor

from marginattack.core.classifier import Classifier
from marginattack.core.norms import NORMS, Norm
from marginattack.core.types import Mask
from marginattack.runs.job import fingerprint
from marginattack.storage.run_folder import Part, Store


def check_shard(store: Store, classifier: Classifier, part: Part, shard: int) -> tuple[int, int]:
    """How many rows a shard has, and how many of them fail."""
    inputs = store.table(["input"], part, shard).column("input").to_pylist()
    right = _rows_hold(store.images(part, shard), store.numbers(part, shard), inputs, NORMS[part.norm], classifier)
    return len(right), int((~right).sum())


def _rows_hold(
    images: dict[str, Tensor], column: dict[str, Tensor], inputs: list[str], norm: Norm, classifier: Classifier
) -> Mask:
    """Whether each row of a shard is what it says: its input, its distance, its adversarial label, inside the box."""
    x, adversarial, success, target = images["original"], images["adversarial"], column["success"], column["target"]
    if len(x) == 0:
        return success
    distance = norm.size((adversarial.double() - x.double()).flatten(1))[:, 0]
    with classifier.held():
        label, guess = classifier.recheck(adversarial), classifier.recheck(x)
    reached = torch.where(target >= 0, label == target, label != column["label"])
    inside = ((adversarial >= 0) & (adversarial <= 1)).flatten(1).all(1)
    same = torch.tensor([fingerprint(a) == b for a, b in zip(x, inputs, strict=True)])
    close = torch.isclose(distance, column["distance"], rtol=1e-9, atol=0)
    shown = reached & inside & close & (label == column["adversarial_label"])
    same &= (images["id"] == column["id"]) & (guess == column["prediction"])
    if "adversarial_255" in images:
        same &= _lattice_holds(images, column, norm, classifier)
    return same & torch.where(success, shown, torch.isinf(column["distance"]))


def _lattice_holds(images: dict[str, Tensor], column: dict[str, Tensor], norm: Norm, classifier: Classifier) -> Mask:
    """Whether each 8-bit image is adversarial at its distance; one that is infinitely far says nothing."""
    x, point, distance, target = images["original"], images["adversarial_255"], column["distance_255"], column["target"]
    point = (point / 255).to(x)
    with classifier.held():
        label = classifier.recheck(point)
    reached = torch.where(target >= 0, label == target, label != column["label"])
    size = norm.size((point - x).double().flatten(1))[:, 0]
    return torch.isinf(distance) | (reached & torch.isclose(size, distance, rtol=1e-6, atol=1e-9))
