"""Helpers of the tests of model sources."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from marginattack.errors import InputError
from marginattack.sources.models import open_model


def assert_refused(message: str, source: str | Path, **settings: Any) -> str:
    """Check that opening a source raises an error of one line with this message, and return it."""
    with pytest.raises(InputError, match=message) as caught:
        open_model(str(source), **settings)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 600
    return line


def linear(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5))


def save_weights(model: nn.Module, path: Path) -> str:
    save_file(model.state_dict(), path)
    return str(path)
