"""RobustBench's ``benchmark`` with our attack: change the import, keep the script."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.errors import InputError, choose
from marginattack.integrations.autoattack import AutoAttack
from marginattack.sources.common import import_extra
from marginattack.sources.model_hubs import import_robustbench
from marginattack.storage.files import make_folder, write_atomically

DATASETS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}
THREATS = ("Linf", "L2")
KEYS = ("link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue", "architecture",
        "eps", "clean_acc", "reported", "corruptions_acc", "corruptions_acc_3d", "corruptions_mce",
        "corruptions_mce_3d", "autoattack_acc", "external", "footnote")  # fmt: skip


def benchmark(
    model: nn.Module, n_examples: int = 10_000, dataset: Any = "cifar10", threat_model: Any = "Linf",
    to_disk: bool = False, model_name: str | None = None, data_dir: str = "./data",
    corruptions_data_dir: str | None = None, device: Any = None, batch_size: int = 32, eps: float | None = None,
    log_path: str | None = None, preprocessing: Any = None, aa_state_path: Path | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Clean and robust accuracy, with the signature of ``robustbench.benchmark``.

    Args:
        model: Maps images in [0, 1] to logits.
        n_examples: How many images of the test set.
        dataset: "cifar10" or "cifar100"; "imagenet" if RobustBench itself is installed.
        threat_model: "Linf" or "L2".
        to_disk: Whether to write model_info/DATASET/THREAT/NAME.json with RobustBench's keys; robust accuracy is under
            "external", RobustBench's key for evaluations other than AutoAttack's.
        model_name: The name of that file.
        data_dir: The folder of the data set, which is downloaded if it is not there.
        corruptions_data_dir: Not used: corruptions are not supported.
        device: Where the model runs.
        batch_size: How many images are attacked at a time.
        eps: The radius.
        log_path: A file to which the printed lines are appended.
        preprocessing: A transform of the images, or RobustBench's name of one.
        aa_state_path: A file from which an interrupted evaluation resumes.

    Returns:
        Clean accuracy and robust accuracy.

    Raises:
        InputError: An argument is invalid.

    Example:
        >>> from marginattack.integrations.robustbench import benchmark
        >>> benchmark(model, n_examples=100, dataset="cifar10", threat_model="Linf", eps=8 / 255)  # doctest: +SKIP
        (0.94, 0.51)
    """
    name, threat = (str(getattr(each, "value", each)) for each in (dataset, threat_model))
    if threat not in THREATS:
        raise InputError(f"threat_model is {threat!r}: {choose(threat, THREATS)}")
    if eps is None:
        raise InputError(f"eps is missing: give the radius of {threat}, such as eps=8/255")
    if to_disk and model_name is None:
        raise InputError("to_disk is True, but model_name is missing: it names the file")
    images, labels = load(name, n_examples, data_dir, threat, model_name, preprocessing)
    model = model if device is None else model.to(device)
    adversary = AutoAttack(model, norm=threat, eps=eps, log_path=log_path)
    accuracy = adversary.clean_accuracy(images, labels, bs=batch_size)
    adversary.run_standard_evaluation(images, labels, bs=batch_size, state_path=aa_state_path)
    robust = adversary.robust_accuracy
    if to_disk:
        write(Path("model_info") / name / threat / f"{model_name}.json", name, eps, accuracy, robust)
    return accuracy, robust


def load(
    name: str, n: int, data_dir: str, threat: str, model_name: str | None, preprocessing: Any
) -> tuple[Tensor, Tensor]:
    """The first images of a test set."""
    if name not in DATASETS or isinstance(preprocessing, str):
        data, enums = (import_robustbench(part) for part in ("data", "model_zoo.enums"))
        kind, against = enums.BenchmarkDataset(name), enums.ThreatModel(threat)
        transform = data.get_preprocessing(kind, against, model_name, preprocessing)
        images, labels = data.load_clean_dataset(kind, n, data_dir, transform)
        return images, labels
    torchvision = import_extra("torchvision", "torchvision")
    transform = preprocessing or torchvision.transforms.ToTensor()
    test = getattr(torchvision.datasets, DATASETS[name])(data_dir, train=False, transform=transform, download=True)
    chosen = [test[row] for row in range(min(n, len(test)))]
    return torch.stack([image for image, _ in chosen]), torch.tensor([label for _, label in chosen])


def write(path: Path, dataset: str, eps: float, accuracy: float, robust: float) -> None:
    """Write the entry of a model, or update it."""
    known = json.loads(path.read_text()) if path.exists() else dict.fromkeys(KEYS)
    known |= {"dataset": dataset, "eps": eps, "clean_acc": f"{100 * accuracy:.2f}", "external": f"{100 * robust:.2f}"}
    make_folder(path.parent)
    with write_atomically(path) as file:
        file.write(json.dumps(known, indent=2).encode())
