"""Errors of the package, and helpers for one-line messages without secrets. Imports only the standard library."""

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches

SECRET = re.compile(r"secret|token|passw|credential|signature|(api|access|account|private)[_-]?key", re.IGNORECASE)
MIN_SECRET = 8  # characters; shorter values of environment variables are not hidden


class MarginAttackError(Exception):
    """Base class of the errors that marginattack raises on purpose.

    Example:
        >>> import marginattack as ma
        >>> try:
        ...     ma.preset("mnist")
        ... except ma.MarginAttackError as error:
        ...     print(error)
        no preset named 'mnist': did you mean mnist-l2?
    """


class InputError(MarginAttackError, ValueError):
    """Unsupported or inconsistent input. The message is one line that says what is wrong and how to fix it.

    Example:
        >>> import torch, marginattack as ma
        >>> try:
        ...     ma.measure(torch.nn.Identity(), torch.rand(1, 3), [0], norm="l3")
        ... except ma.InputError as error:
        ...     print(error)
        no norm named 'l3': choose one of l0, l1, l2, linf
    """


class DiagnosisWarning(UserWarning):
    """``measure`` has a reason not to trust its result; ``diagnose=False`` switches the warning off.

    Example:
        >>> import warnings, marginattack as ma
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", ma.DiagnosisWarning)  # stop at results that cannot be trusted
    """


class MissingDependencyError(MarginAttackError, ModuleNotFoundError):
    """A package of an optional extra is not installed, or cannot be imported. The message says how to install it."""


def choose(name: str, choices: Iterable[str]) -> str:
    """The hint of an error about an unknown name: the most similar choice, or the list of all choices."""
    known = list(choices)
    close = get_close_matches(name.lower(), known, 1)
    return f"did you mean {close[0]}?" if close else f"choose one of {', '.join(known)}"


def choose_attack(name: str, choices: Iterable[str]) -> str:
    """The hint of an error about an unknown attack, NAME or LIBRARY:NAME; a suffix @EPS is kept."""
    base, at, eps = name.partition("@")
    known = list(choices)
    ours_last = sorted(known, key=lambda each: (":" in each, each), reverse=True)
    short = {each.rpartition(":")[2]: each for each in ours_last}  # of attacks with the same name ours, or the first
    wanted = base.lower()
    close = [short[wanted]] if wanted in short else get_close_matches(wanted, known, 1)
    close = close or [short[each] for each in get_close_matches(wanted.rpartition(":")[2], short, 1)]
    return f"did you mean {close[0]}{at}{eps}?" if close else "see marginattack list attacks"


def name_type(value: object) -> str:
    """The type of a value with its article: "a str", "an int"."""
    name = type(value).__name__
    return f"{'an' if name.startswith('nd') or name[0].lower() in 'aeio' else 'a'} {name}"


def one_line(error: BaseException) -> str:
    """The message of an exception without line breaks, cut to 200 characters."""
    text = " ".join(redact(str(error)).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


def describe(error: BaseException) -> str:
    """The type of an exception and its message, in one line."""
    return f"{type(error).__name__}: {one_line(error)}" if str(error).strip() else type(error).__name__


def redact(text: str) -> str:
    """Hide secrets in a text: user:key@ and query values of URLs, name=key, and secret environment variables."""
    text = re.sub(r"((?:s3|gs):/+)[^\s@/]*@", r"\1***@", text)
    text = re.sub(r"(?<=:/)(/?)[^\s@/]*:[^\s]*@", r"\1***@", text)
    text = re.sub(r"([?&][\w.-]+=)[^&\s'\"]+", r"\1***", text)
    text = re.sub(rf"((?:{SECRET.pattern})[\w-]*=)[^\s'\"&]+", r"\1***", text, flags=re.IGNORECASE)
    for name, value in os.environ.items():
        if len(value) >= MIN_SECRET and SECRET.search(name) and not os.path.exists(value):  # a path is no secret
            text = text.replace(value, "***")
    return text
