"""Shapes of tensors: checked at run time if jaxtyping is installed (in tests), otherwise only names."""

from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

if TYPE_CHECKING:
    Points: TypeAlias = Tensor
    Scalars: TypeAlias = Tensor
    Labels: TypeAlias = Tensor
    Logits: TypeAlias = Tensor
    Mask: TypeAlias = Tensor
    Bound: TypeAlias = Tensor
    Goals: TypeAlias = Tensor
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:
        Points = Scalars = Labels = Logits = Mask = Bound = Goals = Tensor
    else:
        Points = Float[Tensor, "n d"]  # one flat input per row
        Scalars = Float[Tensor, "n 1"]  # one number per sample
        Labels = Int[Tensor, " n"]
        Logits = Float[Tensor, "n classes"]
        Mask = Bool[Tensor, " n"]
        Bound = Float[Tensor, "#n #d"]  # lower or upper bounds, shared or per sample, shared or per coordinate
        Goals = Int[Tensor, "n 2"]  # per sample: a class, and its direction (core/goals.py)

State: TypeAlias = tuple[Tensor, ...]  # of a step: tensors with one row per sample
