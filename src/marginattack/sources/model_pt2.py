"""Programs saved by torch.export (.pt2): checked before anything in them can run, and used for any batch size.

torch.export.load is not safe for files of unknown origin. It unpickles what a configuration marks as pickled, falls
back to a full unpickling where a safe one fails, loads shared libraries of compiled packages, passes the expressions of
shapes to sympy, which evaluates them as Python, looks operators up by any attribute of torch, and writes names and
guards into generated Python. A program needs none of this. Here an archive may hold only tensors, plain names,
arithmetic on shapes and calls of torch's own operators; anything else is refused before loading.
"""

import ast
import inspect
import io
import json
import os
import re
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from marginattack.errors import InputError
from marginattack.sources.common import explain_errors, sha256
from marginattack.sources.model_base import AnyBatch, LoadedModel, ModelOptions, load_program, read_file

PLAIN = re.compile(r"[\w.:@+\-,> ]*", re.ASCII)  # names, devices, versions: no quotes, brackets, = or line breaks
SPEC = re.compile(r'[\w.:@+\-,> "\\\[\]{}]*', re.ASCII)  # the JSON that describes tuples and dicts
RECORDS = re.compile(
    r"(models/|data/(weights|constants|sample_inputs)/|extra/|\.data/)[\w.\-]+|archive_\w+|byteorder|version"
)
TENSOR_FILE = re.compile(r"(weight|tensor)_\d+", re.ASCII)
NAME = r"(?:[A-Za-z]\w*|_[A-Za-z]\w*|__i?(?:and|or|xor|lshift|rshift)__)"
OPERATOR = re.compile(
    rf"torch\.ops\.(aten|prims|higher_order|torchvision|quantized_decomposed)\.{NAME}(\.[A-Za-z]\w*)?"
    r"|torch\.sym_[a-z]+|torch\._sym_sqrt|math\.(trunc|ceil|floor|sqrt)"
    r"|_operator\.(getitem|eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|pow|truediv|and_|or_|not_|lshift|rshift|abs)",
    re.ASCII,
)
FILE_OPERATOR = re.compile(r"torch\.ops\.aten\.(from_file|save|load)\b")
ARITHMETIC = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop, ast.Load, ast.keyword,
)  # fmt: skip
WEIGHTS_ONLY = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}  # every torch.load reads tensors only, whatever its caller asks
TRUST = "pass --trust-pickle if you trust its origin"


def open_pt2(source: str, options: ModelOptions) -> LoadedModel:
    """Open a program of torch.export with a fixed or dynamic batch size."""
    content = read_file(source)
    program = (_load_trusted if options.trust_pickle else _load_checked)(source, content)
    with explain_errors(f"cannot move {source} to {options.device}"):
        program = _move(program, options.device)
    shape, min_batch, max_batch = _input_limits(program, source)
    with explain_errors(f"{source} is not a usable program"):
        module = _without_guards(program)
    sides = [side or _example_side(program, axis) for axis, side in enumerate(shape)]
    probe = torch.rand(3, *sides, device=options.device).to(_example_input(program).dtype)
    program_hash, was_training = sha256(chunks=[content]), _was_recorded_in_train_mode(program)
    padded = AnyBatch(module, shape, min_batch, max_batch)
    return load_program(padded, probe, source, content=program_hash, was_training=was_training)


def _load_trusted(path: str, content: bytes) -> Any:
    with explain_errors(f"cannot load {path} as a torch.export program", "save it again with this version of torch"):
        return torch.export.load(io.BytesIO(content))


def _load_checked(path: str, content: bytes) -> Any:
    try:
        from torch.export.pt2_archive._package import load_pt2
    except ImportError:
        problem = f"torch {torch.__version__} reads .pt2 files by unpickling, which runs the code in them"
        raise InputError(f"{path}: {problem}: use torch 2.8 or newer, or {TRUST}") from None
    _check_archive(path, content)
    hint = f"save it again with this version of torch; if it holds custom objects, {TRUST}"
    with (
        explain_errors(f"cannot load {path} as a torch.export program", hint),
        mock.patch.dict(os.environ, WEIGHTS_ONLY),
    ):
        programs = load_pt2(io.BytesIO(content)).exported_programs
    if "model" not in programs:
        raise InputError(f"{path} holds no program named model: save it with torch.export.save(program, path)")
    return programs["model"]


def _check_archive(path: str, content: bytes) -> None:
    """Refuse an archive that holds more than a program. The same reader loads it later, so both see the same."""
    from torch.export.pt2_archive import PT2ArchiveReader

    hint = "write a .pt2 with torch.export.save"
    with (
        explain_errors(f"{path} is not a torch.export program", hint),
        PT2ArchiveReader(io.BytesIO(content)) as archive,
    ):
        names = archive.get_file_names()
        for name in names:
            if not RECORDS.fullmatch(name):
                _refuse(path, "file", name)
        if "models/model.json" not in names:
            raise InputError(f"{path} holds no program: {hint}")
        for name in names:
            if name.endswith(".json") and not name.startswith("extra/"):
                check_program(json.loads(archive.read_string(name)), path)


