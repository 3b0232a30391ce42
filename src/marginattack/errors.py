"""Errors of the package, and error messages in one line. Imports nothing but the standard library."""


class MarginAttackError(Exception):
    """Base class of the errors that marginattack raises on purpose; their messages are one line.

    Example:
        >>> import marginattack as ma
        >>> try:
        ...     ma.preset("no-such-preset")
        ... except ma.MarginAttackError as error:
        ...     print(error)
        no preset named 'no-such-preset': choose one of ...
    """


class InputError(MarginAttackError, ValueError):
    """Unsupported or inconsistent input. The message is one line that says what is wrong and how to fix it.

    It is a ``ValueError`` too.

    Example:
        >>> import torch, marginattack as ma
        >>> try:
        ...     ma.measure(torch.nn.Identity(), torch.rand(2, 3), [0, 1], budget=0)
        ... except ma.InputError as error:
        ...     print(error)
        budget is 0: it counts forwards + backwards per sample, so give at least 1
    """


class MissingDependencyError(MarginAttackError, ModuleNotFoundError):
    """A package of an optional extra is not installed, or cannot be imported. The message says how to install it."""


def one_line(error: BaseException) -> str:
    """The message of an exception without line breaks, cut to 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


def describe(error: BaseException) -> str:
    """The type of an exception and its message, in one line."""
    return f"{type(error).__name__}: {one_line(error)}" if str(error).strip() else type(error).__name__
