"""Packages that a source needs and the core does not."""

import importlib
from typing import Any

import torch

from marginattack.errors import InputError, one_line


class Missing(InputError):
    """A package that is not there, or does not work: one line that says how to get it."""


def need(module: str, package: str, extra: str) -> Any:
    """A module that is an extra; one line says how to install it where it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise Missing(f"{package} needs {error.name}, which is not installed: pip install {error.name}") from error
        raise Missing(f"{package} is not installed: pip install 'marginattack[{extra}]'") from error
    except Exception as error:  # torchvision built for another torch raises a RuntimeError
        raise Missing(
            f"{package} is installed but does not import ({one_line(error)}): "
            f"install the build that belongs to torch {torch.__version__}"
        ) from error
