"""Options of the command line: those that commands share, and one per setting, generated from ``Settings``."""

from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer import Option

from marginattack.runs.levels import as_level
from marginattack.runs.settings import Settings, as_number

EXAMPLE = "attack.race.passes=1000"
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
Config = Annotated[Path | None, Option(metavar="FILE", help="TOML file of settings; other options take precedence.")]
EPS = "Distance for robust accuracy, as 0.5 or 8/255. Repeatable."
Eps = Annotated[list[float] | None, Option(metavar="EPS", help=EPS, parser=as_level)]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Show neither progress nor findings on stderr.")]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Also say on stderr what is being done.")]
Seed = Annotated[int, Option(metavar="SEED", help="Seed of the random draws.")]
Set = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help=f"A setting, e.g. {EXAMPLE}. Repeatable.")]
Unit = Annotated[int, Option(metavar="UNIT", help="Unit of distances: 1 (pixels from 0 to 1) or 255.")]
Engine = Annotated[str, Option(metavar="ENGINE", help="serial (in this process) or ray (on a cluster).")]
ADDRESS = "Ray cluster: auto or HOST:PORT; by default one on this machine."
Address = Annotated[str | None, Option(metavar="ADDRESS", help=ADDRESS)]
WORKERS = "Ray workers; by default one per GPU, or one per core without GPUs."
Workers = Annotated[int | None, Option(min=1, metavar="N", help=WORKERS)]
GpusPerWorker = Annotated[float | None, Option(min=0, metavar="N", help="GPUs per Ray worker, e.g. 0.5.")]

Command = Callable[..., None]

# The groups of a long help, in order: the settings (by dotted name) and the parameters of each. A new setting of the
# model or the data needs no entry.
GROUPS: dict[str, tuple[str, ...]] = {
    "Most used": ("model", "data", "norms", "data.limit", "out", "run", "eps"),
    "Model": ("model.*", "randomized", "eot", "rate", "draws", "confidence"),
    "Data": ("data.*", "only_correct", "target", "expect_accuracy", "max_gib"),
    "Attack": ("attacks", "budget", "seed", "precision", "lattice"),
    "Bounds": ("method", "bound", "time_limit", "radius", "restarts"),
    "Output": ("unit", "as_json", "quiet", "verbose", "despite"),
    "Settings in a file": ("config", "set_", "print_config"),
    "Execution": ("device", "batch", "compiled", "shard*", "engine", "address", "workers", "gpus_per_worker"),
    "Other": ("*",),
}


def group_of(name: str) -> str:
    """The group of a setting or parameter."""
    return next(group for group, patterns in GROUPS.items() if any(fnmatch(name, pattern) for pattern in patterns))


def check_unit(unit: int) -> None:
    """Raise unless the unit is 1 or 255."""
    if unit not in (1, 255):
        raise ValueError(f"--unit is {unit}: choose 1 or 255")


def setting_options(*patterns: str) -> Callable[[Command], Command]:
    """Replace the parameter ``flags`` of a command by one option per setting whose dotted name matches a pattern.

    The command receives the values of the options by dotted name, in the form that ``read_settings`` takes.
    """

    def decorate(command: Command) -> Command:
        options = {key: each for key, each in _all_options() if any(fnmatch(key, pattern) for pattern in patterns)}
        if unknown := [pattern for pattern in patterns if not any(fnmatch(key, pattern) for key in options)]:
            raise ValueError(f"no setting matches {unknown[0]}")

        @wraps(command)
        def with_options(**arguments: Any) -> None:
            command(flags={key: arguments.pop(each.name) for key, each in options.items()}, **arguments)

        others = [each for each in signature(command).parameters.values() if each.name != "flags"]
        parameters = [*options.values(), *(each.replace(kind=Parameter.KEYWORD_ONLY) for each in others)]
        with_options.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
        return with_options

    return decorate


def _all_options() -> list[tuple[str, Parameter]]:
    """The dotted name and the option of each setting, the most used first."""
    first = GROUPS["Most used"]
    options = ((key, _option(key, field)) for key, field in _all_fields())
    return sorted(options, key=lambda each: first.index(each[0]) if each[0] in first else len(first))


def _all_fields() -> Iterator[tuple[str, FieldInfo]]:
    """Yield dotted name and field of each setting; ``--model`` and ``--data`` set the source in their section."""
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            for inner, each in field.annotation.model_fields.items():
                yield (name, each) if inner == "source" else (f"{name}.{inner}", each)
        elif name != "attack":  # which holds the settings of each attack: for --set and --config only
            yield name, field


def _option(key: str, field: FieldInfo) -> Parameter:
    """Build the option of a setting. It defaults to None, so that it overrides --config only if it is given."""
    name = key.rpartition(".")[2]
    kind, default, text = _parsed_type(field.annotation), field.default, str(field.description)
    if get_origin(kind) is list:
        name, default, text = name.removesuffix("s"), " ".join(default), f"{text} Repeatable."
    if kind is not bool and default is not None and not field.is_required():
        text = f"{text}  [default: {default}]"
    metavar = None if kind is bool else field.title or ("N" if kind is int else name.upper())
    parser = as_number if kind is float else None
    former = ["--search"] if name == "precision" else []
    option = Option(
        f"--{name.replace('_', '-')}", *former, metavar=metavar, help=text, rich_help_panel=group_of(key), parser=parser
    )
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


def _parsed_type(annotation: Any) -> Any:
    """Return the type that the command line parses: without None, and for a literal the type of its values."""
    if get_origin(annotation) in (Union, UnionType):
        return _parsed_type(next(each for each in get_args(annotation) if each is not NoneType))
    return type(get_args(annotation)[0]) if get_origin(annotation) is Literal else annotation
