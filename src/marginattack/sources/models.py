"""Models by their source: what ``--model`` takes, opened as a module for pixels in [0, 1]."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.errors import InputError, describe
from marginattack.sources.images import ImageSize
from marginattack.sources.model_files import open_factory, open_onnx, open_pickle, refuse_safetensors
from marginattack.sources.model_hubs import open_hf, open_timm, open_torchvision, open_zoo
from marginattack.sources.model_parts import Opened, refusing
from marginattack.sources.model_pt2 import open_pt2
from marginattack.sources.networks import ZOO
from marginattack.sources.preprocess import Preprocess, Statistics, parse_normalize


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that is ready to be measured, and where it comes from."""

    name: str  # the source as it was written
    module: nn.Module  # pixels in [0, 1] to logits; in eval mode, on the device
    digest: str  # sha256 of the weights and, for files, of their bytes
    preprocessing: dict[str, Any]  # what the module does before the model sees a pixel, for the manifest
    image_size: ImageSize | None  # how the source's metadata fit image files; None: unknown
    classes: list[str] | None
    was_training: bool  # it came in train mode
    bare: nn.Module  # the module without our preprocessing


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a form needs to open a source."""

    text: str  # the source without its prefix
    trust_pickle: bool
    device: str


Opener = Callable[[Request], Opened]

FORMS = {
    "zoo:NAME": "a bundled network",
    "file.py:factory": "a function without arguments in a Python file, which returns the module; the file is executed",
    "pkg.mod:factory": "the same in an importable module, which is executed",
    "FILE.pt2": "a program saved by torch.export.save",
    "FILE.onnx": "an ONNX graph, checked against onnxruntime (extra onnx)",
    "torchvision:NAME": "a classifier of torchvision, or NAME@WEIGHTS (extra torchvision)",
    "timm:NAME": "a model of timm, or NAME@FILE.safetensors (extra timm)",
    "hf:NAME": "an image classifier of transformers, by name or folder; safetensors alone (extra hf)",
    "FILE.pt": "a pickled module, which is executed: only with --trust-pickle",
}

PREFIXES: dict[str, Opener] = {
    "zoo": lambda request: open_zoo(request.text),
    "torchvision": lambda request: open_torchvision(request.text),
    "timm": lambda request: open_timm(request.text),
    "hf": lambda request: open_hf(request.text),
}

SUFFIXES: dict[str, Opener] = {
    ".pt2": lambda request: open_pt2(request.text, trust=request.trust_pickle, device=request.device),
    ".onnx": lambda request: open_onnx(request.text),
    ".pt": lambda request: open_pickle(request.text, trust=request.trust_pickle),
    ".pth": lambda request: open_pickle(request.text, trust=request.trust_pickle),
    ".safetensors": lambda request: refuse_safetensors(request.text),
}


def open_model(
    source: str,
    *,
    normalize: str = "auto",
    resize: int | None = None,
    crop: int | None = None,
    trust_pickle: bool = False,
    device: str = "cpu",
) -> Model:
    """The model that ``source`` names, in eval mode on the device, with its preprocessing in front.

    ``normalize="auto"`` takes the statistics of the source's metadata (torchvision, timm, hf) and none where it has
    none. ``resize`` and ``crop`` become part of the model; the metadata's own go to ``image_size``, for the reader of
    image files. A Python factory is code and is executed; a pickle is code too, and needs ``trust_pickle``.
    """
    stated = None if normalize == "auto" else parse_normalize(normalize)
    _check_device(device)
    opened = _opener(source)(Request(text=_text(source), trust_pickle=trust_pickle, device=device))
    statistics = opened.statistics if normalize == "auto" else stated
    bare = opened.module
    digest = _digest(bare, opened.content)
    module = bare
    if statistics is not None or resize is not None or crop is not None:
        module = Preprocess(bare, statistics=statistics, resize=resize, crop=crop)
    with refusing(f"cannot bring {source} to eval mode on {device}"):
        module = module.to(device).eval()
    fitted = resize is None and crop is None
    return Model(
        name=source,
        module=module,
        digest=digest,
        preprocessing=_preprocessing(opened, normalize, statistics, resize, crop),
        image_size=opened.image_size if fitted else None,  # what is inside the model is not done twice
        classes=opened.classes,
        was_training=opened.was_training,
        bare=bare,
    )


def _opener(source: str) -> Opener:
    """The function that opens this form of source, or a refusal that lists the forms."""
    prefix, colon, rest = source.partition(":")
    if colon and prefix in PREFIXES:
        if not rest:
            raise InputError(f"--model {source!r} names no model: write {prefix}:NAME")
        return PREFIXES[prefix]
    for suffix, opener in SUFFIXES.items():
        if source.endswith(suffix):
            return opener
    if re.fullmatch(r".+\.py:[\w.]+|[\w.]+:[\w.]+", source):
        return lambda request: open_factory(request.text)
    hint = f"give one of {', '.join(FORMS)}"
    if source in ZOO:
        hint = f"did you mean zoo:{source}?"
    elif source.endswith(".py"):
        hint = f"name the function that builds the model, {source}:factory"
    raise InputError(f"--model {source!r} is no known source: {hint}")


def _text(source: str) -> str:
    prefix, _, rest = source.partition(":")
    return rest if prefix in PREFIXES else source


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except Exception as error:
        raise InputError(f"device {device!r} cannot be used ({describe(error)}): give cpu, cuda or cuda:0") from error


def _preprocessing(
    opened: Opened, normalize: str, statistics: Statistics | None, resize: int | None, crop: int | None
) -> dict[str, Any]:
    mean, std = statistics or (None, None)
    return {
        "mean": None if mean is None else list(mean),
        "std": None if std is None else list(std),
        "resize": resize,
        "crop": crop,
        "from": (opened.origin or "none") if normalize == "auto" else f"--normalize {normalize}",
        **opened.notes,
    }


def _digest(module: nn.Module, content: str) -> str:
    """sha256 over what was read or run, then each weight's name, type, shape and bytes, in the order of names."""
    total = hashlib.sha256(content.encode())
    for name, value in sorted(module.state_dict().items()):
        total.update(name.encode() + b"\0")
        if not isinstance(value, Tensor):
            total.update(repr(value).encode())
            continue
        plain = value.detach().cpu()
        plain = plain.int_repr() if plain.is_quantized else plain.to_dense() if plain.layout != torch.strided else plain
        total.update(f"{value.dtype} {tuple(value.shape)}\0".encode())
        total.update(plain.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
