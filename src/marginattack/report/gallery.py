"""Images for the page: a few samples, read from the shards that hold them and no others, as data URIs."""

import base64
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginattack.errors import InputError, one_line
from marginattack.report.summary import Series
from marginattack.storage.parquet import open_parquet

EACH = 6  # samples of a kind
EXACT = 64  # pixels of a side up to which images are kept as they are; larger ones are shrunk
LARGEST = 160


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A sample as it was, as it became, and the difference, each as a data URI; ``gain`` amplifies the last."""

    original: str
    adversarial: str
    difference: str
    gain: float
    pixelated: bool


def kinds(series: Series) -> dict[str, list[int]]:
    """The rows with the smallest, the middle and the largest margins."""
    rows = np.flatnonzero(series.found)
    rows = rows[np.argsort(series.columns["distance"][rows], kind="stable")]
    middle = max((len(rows) - EACH) // 2, 0)
    if len(rows) <= 3 * EACH:
        return {"All": rows.tolist()} if len(rows) else {}
    return {
        "Smallest margins": rows[:EACH].tolist(),
        "Around the median": rows[middle : middle + EACH].tolist(),
        "Largest margins": rows[-EACH:].tolist(),
    }


def pictures(series: Series, rows: Iterable[int]) -> dict[int, Picture]:
    """The pictures of these rows; none where the run has no images, or inputs that are none."""
    shape = series.store.manifest["data"]["shape"]
    wanted: dict[int, list[int]] = defaultdict(list)
    for row in dict.fromkeys(rows):
        wanted[int(series.columns["shard"][row])].append(row)
    folder = series.store.file("images", series.part, 0).parent
    if len(shape) != 3 or shape[0] not in (1, 3) or not folder.is_dir():
        return {}
    found = {}
    for shard, members in sorted(wanted.items()):
        places = [int(series.columns["place"][row]) for row in members]
        for row, (before, after) in zip(members, _read(series, shard, places), strict=True):
            found[row] = _picture(before, after)
    return found


def _read(series: Series, shard: int, places: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The input and the adversarial image at each place of a shard, from the row groups that hold them."""
    import pyarrow as pa

    path = series.store.file("images", series.part, shard)
    if not path.exists():
        raise InputError(
            f"{path} is missing: copy the run folder whole, or delete its images folder for a report without"
        )
    try:
        file = open_parquet(path)
        shape = json.loads(file.schema_arrow.metadata[b"marginattack"])["shape"]
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        ends = np.cumsum(sizes)
        groups: dict[int, Any] = {}
        out = []
        for place in places:
            group = int(np.searchsorted(ends, place, side="right"))
            if group not in groups:
                groups[group] = file.read_row_group(group, columns=["original", "adversarial"])
            one = groups[group].slice(place - int(ends[group] - sizes[group]), 1)
            pair = [one.column(name).combine_chunks().flatten().to_numpy() for name in ("original", "adversarial")]
            out.append((pair[0].reshape(shape), pair[1].reshape(shape)))
    except (pa.ArrowException, OSError, KeyError, IndexError, ValueError) as error:
        reason = one_line(error)
        raise InputError(
            f"{path} is damaged ({reason}): delete it and its margins, and `measure` makes it again"
        ) from None
    return out


def _picture(before: np.ndarray, after: np.ndarray) -> Picture:
    change = after.astype(np.float64) - before.astype(np.float64)
    most = float(np.abs(change).max())
    gain = 0.5 / most if most > 0 else 1.0
    return Picture(
        original=_uri(before), adversarial=_uri(after), difference=_uri(0.5 + gain * change), gain=gain,
        pixelated=max(before.shape[1:]) <= EXACT,
    )  # fmt: skip


def _uri(image: np.ndarray) -> str:
    """PNG where every pixel counts; JPEG for photographs."""
    from PIL import Image

    pixels = np.round(255 * np.clip(image, 0, 1)).astype(np.uint8).transpose(1, 2, 0)
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    buffer = io.BytesIO()
    if max(picture.size) <= EXACT:
        picture.save(buffer, "PNG", optimize=True)
        kind = "png"
    else:
        picture.thumbnail((LARGEST, LARGEST))
        picture.save(buffer, "JPEG", quality=88)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
