"""Models saved by torch.export (.pt2): read as data, checked before anything in them can run, for batches of any size.

torch.export.load is no safe reader of files from elsewhere. It unpickles what a configuration marks as pickled, falls
back to a full unpickling where a safe one fails, loads shared libraries of compiled packages, gives the shapes'
expressions to sympy, which evaluates them as Python, looks operators up by any attribute of torch, and writes names
and guards into generated Python. A program needs none of this: here the archive may hold nothing else than
tensors, plain names, arithmetic on shapes and calls of torch's own operators; whatever does is refused before loading.
"""

import ast
import inspect
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.errors import InputError
from marginattack.sources.model_parts import AnyBatch, Opened, check_gradient, freed, read_file, refusing, sha256

PLAIN = re.compile(r"[\w.:@+\-,> ]*", re.ASCII)  # names, devices, versions: no quotes, brackets, = or line ends
SPEC = re.compile(r'[\w.:@+\-,> "\\\[\]{}]*', re.ASCII)  # the JSON that describes tuples and dicts
RECORDS = re.compile(
    r"(models/|data/(weights|constants|sample_inputs)/|extra/|\.data/)[\w.\-]+|archive_\w+|byteorder|version"
)
PAYLOAD = re.compile(r"(weight|tensor)_\d+", re.ASCII)
NAME = r"(?:[A-Za-z]\w*|_[A-Za-z]\w*|__i?(?:and|or|xor|lshift|rshift)__)"
OPERATOR = re.compile(
    rf"torch\.ops\.(aten|prims|higher_order|torchvision|quantized_decomposed)\.{NAME}(\.[A-Za-z]\w*)?"
    r"|torch\.sym_[a-z]+|torch\._sym_sqrt|math\.(trunc|ceil|floor|sqrt)"
    r"|_operator\.(getitem|eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|pow|truediv|and_|or_|not_|lshift|rshift|abs)",
    re.ASCII,
)
TOUCHES_FILES = re.compile(r"torch\.ops\.aten\.(from_file|save|load)\b")
ARITHMETIC = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop, ast.Load, ast.keyword,
)  # fmt: skip
TRUST = "pass --trust-pickle if you trust where it comes from"


def open_pt2(path: str, *, trust: bool, device: str) -> Opened:
    """A program of torch.export, fixed or dynamic in its batch."""
    content = read_file(path)
    program = _load_trusted(path, content) if trust else _load_checked(path, content)
    with refusing(f"cannot move {path} to {device}"):
        program = _moved(program, device)
    shape, least, most = _input_of(program, path)
    with refusing(f"{path} is no usable program"):
        guarded = _without_hooks(program)
    padded = AnyBatch(guarded, shape, least, most)
    probe = torch.rand(3, *(side or _example_side(program, i) for i, side in enumerate(shape)), device=device)
    probe = probe.to(_input_value(program).dtype)
    check_gradient(padded, probe, path)
    module = padded if (least, most) == (1, None) else freed(padded, guarded, probe)
    batch = "any" if most is None else f"{least} to {most}" if least != most else str(most)
    notes = {"batch recorded": batch, "batch used": "any" if module.most is None else batch}
    return Opened(module=module, content=sha256(content), was_training=_trains(program), notes=notes)


def _load_trusted(path: str, content: bytes) -> Any:
    with refusing(f"cannot load {path} as a torch.export program", "save it again with this version of torch"):
        return torch.export.load(io.BytesIO(content))


def _load_checked(path: str, content: bytes) -> Any:
    try:
        from torch.export.pt2_archive._package import load_pt2
    except ImportError:
        raise InputError(f"{path}: torch {torch.__version__} reads .pt2 files only by unpickling, which runs code in "
                      f"them: use torch 2.8 or newer, or {TRUST}") from None  # fmt: skip
    _check_archive(path, content)
    hint = f"save it again with this version of torch; if it holds custom objects, {TRUST}"
    with refusing(f"cannot load {path} as a torch.export program", hint), _weights_only():
        programs = load_pt2(io.BytesIO(content)).exported_programs
    if "model" not in programs:
        raise InputError(f"{path} holds no program named model: save it with torch.export.save(program, path)")
    return programs["model"]


