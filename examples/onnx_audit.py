"""Audit of an ONNX file: is it what it seems to be, how fragile is it, does it meet a requirement?

$ python examples/onnx_audit.py model.onnx test.npz    # arrays x and y

Without arguments, a small network is exported and audited. Exit code 1 if the model does not meet the requirement.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

import marginattack as ma
from marginattack.analysis.diagnose import preflight
from marginattack.sources.data import open_data
from marginattack.sources.models import open_model

EPS, REQUIRED = 0.01, 0.5  # at least half of the inputs must withstand a change of 0.01 in every pixel


def make_files(folder: Path) -> tuple[str, str]:
    """A model file and data that stand in for yours."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    images = torch.rand(12, 3, 8, 8)
    np.savez(folder / "test.npz", x=images.numpy(), y=model(images).argmax(1).numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter, which needs no further package
        torch.onnx.export(model, (images,), folder / "model.onnx", dynamo=False)
    return str(folder / "model.onnx"), str(folder / "test.npz")


def main(file: str, arrays: str) -> bool:
    """Diagnose, measure, decide."""
    model, data = open_model(file), open_data(arrays)
    images, labels = data.read(range(len(data)))
    grave = [finding for finding in preflight(model.module, images, labels) if finding.grade == "grave"]
    for finding in grave:
        print(f"{finding.seen}: {finding.meaning} {finding.advice}")
    margins = ma.measure(model.module, images, labels, norm="linf", budget=100)
    accuracy = margins.robust_accuracy(EPS)
    passed = not grave and accuracy >= REQUIRED
    print(margins)
    print(f"robust accuracy at {EPS}: {accuracy:.0%}, required {REQUIRED:.0%}: {'passed' if passed else 'failed'}")
    print(f"SHA-256 of the model: {model.digest}")
    return passed


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.exit(0 if main(*sys.argv[1:]) else 1)
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if main(*make_files(Path(folder))) else 1)
