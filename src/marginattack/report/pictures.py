"""Inputs and adversarial examples for the page: images, waveforms and rows of tables, only of the samples it lists.

The page's script adds the difference to the original, so that the adversarial image is not stored.
"""

import base64
import io
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from marginattack.report.axes import round_digits
from marginattack.report.series import Series
from marginattack.storage.bounds import nearest_images

MAX_EXACT_SIDE = 64  # pixels; larger images are scaled down and compressed
SIDES = (224, 160)  # to which photographs are scaled down; the second if those of a series exceed MAX_BYTES
MAX_BYTES = 1_100_000
QUALITY = 80  # of photographs and differences, if that is smaller than lossless
MAX_POINTS = 400  # of a waveform
TOP_FEATURES = 12


def load_pictures(series: Series, rows: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Load the pictures of some rows; none if the run stores no inputs or they cannot be shown."""
    if series.input_kind == "other":
        return {}
    inputs = list(read_inputs(series, rows))
    if series.input_kind == "image":
        for side in SIDES:
            pictures = {row: _make_image(original, adversarial, side) for row, original, adversarial in inputs}
            if sum(len(each["original"]) + len(each["difference"]) for each in pictures.values()) <= MAX_BYTES:
                break
        return pictures
    make = {"wave": _make_wave, "table": _make_table}[series.input_kind]
    return {row: make(series, original, adversarial) for row, original, adversarial in inputs}


def read_inputs(series: Series, rows: Iterable[int]) -> Iterable[tuple[int, np.ndarray, np.ndarray]]:
    """Yield row, input and adversarial example of some rows, read only from the row groups that contain them."""
    by_shard: dict[int, list[int]] = defaultdict(list)
    for row in dict.fromkeys(rows):
        by_shard[int(series.columns["shard"][row])].append(row)
    if not series.store.file("images", series.part, 0).parent.is_dir():
        return
    for shard, members in sorted(by_shard.items()):
        images = nearest_images(series.store, series.part, shard, series.columns["position"][members].tolist())
        pairs = (images[name].double().numpy() for name in ("original", "adversarial"))
        yield from zip(members, *pairs, strict=True)


def _make_image(original: np.ndarray, adversarial: np.ndarray, side: int) -> dict[str, Any]:
    """The original and, in 8 bits around 128, the difference over its largest value, if there is any."""
    difference = adversarial - original
    if not difference.any():  # a misclassified input
        return {"kind": "image", "original": _encode(original, side), "difference": "",
                "pixelated": max(original.shape[1:]) <= MAX_EXACT_SIDE}  # fmt: skip
    largest = float(np.abs(difference).max())
    peak = float(np.abs(difference.mean(0)).max()) or largest  # of the mean of the channels, which the page shows first
    return {"kind": "image", "original": _encode(original, side), "largest": float(f"{largest:.4g}"),
            "peak": float(f"{peak:.4g}"),
            "difference": _encode((128 + 127 * difference / largest) / 255, side),
            "pixelated": max(original.shape[1:]) <= MAX_EXACT_SIDE}  # fmt: skip


def _encode(image: np.ndarray, side: int) -> str:
    """Encode an image as a data URI: small ones as PNG, others scaled down to this side as WebP."""
    from PIL import Image

    pixels = np.round(255 * np.clip(image, 0, 1)).astype(np.uint8).transpose(1, 2, 0)
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    if max(picture.size) <= MAX_EXACT_SIDE:
        kind, content = "png", _save(picture, "png", optimize=True)
    else:
        picture.thumbnail((side, side))
        ways: list[dict[str, Any]] = [{"quality": QUALITY}, {"lossless": True}]
        kind, content = "webp", min((_save(picture, "webp", **way) for way in ways), key=len)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _save(picture: Any, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def _make_wave(series: Series, original: np.ndarray, adversarial: np.ndarray) -> dict[str, Any]:
    """The first channel of both, and their difference, as the extreme values of each of a few intervals."""
    waves = {"original": original, "adversarial": adversarial, "difference": adversarial - original}
    ends = {}
    for name, wave in waves.items():
        first = np.reshape(wave, (-1, wave.shape[-1]))[0]
        parts = np.array_split(first, min(MAX_POINTS // 2, len(first)))
        ends[name] = round_digits(np.array([end for part in parts for end in (part.min(), part.max())]), 3)
    return {"kind": "wave", **ends}


def _make_table(series: Series, original: np.ndarray, adversarial: np.ndarray) -> dict[str, Any]:
    """The features that changed, the largest change first, each in its unit."""
    change = np.abs(adversarial - original).reshape(-1) / feature_units(series)
    order = [i for i in np.argsort(-change, kind="stable")[:TOP_FEATURES].tolist() if change[i] > 0]
    names, pairs = feature_names(series), list(zip(original.reshape(-1), adversarial.reshape(-1), strict=True))
    return {"kind": "table", "changed": int((change > 0).sum()), "of": len(change),
            "features": [(names[i], *(float(f"{value:.4g}") for value in pairs[i])) for i in order]}  # fmt: skip


def feature_names(series: Series) -> list[str]:
    """Names of the features of a table, or numbers if it has none."""
    data = series.store.manifest["data"]
    return data.get("features") or [f"feature {i}" for i in range(int(np.prod(data["shape"])))]


def feature_units(series: Series) -> np.ndarray:
    """The unit of each feature that ``--scale`` states; 1 if none is stated, or there are too many to be stored."""
    stored = series.store.manifest.get("identity", {}).get("space", {}).get("scale")
    size = int(np.prod(series.store.manifest["data"]["shape"]))
    return np.broadcast_to(np.array(stored, float) if isinstance(stored, list) else np.ones(1), (size,))


def summarize_features(series: Series, most: int = 10_000) -> list[dict[str, Any]]:
    """Features sorted by mean absolute change in their units; in how many samples each changed, and changed most."""
    if series.input_kind != "table":
        return []
    pairs = [(original, adversarial) for _, original, adversarial
             in read_inputs(series, np.flatnonzero(series.found)[:most].tolist())]  # fmt: skip
    if not pairs:
        return []
    signed = np.stack([(adversarial - original).reshape(-1) for original, adversarial in pairs])
    units, names = feature_units(series), feature_names(series)
    change = np.abs(signed) / units
    first = np.bincount(change.argmax(1), minlength=len(names)) / len(change)
    largest = float(change.mean(0).max()) or 1.0
    return [
        {"name": names[i], "mean": float(np.abs(signed[:, i]).mean()), "signed": float(signed[:, i].mean()),
         "in_units": float(change[:, i].mean()), "unit": float(units[i]),
         "bar": float(change[:, i].mean()) / largest, "changed": float((change[:, i] > 0).mean()),
         "first": float(first[i])}
        for i in np.argsort(-change.mean(0), kind="stable").tolist()
    ]  # fmt: skip
