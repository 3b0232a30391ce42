"""ONNX graphs, converted by onnx2torch and compared with onnxruntime before use."""

import re
import warnings
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from marginattack.errors import InputError, describe
from marginattack.sources.common import check_size, explain_errors, import_extra, sha256
from marginattack.sources.model_base import AnyBatch, LoadedModel, ModelOptions, almost_equal, load_program, read_file
from marginattack.sources.onnx_graphs import OPSET, ends_with_softmax, lower, strip_softmax

DTYPES = {"tensor(float)": torch.float32, "tensor(double)": torch.float64, "tensor(float16)": torch.float16}
USUAL_SIDES = (32, 224, 28)  # pixels, tried if the graph leaves a side free
EXTERNAL_BYTES = 2**31  # as much as one protobuf can hold
VALUE_BYTES = 2**28  # of one array that the graph declares; --max-gib raises it
USE_CODE = "pass file.py:factory"


def open_onnx(source: str, options: ModelOptions) -> LoadedModel:
    """Open an ONNX graph of a fixed or dynamic batch size."""
    content = read_file(source, options)
    onnx, onnx2torch, runtime = (import_extra(name, "onnx") for name in ("onnx", "onnx2torch", "onnxruntime"))
    warnings.filterwarnings("ignore", category=UserWarning, module="onnx2torch")  # of torch, about its Gather and Slice
    with explain_errors(f"{source} is not an ONNX model"):
        proto = onnx.load_model_from_string(content)
        external = _load_external(onnx.external_data_helper, proto, source, options)
        onnx.checker.check_model(proto)
        _check_values(onnx, proto, source, options)
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    if options.strip_softmax:
        strip_softmax(proto, source)
    elif ends_with_softmax(proto):
        raise InputError(f"{source} ends with Softmax, whose gradients vanish: pass --strip-softmax")
    complete = proto.SerializeToString() if external or options.strip_softmax else content
    converted = _convert(onnx, onnx2torch, proto, source, opset).eval()
    quiet = runtime.SessionOptions()
    quiet.log_severity_level = 4  # errors are raised
    with explain_errors(f"onnxruntime cannot load {source}"):
        session = runtime.InferenceSession(complete, quiet, providers=["CPUExecutionProvider"])
    name, dims, dtype = _only_input(session, source)
    batch, *sides = (dim if isinstance(dim, int) and dim > 0 else None for dim in dims)
    padded = AnyBatch(converted, tuple(sides), batch or 1, batch)

    def reference(images: Tensor) -> Tensor:
        parts = images.split(batch) if batch else [images]
        return torch.cat([torch.from_numpy(session.run(None, {name: part.numpy()})[0]) for part in parts])

    probe = _find_probe(reference, sides, batch or 3, dtype, source, options)
    _compare(padded, reference, probe, source)
    notes = {"opset": opset, **({"softmax": "stripped"} if options.strip_softmax else {})}
    return load_program(padded, probe, source, content=sha256(chunks=[content, *external]), notes=notes)


def _load_external(helper: Any, proto: Any, path: str, options: ModelOptions) -> list[bytes]:
    """Load the weights that are stored in other files, if they are not too large, and return their bytes."""
    tensors = [tensor for tensor in helper._get_all_tensors(proto) if helper.uses_external_data(tensor)]
    total = 0
    for tensor in tensors:
        info = helper.ExternalDataInfo(tensor)
        size = (Path(path).parent / info.location).stat().st_size
        first, length = info.offset or 0, size if info.length is None else info.length
        if info.length is not None and first + length > size:
            raise InputError(f"{path}: {info.location} has {size} bytes, not {first + length}: copy it again")
        total += length
    check_size(f"the external data of {path}", total, EXTERNAL_BYTES, options.max_gib)
    helper.load_external_data_for_model(proto, str(Path(path).parent))
    return [tensor.raw_data for tensor in tensors]


