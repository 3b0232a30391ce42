"""Files that would run code when they are read: they are refused, and nothing runs."""

import contextlib
import importlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_stub
from data_helpers import Malicious
from model_helpers import assert_refused
from torch import nn
from typer.testing import CliRunner

from marginattack.cli import app
from marginattack.errors import InputError
from marginattack.sources.model_pt2 import check_program
from marginattack.sources.models import open_model

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


def torch_bytes(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


# Pickles ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
@pytest.mark.parametrize("dump", [torch_bytes, pickle.dumps])
def test_a_pickle_is_not_executed(dump: Callable[[object], bytes], suffix: str, tmp_path: Path, marker: Path) -> None:
    file = tmp_path / f"m{suffix}"
    file.write_bytes(dump({"weight": Malicious(marker)}))
    assert_refused("is a pickle, and loading a pickle runs .* --trust-pickle", file)
    assert not marker.exists()


def test_a_trusted_pickle_is_loaded(tmp_path: Path, marker: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    torch.save(model, tmp_path / "m.pt")
    assert_refused("is a pickle, and loading", tmp_path / "m.pt")
    opened = open_model(str(tmp_path / "m.pt"), trust_pickle=True)
    images = torch.rand(3, 1, 2, 2)
    assert opened.module(images).equal(model(images))
    assert opened.was_training
    (tmp_path / "evil.pt").write_bytes(torch_bytes(Malicious(marker)))
    assert_refused("evil.pt holds NoneType", tmp_path / "evil.pt", trust_pickle=True)
    assert marker.exists()  # the pickle works: the tests above refuse a real threat


@pytest.mark.parametrize(("flag", "message"), [("--model", "runs the code in it"), ("--data", "holds Python objects")])
def test_the_command_line_refuses_pickles_and_writes_nothing(
    flag: str, message: str, tmp_path: Path, marker: Path
) -> None:
    (tmp_path / "m.pt").write_bytes(torch_bytes(Malicious(marker)))
    np.savez(tmp_path / "x.npz", x=np.array([Malicious(marker)], dtype=object), y=np.array([1]))
    sources = {"--model": "zoo:mnist-cnn", "--data": "samples:mnist"}
    sources[flag] = str(tmp_path / ("m.pt" if flag == "--model" else "x.npz"))
    arguments = [word for pair in sources.items() for word in pair]
    result = CliRunner().invoke(app, ["measure", *arguments, "--out", str(tmp_path / "run")])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert message in result.stderr
    assert not marker.exists()
    assert not (tmp_path / "run").exists()


def test_weights_alone_need_a_factory(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    weights = nn.Linear(2, 2).state_dict()
    torch.save(weights, tmp_path / "w.pth")
    save_file(weights, tmp_path / "w.safetensors")
    assert_refused(
        "holds a state_dict: weights without a network; define the network in a Python file", tmp_path / "w.pth"
    )
    assert_refused("holds a state_dict: weights without a network", tmp_path / "w.pth", trust_pickle=True)
    assert_refused("holds weights without a network; define the network in", tmp_path / "w.safetensors")


def test_local_weights_are_read_as_data(tmp_path: Path, marker: Path) -> None:
    torchvision_stub.install()
    (tmp_path / "w.pth").write_bytes(torch_bytes({"weight": Malicious(marker)}))
    with pytest.raises(InputError, match=r"cannot read .*w.pth as a state_dict of tensors"):
        open_model(f"timm:test_resnet@{tmp_path}/w.pth")
    assert not marker.exists()


def test_garbage(tmp_path: Path) -> None:
    for suffix, message in ((".pt", "is a pickle"), (".pt2", "is not a torch.export program")):
        for content in (b"", b"garbage", torch_bytes([1]), zip_bytes({"a/b": b"c"})):
            (tmp_path / f"m{suffix}").write_bytes(content)
            if suffix == ".pt2" or content != torch_bytes([1]):
                assert_refused(message, tmp_path / f"m{suffix}")


def zip_bytes(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


# Programs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The records of a valid program with a dynamic batch, weights and a constant."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 3)
            self.scale = torch.tensor(2.0)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.last(images.flatten(1) * self.scale)
            return logits

    path = tmp_path_factory.mktemp("good") / "m.pt2"
    program = torch.export.export(
        Net().eval(), (torch.rand(4, 1, 2, 2),), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=64)},)
    )
    torch.export.save(program, path)
    reader = torch._C.PyTorchFileReader(str(path))
    return {name: bytes(reader.get_record(name)) for name in reader.get_all_records()}


def write(path: Path, records: dict[str, bytes]) -> Path:
    writer = torch._C.PyTorchFileWriter(str(path))
    writer.set_min_version(6)  # as torch.export.save does
    for name, content in records.items():
        if not name.startswith(".data/") and name != "byteorder":
            writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    return path


def edit_json(records: dict[str, bytes], name: str, change: Callable[[Any], None]) -> dict[str, bytes]:
    value = json.loads(records[name])
    change(value)
    return {**records, name: json.dumps(value).encode()}


def code(marker: Path) -> str:
    return f"__import__('os').mkdir({str(marker)!r})"


def sample_inputs(records: dict[str, bytes], marker: Path) -> dict[str, bytes]:
    return {**records, "data/sample_inputs/model.pt": torch_bytes(((Malicious(marker),), {}))}


def pickled_weight(records: dict[str, bytes], marker: Path) -> dict[str, bytes]:
    def change(config: Any) -> None:
        config["config"]["last.bias"]["use_pickle"] = True

    weights = json.loads(records["data/weights/model_weights_config.json"])["config"]
    file = f"data/weights/{weights['last.bias']['path_name']}"
    return edit_json(
        {**records, file: torch_bytes(Malicious(marker))}, "data/weights/model_weights_config.json", change
    )


def legacy_weights(records: dict[str, bytes], marker: Path) -> dict[str, bytes]:
    return {**records, "data/weights/model.pt": torch_bytes({"last.bias": Malicious(marker)})}


def opaque_constant(records: dict[str, bytes], marker: Path) -> dict[str, bytes]:
    def change(config: Any) -> None:
        config["config"]["scale"]["path_name"] = "opaque_obj_0"
        config["config"]["scale"]["use_pickle"] = True

    more = {**records, "data/constants/opaque_obj_0": pickle.dumps(Malicious(marker))}
    return edit_json(more, "data/constants/model_constants_config.json", change)


def expression(records: dict[str, bytes], marker: Path) -> dict[str, bytes]:
    def change(program: Any) -> None:
        sizes = program["graph_module"]["graph"]["tensor_values"]["images"]["sizes"]
        sizes[0]["as_expr"]["expr_str"] = code(marker)

    return edit_json(records, "models/model.json", change)


def operator(records: dict[str, bytes], marker: Path) -> dict[str, bytes]:
    def change(program: Any) -> None:
        node = program["graph_module"]["graph"]["nodes"][0]
        node["target"] = "torch.os.mkdir"
        node["inputs"] = [{"name": "", "arg": {"as_string": str(marker)}, "kind": 1}]

    return edit_json(records, "models/model.json", change)


def argument(records: dict[str, bytes], marker: Path) -> dict[str, bytes]:
    """The input's name becomes the argument of a generated function, with a default that is evaluated."""
    text = records["models/model.json"].decode()
    name = f"images={code(marker)}"
    return {**records, "models/model.json": text.replace('"images"', json.dumps(name)).encode()}


def guard(records: dict[str, bytes], marker: Path) -> dict[str, bytes]:
    def change(program: Any) -> None:
        program["guards_code"] = [code(marker)]

    return edit_json(records, "models/model.json", change)


def library(records: dict[str, bytes], marker: Path) -> dict[str, bytes]:
    return {**records, "data/aotinductor/model/x.wrapper.so": b"\x7fELF"}


def extra_pickle(records: dict[str, bytes], marker: Path) -> dict[str, bytes]:
    return {**records, "data.pkl": pickle.dumps(Malicious(marker))}


ATTACKS = {
    sample_inputs: "cannot load .* Weights only load failed",
    pickled_weight: "cannot load .* Weights only load failed",
    legacy_weights: "cannot load .* Weights only load failed",
    opaque_constant: "holds the object 'opaque_obj_0'",
    expression: "holds the expression .__import__",
    operator: "holds the operator 'torch.os.mkdir'",
    argument: "holds the name .images=__import__",
    library: "holds the file 'data/aotinductor/model/x.wrapper.so'",
    extra_pickle: "holds the file 'data.pkl', which is not part of a plain program",
}


def test_a_valid_program_loads(records: dict[str, bytes], tmp_path: Path) -> None:
    opened = open_model(str(write(tmp_path / "m.pt2", records)))
    assert opened.module(torch.rand(70, 1, 2, 2)).shape == (70, 3)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_program_with_code_in_it_is_refused(
    attack: Callable[..., dict[str, bytes]], records: dict[str, bytes], tmp_path: Path, marker: Path
) -> None:
    assert_refused(ATTACKS[attack], write(tmp_path / "m.pt2", attack(records, marker)))
    assert not marker.exists()


def test_guards_are_never_generated(records: dict[str, bytes], tmp_path: Path, marker: Path) -> None:
    opened = open_model(str(write(tmp_path / "m.pt2", guard(records, marker))))
    opened.module(torch.rand(2, 1, 2, 2))
    assert not marker.exists()
    with contextlib.suppress(Exception):
        torch.export.load(tmp_path / "m.pt2").module()(torch.rand(2, 1, 2, 2))
    assert marker.exists()  # the guard was dangerous


@pytest.mark.parametrize(
    "attack", [sample_inputs, pickled_weight, legacy_weights, opaque_constant, expression, argument]
)
def test_trusted_programs_do_run_their_code(
    attack: Callable[..., dict[str, bytes]], records: dict[str, bytes], tmp_path: Path, marker: Path
) -> None:
    with contextlib.suppress(InputError):
        open_model(str(write(tmp_path / "m.pt2", attack(records, marker))), trust_pickle=True)
    assert marker.exists()  # the refusals above are of real threats


def test_the_older_format_is_not_unpickled(tmp_path: Path, marker: Path) -> None:
    evil = torch_bytes({"a": Malicious(marker)})
    parts = {f"serialized_{name}.pt": evil for name in ("state_dict", "constants", "example_inputs")}
    older = zip_bytes({"version": b"8.15", "serialized_exported_program.json": b"{}", **parts})
    (tmp_path / "m.pt2").write_bytes(older)
    assert_refused("is not a torch.export program", tmp_path / "m.pt2")
    assert not marker.exists()


@pytest.mark.parametrize(
    "target",
    [
        "torch.os.system", "torch.load", "torch.ops.load_library", "torch.ops.aten.__class__", "_operator.attrgetter",
        "torch.ops.aten.from_file.default", "torch.ops.aten.save", "builtins.eval", "#custom:op",
        "torch.ops.mine.op.default", "math.__loader__", "torch.ops.aten.relu.default\nimport os", "torch.hub.load",
    ],
)  # fmt: skip
def test_forbidden_operators(target: str) -> None:
    with pytest.raises(InputError, match="holds the operator"):
        check_program({"nodes": [{"target": target}]}, "m.pt2")


@pytest.mark.parametrize(
    "text",
    [
        "eval('1')", "s0.__class__", "[x for x in s0]", "Symbol('a b')", "lambda: 0", "(exit)()", "getattr",
        "Symbol('x')('y')", "f'{s0}'", "s0 if s1 else s2", "", "(", "__import__", "Symbol(eval('1'))",
    ],
)  # fmt: skip
def test_forbidden_expressions(text: str) -> None:
    with pytest.raises(InputError, match="holds the expression"):
        check_program({"expr_str": text}, "m.pt2")


@pytest.mark.parametrize(
    "text",
    [
        "s0",
        "2*s77 + 1",
        "Symbol('s77', positive=True, integer=True)",
        "FloorDiv(s0, Integer(2))",
        "-(s0 - 1)**2",
        "s0 <= 4",
    ],
)
def test_allowed_expressions(text: str) -> None:
    check_program({"expr_str": text}, "m.pt2")


# ONNX ---------------------------------------------------------------------------------------------------------------


def test_names_in_a_graph_are_not_code(tmp_path: Path, marker: Path) -> None:
    torchvision_stub.install()
    onnx = importlib.import_module("onnx")
    h = onnx.helper
    # onnx2torch writes a node's name into getattr(self, "…") of generated code
    hidden = "".join(f"\\x{byte:02x}" for byte in code(marker).encode())
    name = f'training") and False or eval("{hidden}") or getattr(self, "a'
    nodes = [h.make_node("Flatten", ["x"], ["y"], name=name, axis=1)]
    ends = [h.make_tensor_value_info("x", 1, [2, 3, 2, 2]), h.make_tensor_value_info("y", 1, [2, 12])]
    graph = h.make_graph(nodes, "g", ends[:1], ends[1:])
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 13)], ir_version=8)
    onnx.save(proto, tmp_path / "m.onnx")
    opened = open_model(f"{tmp_path}/m.onnx")
    images = torch.rand(3, 3, 2, 2)
    assert opened.module(images).equal(images.flatten(1))
    assert not marker.exists()
    with pytest.raises(AttributeError):
        importlib.import_module("onnx2torch").convert(proto)(images)
    assert marker.exists()  # the name was dangerous