@contextmanager
def _weights_only() -> Iterator[None]:
    """Every torch.load inside reads tensors alone, also where the caller asked for more."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _check_archive(path: str, content: bytes) -> None:
    """Refuse an archive that holds more than a program; read by the reader that loads it, so that both see the same."""
    from torch.export.pt2_archive import PT2ArchiveReader

    hint = "a .pt2 is written by torch.export.save"
    with refusing(f"{path} is no torch.export program", hint), PT2ArchiveReader(io.BytesIO(content)) as archive:
        names = archive.get_file_names()
        for name in names:
            if not RECORDS.fullmatch(name):
                raise InputError(
                    f"{path} holds {name[:80]!r}, which is no part of a plain program and may be code: {TRUST}"
                )
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
            if name not in ("metadata", "guards_code"):  # where a line came from; guards, which are never made
                check_program(child, path, name)
    elif isinstance(value, list):
        for child in value:
            check_program(child, path, key)
    elif isinstance(value, str):
        _check_text(value, path, key)


def _check_text(text: str, path: str, key: str) -> None:
    if key in ("target", "as_operator"):
        if not OPERATOR.fullmatch(text) or TOUCHES_FILES.match(text):
            _refuse(path, "operator", text)
    elif key == "expr_str":
        if not _is_arithmetic(text):
            _refuse(path, "expression", text)
    elif key == "path_name":
        if not PAYLOAD.fullmatch(text):
            _refuse(path, "object", text)
    elif not (SPEC if key in ("in_spec", "out_spec") else PLAIN).fullmatch(text):
        _refuse(path, "name", text)


def _refuse(path: str, what: str, text: str) -> None:
    raise InputError(
        f"{path} holds the {what} {text[:80]!r}, which is no part of a plain program and may be code: {TRUST}"
    )


def _is_arithmetic(text: str) -> bool:
    """Whether a shape's expression holds only numbers, symbols and calls of capitalised functions such as FloorDiv."""
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


def _moved(program: Any, device: str) -> Any:
    if {tensor.device for tensor in program.state_dict.values()} <= {torch.device(device)} and device == "cpu":
        return program
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(program, device)


def _without_hooks(program: Any) -> nn.Module:
    """The program as a module, without generated guards: AnyBatch checks the shape, in words that help."""
    takes_guards = "check_guards" in inspect.signature(program.module).parameters
    module: nn.Module = program.module(check_guards=False) if takes_guards else program.module()
    module._forward_pre_hooks.clear()
    module._forward_pre_hooks_with_kwargs.clear()
    return module


def _input_value(program: Any) -> Tensor:
    (name,) = program.graph_signature.user_inputs
    value: Tensor = next(node.meta["val"] for node in program.graph.nodes if node.name == name)
    return value


def _input_of(program: Any, path: str) -> tuple[tuple[int | None, ...], int, int | None]:
    """The shape of one input, None where it is free, and the least and most inputs at a time."""
    names = program.graph_signature.user_inputs
    if len(names) != 1 or not isinstance(names[0], str):
        raise InputError(f"{path} takes {len(names)} inputs: export a program that takes the images alone")
    value = _input_value(program)
    if not isinstance(value, Tensor) or value.ndim < 2 or not value.is_floating_point():
        kind = f"{value.dtype}, shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"{path} takes {kind}: export a program that takes a batch of floating-point images")
    shape = tuple(side if isinstance(side, int) else None for side in value.shape[1:])
    batch = value.shape[0]
    if isinstance(batch, int):
        return shape, batch, batch
    limits = program.range_constraints.get(batch.node.expr)
    least = max(1, int(limits.lower)) if limits is not None else 1
    most = int(limits.upper) if limits is not None and limits.upper.is_Integer else None
    return shape, least, most


def _example_side(program: Any, axis: int) -> int:
    """A size for a free side: that of the example the program was exported with."""
    try:
        return int(program.example_inputs[0][0].shape[axis + 1])
    except (TypeError, IndexError, AttributeError):
        return 32


def _trains(program: Any) -> bool:
    """Whether the program was recorded in train mode, which eval() can no longer change."""
    for node in program.graph.nodes:
        called = str(node.target).removeprefix("aten.").partition(".")[0]
        if called in ("dropout", "native_dropout", "feature_dropout") and len(node.args) > 2 and node.args[2]:
            return True
        if called in ("batch_norm", "_native_batch_norm_legit") and len(node.args) > 5 and node.args[5] is True:
            return True
    return False
