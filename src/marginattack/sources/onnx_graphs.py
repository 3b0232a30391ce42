"""Rewriting of ONNX graphs before conversion: to an opset that onnx2torch reads, and without a final Softmax.

The rewriting is not verified here: the converted model is compared with onnxruntime's results on the original file.
"""

import re
from typing import Any

from marginattack.errors import InputError
from marginattack.sources.common import import_extra

OPSET = 17  # the newest that onnx2torch reads
PARKED = "marginattack.parked"  # a domain of operators that the version converter skips
MAX_ROUNDS = 16
NO_ADAPTER = re.compile(r"No Adapter (?:To|From) Version \D?\d+ for (\w+)")


def lower(onnx: Any, proto: Any) -> Any:
    """Return the graph in an opset that onnx2torch reads, in operators that it knows.

    Operators that it does not know, such as Gelu, are replaced by their definitions in the ONNX standard. Operators
    that the version converter cannot convert, such as Resize, are kept: most new versions only add options.
    """
    proto = _expand_functions(onnx, proto)
    for node in proto.graph.node:
        if node.op_type == "Reshape":  # allowzero, which torch always writes, matters only for empty arrays
            kept = [attribute for attribute in node.attribute if attribute.name != "allowzero"]
            del node.attribute[:]
            node.attribute.extend(kept)
    proto.opset_import.append(onnx.helper.make_opsetid(PARKED, 1))
    converter, parked = import_extra("onnx.version_converter", "onnx"), set[str]()
    for _ in range(MAX_ROUNDS):
        try:
            proto = converter.convert_version(proto, OPSET)
            break
        except Exception as error:
            missing = NO_ADAPTER.search(str(error))
            if missing is None or missing[1] in parked:
                raise
            parked.add(missing[1])
        for node in proto.graph.node:
            node.domain = PARKED if node.op_type in parked else node.domain
    for node in proto.graph.node:
        node.domain = "" if node.domain == PARKED else node.domain
    return proto


def _expand_functions(onnx: Any, proto: Any) -> Any:
    """Replace operators that onnx2torch does not know by their definitions, repeatedly."""
    inliner = import_extra("onnx.inliner", "onnx")
    for _ in range(MAX_ROUNDS):
        names = {node.op_type for node in proto.graph.node if node.domain in ("", "ai.onnx")}
        unknown = sorted(name for name in names if not _is_known(onnx, name))
        before = len(proto.graph.node)
        if unknown:
            ids = [("", name) for name in unknown]
            proto = inliner.inline_selected_functions(proto, ids, exclude=False, inline_schema_functions=True)
        if len(proto.graph.node) == before:
            break
    return proto


def _is_known(onnx: Any, name: str) -> bool:
    """Whether onnx2torch converts an operator of opset ``OPSET``."""
    registry = import_extra("onnx2torch.node_converters.registry", "onnx")
    try:
        registry.get_converter(name, onnx.defs.get_schema(name, OPSET, "").since_version, "")
    except Exception:  # no such operator in that opset, or no converter
        return False
    return True


def ends_with_softmax(proto: Any) -> bool:
    """Whether the only output is that of a Softmax."""
    return _find_softmax(proto) is not None


def strip_softmax(proto: Any, path: str) -> None:
    """Remove the final Softmax in place, so that the graph returns its logits."""
    last = _find_softmax(proto)
    if last is None:
        kinds = [node.op_type for node in proto.graph.node if set(node.output) & {o.name for o in proto.graph.output}]
        raise InputError(f"{path} ends with {', '.join(kinds) or 'nothing'}, not with Softmax: omit --strip-softmax")
    proto.graph.node.remove(last)
    for node in proto.graph.node:
        for number, name in enumerate(node.output):
            if name == last.input[0]:
                node.output[number] = last.output[0]
        for number, name in enumerate(node.input):
            if name == last.input[0]:
                node.input[number] = last.output[0]


def _find_softmax(proto: Any) -> Any:
    """The Softmax over the classes that computes the only output of a graph, if there is one."""
    outputs = [output.name for output in proto.graph.output]
    for node in proto.graph.node:
        if node.op_type == "Softmax" and list(node.output) == outputs:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
            return node if axis in (-1, 1) else None
    return None
