"""The shapes that flow through the house: checked where jaxtyping is installed (tests), elsewhere only names."""

from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

if TYPE_CHECKING:
    Points: TypeAlias = Tensor
    Scalars: TypeAlias = Tensor
    Labels: TypeAlias = Tensor
    Logits: TypeAlias = Tensor
    Mask: TypeAlias = Tensor
    Box: TypeAlias = Tensor
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:
        Points = Scalars = Labels = Logits = Mask = Box = Tensor
    else:
        Points = Float[Tensor, "n d"]  # one flat input a row
        Scalars = Float[Tensor, "n 1"]  # one number a sample
        Labels = Int[Tensor, " n"]
        Logits = Float[Tensor, "n classes"]
        Mask = Bool[Tensor, " n"]
        Box = Float[Tensor, "#n #d"]  # lower or upper bounds, for all samples or for each, per coordinate or not
