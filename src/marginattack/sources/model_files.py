"""Models from files: Python factories, which are code; ONNX, which is not; and pickles, which are code in disguise."""

import importlib
import io
import os
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.errors import InputError, describe
from marginattack.sources.extras import need
from marginattack.sources.model_parts import (
    HINT_FACTORY,
    AnyBatch,
    Opened,
    check_gradient,
    close,
    freed,
    in_training,
    read_file,
    refusing,
    sha256,
)


def open_factory(source: str) -> Opened:
    """The module that ``file.py:factory`` or ``pkg.mod:factory`` returns. Both are Python, and are executed."""
    place, _, name = source.rpartition(":")
    is_file = place.endswith(".py")
    folder = Path(place).resolve().parent if is_file else Path.cwd()
    with _on_path(folder):
        module, content = _run_file(place) if is_file else _import(place)
        factory: Any = module
        for part in name.split("."):
            factory = getattr(factory, part, None)
        if not callable(factory):
            there = [
                n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__
            ]
            names = ", ".join(there[:8]) or "none"
            raise InputError(f"{place} has no factory {name!r}: name a function without arguments ({names} are there)")
        with refusing(f"factory {source} fails"):
            built = factory()
    if not isinstance(built, nn.Module):
        raise InputError(f"factory {source} returns a {type(built).__name__}: it must return a torch.nn.Module")
    return Opened(module=built, content=sha256(content + name.encode()), was_training=in_training(built))


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    """Imports look into this folder first, as when Python runs a script there."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _run_file(path: str) -> tuple[types.ModuleType, bytes]:
    """A Python file as a module: the bytes that are run are those that are hashed, no cached compilation."""
    content = read_file(path)
    module = types.ModuleType(f"marginattack_model_{re.sub(r'[^0-9A-Za-z]', '_', Path(path).stem)}")
    module.__file__ = os.path.abspath(path)
    sys.modules[module.__name__] = module  # dataclasses and pickling look a class's module up here
    with refusing(f"{path} fails when it is run"):
        exec(compile(content, path, "exec"), vars(module))
    return module, content


def _import(name: str) -> tuple[types.ModuleType, bytes]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = f"looked in {Path.cwd()} and the installed packages; for a file give file.py:factory"
            raise InputError(f"no module named {name}: {hint}") from error
        raise InputError(f"{name} fails when it is imported: {describe(error)}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{name} fails when it is imported: {describe(error)}") from error
    file = getattr(module, "__file__", None)
    return module, Path(file).read_bytes() if file else b""


def open_pickle(path: str, *, trust: bool) -> Opened:
    """A whole pickled module, and only where the user trusts it: unpickling runs whatever the file says."""
    content = read_file(path)
    if not trust:
        _refuse_pickle(path, content)
    with refusing(f"cannot unpickle {path}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript archives are announced as deprecated
        module = torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
    if not isinstance(module, nn.Module):
        what = "a state_dict: weights without a network" if isinstance(module, dict) else f"a {type(module).__name__}"
        raise InputError(f"{path} holds {what}: {HINT_FACTORY}")
    return Opened(module=module, content=sha256(content), was_training=in_training(module))


def _refuse_pickle(path: str, content: bytes) -> None:
    """Say what the file is, as far as can be said without unpickling more than tensors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:
        raise InputError(
            f"{path} is a pickle, which is code that would run when it is loaded: pass --trust-pickle if you trust "
            "where it comes from, or save the model with torch.export.save as .pt2"
        ) from None
    raise InputError(f"{path} holds a state_dict: weights without a network; {HINT_FACTORY}")


def refuse_safetensors(path: str) -> Opened:
    """Weights alone are no model."""
    read_file(path)
    raise InputError(f"{path} holds weights without a network: {HINT_FACTORY}, or pass timm:NAME@{path}")


