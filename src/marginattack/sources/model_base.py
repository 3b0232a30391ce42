"""Shared by the model sources: their result, reading files and weights, and wrappers for exported programs."""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.core.validation import check_logits
from marginattack.errors import InputError
from marginattack.sources.common import check_size, explain_errors
from marginattack.sources.images import ImageSize
from marginattack.sources.preprocess import Statistics

MODEL_BYTES = 4 * 2**30  # of a model file; --max-gib raises it
USE_FACTORY = "define the network in a Python file and pass file.py:factory, a function that builds it and loads them"


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options of ``open_model`` that a source may need."""

    trust_pickle: bool
    device: str
    max_gib: float | None = None
    strip_softmax: bool = False


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """What a source returns: the module and its metadata."""

    module: nn.Module
    content: str = ""  # identifies what was read or run besides the weights: SHA-256 of a file, or a name
    statistics: Statistics | None = None
    image_size: ImageSize | None = None
    classes: list[str] | None = None
    origin: str = ""  # of statistics and image size, e.g. "timm metadata"
    was_training: bool = False  # it came in train mode
    notes: dict[str, Any] = field(default_factory=dict)  # further entries of the manifest


def find_file(path: str) -> Path:
    """Return the path of a model file; raise InputError if it does not exist."""
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{path} is a folder: pass the model's file, or hf:{path} for a transformers model")
    if not file.is_file():
        raise InputError(f"no file {path}: check --model")
    return file


def read_file(path: str, options: ModelOptions, *, runs_code: str = "") -> bytes:
    """Read a model file once, so that the same bytes are checked, hashed and loaded.

    If loading it runs code, described by ``runs_code``, it is read only with ``trust_pickle``.
    """
    file = find_file(path)
    if runs_code and not options.trust_pickle:
        hint = f"pass --trust-pickle if you trust its origin; otherwise {USE_FACTORY}, or export it as .onnx"
        raise InputError(f"{path} is {runs_code}, and loading it runs the code in it: {hint}")
    with explain_errors(f"cannot read {path}"):
        check_size(path, file.stat().st_size, MODEL_BYTES, options.max_gib)
        return file.read_bytes()


def load_weights(module: nn.Module, path: str, options: ModelOptions) -> None:
    """Load weights from a local file: .safetensors, or a state_dict that is read with weights_only."""
    content = read_file(path, options)
    if path.endswith(".safetensors"):
        from safetensors.torch import load

        with explain_errors(f"cannot read {path} as safetensors"):
            weights: Mapping[str, Tensor] = load(content)
    else:
        with explain_errors(f"cannot read {path} as a state_dict of tensors", "save it as .safetensors"):
            if zipfile.is_zipfile(io.BytesIO(content)):
                unpacked = sum(info.file_size for info in zipfile.ZipFile(io.BytesIO(content)).infolist())
                check_size(f"{path}, unpacked,", unpacked, len(content), options.max_gib)  # torch does not compress
            weights = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    with explain_errors(f"the weights in {path} do not fit {type(module).__name__}"):
        module.load_state_dict(dict(weights))


def is_training(module: nn.Module) -> bool:
    """Whether any part of the module is in train mode."""
    return any(part.training for part in module.modules())


class LogitsOnly(nn.Module):
    """Unwraps the logits of a model that returns a dict, an output object or a tuple."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = extract_logits(self.model(images))
        return logits


def extract_logits(output: Any) -> Any:
    """Return the logits in a model's output. Unknown types are returned unchanged; the classifier rejects them."""
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    if hasattr(output, "logits"):
        return output.logits
    if isinstance(output, tuple | list) and len(output) == 1:
        return output[0]
    return output


class AnyBatch(nn.Module):
    """A program that was recorded for ``min_batch`` to ``max_batch`` inputs, as a model for any number of inputs.

    Larger batches are split. Smaller ones are padded with copies of their first input, and the padding is removed.
    ``shape`` is the shape of one input, with None for sides of any size.
    """

    def __init__(
        self, model: nn.Module, shape: tuple[int | None, ...], min_batch: int = 1, max_batch: int | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.shape, self.min_batch, self.max_batch = shape, min_batch, max_batch

    def train(self, mode: bool = True) -> "AnyBatch":
        """Set only the flags: a recorded program keeps its mode, and its modules raise an error if switched."""
        for module in self.modules():
            module.training = mode
        return self

    def forward(self, images: Tensor) -> Tensor:
        given = tuple(images.shape[1:])
        if len(given) != len(self.shape) or any(a not in (None, b) for a, b in zip(self.shape, given, strict=True)):
            expected = "×".join("any" if side is None else str(side) for side in self.shape)
            problem = f"the program takes inputs of {expected}, but these are {'×'.join(map(str, given))}"
            raise InputError(f"{problem}: pass --resize and --crop, or export it for this size")
        parts = [images] if self.max_batch is None else images.split(self.max_batch)
        return torch.cat([self._run(part) for part in parts])

    def _run(self, images: Tensor) -> Tensor:
        n = len(images)
        if n < self.min_batch:
            images = torch.cat([images, images[:1].detach().expand(self.min_batch - n, *images.shape[1:])])
        logits: Tensor = extract_logits(self.model(images))
        return logits[:n]


def load_program(padded: AnyBatch, probe: Tensor, name: str, **about: Any) -> LoadedModel:
    """Check a recorded program, and lift its limits on the batch size where possible."""
    _check_gradient(padded, probe, name)
    module = padded
    if (padded.min_batch, padded.max_batch) != (1, None):
        module = _lift_limits(padded, torch.cat([probe, probe.flip(0)[:1], probe]))
    recorded = "any" if padded.max_batch is None else str(padded.max_batch)
    if padded.max_batch is not None and padded.min_batch != padded.max_batch:
        recorded = f"{padded.min_batch} to {padded.max_batch}"
    batch = {"batch recorded": recorded, "batch used": "any" if module.max_batch is None else recorded}
    return LoadedModel(module=module, notes={**about.pop("notes", {}), **batch}, **about)


def _lift_limits(padded: AnyBatch, probe: Tensor) -> AnyBatch:
    """Return the program without limits on the batch if it gives every input the logits of the padded program.

    Most networks that were recorded for one batch size treat rows independently. Networks with a hard-coded batch size
    fail or differ on this probe of several inputs, and stay padded.
    """
    free = AnyBatch(padded.model, padded.shape)
    with torch.no_grad():
        expected = padded(probe)
        try:
            outputs = [free(probe), free(probe[:1])]
        except Exception:
            return padded
    return free if all(map(almost_equal, outputs, (expected, expected[:1]))) else padded


def almost_equal(logits: Tensor, expected: Tensor) -> bool:
    """Whether logits have the same shape and agree up to rounding, relative to the largest."""
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    return logits.shape == expected.shape and bool((logits - expected).abs().le(1e-3 * scale + 1e-5).all())


def _check_gradient(module: nn.Module, probe: Tensor, name: str) -> None:
    """Raise InputError for a program that returns no logits, or logits without a gradient with respect to its input."""
    images = probe.clone().requires_grad_()
    with explain_errors(f"{name} fails on a random input of shape {tuple(probe.shape)}"), torch.enable_grad():
        logits = module(images)
    check_logits(logits, None, name=name)
    hint = "export it without no_grad, detach or integer arithmetic"
    if not logits.requires_grad:
        raise InputError(f"{name} passes no gradient to its input, which every attack needs: {hint}")
    with explain_errors(f"{name} passes no gradient to its input", hint):
        torch.autograd.grad(logits.sum(), images)
