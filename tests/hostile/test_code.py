"""Files that would run code when they are read: they are refused, and nothing runs."""

import contextlib
import importlib
import io
import json
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_stub
from data_helpers import Malicious, error_of, pixels
from model_helpers import assert_refused
from torch import nn
from typer.testing import CliRunner

from marginattack.cli import app
from marginattack.errors import InputError
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
    assert_refused("is a pickle, and loading it runs the code in it: pass --trust-pickle", file)
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
    assert_refused("is a pickle, .* otherwise define the network in a Python file", tmp_path / "w.pth")
    assert_refused("holds a state_dict: weights without a network", tmp_path / "w.pth", trust_pickle=True)
    assert_refused("holds weights without a network; define the network in", tmp_path / "w.safetensors")


def test_local_weights_are_read_as_data(tmp_path: Path, marker: Path) -> None:
    torchvision_stub.install()
    (tmp_path / "w.pth").write_bytes(torch_bytes({"weight": Malicious(marker)}))
    with pytest.raises(InputError, match=r"cannot read .*w.pth as a state_dict of tensors"):
        open_model(f"timm:test_resnet@{tmp_path}/w.pth")
    assert not marker.exists()


@pytest.mark.parametrize("key", ["x", "y", "layout"])
def test_pickles_in_an_npz_are_not_executed(tmp_path: Path, key: str) -> None:
    marker = tmp_path / "executed"
    arrays: dict[str, Any] = {"x": pixels(2, 5, 5), "y": [0, 1], key: np.array([Malicious(marker)] * 2, dtype=object)}
    np.savez(tmp_path / "a.npz", **arrays)
    line = error_of(tmp_path / "a.npz")
    assert "never unpickled" in line or "layout is 'object'" in line
    assert not marker.exists()
    with np.load(tmp_path / "a.npz", allow_pickle=True) as trap:  # the pickle works
        assert trap[key].dtype == object
    assert marker.exists()


def test_a_bare_pickle_named_npz_is_not_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    (tmp_path / "a.npz").write_bytes(pickle.dumps(Malicious(marker)))
    assert "not a complete .npz file" in error_of(tmp_path / "a.npz")
    assert not marker.exists()


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


def expression(records: dict[str, bytes], marker: Path) -> dict[str, bytes]:
    def change(program: Any) -> None:
        sizes = program["graph_module"]["graph"]["tensor_values"]["images"]["sizes"]
        sizes[0]["as_expr"]["expr_str"] = code(marker)

    return edit_json(records, "models/model.json", change)


def guard(records: dict[str, bytes], marker: Path) -> dict[str, bytes]:
    def change(program: Any) -> None:
        program["guards_code"] = [code(marker)]

    return edit_json(records, "models/model.json", change)


HOSTILE = [sample_inputs, pickled_weight, expression, guard]


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_program_is_loaded_only_if_it_is_trusted(
    attack: Callable[..., dict[str, bytes]], records: dict[str, bytes], tmp_path: Path, marker: Path
) -> None:
    path = write(tmp_path / "m.pt2", attack(records, marker))
    line = assert_refused("is a torch.export program, and loading it runs the code in it: pass --trust-pickle", path)
    assert "export it as .onnx" in line
    assert not marker.exists()
    with contextlib.suppress(Exception):
        torch.export.load(path).module()(torch.rand(2, 1, 2, 2))
    assert marker.exists()  # the refusal is of a real threat


def test_a_program_is_refused_in_any_thread(records: dict[str, bytes], tmp_path: Path, marker: Path) -> None:
    """Trusted and hostile programs at the same time: trust in one is not trust in the other."""
    good, evil = write(tmp_path / "good.pt2", records), write(tmp_path / "evil.pt2", sample_inputs(records, marker))

    def refuse(_: int) -> bool:
        with pytest.raises(InputError, match="--trust-pickle"):
            open_model(str(evil))
        return True

    with ThreadPoolExecutor(4) as pool:
        trusted = [pool.submit(open_model, str(good), trust_pickle=True) for _ in range(4)]
        assert all(pool.map(refuse, range(60)))
        assert all(each.result().module(torch.rand(70, 1, 2, 2)).shape == (70, 3) for each in trusted)
    assert not marker.exists()


def test_guards_are_never_generated(records: dict[str, bytes], tmp_path: Path, marker: Path) -> None:
    opened = open_model(str(write(tmp_path / "m.pt2", guard(records, marker))), trust_pickle=True)
    opened.module(torch.rand(2, 1, 2, 2))
    assert not marker.exists()


def test_garbage_that_is_trusted(tmp_path: Path) -> None:
    for suffix, message in ((".pt", "cannot unpickle"), (".pt2", "cannot load .* as a torch.export program")):
        for content in (b"", b"garbage", b"PK\x03\x04"):
            (tmp_path / f"m{suffix}").write_bytes(content)
            assert_refused(message, tmp_path / f"m{suffix}", trust_pickle=True)


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
