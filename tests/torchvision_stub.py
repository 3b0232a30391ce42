"""Let torchvision be imported where its compiled operators do not load: no model in the tests uses them."""

import importlib

import torch

KEPT: list[torch.library.Library] = []  # a library that is collected takes its operators with it


def install() -> None:
    """Import torchvision; where that fails for want of two operators, declare them and import it again."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(library)
        importlib.import_module("torchvision")
