"""Class names, from a file or of ImageNet."""

import json
from pathlib import Path
from typing import Any

from marginattack.errors import InputError
from marginattack.sources.common import explain_errors, import_extra

MAX_BYTES = 2**24  # of a file of names
HINT = "give imagenet, a .json list or object of names by class index, or a text file with one name per line"


def read_classes(source: str) -> list[str]:
    """Read the class names that ``--classes`` states, by class index."""
    if source == "imagenet":
        return imagenet_classes(1000) or []
    path = Path(source).expanduser()
    if not path.is_file():
        raise InputError(f"--classes {source}: no such file: {HINT}")
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"--classes {source} has {path.stat().st_size} bytes: {HINT}")
    with explain_errors(f"--classes {source}: cannot be read", HINT):
        text = path.read_text(encoding="utf-8-sig")
        names = _list(json.loads(text)) if path.suffix.lower() == ".json" else text.rstrip().splitlines()
    if not names:
        raise InputError(f"--classes {source} holds no names: {HINT}")
    return [name.strip() for name in names]


def _list(content: Any) -> list[str]:
    """Return a list of names, or an object from class index to name, as Hugging Face and torchvision write it."""
    if isinstance(content, dict):
        missing = [i for i in range(len(content)) if str(i) not in content]
        if missing:
            raise ValueError(f"class {missing[0]} has no name")
        content = [content[str(i)] for i in range(len(content))]
    names = [each[-1] if isinstance(each, list) and each else each for each in content]  # ["n01440764", "tench"]
    if not isinstance(content, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("it is not a list of names")
    return names


def imagenet_classes(classes: int) -> list[str] | None:
    """Return ImageNet's class names from timm's metadata; None if no ImageNet variant has that many classes."""
    data = import_extra("timm.data", "timm")
    subset = data.infer_imagenet_subset({"num_classes": classes})
    if subset is None:
        return None
    return [str(name) for name in data.ImageNetInfo(subset).label_descriptions()]
