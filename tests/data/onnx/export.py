"""Writes the ONNX files in this folder with torch's current exporter, which needs onnxscript: python export.py."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional


class Convolution(nn.Module):
    """A convolution whose features are flattened, which the exporter writes as Reshape with allowzero."""

    def __init__(self, softmax: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(16, 5)
        self.softmax = softmax

    def forward(self, images: Tensor) -> Tensor:
        features = functional.adaptive_avg_pool2d(self.norm(self.conv(images)).relu(), 2).flatten(1)
        logits: Tensor = self.last(features)
        return logits.softmax(1) if self.softmax else logits


class Transformer(nn.Module):
    """A vision transformer: LayerNormalization, Softmax inside, Gelu from opset 20."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.last = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True, norm_first=True)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.last(self.layer(self.patches(images).flatten(2).transpose(1, 2)).mean(1))
        return logits


class Resized(nn.Module):
    """GroupNormalization, Resize, Pad, Split and ReduceMean, which all changed after opset 17."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        features = functional.max_pool2d(functional.silu(self.norm(self.conv(images))), 2)
        features = functional.interpolate(features, scale_factor=2, mode="bilinear", align_corners=False)
        first, second = functional.pad(features, (1, 1, 1, 1)).chunk(2, 1)
        logits: Tensor = self.last(torch.cat([first * second.sigmoid(), second], 1).mean((2, 3)))
        return logits


class Audio(nn.Module):
    """One-dimensional convolutions and a maximum, ReduceMax."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv1d(1, 6, 9, 4), nn.Conv1d(6, 6, 5, 2), nn.Linear(6, 3)

    def forward(self, sound: Tensor) -> Tensor:
        logits: Tensor = self.last(self.second(self.first(sound).relu()).relu().amax(2))
        return logits


if __name__ == "__main__":
    torch.manual_seed(0)
    flat = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
    n = torch.export.Dim("n")
    for name, opset, network, shape, dynamic in [
        ("convolution-18", 18, Convolution(), (3, 8, 8), True),
        ("convolution-19", 19, Convolution(), (3, 8, 8), False),
        ("softmax-18", 18, Convolution(softmax=True), (3, 8, 8), True),
        ("transformer-20", 20, Transformer(), (3, 8, 8), True),
        ("resized-20", 20, Resized(), (3, 10, 10), True),
        ("resized-21", 21, Resized(), (3, 10, 10), False),
        ("tabular-20", 20, flat, (6,), True),
        ("audio-18", 18, Audio(), (1, 200), True),
        ("audio-20", 20, Audio(), (1, 200), True),
    ]:
        torch.onnx.export(
            network.eval(), (torch.rand(2, *shape),), Path(__file__).parent / f"{name}.onnx", opset_version=opset,
            dynamo=True, external_data=False, verbose=False, dynamic_shapes=({0: n},) if dynamic else None,
        )  # fmt: skip
