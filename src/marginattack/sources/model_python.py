"""Models that are code: factories in Python files or modules, and pickles, which run only with ``trust_pickle``."""

import importlib
import io
import os
import re
import sys
import types
import warnings
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn

from marginattack.errors import InputError
from marginattack.sources.common import explain_errors, sha256
from marginattack.sources.local_code import import_from
from marginattack.sources.model_base import USE_FACTORY, LoadedModel, ModelOptions, find_file, is_training, read_file


def open_factory(source: str, options: ModelOptions) -> LoadedModel:
    """Execute ``file.py:factory`` or ``pkg.mod:factory`` and use the module that the factory returns."""
    location, _, name = source.rpartition(":")
    is_file = location.endswith(".py")
    folder = find_file(location).resolve().parent if is_file else Path.cwd()
    with import_from(folder) as sources:
        module, content = _run_file(location, options) if is_file else _import_module(location)
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
    code = sha256(chunks=[content, name.encode(), *_digests(sources)])
    return LoadedModel(module=model, content=code, was_training=is_training(model))


def _run_file(path: str, options: ModelOptions) -> tuple[types.ModuleType, bytes]:
    """Run a Python file as a module, without cached bytecode: the same bytes are run and hashed."""
    content = read_file(path, options)
    file = os.path.abspath(path)
    stem = re.sub(r"[^0-9A-Za-z]", "_", Path(path).stem)
    module = types.ModuleType(f"marginattack_model_{stem}_{sha256(file)[:8]}")  # files of one name in two folders
    module.__file__ = file
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
            close = get_close_matches(name, ("zoo", "torchvision", "timm", "hf"), 1)
            question = f"did you mean {close[0]}:NAME? " if close else ""
            raise InputError(f"no module named {name}: {question}{hint}") from error
    file = getattr(module, "__file__", None)
    return module, Path(file).read_bytes() if file else b""


def open_pickle(source: str, options: ModelOptions) -> LoadedModel:
    """Unpickle a module, only with ``trust_pickle``: unpickling runs the code in it.

    Its classes come from installed packages and from Python files in the working folder, which run too.
    """
    content = read_file(source, options, runs_code="a pickle")
    hint = f"its classes were searched in {Path.cwd()} and the installed packages; run it there, or {USE_FACTORY}"
    with (
        import_from(Path.cwd()) as sources,
        explain_errors(f"cannot unpickle {source}", hint),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # torch warns that TorchScript archives are deprecated
        module = torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
    if not isinstance(module, nn.Module):
        what = "a state_dict: weights without a network" if isinstance(module, dict) else type(module).__name__
        raise InputError(f"{source} holds {what}; {USE_FACTORY}")
    code = sha256(chunks=[content, *_digests(sources)])
    return LoadedModel(module=module, content=code, was_training=is_training(module))


def _digests(sources: dict[str, bytes]) -> list[bytes]:
    """Name and digest of each local module that was imported."""
    return [f"{name} {sha256(chunks=[text])}".encode() for name, text in sorted(sources.items())]


def refuse_safetensors(path: str) -> None:
    """Raise InputError: weights alone are not a model."""
    find_file(path)
    raise InputError(f"{path} holds weights without a network; {USE_FACTORY}, or pass timm:NAME@{path}")
