"""Settings of a run, read from a TOML file, ``--set`` assignments and command line options.

Each setting is documented here and nowhere else: the command line generates its options from these fields, with the
title of a field as the placeholder for its value. Torch is imported only where it is needed, so that help is fast.
"""

import tomllib
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from marginattack.errors import InputError, choose, choose_attack, redact
from marginattack.storage.paths import refuse_keys

if TYPE_CHECKING:
    from marginattack.attacks import Attack


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_keys(cls, value: Any) -> Any:
        if isinstance(value, str):
            refuse_keys(value)
        return value


class ModelSettings(_Strict):
    """The model and its preprocessing."""

    source: str = Field(
        description="Model: zoo:NAME, file.py:factory or pkg.mod:factory (Python code, which is executed), .pt2, "
        ".onnx, torchvision:NAME, timm:NAME or hf:NAME."
    )
    normalize: str = Field(
        "auto", title="STATISTICS",
        description="Normalisation: imagenet, cifar10, MEAN/STD, none, or auto for that of the model's source.",
    )  # fmt: skip
    resize: int | None = Field(None, ge=1, description="Resize the shorter side to N pixels in front of the model.")
    crop: int | None = Field(None, ge=1, description="Crop the central N × N pixels in front of the model.")
    trust_pickle: bool = Field(False, description="Load .pt2 and pickle files, which can execute arbitrary code.")
    strip_softmax: bool = Field(False, description="Remove the Softmax that ends an .onnx graph.")


class DataSettings(_Strict):
    """The data set and the choice of samples."""

    source: str = Field(
        description="Data set: samples:NAME, arrays (.npz, .npy, .safetensors), a table (.csv, .parquet), an image "
        "folder, torchvision:NAME or hf:NAME."
    )
    labels: str | None = Field(
        None, description="Label file of an image folder or .npy file, label column of a table, or label array."
    )
    features: str | None = Field(
        None, title="A,B,…", description="Feature columns of a table, or the array of inputs in a file."
    )
    layout: str | None = Field(
        None, description="Axes of an array: nhw, nhwc, nchw or as-is; by default inferred from its shape."
    )
    bounds: str | None = Field(
        None, title="LO,HI",
        description="Bounds of the values of arrays and tables, by default 0,1; also A=LO:HI,… or FILE.npz:KEY.",
    )  # fmt: skip
    scale: str | None = Field(
        None, description="Unit of each feature: distances are norms of the change over it. N, A=N,… or FILE.npz:KEY."
    )
    fixed: str | None = Field(
        None, title="A,B,…", description="Features that must not change: columns, numbers, or a mask FILE.npz:KEY."
    )
    classes: str | None = Field(
        None, description="Names of the classes: a .json or .txt file, or imagenet (with timm)."
    )
    split: str | None = Field(None, description="Split of a torchvision: or hf: data set.")
    image_size: str | None = Field(
        None, title="SIZE", description="Size of image files: 224, or 256/224 to resize and then crop."
    )
    sample: int | None = Field(
        None, ge=1, le=100_000, description="Use N samples, the same number of each class, drawn with --shuffle SEED."
    )
    limit: int | None = Field(None, ge=1, description="Use the first N samples, in the order of the data.")
    shuffle: int | None = Field(
        None, ge=0, lt=2**63, title="SEED", description="Shuffle the samples with this seed, before --limit applies."
    )

    @field_validator("bounds", "scale", "fixed", "features", mode="before")
    @classmethod
    def _join(cls, value: Any) -> Any:
        """Convert a number or list of a TOML file to text."""
        plain = [value] if isinstance(value, int | float) else value
        return ",".join(map(str, plain)) if isinstance(plain, list) else value

    @field_validator("limit")
    @classmethod
    def _check_limit(cls, value: Any, info: Any) -> Any:
        if value is not None and info.data.get("sample") is not None:
            raise ValueError("--sample already sets the number of samples: leave out --limit")
        return value


