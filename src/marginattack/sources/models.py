"""Models by name, as in ``--model``, opened as modules for pixels in [0, 1].

To add a form of model, write one function ``(source, options) → LoadedModel`` and add one line to FORMS.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.core.plugins import Registry
from marginattack.errors import InputError
from marginattack.sources.common import Form, explain_errors, match_form
from marginattack.sources.images import ImageSize
from marginattack.sources.model_base import LoadedModel, ModelOptions
from marginattack.sources.model_hubs import open_hf, open_robustbench, open_timm, open_torchvision, open_zoo
from marginattack.sources.model_onnx import open_onnx
from marginattack.sources.model_pt2 import open_pt2
from marginattack.sources.model_python import open_factory, open_pickle, refuse_safetensors
from marginattack.sources.networks import ZOO
from marginattack.sources.preprocess import Preprocess, parse_normalize


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that is ready to be measured, and its origin."""

    name: str  # the source as the user wrote it
    module: nn.Module  # pixels in [0, 1] to logits; in eval mode, on the device
    digest: str  # SHA-256 of the weights and, for files, of their bytes
    preprocessing: dict[str, Any]  # what is done to pixels in front of the network, for the manifest
    image_size: ImageSize | None  # how the metadata of the source resize and crop image files; None: unknown
    classes: list[str] | None
    was_training: bool  # it came in train mode
    bare: nn.Module  # the module without our preprocessing


FORMS: Mapping[str, Form] = {
    "zoo:NAME": Form(open_zoo, "a bundled network"),
    "file.py:factory": Form(open_factory, "a function in a Python file that returns the module; the file is executed"),
    "pkg.mod:factory": Form(open_factory, "the same in an importable module, which is executed"),
    "FILE.pt2": Form(open_pt2, "a program saved by torch.export.save, which may hold code: only with --trust-pickle"),
    "FILE.onnx": Form(open_onnx, "an ONNX graph, compared with onnxruntime (extra onnx)", ("strip-softmax",)),
    "torchvision:NAME": Form(open_torchvision, "a classifier of torchvision, or NAME@WEIGHTS (extra torchvision)"),
    "timm:NAME": Form(open_timm, "a model of timm, or NAME@FILE.safetensors (extra timm)"),
    "hf:NAME": Form(open_hf, "an image classifier of transformers, by name or folder; safetensors only (extra hf)"),
    "robustbench:NAME": Form(
        open_robustbench, "a model of RobustBench, or NAME@DATASET/THREAT; a pickle: only with --trust-pickle"
    ),
    "FILE.pt": Form(open_pickle, "a pickled module, which is executed: only with --trust-pickle"),
    "FILE.pth": Form(open_pickle, "the same"),
}
FORMS = Registry("marginattack.models", FORMS, lambda name, _: f"{name}:NAME")


def open_model(
    source: str, *, normalize: str = "auto", resize: int | None = None, crop: int | None = None,
    trust_pickle: bool = False, device: str = "cpu", max_gib: float | None = None, strip_softmax: bool = False,
) -> Model:  # fmt: skip
    """Open a model by name, in eval mode on the device, with its preprocessing in front.

    Args:
        source: What ``--model`` takes, in one of ``FORMS``. A Python factory is executed.
        normalize: "auto" for the statistics of the source's metadata (torchvision, timm, hf), if any; a key of
            ``NORMALIZATIONS``; "MEAN/STD"; or "none".
        resize: Resize the shorter side to this many pixels, as part of the model.
        crop: Crop the centre to this many pixels, as part of the model. Without resize and crop, the sizes in the
            metadata are returned as ``image_size``, for the reader of image files.
        trust_pickle: Load pickles and ``.pt2`` programs, which runs the code in them.
        device: The torch device.
        max_gib: The largest file, with its external data, and the largest array of an ONNX graph that may be read, in
            GiB; by default 4 for a file and 0.25 for an array.
        strip_softmax: Remove the Softmax that ends an ONNX graph, so that it returns logits.

    Returns:
        The module and what is known about it.

    Raises:
        InputError: The source has an unknown form or cannot be opened, or an option is invalid.
        MissingDependencyError: An optional package is not installed.

    Example:
        >>> model = open_model("zoo:mnist-cnn")
        >>> model.module, model.digest, model.preprocessing
    """
    statistics = None if normalize == "auto" else parse_normalize(normalize)
    with explain_errors(f"device {device!r} cannot be used", "pass cpu, cuda or cuda:0"):
        torch.empty(0, device=device)
    options = ModelOptions(trust_pickle=trust_pickle, device=device, max_gib=max_gib, strip_softmax=strip_softmax)
    form = FORMS[find_form(source)]
    if strip_softmax and "strip-softmax" not in form.accepts:
        raise InputError(f"--strip-softmax applies to .onnx files, not to {source}: remove the softmax in its code")
    loaded: LoadedModel = form.open(source, options)
    if normalize == "auto":
        statistics = loaded.statistics
    module, fitted = loaded.module, resize is not None or crop is not None
    if statistics is not None or fitted:
        module = Preprocess(module, statistics=statistics, resize=resize, crop=crop)
    digest = _digest(loaded.module, loaded.content)
    with explain_errors(f"cannot bring {source} to eval mode on {device}"):
        module = module.to(device).eval()
    mean, std = (None, None) if statistics is None else map(list, statistics)
    origin = (loaded.origin or "none") if normalize == "auto" else f"--normalize {normalize}"
    return Model(
        name=source,
        module=module,
        digest=digest,
        preprocessing={"mean": mean, "std": std, "resize": resize, "crop": crop, "from": origin, **loaded.notes},
        image_size=None if fitted else loaded.image_size,  # what the model does is not done twice
        classes=loaded.classes,
        was_training=loaded.was_training,
        bare=loaded.module,
    )


def find_form(source: str) -> str:
    """Return the key of FORMS that a source is written in."""
    form = match_form(source, FORMS)
    if form is not None:
        return form
    if re.fullmatch(r".+\.py:[\w.]+", source):
        return "file.py:factory"
    if re.fullmatch(r"[\w.]+:[\w.]+", source):
        return "pkg.mod:factory"
    if source.endswith(".safetensors"):
        refuse_safetensors(source)
    hint = f"choose one of {', '.join(FORMS)}"
    if source in ZOO:
        hint = f"did you mean zoo:{source}?"
    elif source.endswith(".py"):
        hint = f"name the function that builds the model, {source}:factory"
    raise InputError(f"--model {source!r} is in no known form: {hint}")


def _digest(module: nn.Module, content: str) -> str:
    """Hash what was read or run, then name, dtype, shape and bytes of each tensor of the module, sorted by name.

    Besides the ``state_dict`` these are buffers that are not saved, and tensors that are plain attributes.
    """
    total = hashlib.sha256(content.encode())
    others = {
        f"{prefix}.{name}".lstrip("."): value
        for prefix, part in module.named_modules()
        for name, value in {**vars(part), **dict(part.named_buffers(recurse=False))}.items()
        if isinstance(value, Tensor)
    }
    for name, value in sorted({**others, **module.state_dict()}.items()):
        total.update(name.encode() + b"\0")
        if not isinstance(value, Tensor):
            total.update(repr(value).encode())
            continue
        plain = value.detach().cpu()
        plain = plain.int_repr() if plain.is_quantized else plain.to_dense() if plain.layout != torch.strided else plain
        total.update(f"{value.dtype} {tuple(value.shape)}\0".encode())
        total.update(plain.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
