"""Helpers of all sources: the registry of forms, optional packages, one-line errors, suggestions and digests."""

import difflib
import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from marginattack.errors import InputError, MarginAttackError, MissingDependencyError, describe, one_line
from marginattack.storage.paths import refuse_keys

RAISE = "pass --max-gib N to allow N GiB"
PACKAGES = {"pkg_resources": "'setuptools<81'"}  # package of a module, if their names differ


class Form(NamedTuple):
    """One way to write a source: the function that opens it, its description, and the options that it accepts."""

    open: Callable[[str, Any], Any]  # (source, options) → LoadedModel or Data
    about: str
    accepts: tuple[str, ...] = ()


def match_form(source: str, forms: Mapping[str, Form]) -> str | None:
    """Return the form with the prefix of the source (``zoo:NAME``), else with its file extension (``FILE.npz``)."""
    refuse_keys(source)
    for key in forms:
        prefix, colon, name = key.partition(":")
        if colon and source.startswith(f"{prefix}:"):
            if source == f"{prefix}:":
                raise InputError(f"{source!r} has no name after the colon: write {prefix}:{name}")
            return key
    return next((key for key in forms if key.startswith("FILE.") and source.lower().endswith(key[4:])), None)


def import_extra(module: str, extra: str) -> Any:
    """Import a module of an optional package, or raise an error that says how to install it."""
    root = module.partition(".")[0]
    package = "pillow" if root == "PIL" else root
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != root:
            hint = f"pip install {PACKAGES.get(error.name or '', error.name)}"
            raise MissingDependencyError(f"{package} needs {error.name}, which is not installed: {hint}") from error
        raise MissingDependencyError(f"{package} is not installed: pip install 'marginattack[{extra}]'") from error
    except Exception as error:  # torchvision built for another torch raises a RuntimeError
        problem = f"{package} is installed but fails to import ({one_line(error)})"
        raise MissingDependencyError(f"{problem}: install the build for torch {torch.__version__}") from error


@contextmanager
def explain_errors(what: str, hint: str = "") -> Iterator[None]:
    """Turn any exception into a one-line InputError: what failed, why, and what to do."""
    try:
        yield
    except MarginAttackError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{what}: {describe(error)}{'; ' if hint else ''}{hint}") from error


def suggest(name: str, known: list[str]) -> str:
    """Return ``did you mean …?`` with the closest known names, or a few examples."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"did you mean {', '.join(close)}?" if close else f"it has {len(known)}, for example {', '.join(known[:3])}"


def check_size(what: str, size: int, usual: int, max_gib: float | None) -> None:
    """Raise InputError for more bytes than usual, or than ``max_gib`` allows, before they are read or unpacked."""
    limit = usual if max_gib is None else int(max_gib * 2**30)
    if size > limit:
        raise InputError(f"{what} takes {size / 2**20:,.0f} MiB, more than {limit / 2**20:,.0f} MiB: {RAISE}")


def sha256(*head: object, chunks: Iterable[bytes] = ()) -> str:
    """Hash a few values by their repr, then a stream of bytes."""
    digest = hashlib.sha256(repr(head).encode() if head else b"")
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
