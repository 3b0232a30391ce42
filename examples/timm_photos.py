"""Margins of a timm model on a folder of photos.

$ python examples/timm_photos.py timm:resnet50 photos labels.csv

``labels.csv`` has the columns ``file`` and ``label`` (class indices). Without arguments, a tiny untrained network and
bundled images show how it works.
"""

import csv
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image

import marginattack as ma
from marginattack.sources.data import open_data, samples
from marginattack.sources.models import open_model


def make_photos(folder: Path) -> tuple[str, str, str]:
    """Weights, photos and labels that stand in for yours."""
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = timm.create_model("test_resnet", pretrained=False)
    save_file(model.state_dict(), folder / "weights.safetensors")
    (folder / "photos").mkdir()
    rows = [("file", "label")]
    for number, image in enumerate(samples("cifar10", 3)[0]):
        pixels = (255 * image).byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).resize((200, 200)).save(folder / f"photos/{number}.png")
        rows.append((f"{number}.png", "0"))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return f"timm:test_resnet@{folder / 'weights.safetensors'}", str(folder / "photos"), str(folder / "labels.csv")


def main(name: str, photos: str, labels: str) -> ma.Margins:
    """Measure photos, resized and normalised as the model's metadata say."""
    model = open_model(name)
    data = open_data(photos, labels=labels, image_size=model.image_size)
    images, classes = data.read(range(len(data)))
    if "test_resnet" in name:
        classes = model.module(images).argmax(1)  # an untrained network has no correct classes
    margins = ma.measure(model.module, images, classes, norm="l2", budget=30)
    print(f"{name}, normalised with mean {model.preprocessing['mean']}")
    print(margins)
    for file, distance in zip(data.names or [], margins.distance.tolist(), strict=True):
        print(f"{file}: {distance:.4f}")
    return margins


if __name__ == "__main__":
    if len(sys.argv) == 4:
        main(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(*make_photos(Path(folder)))
