"""Weights of the bundled networks: from the package, from a folder of the user, or downloaded once from a release."""

import os
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from marginattack.errors import InputError, describe
from marginattack.sources.common import sha256

RELEASE = "https://github.com/marginattack/marginattack/releases/download/networks-1"
PACKAGED = Path(str(files(__package__) / "zoo"))  # a clone has all files, a release only the small ones
FOLDER = "MARGINATTACK_ZOO"  # environment variable: a folder with the files of the release


def load_weights(name: str, digest: str) -> dict[str, Tensor]:
    """Read ``NAME.safetensors`` as float32 and check its SHA-256 digest."""
    from safetensors.torch import load

    path = _find(f"{name}.safetensors", digest)
    content = path.read_bytes()
    if (found := sha256(chunks=[content])) != digest:
        raise InputError(f"{path} is damaged: its SHA-256 is {found}, not {digest}; delete it to get it again")
    return {key: value.to(torch.float32) for key, value in load(content).items()}


def _find(file: str, digest: str) -> Path:
    """The path in the package, the user's folder or torch's cache; downloads the file to the cache if necessary."""
    cache = Path(torch.hub.get_dir()) / "checkpoints"
    for folder in (PACKAGED, Path(os.environ.get(FOLDER) or PACKAGED), cache):
        if (folder / file).is_file():
            return folder / file
    cache.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(f"{RELEASE}/{file}", str(cache / file), hash_prefix=digest, progress=False)
    except (OSError, RuntimeError) as error:  # no network, or other content
        hint = f"set {FOLDER} to a folder that has it, such as src/marginattack/sources/zoo of a clone"
        raise InputError(f"cannot download {RELEASE}/{file} ({describe(error)}): {hint}") from error
    return cache / file
