"""Paths of run folders: ``pathlib.Path`` on this machine, ``UPath`` on an object store (extra ``cloud``)."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from marginattack.errors import InputError, describe, redact

if TYPE_CHECKING:
    from upath import UPath

    StoragePath: TypeAlias = Path | UPath
else:
    StoragePath = Any  # universal-pathlib may be missing

OBJECT_STORES = ("s3", "gs", "abfs", "abfss")
USE_ENVIRONMENT = "write s3://bucket/folder and set endpoints and keys in the environment (AWS_ENDPOINT_URL, …)"


def parse_path(path: str | StoragePath) -> StoragePath:
    """Convert a local path, a ``file:`` URL or a URL such as ``s3://bucket/folder``; a UPath is returned unchanged."""
    if not isinstance(path, str | os.PathLike):
        return path
    text = os.fspath(path)
    refuse_keys(text)
    scheme, separator, rest = text.partition(":/")  # pathlib shortens s3://bucket to s3:/bucket
    if separator and scheme == "file":
        return Path("/" + rest.lstrip("/"))
    if separator and scheme in OBJECT_STORES:
        if "?" in text or not rest.strip("/"):
            raise InputError(f"{text} is not the address of a run folder: {USE_ENVIRONMENT}")
        return _connect(f"{scheme}://{rest.strip('/')}")
    if "://" in text:
        raise InputError(f"unknown kind of address {text}: use a folder or one of {', '.join(OBJECT_STORES)}")
    return Path(text)


def refuse_keys(text: str) -> None:
    """Raise InputError for an address with keys, since addresses are printed and stored."""
    scheme, separator, _ = text.partition(":/")
    if separator and redact(text) != text:
        raise InputError(f"an address with a user name, key or query ({scheme}://…) is refused: {USE_ENVIRONMENT}")


def is_remote(path: StoragePath) -> bool:
    """Whether a parsed path is on an object store."""
    return not isinstance(path, Path)


def _connect(address: str) -> StoragePath:
    """Open an address once, so that a missing package, key or server is reported before anything else happens."""
    try:
        from upath import UPath

        path = UPath(address, use_listings_cache=False)  # other processes write there too
        path.exists()
    except ImportError as error:
        hint = "pip install 'marginattack[cloud]'"
        raise InputError(f"{address} needs the extra 'cloud' ({describe(error)}): {hint}") from None
    except Exception as error:  # each client library has its own error classes
        raise InputError(f"{address} cannot be reached ({describe(error)}): check its keys and endpoint") from None
    return path