def check_program(value: Any, path: str, key: str = "") -> None:
    """Refuse a program in JSON that holds anything but names, numbers, arithmetic and calls of torch's operators."""
    if isinstance(value, dict):
        for name, child in value.items():
            if not PLAIN.fullmatch(name):
                _refuse(path, "name", name)
            if name not in ("metadata", "guards_code"):  # the origin of a line; guards, which are never generated
                check_program(child, path, name)
    elif isinstance(value, list):
        for child in value:
            check_program(child, path, key)
    elif isinstance(value, str):
        _check_text(value, path, key)


def _check_text(text: str, path: str, key: str) -> None:
    """Refuse a text that its key does not allow."""
    if key in ("target", "as_operator"):
        kind, allowed = "operator", bool(OPERATOR.fullmatch(text)) and not FILE_OPERATOR.match(text)
    elif key == "expr_str":
        kind, allowed = "expression", _is_arithmetic(text)
    elif key == "path_name":
        kind, allowed = "object", bool(TENSOR_FILE.fullmatch(text))
    else:
        kind, allowed = "name", bool((SPEC if key in ("in_spec", "out_spec") else PLAIN).fullmatch(text))
    if not allowed:
        _refuse(path, kind, text)


def _refuse(path: str, kind: str, text: str) -> None:
    problem = f"holds the {kind} {text[:80]!r}, which is not part of a plain program and may be code"
    raise InputError(f"{path} {problem}: {TRUST}")


def _is_arithmetic(text: str) -> bool:
    """Whether the expression of a shape holds only numbers, symbols and calls of capitalised functions (FloorDiv)."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(map(_is_harmless, ast.walk(tree)))


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and bool(re.fullmatch(r"[A-Z][A-Za-z]*", node.func.id))
    if isinstance(node, ast.Name):
        return bool(re.fullmatch(r"[A-Z][A-Za-z]*|[a-z]+\d+", node.id, re.ASCII))
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, str) or bool(re.fullmatch(r"[A-Za-z]\w*", node.value, re.ASCII))
    return isinstance(node, ARITHMETIC)


def _move(program: Any, device: str) -> Any:
    """Move the program to the device; programs on the CPU are left as they are."""
    if {tensor.device for tensor in program.state_dict.values()} <= {torch.device(device)} and device == "cpu":
        return program
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(program, device)


def _without_guards(program: Any) -> nn.Module:
    """Return the program as a module without generated guards: AnyBatch checks the shape, with a clear message."""
    takes_guards = "check_guards" in inspect.signature(program.module).parameters
    module: nn.Module = program.module(check_guards=False) if takes_guards else program.module()
    module._forward_pre_hooks.clear()
    module._forward_pre_hooks_with_kwargs.clear()
    return module


def _example_input(program: Any) -> Any:
    """Return the (fake) tensor that the program was recorded with."""
    (name,) = program.graph_signature.user_inputs
    return next(node.meta["val"] for node in program.graph.nodes if node.name == name)


def _input_limits(program: Any, path: str) -> tuple[tuple[int | None, ...], int, int | None]:
    """Return the shape of one input, None where it is free, and the smallest and largest batch."""
    names = program.graph_signature.user_inputs
    if len(names) != 1 or not isinstance(names[0], str):
        raise InputError(f"{path} takes {len(names)} inputs: export a program that takes only the images")
    value = _example_input(program)
    if not isinstance(value, Tensor) or value.ndim < 2 or not value.is_floating_point():
        kind = f"{value.dtype}, shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"{path} takes {kind}: export a program that takes a batch of floating-point images")
    shape = tuple(side if isinstance(side, int) else None for side in value.shape[1:])
    batch: Any = value.shape[0]
    if isinstance(batch, int):
        return shape, batch, batch
    limits = program.range_constraints.get(batch.node.expr)
    if limits is None:
        return shape, 1, None
    return shape, max(1, int(limits.lower)), int(limits.upper) if limits.upper.is_Integer else None


def _example_side(program: Any, axis: int) -> int:
    """Return a size for a free side: that of the example that the program was exported with."""
    try:
        return int(program.example_inputs[0][0].shape[axis + 1])
    except (TypeError, IndexError, AttributeError):
        return 32


def _was_recorded_in_train_mode(program: Any) -> bool:
    """Whether dropout or batch statistics were recorded, which eval() can no longer switch off."""
    for node in program.graph.nodes:
        operator = str(node.target).removeprefix("aten.").partition(".")[0]
        if operator in ("dropout", "native_dropout", "feature_dropout") and len(node.args) > 2 and node.args[2]:
            return True
        if operator in ("batch_norm", "_native_batch_norm_legit") and len(node.args) > 5 and node.args[5] is True:
            return True
    return False
