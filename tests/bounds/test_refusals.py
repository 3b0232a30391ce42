"""What bounds do not cover is refused by name, in one line."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from marginattack.bounds.graph import trace
from marginattack.errors import InputError


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


class Unknown(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.erf(x)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if bool(x.sum() > 0) else -x


class View(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2.0
        y[:, :1].relu_()
        return y


class ViewOfView(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2.0
        y.view(-1, 3, 1).view(-1, 3).relu_()
        return y


class Dropped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2.0
        functional.dropout(y, training=False).relu_()  # in eval mode its output is its input
        return y


class Subtracted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(x[:, None, None], (1, 2), divisor_override=-1).flatten(1)


class Coarse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        coarse: Tensor = x.mean(1, keepdim=True, dtype=torch.float16)
        return coarse


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn(1, 3)


REFUSED = [
    (Noisy(), r"model draws random numbers \(randn\)"),
    (Twice(), "bounds do not cover mul .* of two tensors"), (Unknown(), "bounds do not cover erf .*: supported are"),
    (Branching(), "torch.export cannot trace the model"), (nn.Softmax(1), "bounds do not cover softmax"),
    (View(), "in place on a shared tensor"),
    (ViewOfView(), "in place on a shared tensor"), (Dropped(), "in place on a shared tensor"),
    (Subtracted(), "divisor_override"), (Coarse(), r"bounds do not cover mean \(mean\) to torch.float16"),
    (nn.Linear(3, 2).bfloat16(), "computes in bfloat16"),
    (nn.LSTM(3, 2), "bounds do not cover|torch.export cannot"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "message"), REFUSED, ids=lambda each: type(each).__name__)
def test_what_bounds_do_not_cover_is_refused_by_name(model: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        trace(model.eval().requires_grad_(False), torch.rand(2, 3))
    assert "\n" not in str(error.value)