def open_onnx(path: str) -> Opened:
    """An ONNX graph, converted by onnx2torch and compared with onnxruntime before use."""
    content = read_file(path)
    onnx, onnx2torch, runtime = (need(name, name, "onnx") for name in ("onnx", "onnx2torch", "onnxruntime"))
    with refusing(f"{path} is no ONNX model"):
        proto = onnx.load(path)
        onnx.checker.check_model(proto)
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    for number, node in enumerate(proto.graph.node):
        node.name = f"node_{number}"  # onnx2torch writes these names into Python code: a name must not be code
    with refusing(f"onnxruntime cannot load {path}"):
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name, dims, kind = _only_input(session, path)
    with _conversion(path, opset):
        converted = onnx2torch.convert(proto).eval()
    batch, *sides = (dim if isinstance(dim, int) and dim > 0 else None for dim in dims)
    padded = AnyBatch(converted, tuple(sides), batch or 1, batch)

    def reference(images: Tensor) -> Tensor:
        parts = images.split(batch) if batch else [images]
        return torch.cat([torch.from_numpy(session.run(None, {name: part.numpy()})[0]) for part in parts])

    probe = _agreeing_probe(padded, reference, sides, batch or 3, kind, path)
    check_gradient(padded, probe, path)
    module = padded if batch is None else freed(padded, converted, torch.cat([probe, probe.flip(0)[:1], probe]))
    recorded = "any" if batch is None else str(batch)
    notes = {"opset": opset, "batch recorded": recorded, "batch used": "any" if module.most is None else recorded}
    return Opened(module=module, content=sha256(content), notes=notes)


def _only_input(session: Any, path: str) -> tuple[str, list[Any], torch.dtype]:
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise InputError(f"{path} takes {len(inputs)} inputs: export a model that takes the images alone")
    kinds = {"tensor(float)": torch.float32, "tensor(double)": torch.float64, "tensor(float16)": torch.float16}
    if inputs[0].type not in kinds or len(inputs[0].shape) < 2:
        what = f"{inputs[0].type}, shape {inputs[0].shape}"
        raise InputError(f"{path} takes {what}: export a model that takes a batch of floating-point images")
    return inputs[0].name, list(inputs[0].shape), kinds[inputs[0].type]


@contextmanager
def _conversion(path: str, opset: int) -> Iterator[None]:
    export = "torch.onnx.export(…, opset_version=17, dynamo=False)"
    hint = f"its opset is {opset}, and those up to 17 of the legacy exporter work: {export}"
    try:
        yield
    except Exception as error:
        op = re.search(r"operation_type='(\w+)'", str(error))
        why = f"it does not know the operator {op[1]}" if op else describe(error)
        raise InputError(f"onnx2torch cannot convert {path}: {why}; {hint}, or pass a .pt2") from error


def _agreeing_probe(
    module: AnyBatch,
    reference: Callable[[Tensor], Tensor],
    sides: list[int | None],
    n: int,
    kind: torch.dtype,
    path: str,
) -> Tensor:
    """A random batch on which the converted model and onnxruntime gave the same logits, or a refusal.

    Sides that the graph leaves free are tried at usual sizes: which one fits is known to the network alone.
    """
    error: Exception | None = None
    for free in (32, 224, 28) if None in sides else (0,):
        shape = [side or (3 if axis == 0 and len(sides) == 3 else free) for axis, side in enumerate(sides)]
        images = torch.rand(n, *shape, generator=torch.Generator().manual_seed(0)).to(kind)
        try:
            expected = reference(images)
        except Exception as failure:
            error = failure
            continue
        with refusing(f"{path} runs in onnxruntime, but not as onnx2torch converted it"), torch.no_grad():
            got = module(images)
        if got.shape != expected.shape:
            raise InputError(f"{path}: the converted model returns shape {tuple(got.shape)}, onnxruntime "
                          f"{tuple(expected.shape)}: pass a .pt2 instead")  # fmt: skip
        if not close(got, expected):
            apart = float((got - expected).abs().max())
            raise InputError(f"{path}: logits of the converted model and of onnxruntime differ by up to {apart:.3g} on a "
                          f"random batch (largest {float(expected.abs().max()):.3g}): pass a .pt2 instead")  # fmt: skip
        return images
    raise InputError(f"{path} fails in onnxruntime on a random input: {describe(error or ValueError('no size fits'))}")
