"""The fields of manifest.json and findings.json that readers rely on, and their types; other fields are allowed.

Imported where a file is read, since ``import marginattack`` does without pydantic.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from marginattack.errors import one_line

Name = Annotated[str, Field(pattern=r"^[^/\\\x00]+$")]  # it becomes part of the name of a folder


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Model(_Fields):
    digest: str
    preprocessing: dict[str, Any] | None = None


class _Data(_Fields):
    digest: str
    n: PositiveInt
    shape: list[PositiveInt]


class _NamedModel(_Model):
    name: str
    classes: list[str] | None = None


class _NamedData(_Data):
    name: str
    classes: list[str] | None = None
    features: list[str] | None = None
    names: bool = False  # whether the samples have names


class _Identity(_Fields):
    model: _Model
    data: _Data
    norms: list[Name] = Field(min_length=1)
    attacks: dict[Name, str] = Field(min_length=1)
    limit: PositiveInt | None
    shuffle: NonNegativeInt | None
    sample: list[NonNegativeInt] | None = None
    space: dict[str, Any] = {}
    only_correct: bool
    budget: PositiveInt | None
    shard: PositiveInt
    lattice: int | None
    target: str | None


class _Session(_Fields):
    began: str
    host: str
    hardware: str
    batch: PositiveInt
    command: str
    torch: str = ""


class _Part(_Fields):
    attack: Name
    norm: Name


class _FailedShard(_Part):
    shard: NonNegativeInt
    error: str


class _Verified(_Fields):
    rows: NonNegativeInt
    failed: NonNegativeInt


class _Bounds(_Fields):
    settings: dict[str, Any]
    digests: dict[str, list[str | None]] = {}


class _Manifest(_Fields):
    identity: _Identity
    parts: list[_Part]
    samples: PositiveInt
    shard: PositiveInt
    model: _NamedModel
    data: _NamedData
    attacks: dict[str, str]
    settings: dict[str, Any] = {}
    versions: dict[str, str] = {}
    started: str
    sessions: list[_Session]
    failed_shards: list[_FailedShard] = []
    verified: _Verified | None = None
    finished: str | None = None
    digests: dict[str, list[str | None]] = {}
    files: dict[str, str] = {}
    bounds: _Bounds | None = None


class _Finding(_Fields):
    code: str
    grade: str
    seen: str
    samples: int
    of: int
    meaning: str
    advice: str


MANIFEST = TypeAdapter(_Manifest)
FINDINGS = TypeAdapter(list[_Finding])


def find_problem(fields: Any, content: Any) -> str | None:
    """The first field that is missing or wrong, in one line; None if there is none."""
    try:
        fields.validate_python(content)
    except (ValidationError, RecursionError) as error:
        if isinstance(error, RecursionError):
            return one_line(error)
        first = error.errors(include_url=False)[0]
        value = "" if first["type"] == "missing" else f", not {first['input']!r}"
        return one_line(ValueError(f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg'].lower()}{value}"))
    return None
