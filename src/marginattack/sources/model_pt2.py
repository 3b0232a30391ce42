"""Programs saved by torch.export (.pt2), used for any batch size. Loading one runs the code in it.

torch.export.load unpickles what a configuration marks as pickled, loads shared libraries, evaluates expressions of
shapes and guards as Python, and looks up operators by any attribute of torch. Checking all this beforehand would mean
following torch's private format version by version, and unpickling can only be disabled for the whole process, not
for one thread. So a program is loaded only with ``trust_pickle``.
"""

import inspect
import io
import threading
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.errors import InputError
from marginattack.sources.common import explain_errors, sha256
from marginattack.sources.model_base import AnyBatch, LoadedModel, ModelOptions, load_program, read_file

LOADING = threading.Lock()  # torch's reader has global state


def open_pt2(source: str, options: ModelOptions) -> LoadedModel:
    """Open a program of torch.export with a fixed or dynamic batch size."""
    content = read_file(source, options, runs_code="a torch.export program")
    hint = "save it again with this version of torch"
    with LOADING, explain_errors(f"cannot load {source} as a torch.export program", hint):
        program = torch.export.load(io.BytesIO(content))
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


def _move(program: Any, device: str) -> Any:
    """Move the program to the device, unless it is on the CPU already."""
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
    """Return the shape of one input, None for free sides, and the smallest and largest batch."""
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
    """Return a size for a free side: that of the example input of the export, or 32."""
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