class Settings(_Strict):
    """All settings of a run. A bare string is short for the source of a model or data set, or for a list of one."""

    model: ModelSettings
    data: DataSettings
    norms: list[str] = Field(["l2"], min_length=1, description="Norm of the margins: l2, linf, l1 or l0.")
    attacks: list[str] = Field(
        ["race"], min_length=1, description="Attack: a name from `marginattack list attacks`, or preset:NAME."
    )
    attack: dict[str, dict[str, Any]] = Field({}, description="Settings of the attacks, by name of the attack.")
    budget: int | None = Field(None, ge=1, description="Hard limit on forward plus backward passes per sample.")
    seed: int = Field(0, ge=0, lt=2**62, title="SEED", description="Seed of the random draws.")
    target: str | None = Field(
        None, description="Target classes: random, least-likely, or a file with one class per row of the data set."
    )
    only_correct: bool = Field(False, description="Leave out misclassified samples.")
    lattice: Literal[255] | None = Field(
        None, title="255", description="Also find images that are adversarial at 8 bits, on the grid k/255."
    )
    expect_accuracy: float | None = Field(
        None, ge=0, le=1, title="ACCURACY",
        description="Claimed accuracy, from 0 to 1; one lower by more than 0.1 is a grave finding.",
    )  # fmt: skip
    shard: int | None = Field(
        None, ge=1, description="Samples per shard; results are stored shard by shard, by default every few seconds."
    )
    shard_timeout: int = Field(
        86400, ge=1, le=10**9, title="SECONDS",
        description="Time after which a shard counts as hung and is tried again.",
    )  # fmt: skip
    batch: int | None = Field(None, ge=1, description="Batch size; by default as many samples as fit into memory.")
    device: str | None = Field(None, description="cpu, cuda, cuda:1, …; by default a GPU if there is one.")
    precision: Literal["auto", "float32", "tf32", "bf16", "fp16"] = Field(
        "auto", title="PRECISION",
        description="Precision of the search, not of the result: float32, tf32, bf16, fp16, or auto (on a GPU).",
    )  # fmt: skip
    max_gib: float | None = Field(
        None, gt=0, title="N",
        description="Largest file or array to open, in GiB; by default 4 for a model file and less for others.",
    )  # fmt: skip
    compiled: bool = Field(False, description="On a GPU, compile the model with torch.compile; for large data sets.")
    randomized: bool = Field(False, description="The model draws random numbers: adversarial means wrong at a rate.")
    eot: int | None = Field(
        None, ge=1, description="With --randomized: draws per query, by default 10, each counted as a pass."
    )
    rate: float | None = Field(
        None, gt=0, lt=1,
        description="With --randomized: adversarial means wrong with a probability above RATE, by default 0.5.",
    )  # fmt: skip
    draws: int | None = Field(
        None, ge=20, description="With --randomized: fresh draws that confirm a stored point, by default 200."
    )
    confidence: float | None = Field(
        None, gt=0, lt=1, title="PROBABILITY",
        description="With --randomized: confidence of that confirmation, by default 0.99.",
    )  # fmt: skip
    bound: Literal["ibp", "crown", "alpha", "exact", "lipschitz", "clever", "kkt"] | None = Field(
        None, title="METHOD",
        description="Also bound the margins from below: certified by ibp, crown, alpha, exact or lipschitz; estimated "
        "by clever, which proves nothing; kkt: only the KKT residual, which all of them compute.",
    )  # fmt: skip
    time_limit: float | None = Field(
        None, gt=0, title="SECONDS",
        description="For bounds: average time per sample, by default 20; bounds found by then are kept.",
    )  # fmt: skip
    radius: float | None = Field(None, gt=0, description="For clever: radius of the ball it samples.")
    restarts: int = Field(
        0, ge=0, description="For bounds: further runs of each attack, with other seeds, for the spread of margins."
    )

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: Any) -> Any:
        """``search`` is the former name of ``precision`` in settings files."""
        if isinstance(values, dict) and "search" in values:
            return {"precision" if key == "search" else key: value for key, value in values.items()}
        return values

    @field_validator("randomized", "eot", "rate", "draws", "confidence")
    @classmethod
    def _check_randomized(cls, value: Any, info: Any) -> Any:
        if info.field_name != "randomized" and value is not None and not info.data.get("randomized"):
            raise ValueError("it applies to randomised models only: add --randomized")
        if info.field_name == "randomized" and value and info.data.get("lattice"):
            raise ValueError("--lattice does not support randomised models: leave out --lattice")
        return value

    @field_validator("bound", "time_limit", "radius", "restarts")
    @classmethod
    def _check_bound(cls, value: Any, info: Any) -> Any:
        if info.field_name != "bound":
            if value and not info.data.get("bound"):
                raise ValueError("it applies to bounds only: add --bound METHOD")
            if value and info.field_name == "radius" and info.data["bound"] != "clever":
                raise ValueError("it applies to CLEVER only: leave it out, or choose clever")
            if not value and info.field_name == "time_limit" and info.data.get("bound") == "exact":
                raise ValueError("a solver may take hours per sample: add --time-limit SECONDS")
            if not value and info.field_name == "radius" and info.data.get("bound") == "clever":
                raise ValueError("the radius of the ball that CLEVER samples is missing: add --radius")
        elif value and info.data.get("target"):
            raise ValueError("bounds hold for any wrong class: leave out --target")
        elif value and info.data.get("randomized"):
            raise ValueError("bounds need a deterministic model: leave out --randomized")
        elif value and "l0" in info.data.get("norms", []):
            raise ValueError("bounds need a convex ball: leave out --norm l0")
        return value

    @field_validator("lattice")
    @classmethod
    def _check_lattice(cls, value: Any, info: Any) -> Any:
        data = info.data.get("data")
        stated = [name for name in ("bounds", "scale", "fixed") if getattr(data, name, None) is not None]
        if value and stated:
            raise ValueError(f"--lattice needs pixels in [0, 1]: leave out --lattice, or --{stated[0]}")
        return value

    @field_validator("model", "data", "norms", "attacks", mode="before")
    @classmethod
    def _expand_name(cls, value: Any, info: Any) -> Any:
        if not isinstance(value, str):
            return value
        return {"source": value} if info.field_name in ("model", "data") else [value]

    @field_validator("norms", "attacks")
    @classmethod
    def _check_names(cls, names: list[str], info: Any) -> list[str]:
        from marginattack.attacks import ATTACKS
        from marginattack.attacks.external import EXTERNAL_ATTACKS
        from marginattack.attacks.presets import PRESETS
        from marginattack.core.norms import as_norm

        option = f"--{info.field_name.removesuffix('s')}"
        for several in (name for name in names if "," in name):
            raise ValueError(f"give one at a time: {' '.join(f'{option} {each}' for each in several.split(','))}")
        if info.field_name == "norms":
            return list(dict.fromkeys(as_norm(name).name for name in names))
        choices = [*ATTACKS, *(f"preset:{name}" for name in PRESETS), *EXTERNAL_ATTACKS]
        for name in names:
            if name.partition("@")[0] not in choices or (name not in choices and name.startswith("preset:")):
                raise ValueError(f"no attack named {name!r}: {choose_attack(name, choices)}")
        return list(dict.fromkeys(_with_decimal_radius(name) for name in names))


