"""Strategies that damage files: at random bytes, and in the fields of manifests, shards, archives and graphs."""

import copy
import io
import json
import zipfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

CODE = "__import__('os').mkdir('executed')"
NUMBERS = (0, -1, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**40, 10**12, 2**63 - 1, -(2**63))
VALUES: tuple[Any, ...] = (
    *NUMBERS, None, True, 0.5, 1e308, float("nan"), float("inf"), "", "x", "é" * 300, CODE, "../../outside", "\0",
    "9**9**9", [], {}, [[]], [None], {"": None}, [10**6] * 3, {"x": [1]},
)  # fmt: skip


class Damaged(bytes):
    """Damaged content; a failing test prints its size only, and leaves it where it was read."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


def as_json(tree: Any) -> Damaged:
    """The tree as JSON, with NaN and infinity where it has them."""
    return Damaged(json.dumps(tree).encode())


@st.composite
def damaged_bytes(draw: st.DrawFn, content: bytes) -> Damaged:
    """The content with up to four bytes, stretches or integers changed."""
    damaged = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(damaged) - 1, 0)))
        kind = draw(st.sampled_from(("byte", "integer", "cut", "repeat", "end", "zeros")))
        length = draw(st.integers(1, 64))
        if kind == "byte":
            damaged[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif kind == "integer":
            size = draw(st.sampled_from((1, 2, 4, 8)))
            number = draw(st.sampled_from(NUMBERS)) % 2 ** (8 * size)
            damaged[at : at + size] = number.to_bytes(size, draw(st.sampled_from(("little", "big"))))
        elif kind == "cut":
            del damaged[at : at + length]
        elif kind == "repeat":
            damaged[at:at] = damaged[at : at + length]
        elif kind == "end":
            del damaged[at:]
        else:
            damaged[at : at + length] = bytes(length)
    return Damaged(damaged)


@st.composite
def damaged_json(draw: st.DrawFn, tree: Any) -> Any:
    """The tree with one to three of its nodes replaced, removed or added."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        parent, depth = tree, draw(st.integers(0, 4))
        while True:
            keys = sorted(parent) if isinstance(parent, dict) else list(range(len(parent)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if depth and isinstance(parent[key], dict | list) and parent[key]:
                parent, depth = parent[key], depth - 1
                continue
            if draw(st.integers(0, 4)) == 0:
                del parent[key]
            else:
                parent[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
            break
    return tree


@st.composite
def damaged_shard(draw: st.DrawFn, content: bytes) -> Damaged:
    """A Parquet file with a column, rows or metadata changed; half of the time damaged bytes."""
    if draw(st.booleans()):
        return draw(damaged_bytes(content))
    table = pq.read_table(io.BytesIO(content))
    column, kind = (
        draw(st.sampled_from(table.column_names)),
        draw(st.sampled_from(("drop", "cut", "fill", "type", "about"))),
    )
    at = table.column_names.index(column)
    if kind == "drop":
        table = table.remove_column(at)
    elif kind == "cut":
        table = pa.concat_tables([table.slice(draw(st.integers(0, 2))), table.slice(0, draw(st.integers(0, 2)))])
    elif kind == "fill":
        value = draw(st.sampled_from((0, -1, 2**40, None)))
        old = table.schema.field(at).type
        if pa.types.is_integer(old) or pa.types.is_floating(old):
            table = table.set_column(at, column, pa.array([value] * len(table), old))
    elif kind == "type":
        filler: Any = draw(st.sampled_from(("x", b"\0", [1, 2], None, 1.5, {"a": 1})))
        table = table.set_column(at, column, pa.array([filler] * len(table)))
    else:
        about = {
            key: json.loads(value) for key, value in (table.schema.metadata or {}).items() if key == b"marginattack"
        }
        table = table.replace_schema_metadata(
            {key: json.dumps(draw(damaged_json(value))) for key, value in about.items()}
        )
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return Damaged(stream.getvalue())


@st.composite
def damaged_npz(draw: st.DrawFn, x: np.ndarray, y: np.ndarray) -> Damaged:
    """An archive of arrays with another header, name or method; half of the time damaged bytes of a sound one."""
    sound = draw(st.booleans())
    method = draw(st.sampled_from((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, array in (("x", x), ("y", y), ("layout", np.array("nhwc"))):
            header: dict[str, Any] = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
            if not sound and draw(st.booleans()):
                key = draw(st.sampled_from(sorted(header)))
                header[key] = draw(
                    st.sampled_from((*VALUES, "|O", "<U4", "<f8", ">f4", "V9", "<M8[s]", "(2,)i4", (2, -1)))
                )
                if key == "shape" and draw(st.booleans()):
                    header[key] = tuple(draw(st.lists(st.sampled_from(NUMBERS), max_size=4)))
                if draw(st.integers(0, 8)) == 0:
                    del header[key]
            start = repr(header).encode()
            magic = b"\x93NUMPY\x01\x00" if draw(st.integers(0, 9)) else b"\x93NUMPY" + draw(st.binary(max_size=2))
            archive.writestr(
                f"{name}.npy", magic + (len(start) % 2**16).to_bytes(2, "little") + start + array.tobytes()
            )
    return draw(damaged_bytes(stream.getvalue())) if sound else Damaged(stream.getvalue())


@st.composite
def damaged_graph(draw: st.DrawFn, content: bytes, onnx: Any) -> Damaged:
    """An ONNX model with fields of its nodes, weights and input changed; half of the time damaged bytes."""
    if draw(st.booleans()):
        return draw(damaged_bytes(content))
    proto = onnx.load_model_from_string(content)
    for _ in range(draw(st.integers(1, 3))):
        graph, number = proto.graph, draw(st.sampled_from(NUMBERS))
        node, weight = draw(st.sampled_from(list(graph.node))), draw(st.sampled_from(list(graph.initializer)))
        kind = draw(
            st.sampled_from(("operator", "name", "input", "attribute", "dims", "type", "external", "shape", "opset"))
        )
        if kind == "operator":
            node.op_type = draw(
                st.sampled_from(("Tile", "Expand", "Loop", "If", "Pow", "Relu", "Det", "ConstantOfShape", CODE))
            )
        elif kind == "name":
            node.name = f'") or {CODE} or ("'
        elif kind == "input" and node.input:
            node.input[0] = draw(st.sampled_from((weight.name, "", "nothing", node.output[0])))
        elif kind == "attribute":
            node.attribute.append(
                onnx.helper.make_attribute(draw(st.sampled_from(("axis", "to", "alpha", "perm"))), number)
            )
        elif kind == "dims":
            weight.dims.append(number)
        elif kind == "type":
            weight.data_type = draw(st.integers(0, 30))
        elif kind == "external":
            weight.data_location = 1
            weight.external_data.add(
                key="location", value=draw(st.sampled_from(("w.bin", "/etc/passwd", "..", "/dev/zero")))
            )
            weight.external_data.add(key=draw(st.sampled_from(("length", "offset"))), value=str(number))
        elif kind == "shape":
            dims = graph.input[0].type.tensor_type.shape.dim
            draw(st.sampled_from(list(dims))).dim_value = number
        else:
            proto.opset_import[0].version = number
    return Damaged(proto.SerializeToString())
