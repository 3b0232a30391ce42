"""Resize, crop and normalisation as part of the model: right, differentiable, and refused where they do not fit."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from marginattack.errors import InputError
from marginattack.sources.preprocess import NORMALIZATIONS, Preprocess, parse_normalize


class Mean(nn.Module):
    """Two logits from mean and deviation of images of any size."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([images.mean((1, 2, 3)), images.std((1, 2, 3))], 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", None),
        ("imagenet", ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
        ("cifar10", NORMALIZATIONS["cifar10"]),
        ("0.5/0.25", ((0.5,), (0.25,))),
        ("0.48,0.45,0.40/0.22,0.21,0.2", ((0.48, 0.45, 0.40), (0.22, 0.21, 0.2))),
        ("0.5/0.1,0.2,0.3", ((0.5, 0.5, 0.5), (0.1, 0.2, 0.3))),
        ("0,0,0/1", ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))),
    ],
)
def test_the_forms_of_normalize(text: str, expected: object) -> None:
    assert parse_normalize(text) == expected


@pytest.mark.parametrize(
    "text", ["", "imagnet", "0.5", "0.5/", "a/b", "0.5/0", "0.5/-1", "nan/1", "0.5/inf", "1,2/1,2,3", "0.5/1/2"]
)
def test_invalid_texts_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_normalize(text)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_normalisation_is_exact_and_keeps_the_precision() -> None:
    images = torch.rand(3, 3, 4, 5)
    mean, std = NORMALIZATIONS["imagenet"]
    by_hand = (images - torch.tensor(mean).reshape(1, 3, 1, 1)) / torch.tensor(std).reshape(1, 3, 1, 1)
    module = Preprocess(nn.Identity(), statistics=(mean, std))
    assert module(images).equal(by_hand)
    assert module(images.double()).dtype == torch.float64
    assert module.state_dict() == {}  # it holds only the weights of the model


@pytest.mark.parametrize(
    ("height", "width", "shape"), [(20, 30, (8, 12)), (30, 20, (12, 8)), (8, 9, (8, 9)), (4, 4, (8, 8))]
)
def test_resize_is_that_of_the_shorter_side_with_antialias(height: int, width: int, shape: tuple[int, int]) -> None:
    images = torch.rand(2, 3, height, width)
    expected = functional.interpolate(images, shape, mode="bilinear", antialias=True)
    assert torch.allclose(Preprocess(nn.Identity(), resize=8)(images), expected)


def test_crop_is_central() -> None:
    images = torch.arange(2 * 1 * 7 * 10, dtype=torch.float32).reshape(2, 1, 7, 10) / 140
    assert Preprocess(nn.Identity(), crop=3)(images).equal(images[:, :, 2:5, 4:7])
    assert Preprocess(nn.Identity(), crop=7)(images).equal(images[:, :, :, 2:9])


def test_gradients_are_with_respect_to_the_given_pixels() -> None:
    torch.manual_seed(0)
    module = Preprocess(Mean(), statistics=((0.4,), (0.2,)), resize=6, crop=5).double()
    images = torch.rand(1, 2, 9, 11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module, (images,), eps=1e-6, atol=1e-4)


def test_sizes_that_do_not_fit_are_refused_in_one_line() -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: Preprocess(Mean(), statistics=NORMALIZATIONS["imagenet"])(torch.rand(2, 1, 8, 8)), "3 channels"),
        (lambda: Preprocess(Mean(), crop=9)(torch.rand(2, 1, 8, 8)), "8x8 pixels are smaller than the crop of 9"),
        (lambda: Preprocess(Mean(), resize=4)(torch.rand(2, 8)), "--resize and --crop need images"),
        (lambda: Preprocess(Mean(), resize=0), "--resize is 0"),
        (lambda: Preprocess(Mean(), crop=-1), "--crop is -1"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
