"""Weights that an installed wheel does not have: from a folder, from the cache, downloaded, or an error of one line."""

import shutil
from pathlib import Path

import pytest

from marginattack.errors import InputError
from marginattack.sources import weights
from marginattack.sources.networks import zoo

NAME = "cifar10-resnet32"
FILE = weights.PACKAGED / f"{NAME}.safetensors"


@pytest.fixture(autouse=True)
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package without weights, an empty cache, and releases in a folder."""
    monkeypatch.setattr(weights, "PACKAGED", tmp_path / "package")
    monkeypatch.setattr(weights, "RELEASE", (tmp_path / "release").as_uri())
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(weights.FOLDER, raising=False)
    (tmp_path / "release").mkdir()


def test_weights_are_downloaded_once(tmp_path: Path) -> None:
    shutil.copy(FILE, tmp_path / "release")
    assert len(zoo(NAME).state_dict()) > 100
    (tmp_path / "release" / FILE.name).unlink()
    assert len(zoo(NAME).state_dict()) > 100


def test_weights_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(weights.FOLDER, str(FILE.parent))
    assert len(zoo(NAME).state_dict()) > 100
    assert not (tmp_path / "cache").exists()


def test_no_network() -> None:
    with pytest.raises(InputError, match=r"cannot download file:.+safetensors.+: set MARGINATTACK_ZOO to a folder"):
        zoo(NAME)


@pytest.mark.parametrize("where", ["release", "folder"])
def test_other_content_is_refused(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytearray(FILE.read_bytes())
    content[-1] ^= 1
    (tmp_path / where).mkdir(exist_ok=True)
    (tmp_path / where / FILE.name).write_bytes(content)
    if where == "folder":
        monkeypatch.setenv(weights.FOLDER, str(tmp_path / where))
    with pytest.raises(InputError, match=r"invalid hash value" if where == "release" else "is damaged: its SHA-256 is"):
        zoo(NAME)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))  # nothing wrong is kept