def _check_values(onnx: Any, proto: Any, path: str, options: ModelOptions) -> None:
    """Raise InputError for a graph with an array, such as a constant or the input, that would fill the memory."""
    graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    for value in [*graph.input, *graph.value_info, *graph.output]:
        kind = value.type.tensor_type
        if kind.elem_type:
            size = prod(max(dim.dim_value, 1) for dim in kind.shape.dim)
            bytes_each = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
            check_size(f"the array {value.name[:40]!r} of {path}", size * bytes_each, VALUE_BYTES, options.max_gib)


def _only_input(session: Any, path: str) -> tuple[str, list[Any], torch.dtype]:
    """Return name, shape and dtype of the single input."""
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise InputError(f"{path} takes {len(inputs)} inputs: export a model that takes only the images")
    if inputs[0].type not in DTYPES or len(inputs[0].shape) < 2:
        what = f"{inputs[0].type}, shape {inputs[0].shape}"
        raise InputError(f"{path} takes {what}: export a model that takes a batch of floating-point images")
    return inputs[0].name, list(inputs[0].shape), DTYPES[inputs[0].type]


def _convert(onnx: Any, onnx2torch: Any, proto: Any, path: str, opset: int) -> Any:
    """Convert a graph, if necessary after lowering it to an opset that onnx2torch reads."""
    try:
        return onnx2torch.convert(_rename(proto))
    except Exception as error:
        first = error
    try:
        return onnx2torch.convert(_rename(lower(onnx, proto)))
    except Exception as error:
        operator = re.search(r"operation_type='(\w+)'", str(error)) or re.search(r"operation_type='(\w+)'", str(first))
        why = f"unknown operator {operator[1]}" if operator else describe(error)
        hint = f"neither opset {opset} nor a conversion to opset {OPSET} works: export it without that, or {USE_CODE}"
        raise InputError(f"onnx2torch cannot convert {path}: {why}; {hint}") from error


def _rename(proto: Any) -> Any:
    """Number the nodes: onnx2torch writes their names into Python code, and a name must not be code."""
    for number, node in enumerate(proto.graph.node):
        node.name = f"node_{number}"
    return proto


def _find_probe(
    reference: Callable[[Tensor], Tensor], sides: list[int | None], n: int, dtype: torch.dtype, path: str,
    options: ModelOptions,
) -> Tensor:  # fmt: skip
    """Return a random batch that onnxruntime accepts. Free sides are tried at usual sizes: only the network knows."""
    problem: Exception = ValueError("no size fits")
    for free in USUAL_SIDES if None in sides else (0,):
        shape = [side or (3 if axis == 0 and len(sides) == 3 else free) for axis, side in enumerate(sides)]
        try:
            check_size(f"an input of shape {(n, *shape)}", 4 * n * prod(shape), VALUE_BYTES, options.max_gib)
            images = torch.rand(n, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)
            reference(images)
            return images
        except Exception as error:
            problem = error
    raise InputError(f"{path} fails in onnxruntime on a random input: {describe(problem)}")


def _compare(module: AnyBatch, reference: Callable[[Tensor], Tensor], images: Tensor, path: str) -> None:
    """Raise InputError if the converted model gives other logits than onnxruntime."""
    expected = reference(images)
    with explain_errors(f"{path} runs in onnxruntime, but not after conversion by onnx2torch"), torch.no_grad():
        logits = module(images)
    if logits.shape != expected.shape:
        shapes = f"returns shape {tuple(logits.shape)}, but onnxruntime {tuple(expected.shape)}"
        raise InputError(f"{path}: the converted model {shapes}: {USE_CODE} instead")
    if not almost_equal(logits, expected):
        difference, largest = float((logits - expected).abs().max()), float(expected.abs().max())
        sizes = f"differ by up to {difference:.3g} on a random batch (largest logit {largest:.3g})"
        raise InputError(f"{path}: logits of the converted model and of onnxruntime {sizes}: {USE_CODE} instead")
