"""Check all annotations at run time, as jaxtyping's import hook does, at a fraction of its cost.

The hook decorates the functions and dataclasses of a package with ``jaxtyping.jaxtyped``, which binds the arguments of
each call to its signature and checks them before and after the call. Here beartype checks them once, in a scope in
which jaxtyping compares the sizes of axes.
"""

import dataclasses
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, ForwardRef, get_args

import jaxtyping
from beartype import beartype

_jaxtyped = jaxtyping.jaxtyped


def install(package: str) -> AbstractContextManager[None]:
    """Check the modules of a package that are imported from now on, or until the context ends."""
    jaxtyping.jaxtyped = _decorator
    hook: AbstractContextManager[None] = jaxtyping.install_import_hook(package, "beartype.beartype")
    return hook


def _decorator(*, typechecker: object) -> Callable[[Any], Any]:
    return _checked


def _checked(function: Any) -> Any:
    if inspect.isclass(function):
        if dataclasses.is_dataclass(function) and "__init__" in vars(function):
            function.__init__ = _checked(function.__init__)  # type: ignore[method-assign]
        return function
    hints = list(function.__annotations__.values())
    unknown = _any(hints, lambda hint: isinstance(hint, str | ForwardRef))  # it may exist for static checks only
    if unknown or inspect.isgeneratorfunction(function):  # whose body begins after the call
        return _jaxtyped(function, typechecker=beartype)
    checked = beartype(function)
    shapes = _any(hints, lambda hint: inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray))

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return function(*arguments, **named)
        if not shapes:
            return checked(*arguments, **named)
        with _SCOPE:
            return checked(*arguments, **named)

    return call


_SCOPE = _jaxtyped("context")


def _any(hints: Any, condition: Callable[[Any], bool]) -> bool:
    """Whether the condition is true of a hint or a part of one."""
    return any(condition(hint) or _any(hint if isinstance(hint, list) else get_args(hint), condition) for hint in hints)
