"""The settings of a run: TOML, checked; a typo is an error that names the key."""

import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from marginattack.attacks import ATTACKS, Attack
from marginattack.attacks.presets import preset
from marginattack.core.norms import NORMS
from marginattack.core.schedules import Constant, Schedule
from marginattack.errors import InputError


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ModelSettings(_Strict):
    """Where the model comes from, and what stands in front of it."""

    source: str
    normalize: str = "auto"
    resize: Annotated[int, Field(ge=1)] | None = None
    crop: Annotated[int, Field(ge=1)] | None = None
    trust_pickle: bool = False


class DataSettings(_Strict):
    """Where the inputs come from, and which of them."""

    source: str
    labels: str | None = None
    split: str | None = None
    image_size: str | None = None
    limit: Annotated[int, Field(ge=1)] | None = None
    shuffle: Annotated[int, Field(ge=0, lt=2**63)] | None = None


def _named(value: Any) -> Any:
    """A bare name stands for a source with its defaults."""
    return {"source": value} if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    """A bare name stands for a list of one."""
    return [value] if isinstance(value, str) else value


class Settings(_Strict):
    """All of a run. ``attack`` holds the settings of each attack by its name."""

    model: Annotated[ModelSettings, BeforeValidator(_named)]
    data: Annotated[DataSettings, BeforeValidator(_named)]
    norms: Annotated[list[str], Field(min_length=1), BeforeValidator(_listed)] = ["l2"]
    attacks: Annotated[list[str], Field(min_length=1), BeforeValidator(_listed)] = ["race"]
    attack: dict[str, dict[str, Any]] = {}
    budget: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**62)] = 0
    target: str | None = None
    only_correct: bool = False
    lattice: Literal[255] | None = None
    expect_accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    shard: Annotated[int, Field(ge=1)] = 512
    batch: Annotated[int, Field(ge=1)] | None = None
    device: str | None = None
    search: Literal["float32", "tf32", "bf16"] = "float32"
    compiled: bool = False

    @field_validator("norms")
    @classmethod
    def _known_norms(cls, norms: list[str]) -> list[str]:
        return _distinct(norms, NORMS, "norm")

    @field_validator("attacks")
    @classmethod
    def _known_attacks(cls, attacks: list[str]) -> list[str]:
        return _distinct(attacks, [*ATTACKS, *(name for name in attacks if name.startswith("preset:"))], "attack")


def _distinct(names: list[str], known: Any, what: str) -> list[str]:
    for name in names:
        if name not in known:
            raise ValueError(f"no {what} is named {name!r}: choose from {', '.join(known)}")
    return list(dict.fromkeys(names))


def read_settings(config: Path | None, assignments: list[str], flags: dict[str, Any]) -> Settings:
    """Settings from a TOML file, then ``a.b=v`` assignments, then the command line's flags (None: not given)."""
    tree: dict[str, Any] = {}
    if config is not None:
        try:
            tree = tomllib.loads(config.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read --config {config}: {getattr(error, 'strerror', None) or error}") from None
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"--config {config} is no TOML: {error}") from None
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name:
            raise InputError(f"--set {assignment!r} is no assignment: write --set a.b=value")
        _assign(tree, name.strip(), _value(text.strip()))
    for name, value in flags.items():
        if value is not None:
            _assign(tree, name, value)
    missing = [name for name in ("model", "data") if name not in tree]
    if missing:
        raise InputError(f"no {missing[0]} is stated: give --{missing[0]}, or `{missing[0]} = …` in --config")
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise InputError(_explained(error)) from None


def _assign(tree: dict[str, Any], name: str, value: Any) -> None:
    *path, last = name.split(".")
    for key in path:
        below = tree.setdefault(key, {})
        if isinstance(below, str) and key in ("model", "data"):
            below = tree[key] = {"source": below}
        if not isinstance(below, dict):
            raise InputError(f"cannot set {name}: {key} is {below!r}, which has no parts")
        tree = below
    if isinstance(tree.get(last), dict) and isinstance(value, str):
        tree[last]["source"] = value
    else:
        tree[last] = value


def _value(text: str) -> Any:
    """A TOML value; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explained(error: ValidationError) -> str:
    """The first complaint, as one line that names the key."""
    first = error.errors(include_url=False, include_context=False)[0]
    key = ".".join(str(part) for part in first["loc"] if not (isinstance(part, str) and "[" in part))
    if first["type"] == "extra_forbidden":
        return f"no setting is named {key}: choose from {', '.join(_siblings(first['loc']))}"
    message = first["msg"].removeprefix("Value error, ")
    return f"setting {key} is {first['input']!r}: {message[:1].lower()}{message[1:]}"


def _siblings(where: tuple[int | str, ...]) -> list[str]:
    inner: dict[str, type[BaseModel]] = {"model": ModelSettings, "data": DataSettings}
    place = inner.get(str(where[0]), Settings) if len(where) > 1 else Settings
    return list(place.model_fields)


def as_toml(settings: Settings) -> str:
    """The settings as the TOML that ``--config`` reads back."""
    import tomli_w

    return tomli_w.dumps(settings.model_dump(exclude_none=True))


def build_attack(name: str, values: dict[str, Any]) -> Attack:
    """An attack of ``ATTACKS``, or ``preset:NAME``, with some of its settings changed."""
    base = preset(name.removeprefix("preset:")) if name.startswith("preset:") else ATTACKS[name]()
    hints = get_type_hints(type(base))
    known = [field.name for field in fields(base)] if values else []  # type: ignore[arg-type]
    changes = {}
    for key, value in values.items():
        if key not in known:
            raise InputError(f"{name} has no setting {key}: choose from {', '.join(known)}")
        changes[key] = _fitted(f"attack.{name}.{key}", value, hints[key])
    try:
        return replace(base, **changes)  # type: ignore[type-var]
    except (ValueError, TypeError) as error:
        raise InputError(f"attack.{name}: {error}") from None


def _fitted(name: str, value: Any, hint: Any) -> Any:
    """A value for a field of an attack: numbers, words, and a number where a schedule is meant."""
    if hint == Schedule:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Constant(float(value))
        raise InputError(
            f"{name} is {value!r}: a number (kept constant) is all that can be set here; use Python for more"
        )
    try:
        return TypeAdapter(hint, config=ConfigDict(strict=True)).validate_python(value)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]["msg"]
        raise InputError(f"{name} is {value!r}: {problem[:1].lower()}{problem[1:]}") from None
    except Exception:
        raise InputError(f"{name} is no plain value and cannot be set here: use Python") from None
