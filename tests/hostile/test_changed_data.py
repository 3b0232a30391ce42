"""Data that changes while it is measured: the rows that were read from it are not stored as rows of the old data."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import pixels, png
from run_folders import MODELS, data

from marginattack.errors import InputError
from marginattack.runs.run import run
from marginattack.runs.settings import read_settings
from marginattack.sources.data import open_data
from marginattack.storage.run_folder import RunFolder


def measure(folder: Path, after_a_shard: Callable[[], Any] = lambda: None) -> RunFolder:
    """Measure 16 samples in shards of four, and do something after each."""

    @contextmanager
    def progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
        yield lambda done: after_a_shard() if done and name == "measuring" else None

    flags = {"model": f"{MODELS}:small", "data": str(folder / "a.npz"), "attacks": ["fgsm"], "shard": 4, "batch": 4}
    settings = read_settings(None, [], flags)
    return run(settings, folder / "run", progress=progress, on_finding=lambda finding: None)


def test_data_changed_during_a_run_is_noticed_and_the_run_resumes(tmp_path: Path) -> None:
    original = data(tmp_path / "a.npz", 16).read_bytes()

    def brighten() -> None:
        with np.load(tmp_path / "a.npz") as arrays:
            np.savez(tmp_path / "a.npz", x=arrays["x"] ** 0.5, y=arrays["y"])

    with pytest.raises(InputError, match=r"a\.npz was changed while it was in use: restore it and run") as caught:
        measure(tmp_path, brighten)
    assert "\n" not in str(caught.value)
    assert len(RunFolder(tmp_path / "run").finished()) == 1
    with pytest.raises(InputError, match=r"data\.digest was"):
        measure(tmp_path)
    (tmp_path / "a.npz").write_bytes(original)
    folder = measure(tmp_path)
    stored = torch.cat([folder.images(part, shard)["original"] for shard, part in folder.finished()])
    with np.load(tmp_path / "a.npz") as arrays:
        assert stored.equal(torch.from_numpy(arrays["x"]))


def test_an_image_file_that_changes_is_named(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        png(tmp_path / "ant" / f"{name}.png", pixels(5, 5))
    opened = open_data(str(tmp_path))
    opened.digest()
    png(tmp_path / "ant" / "b.png", pixels(5, 5))
    opened.read([0, 2])
    with pytest.raises(InputError, match=r"\(b\.png\) was changed while it was in use"):
        opened.read([0, 1])
    with pytest.raises(InputError, match=r"\(b\.png\) was changed while it was in use"):
        opened.digest()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, None])
def test_the_stamp_tells_whether_files_were_changed_without_reading_them(tmp_path: Path, save: Any) -> None:
    source = tmp_path / "a.npz" if save else tmp_path / "images"
    file = source if save else png(source / "ant" / "a.png", pixels(5, 5))
    if save:
        save(source, x=pixels(2, 5, 5), y=[0, 1])
    stamps = [open_data(str(source)).stamp() for _ in range(2)]
    os.utime(file, ns=(0, 1))
    stamps.append(open_data(str(source)).stamp())
    assert stamps[0] == stamps[1] != stamps[2]
    assert all(stamps)
