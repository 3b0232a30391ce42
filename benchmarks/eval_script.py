r"""AutoAttack's own evaluation script, unchanged, with our class in place of AutoAttack's: accuracy and time of both.

    PYTHONPATH=src:benchmarks python benchmarks/eval_script.py --data mnist=mnist.npz cifar10=cifar10_test.npz \
        [--cases NETWORK … ] [--threads 1]

The script is ``examples/eval.py`` of pyautoattack. It loads ``ResNet18`` from a module ``resnet`` and CIFAR-10 through
torchvision, and moves the network to a GPU. Stand-ins give it a bundled network and the first test images of that
network's data set, correctly classified or not, on the CPU. The script does not fit the class of pyautoattack 0.2.0,
which takes no ``log_path`` and returns labels too: a shim drops both. The two runs are in one process, ours first; the
time is CPU time of the whole script.
"""

import argparse
import contextlib
import io
import logging
import runpy
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from record import write
from suite_cells import models
from torch import Tensor, nn

from marginattack.core.norms import as_norm
from marginattack.core.rounding import rounded_up
from marginattack.integrations import autoattack
from marginattack.reproduce.markdown import table

# network: norm, radius and number of images; the radii are near the median margin, and 8/255
CASES = {
    "mnist-cnn": ("Linf", 0.0938, 50),
    "cifar10-resnet32-adv": ("Linf", 8 / 255, 20),
}
LINE = "robust accuracy: "  # what both print last


def peer() -> ModuleType:
    """A module whose AutoAttack is pyautoattack's, with the interface that its script expects."""
    theirs = import_module("pyautoattack")

    class AutoAttack(theirs.AutoAttack):  # type: ignore[name-defined, misc]
        def __init__(self, model: nn.Module, *, log_path: str, **options: Any) -> None:
            super().__init__(model, **options)

        def run_standard_evaluation(self, *tensors: Tensor, **options: Any) -> Tensor:
            images: Tensor = super().run_standard_evaluation(*tensors, **options)[0]
            return images

    module = ModuleType("pyautoattack")
    module.AutoAttack = AutoAttack  # type: ignore[attr-defined]
    return module


class Images(torch.utils.data.Dataset[Any]):
    """Images and labels as torchvision's CIFAR10 gives them."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.images[row], int(self.labels[row])


@contextlib.contextmanager
def captured() -> Iterator[io.StringIO]:
    """What is printed, or logged by AutoAttack."""
    text, logger = io.StringIO(), logging.getLogger("auto-attack")
    handler, level = logging.StreamHandler(text), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        with contextlib.redirect_stdout(text):
            yield text
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextlib.contextmanager
def stand_ins(model: nn.Module, data: Images, pyautoattack: ModuleType) -> Iterator[None]:
    """Modules for the script: a network, a data set, AutoAttack; and a GPU that is the CPU."""
    names = ("resnet", "torchvision", "torchvision.datasets", "torchvision.transforms", "pyautoattack")
    resnet, torchvision, datasets, transforms = (ModuleType(name) for name in names[:-1])
    vars(resnet)["ResNet18"] = lambda: model
    vars(datasets)["CIFAR10"] = lambda **_: data
    vars(transforms).update(ToTensor=lambda: None, Compose=lambda _: None)
    vars(torchvision).update(datasets=datasets, transforms=transforms)
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(zip(names, (resnet, torchvision, datasets, transforms, pyautoattack), strict=True))
    try:
        with mock.patch.object(nn.Module, "cuda", lambda module: module):
            yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


def run_script(
    module: ModuleType, model: nn.Module, images: Tensor, labels: Tensor, *, norm: str, eps: float
) -> tuple[Tensor, str, float]:
    """Run the script with this module as pyautoattack; the images that it saves, what it prints, and CPU seconds."""
    path = Path(str(import_module("pyautoattack").__file__)).parent / "examples/eval.py"
    with tempfile.TemporaryDirectory() as folder, captured() as text:
        torch.save(model.state_dict(), f"{folder}/weights.pt")
        options = {"model": f"{folder}/weights.pt", "save_dir": folder, "log_path": f"{folder}/log.txt", "norm": norm,
                   "epsilon": eps, "n_ex": len(images), "batch_size": len(images)}  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with (
            stand_ins(model, Images(images, labels), module),
            mock.patch.object(sys, "path", list(sys.path)),
            mock.patch.object(sys, "argv", [str(path), *words]),
        ):
            began = time.process_time()
            runpy.run_path(str(path), run_name="__main__")
            seconds = time.process_time() - began
        saved = torch.load(next(Path(folder).glob("aa_*.pth")))["adv_complete"]
    return saved, text.getvalue(), seconds


def run_side(
    module: ModuleType, model: nn.Module, images: Tensor, labels: Tensor, norm: str, eps: float
) -> dict[str, Any]:
    """The accuracy that the script prints, what the images that it saves say, and seconds."""
    points, text, seconds = run_script(module, model, images, labels, norm=norm, eps=eps)
    with torch.no_grad():
        fooled = model(points).argmax(1) != labels
    inside = as_norm(norm).size((points.double() - images.double()).flatten(1))[:, 0] <= rounded_up(eps)
    return {"printed": text.rpartition(LINE)[2].split()[0], "robust": int((~fooled | ~inside).sum()),
            "outside": int((~inside).sum()), "seconds": round(seconds, 2)}  # fmt: skip


def run_case(name: str, data: dict[str, list[str]]) -> dict[str, Any]:
    """Both runs on a network, ours first."""
    norm, eps, n = CASES[name]
    known = models()[name]
    images, labels = (part[:n].contiguous() for part in known.read(data))
    model = known.open().eval()
    with torch.no_grad():
        clean = int((model(images).argmax(1) == labels).sum())
    ours, theirs = (run_side(module, model, images, labels, norm, eps) for module in (autoattack, peer()))
    row = {"model": name, "norm": norm, "eps": eps, "n": n, "clean": clean, "ours": ours, "theirs": theirs}
    print(row, flush=True)
    return row


def format_table(numbers: dict[str, Any]) -> list[str]:
    """The rows of the record in Markdown."""
    header = ("network", "ε (ℓ∞)", "images", "clean", "robust: AutoAttack", "marginattack", "CPU seconds: AutoAttack",
              "marginattack", "share")  # fmt: skip
    return table(header, [
        (r["model"], f"{r['eps']:.3g}", r["n"], f"{r['clean'] / r['n']:.1%}", r["theirs"]["printed"],
         r["ours"]["printed"],
         f"{r['theirs']['seconds']:.0f}", f"{r['ours']['seconds']:.0f}",
         f"{r['ours']['seconds'] / r['theirs']['seconds']:.0%}")
        for r in numbers["rows"]
    ])  # fmt: skip


def main() -> None:
    """Run all cases, write the record, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FILE[,FILE]")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = {name: files.split(",") for name, _, files in (entry.partition("=") for entry in options.data)}
    numbers: dict[str, Any] = {"rows": []}
    for name in options.cases:
        numbers["rows"].append(run_case(name, data))
        write("eval-script", numbers)  # after each case, so that an interrupted run leaves what it has
    print("\n".join(format_table(numbers)))


if __name__ == "__main__":
    main()
