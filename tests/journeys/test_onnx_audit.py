"""An audit of an ONNX file that somebody else exported: what was found is checked with onnxruntime on that file."""

import importlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import terminal
import torchvision_stub

FILES = Path(__file__).parent.parent / "data/onnx"


def test_a_file_that_ends_with_softmax(tmp_path: Path) -> None:
    shutil.copy(FILES / "softmax-18.onnx", tmp_path / "model.onnx")
    session: Any = importlib.import_module("onnxruntime").InferenceSession(str(tmp_path / "model.onnx"))

    def classify(images: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, {session.get_inputs()[0].name: images})[0].argmax(1))

    x = np.random.default_rng(0).random((40, 3, 8, 8), dtype=np.float32)
    np.savez(tmp_path / "inputs.npz", x=x, y=classify(x), names=[f"case {i}" for i in range(40)])
    audit = ["measure", "--model", "model.onnx", "--data", "inputs.npz", "--norm", "linf", "--budget", "60"]
    torchvision_stub.install()
    line = terminal.refused(tmp_path, *audit, "--out", "run")
    assert line.endswith("model.onnx ends with Softmax, whose gradients vanish: pass --strip-softmax")
    out = terminal.run(tmp_path, *audit, "--strip-softmax", "--limit", "12", "--out", "run")
    assert "100.0%" in out
    assert "case " in out
    margins, images = (terminal.read(tmp_path / "run", kind) for kind in ("margins", "images"))
    assert margins["name"].to_pylist() == [f"case {i}" for i in range(12)]  # --limit takes the first
    adversarial = np.array(images["adversarial"].to_pylist(), dtype=np.float32).reshape(12, 3, 8, 8)
    assert margins["success"].to_pylist() == [True] * 12
    assert (classify(adversarial) == margins["adversarial_label"].to_numpy()).all()
    assert (classify(adversarial) != margins["label"].to_numpy()).all()
    assert np.allclose(abs(adversarial - x[:12]).max((1, 2, 3)), margins["distance"].to_numpy(), atol=1e-6)
