"""Datasets of Hugging Face, from the hub or from local files. Code that comes with a dataset is never run."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from marginattack.errors import InputError
from marginattack.sources.common import explain_errors, import_extra
from marginattack.sources.data_base import ROWS_AT_A_TIME, Data, ImageData, ImageItem, Options, check_labels
from marginattack.sources.images import ImageSize

PREFERRED_SPLITS = ("test", "validation", "val", "valid", "dev")
FILE_FORMATS = {".parquet": "parquet", ".arrow": "arrow"}


class ImageTable(ImageData):
    """A table with a column of image files and a column of labels."""

    kind = "table"

    def __init__(self, name: str, table: Any, image: str, label: str, size: ImageSize | None) -> None:
        labels = np.asarray(table.with_format("numpy", columns=[label])[:][label])
        hint = f"choose another --split than {table.split}" if table.split else "choose another split"
        self.labels: Tensor = check_labels(labels, f"{name}: column {label!r}", hint)
        self.images, self.column = table.select_columns([image]), image
        if type(self.images.features[image]).__name__ == "Image":  # take the files, not their pixels
            not_decoded = import_extra("datasets", "hf").Image(decode=False)
            self.images = self.images.cast_column(image, not_decoded)
        classes = getattr(table.features[label], "names", None)
        super().__init__(name, len(labels), size, classes and list(classes), surveyed=range(len(labels)))

    def items(self, rows: Sequence[int]) -> Iterator[ImageItem]:
        """Yield the bytes or local paths of the image files; addresses are not followed."""
        for first in range(0, len(rows), ROWS_AT_A_TIME):
            part = rows[first : first + ROWS_AT_A_TIME]
            for row, cell in zip(part, self.images[part][self.column], strict=True):
                content, path = (cell or {}).get("bytes"), (cell or {}).get("path")
                file = Path(path or "") if content is None else bytes(content)
                yield ImageItem(f"row {row}", file, int(self.labels[row]))


def open_hf(source: str, options: Options) -> Data:
    """Open ``hf:NAME``, ``hf:NAME@CONFIG``, a parquet or arrow file, an image folder or a saved dataset."""
    datasets = import_extra("datasets", "hf")
    import_extra("PIL.Image", "images")
    table = _choose_split(source, _load_splits(source, datasets), options.split)
    if not len(table):
        raise InputError(f"{source}: split {table.split} is empty")
    image, label = _choose_columns(source, table.features, options.labels)
    return ImageTable(source, table, image, label, options.image_size)


def _load_splits(source: str, datasets: Any) -> dict[str, Any]:
    """Load all splits, by name."""
    name = source.removeprefix("hf:")
    path = Path(name).expanduser()
    with explain_errors(f"{source}: datasets cannot open it"):
        if path.is_file() and path.suffix in FILE_FORMATS:
            loaded = datasets.load_dataset(FILE_FORMATS[path.suffix], data_files=str(path))
        elif (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            loaded = datasets.load_from_disk(str(path))
        elif path.is_dir():
            loaded = datasets.load_dataset(str(path))
        elif name.startswith((".", "/", "~")) or path.suffix in FILE_FORMATS:
            raise InputError(f"{source}: no such file or folder: check the path")
        else:
            name, _, config = name.partition("@")
            loaded = datasets.load_dataset(name, config or None)
    return dict(loaded) if isinstance(loaded, dict) else {str(loaded.split or "all"): loaded}


def _choose_split(source: str, splits: dict[str, Any], name: str | None) -> Any:
    """Return the split with this name; by default test, then validation, then the only one."""
    if name is None:
        name = next((preferred for preferred in PREFERRED_SPLITS if preferred in splits), None)
        if name is None and len(splits) == 1:
            name = next(iter(splits))
    if name not in splits:
        problem = f"no split {name!r}" if name else "neither a test nor a validation split"
        raise InputError(f"{source}: {problem}: choose one with --split {'|'.join(splits)}")
    return splits[name]


def _choose_columns(source: str, features: Any, label: str | None) -> tuple[str, str]:
    """Return the names of the image column and of the label column: the one of type ClassLabel, unless it is given."""
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    columns = ", ".join(kinds)
    structs = [
        name for name, feature in features.items() if isinstance(feature, dict) and {*feature} == {"bytes", "path"}
    ]
    images = [name for name, kind in kinds.items() if kind == "Image"] + structs  # datasets stores images as structs
    if len(images) != 1:
        raise InputError(f"{source}: needs one column of images, but {len(images)} of {columns} hold images")
    if label is not None:
        if label not in kinds or label == images[0]:
            raise InputError(f"{source}: no label column {label!r}: choose one of {columns}")
        return images[0], label
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    labels = labels or [name for name in ("label", "labels") if "int" in str(getattr(features.get(name), "dtype", ""))]
    if len(labels) != 1:
        raise InputError(f"{source}: {len(labels)} of the columns {columns} hold classes: choose one with --labels")
    return images[0], labels[0]