def _with_decimal_radius(name: str) -> str:
    """Write a radius such as 8/255 after the @ of an attack's name as a decimal, since the name becomes a folder."""
    base, at, radius = name.partition("@")
    return f"{base}@{as_number(radius)!r}" if at and "/" in radius else name


def read_settings(config: Path | None, assignments: list[str], flags: dict[str, Any]) -> Settings:
    """Read settings from a TOML file, then ``a.b=v`` assignments, then options; later ones take precedence.

    Options are keyed by the dotted name of their setting, and None if they were not given. A file may come from someone
    else, so it cannot grant trust alone: ``trust_pickle`` must also be set by an assignment or an option.
    """
    tree = {} if config is None else _read_toml(config)
    trusting = isinstance(tree.get("model"), dict) and tree["model"].pop("trust_pickle", False)
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name:
            raise InputError(f"--set {assignment!r} is not an assignment: write --set a.b=value")
        _assign(tree, name.strip(), _parse_value(text.strip()))
    for name, value in flags.items():
        if value is not None:
            _assign(tree, name, value)
    for name in ("model", "data"):
        if name not in tree:
            raise InputError(f"no {name} given: pass --{name}, or set `{name}` in the --config file")
    if trusting and "trust_pickle" not in tree["model"]:
        hint = "add --trust-pickle to the command if you trust the files that it names"
        raise InputError(f"--config {config} sets model.trust_pickle, which only the command line can grant: {hint}")
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise InputError(_explain(error, flags)) from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"--config {path} is not valid TOML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        hint = "check the path, or write one with --print-config"
        raise InputError(f"cannot read --config {path}: {reason}; {hint}") from None


