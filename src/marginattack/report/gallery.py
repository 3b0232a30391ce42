"""Images for the page: a few samples as data URIs, read only from the row groups that contain them."""

import base64
import io
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from marginattack.report.series import Series
from marginattack.storage.bounds import nearest_images

SAMPLES_PER_GROUP = 6
MAX_EXACT_SIDE = 64  # pixels; larger images are scaled down and compressed
THUMBNAIL_SIDE = 160


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An input, its adversarial example and their difference times ``gain``, as data URIs."""

    original: str
    adversarial: str
    difference: str
    gain: float
    pixelated: bool


def select_rows(series: Series) -> dict[str, list[int]]:
    """Select the rows with the smallest, median and largest margins."""
    n, rows = SAMPLES_PER_GROUP, np.flatnonzero(series.found)
    rows = rows[np.argsort(series.columns["distance"][rows], kind="stable")]
    if len(rows) <= 3 * n:
        return {"All": rows.tolist()} if len(rows) else {}
    middle = (len(rows) - n) // 2
    return {"Smallest margins": rows[:n].tolist(), "Around the median": rows[middle : middle + n].tolist(),
            "Largest margins": rows[-n:].tolist()}  # fmt: skip


def load_pictures(series: Series, rows: Iterable[int]) -> dict[int, Picture]:
    """Load the pictures of some rows; none where the run stores no images or the inputs are not images."""
    shape = series.store.manifest["data"]["shape"]
    folder = series.store.file("images", series.part, 0).parent
    if len(shape) != 3 or shape[0] not in (1, 3) or not folder.is_dir():
        return {}
    by_shard: dict[int, list[int]] = defaultdict(list)
    for row in dict.fromkeys(rows):
        by_shard[int(series.columns["shard"][row])].append(row)
    loaded = {}
    for shard, members in sorted(by_shard.items()):
        images = nearest_images(series.store, series.part, shard, series.columns["position"][members].tolist())
        for row, original, adversarial in zip(members, images["original"], images["adversarial"], strict=True):
            loaded[row] = _make_picture(original.numpy(), adversarial.numpy())
    return loaded


def _make_picture(original: np.ndarray, adversarial: np.ndarray) -> Picture:
    difference = adversarial.astype(np.float64) - original
    gain = 0.5 / (float(np.abs(difference).max()) or 0.5)
    return Picture(
        original=_encode(original), adversarial=_encode(adversarial), difference=_encode(0.5 + gain * difference),
        gain=gain, pixelated=max(original.shape[1:]) <= MAX_EXACT_SIDE,
    )  # fmt: skip


def _encode(image: np.ndarray) -> str:
    """Encode an image as a data URI: PNG where every pixel counts, JPEG for photographs."""
    from PIL import Image

    pixels = np.round(255 * np.clip(image, 0, 1)).astype(np.uint8).transpose(1, 2, 0)
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    kind, buffer = "png" if max(picture.size) <= MAX_EXACT_SIDE else "jpeg", io.BytesIO()
    if kind == "jpeg":
        picture.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    picture.save(buffer, kind, optimize=True, quality=88)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
