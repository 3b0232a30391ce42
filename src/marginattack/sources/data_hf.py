"""Datasets of Hugging Face, from the hub or from local files; code that comes with one is never run."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack.errors import InputError, one_line
from marginattack.sources.abstract import Data, Options, check_labels, sha256
from marginattack.sources.extras import need
from marginattack.sources.images import AS_IS, File, ImageSize, decode, survey

PREFERRED = ("test", "validation", "val", "valid", "dev")
AT_ONCE = 64  # rows that are taken from the table together
FILES = {".parquet": "parquet", ".arrow": "arrow"}


class Table(Data):
    """A column of image files and one of labels."""

    def __init__(self, name: str, table: Any, columns: tuple[str, str], size: ImageSize | None) -> None:
        image, label = columns
        kind = table.features[label]
        labels = np.asarray(table.with_format("numpy", columns=[label])[:][label])
        if labels.dtype.kind not in "iu":
            raise InputError(
                f"{name}: column {label!r} has rows without an integer: labels are class numbers from 0 on"
            )
        hint = f"choose another --split than {table.split}" if table.split else "choose another split"
        check_labels(labels, f"{name}: column {label!r}", hint)
        self.images = table.select_columns([image])
        if type(self.images.features[image]).__name__ == "Image":
            datasets = need("datasets", "datasets", "hf")
            self.images = self.images.cast_column(image, datasets.Image(decode=False))  # the files, not their pixels
        self.name, self.column, self.size = name, image, size or AS_IS
        self.labels = torch.from_numpy(labels.astype(np.int64))
        shape = survey(((f"row {row}", file) for row, file in enumerate(self.files(range(len(self))))), size, name)
        super().__init__(name, shape, list(kind.names) if hasattr(kind, "names") else None)

    def __len__(self) -> int:
        return len(self.labels)

    def files(self, rows: Sequence[int]) -> Iterator[File]:
        """The image files of these rows: their bytes, or paths on this machine; no addresses are followed."""
        for first in range(0, len(rows), AT_ONCE):
            for cell in self.images[rows[first : first + AT_ONCE]][self.column]:
                content, path = (cell or {}).get("bytes"), (cell or {}).get("path")
                yield Path(path or "") if content is None else bytes(content)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Decode these rows."""
        images = torch.empty(len(rows), *self.shape)
        for place, file in enumerate(self.files(rows)):
            try:
                images[place] = decode(file, self.shape, self.size)
            except InputError as error:
                raise InputError(f"{self.name}: row {rows[place]} cannot be used ({error})") from error
        return images, self.labels[torch.tensor(rows, dtype=torch.int64)]

    def digest(self) -> str:
        """Of all image files and labels, and of how they are fitted; not of where they lie."""
        return sha256(("table", tuple(self.size), self.shape), self.contents())

    def contents(self) -> Iterator[bytes]:
        """Every row as bytes."""
        for file, label in zip(self.files(range(len(self))), self.labels.tolist(), strict=True):
            content = file if isinstance(file, bytes) else file.read_bytes()
            yield repr((label, len(content))).encode()
            yield content


def open_hf(source: str, options: Options) -> Data:
    """``hf:NAME``, ``hf:NAME@CONFIG``, or the path of a parquet or arrow file, an image folder or a saved dataset."""
    datasets = need("datasets", "datasets", "hf")
    need("PIL.Image", "pillow", "images")
    splits = load(source, datasets)
    table = choose(source, splits, options.split)
    if not len(table):
        raise InputError(f"{source}: split {table.split} is empty")
    return Table(source, table, columns(source, table.features, options.labels), options.image_size)


def load(source: str, datasets: Any) -> dict[str, Any]:
    """The splits by their names."""
    name = source.removeprefix("hf:")
    path = Path(name).expanduser()
    try:
        if path.is_file() and path.suffix in FILES:
            found = datasets.load_dataset(FILES[path.suffix], data_files=str(path))
        elif (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            found = datasets.load_from_disk(str(path))
        elif path.is_dir():
            found = datasets.load_dataset(str(path))
        elif name.startswith((".", "/", "~")) or path.suffix in FILES or not name:
            raise InputError(f"{source}: no such file or folder")
        else:
            name, _, config = name.partition("@")
            found = datasets.load_dataset(name, config or None)
    except InputError:
        raise
    except Exception as error:  # datasets has errors of its own for the net, the hub, the format …
        raise InputError(f"{source}: datasets cannot open it ({one_line(error)})") from error
    return dict(found) if isinstance(found, dict) else {str(found.split or "all"): found}


def choose(source: str, splits: dict[str, Any], wanted: str | None) -> Any:
    """The split that was asked for; or test, or validation, or the only one."""
    if wanted is None:
        wanted = next((name for name in PREFERRED if name in splits), None)
        if wanted is None and len(splits) == 1:
            wanted = next(iter(splits))
    if wanted not in splits:
        lacks = f"has no split {wanted!r}" if wanted else "has neither test nor validation"
        raise InputError(f"{source}: {lacks}: choose one with --split {'|'.join(splits)}")
    return splits[wanted]


def columns(source: str, features: Any, wanted: str | None) -> tuple[str, str]:
    """The column of images, and that of labels: the one of classes, unless one is named."""
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image" or is_file(features[name])]
    if len(images) != 1:
        raise InputError(f"{source}: needs one column of images and has {len(images)} among {', '.join(kinds)}")
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    labels = labels or [name for name in ("label", "labels") if "int" in str(getattr(features.get(name), "dtype", ""))]
    if wanted is not None:
        if wanted not in kinds or wanted == images[0]:
            raise InputError(f"{source}: has no column of labels {wanted!r}: choose among {', '.join(kinds)}")
        return images[0], wanted
    if len(labels) != 1:
        raise InputError(
            f"{source}: has {len(labels)} columns of classes among {', '.join(kinds)}: name one with --labels"
        )
    return images[0], labels[0]


def is_file(feature: Any) -> bool:
    """Whether a plain column holds what datasets stores for an image."""
    return isinstance(feature, dict) and {"bytes", "path"} == set(feature)