def _assign(tree: dict[str, Any], name: str, value: Any) -> None:
    """Set ``a.b`` in nested tables; a string assigned to a table, such as ``model``, is its source."""
    *path, last = name.split(".")
    for key in path:
        below = tree.setdefault(key, {})
        if isinstance(below, str) and key in ("model", "data"):
            below = tree[key] = {"source": below}
        if not isinstance(below, dict):
            raise InputError(f"cannot set {name}: {key} is {below!r}, not a table of settings")
        tree = below
    if isinstance(tree.get(last), dict) and isinstance(value, str):
        tree, last = tree[last], "source"
    tree[last] = value


def _parse_value(text: str) -> Any:
    """Parse a TOML value; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def as_number(text: str) -> float:
    """Parse a number, which may be a fraction such as 8/255."""
    try:
        return float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{text!r} is not a number: write 0.5 or 8/255") from None


def _explain(error: ValidationError, flags: dict[str, Any]) -> str:
    """Explain the first error in one line that names the option, if one was given, or else the setting."""
    first = error.errors(include_url=False, include_context=False)[0]
    section, key = str(first["loc"][0]), ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        nested: dict[str, type[BaseModel]] = {"model": ModelSettings, "data": DataSettings}
        known = list(nested.get(section, Settings).model_fields)
        return f"no setting named {key}: {choose(str(first['loc'][-1]), known)}"
    value, option = first["input"], key.removesuffix(".source")
    if flags.get(option) is None or option == "bound":  # which is --method of marginattack bound
        return redact(f"setting {key} is {value!r}: {_reason(error)}")
    option = option.rpartition(".")[2].replace("_", "-")
    if isinstance(value, list):
        option, value = option.removesuffix("s"), " ".join(map(str, value))
    return redact(f"--{option} {value}: {_reason(error)}")


def _reason(error: ValidationError) -> str:
    message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def as_toml(settings: Settings) -> str:
    """Format settings as TOML that ``--config`` reads back; trust must be granted again on the command line."""
    import tomli_w

    return tomli_w.dumps(settings.model_dump(exclude_none=True))


def build_attack(name: str, values: dict[str, Any]) -> "Attack":
    """Build an attack of ``ATTACKS``, or ``preset:NAME``, with some of its settings changed; or an external one."""
    from marginattack.attacks.external import EXTERNAL_ATTACKS
    from marginattack.attacks.naming import named_attack
    from marginattack.attacks.presets import preset

    if name.partition("@")[0] in EXTERNAL_ATTACKS:
        if values:
            raise InputError(f"attack.{name}: attacks of other libraries take no settings: set --budget instead")
        return named_attack(name)
    base = preset(name.removeprefix("preset:")) if name.startswith("preset:") else named_attack(name)
    hints, changes = get_type_hints(type(base)), {}
    known = [field.name for field in fields(base)]  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in known:
            raise InputError(f"{name} has no setting {key}: {choose(key, known)}")
        changes[key] = _convert(f"attack.{name}.{key}", value, hints[key])
    try:
        return replace(base, **changes)  # type: ignore[type-var]
    except (ValueError, TypeError) as error:
        raise InputError(f"attack.{name}: {error}") from None


def _convert(name: str, value: Any, hint: Any) -> Any:
    """Validate a value for a field of an attack; a number for a schedule becomes a constant schedule."""
    from marginattack.core.schedules import Constant, Schedule

    if hint == Schedule:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Constant(float(value))
        raise InputError(f"{name} is {value!r}: give a number; other schedules than constants need the Python API")
    try:
        if isinstance(value, str) and "/" in value and hint in (float, float | None):
            return as_number(value)
        return TypeAdapter(hint, config=ConfigDict(strict=True)).validate_python(value)
    except ValidationError as error:
        raise InputError(f"{name} is {value!r}: {_reason(error)}") from None
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
    except Exception:  # pydantic has no schema for objects such as projections
        raise InputError(f"{name} is an object that cannot be set here: use the Python API") from None
