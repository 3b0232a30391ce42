"""What the model sources share: what each of them hands over, batches of any size, and errors of one line."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.errors import InputError, describe
from marginattack.sources.images import ImageSize
from marginattack.sources.preprocess import Statistics

HINT_FACTORY = "put the network into a Python file and pass file.py:factory, a function that builds it and loads them"


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What a source gives: the module as it came, and what its metadata says about it."""

    module: nn.Module
    content: str = ""  # what was read or run besides the weights: a sha256 of the file's bytes
    statistics: Statistics | None = None
    image_size: ImageSize | None = None
    classes: list[str] | None = None
    origin: str = ""  # where statistics and image size come from, e.g. "timm metadata"
    was_training: bool = False  # the user handed it over in train mode
    notes: dict[str, Any] = field(default_factory=dict)  # what else is worth a line in the manifest


@contextmanager
def refusing(what: str, hint: str = "") -> Iterator[None]:
    """Whatever goes wrong inside is one line: what was tried, the error, and what to do."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{what}: {describe(error)}{'; ' if hint else ''}{hint}") from error


def read_file(path: str) -> bytes:
    """The bytes of a model file, read once: what is checked and hashed is what is loaded."""
    file = Path(path)
    if file.is_dir():
        raise InputError(
            f"{path} is a folder, not a file: give the model's file, or hf:{path} for a transformers model"
        )
    if not file.exists():
        raise InputError(f"no file {path}: check --model")
    with refusing(f"cannot read {path}"):
        return file.read_bytes()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def load_weights(module: nn.Module, path: str) -> None:
    """Weights from a local file, .safetensors or a state_dict that is read as data (weights_only), into the module."""
    content = read_file(path)
    if path.endswith(".safetensors"):
        from safetensors.torch import load

        with refusing(f"cannot read {path} as safetensors"):
            weights: Mapping[str, Tensor] = load(content)
    else:
        import io

        with refusing(f"cannot read {path} as weights alone", "save the state_dict as .safetensors"):
            weights = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    with refusing(f"the weights in {path} do not fit {type(module).__name__}"):
        module.load_state_dict(dict(weights))


def in_training(module: nn.Module) -> bool:
    """Whether any part of the module is in train mode."""
    return any(part.training for part in module.modules())


class Logits(nn.Module):
    """A model that returns its logits in a record, a dict or a tuple, as one that returns the logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = logits_of(self.model(images))
        return logits


def logits_of(output: Any) -> Any:
    """The logits in a model's output; what is no known record is handed on as it is, for the classifier to refuse."""
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    if hasattr(output, "logits"):
        return output.logits
    if isinstance(output, tuple | list) and len(output) == 1:
        return output[0]
    return output


class AnyBatch(nn.Module):
    """A program that was recorded for ``least`` to ``most`` inputs at a time, as a model for any number of them.

    Longer batches are split, shorter ones are padded with copies of their first input, and the padding is cut off.
    ``shape`` is that of one input, with None where any size goes.
    """

    def __init__(
        self, model: nn.Module, shape: tuple[int | None, ...], least: int = 1, most: int | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.shape, self.least, self.most = shape, least, most

    def train(self, mode: bool = True) -> "AnyBatch":
        """A recorded program has the mode it was recorded in; its modules refuse to be switched."""
        for module in self.modules():
            module.training = mode
        return self

    def forward(self, images: Tensor) -> Tensor:
        given = tuple(images.shape[1:])
        if len(given) != len(self.shape) or any(a not in (None, b) for a, b in zip(self.shape, given, strict=True)):
            wanted = "×".join("any" if side is None else str(side) for side in self.shape)
            raise InputError(f"the program takes inputs of {wanted}, but these are {'×'.join(map(str, given))}: give "
                          "--resize and --crop, or export it for this size")  # fmt: skip
        parts = [images] if self.most is None else images.split(self.most)
        return torch.cat([self._one(part) for part in parts])

    def _one(self, images: Tensor) -> Tensor:
        n = len(images)
        if n < self.least:
            images = torch.cat([images, images[:1].detach().expand(self.least - n, *images.shape[1:])])
        logits: Tensor = logits_of(self.model(images))
        return logits[:n]


def freed(padded: AnyBatch, free: nn.Module, probe: Tensor) -> AnyBatch:
    """The program without its limits on the batch where it gives every input the logits of the padded one.

    Most networks that were recorded for one input at a time compute each row by itself; those that hold the number
    in a shape fail or differ on this probe of several inputs, and stay padded.
    """
    candidate = AnyBatch(free, padded.shape)
    with torch.no_grad():
        expected = padded(probe)
        try:
            got = [candidate(probe), candidate(probe[:1])]
        except Exception:
            return padded
    same = all(g.shape == e.shape and close(g, e) for g, e in zip(got, (expected, expected[:1]), strict=True))
    return candidate if same else padded


def close(got: Tensor, expected: Tensor) -> bool:
    """Whether logits agree up to rounding, at the scale of the largest."""
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    return bool((got - expected).abs().le(1e-3 * scale + 1e-5).all())


def check_gradient(module: nn.Module, probe: Tensor, name: str) -> None:
    """Refuse a program whose logits do not depend on its input in a way that autograd can see."""
    images = probe.clone().requires_grad_()
    with refusing(f"{name} fails on a random input of shape {tuple(probe.shape)}"), torch.enable_grad():
        logits = module(images)
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise InputError(
            f"{name} returns {_kind(logits)}, not a tensor of logits: export a model that returns them alone"
        )
    hint = "export it without no_grad, detach or integer arithmetic"
    if not logits.requires_grad:
        raise InputError(f"{name} passes no gradient to its input, which every attack needs: {hint}")
    with refusing(f"{name} passes no gradient to its input", hint):
        torch.autograd.grad(logits.sum(), images)


def _kind(value: Any) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} numbers" if isinstance(value, Tensor) else type(value).__name__
