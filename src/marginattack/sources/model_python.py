"""Models that are code: factories in Python files or modules, and pickles, which run only with ``trust_pickle``."""

import importlib
import io
import os
import re
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from marginattack.errors import InputError
from marginattack.sources.common import explain_errors, sha256
from marginattack.sources.model_base import USE_FACTORY, LoadedModel, ModelOptions, is_training, read_file


def open_factory(source: str, options: ModelOptions) -> LoadedModel:
    """Execute ``file.py:factory`` or ``pkg.mod:factory`` and take the module that the factory returns."""
    location, _, name = source.rpartition(":")
    is_file = location.endswith(".py")
    folder = Path(location).resolve().parent if is_file else Path.cwd()
    with _import_from(folder):
        module, content = _run_file(location) if is_file else _import_module(location)
        factory: Any = module
        for part in name.split("."):
            factory = getattr(factory, part, None)
        if not callable(factory):
            own = [
                n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__ and callable(v)
            ]
            hint = f"name a function without arguments, such as {', '.join(own[:8]) or 'make'}"
            raise InputError(f"{location} has no factory {name!r}: {hint}")
        with explain_errors(f"factory {source} fails"):
            model = factory()
    if not isinstance(model, nn.Module):
        raise InputError(f"factory {source} returns {type(model).__name__}: it must return a torch.nn.Module")
    return LoadedModel(module=model, content=sha256(chunks=[content, name.encode()]), was_training=is_training(model))


@contextmanager
def _import_from(folder: Path) -> Iterator[None]:
    """Import from this folder first, as when Python runs a script there."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _run_file(path: str) -> tuple[types.ModuleType, bytes]:
    """Run a Python file as a module: the bytes that run are those that are hashed, without cached bytecode."""
    content = read_file(path)
    module = types.ModuleType(f"marginattack_model_{re.sub(r'[^0-9A-Za-z]', '_', Path(path).stem)}")
    module.__file__ = os.path.abspath(path)
    sys.modules[module.__name__] = module  # dataclasses and pickle look up a class's module here
    with explain_errors(f"{path} fails to run"):
        exec(compile(content, path, "exec"), vars(module))
    return module, content


def _import_module(name: str) -> tuple[types.ModuleType, bytes]:
    with explain_errors(f"{name} fails to import"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            hint = f"searched {Path.cwd()} and the installed packages; for a file pass file.py:factory"
            raise InputError(f"no module named {name}: {hint}") from error
    file = getattr(module, "__file__", None)
    return module, Path(file).read_bytes() if file else b""


def open_pickle(source: str, options: ModelOptions) -> LoadedModel:
    """Unpickle a module, only if the user trusts the file: unpickling runs the code in it."""
    content = read_file(source)
    if not options.trust_pickle:
        _refuse_pickle(source, content)
    with explain_errors(f"cannot unpickle {source}"):
        module = _load(content, weights_only=False)
    if not isinstance(module, nn.Module):
        what = "a state_dict: weights without a network" if isinstance(module, dict) else type(module).__name__
        raise InputError(f"{source} holds {what}; {USE_FACTORY}")
    return LoadedModel(module=module, content=sha256(chunks=[content]), was_training=is_training(module))


def _load(content: bytes, *, weights_only: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that TorchScript archives are deprecated
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=weights_only)


def _refuse_pickle(path: str, content: bytes) -> None:
    """Say what the file is, as far as possible by unpickling tensors only."""
    try:
        _load(content, weights_only=True)
    except Exception:
        hint = "pass --trust-pickle if you trust its origin, or save the model as .pt2 with torch.export.save"
        raise InputError(f"{path} is a pickle, and loading a pickle runs the code in it: {hint}") from None
    raise InputError(f"{path} holds a state_dict: weights without a network; {USE_FACTORY}")


def refuse_safetensors(path: str) -> None:
    """Weights alone are not a model."""
    read_file(path)
    raise InputError(f"{path} holds weights without a network; {USE_FACTORY}, or pass timm:NAME@{path}")
