"""Models by name: the bundled zoo, torchvision, timm and Hugging Face, with the preprocessing their metadata state."""

import difflib
import math
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from marginattack.errors import InputError
from marginattack.sources.extras import need
from marginattack.sources.images import ImageSize
from marginattack.sources.model_parts import Logits, Opened, load_weights, refusing
from marginattack.sources.networks import ZOO, zoo
from marginattack.sources.preprocess import Statistics

OFFLINE = "check the name and the connection, or give local weights as {}"


def open_zoo(name: str) -> Opened:
    """A bundled network; it takes pixels as they are."""
    if name not in ZOO:
        raise InputError(f"no zoo model named {name!r}: choose one of {', '.join(ZOO)}")
    return Opened(module=zoo(name))


def open_torchvision(name: str) -> Opened:
    """A classifier of torchvision with its DEFAULT weights, others by name (NAME@IMAGENET1K_V1), or a local file's."""
    need("torchvision", "torchvision", "torchvision")
    models = need("torchvision.models", "torchvision", "torchvision")
    name, _, weights_name = name.partition("@")
    known = models.list_models(module=models)
    if name not in known:
        raise InputError(f"torchvision has no classifier named {name!r}{_nearest(name, known)}")
    available = models.get_model_weights(name)
    is_file = bool(weights_name) and weights_name not in available.__members__
    weights = available["DEFAULT" if is_file else weights_name or "DEFAULT"]
    with warnings.catch_warnings(), refusing(f"cannot get the weights of torchvision:{name}",
                                             OFFLINE.format(f"torchvision:{name}@FILE.safetensors")):  # fmt: skip
        warnings.simplefilter("ignore")  # some builders announce a change of their initial weights
        module = models.get_model(name, weights=None if is_file else weights)
    if is_file:
        load_weights(module, weights_name)
    usual = weights.transforms()
    return Opened(
        module=module,
        statistics=(tuple(map(float, usual.mean)), tuple(map(float, usual.std))),
        image_size=ImageSize(_side(usual.resize_size), _side(usual.crop_size)),
        classes=[str(label) for label in weights.meta["categories"]] if "categories" in weights.meta else None,
        origin="torchvision metadata",
        content=name,
        notes={"weights": weights_name if is_file else str(weights)},
    )


def open_timm(name: str) -> Opened:
    """A pretrained model of timm, or its architecture with the weights of a local file, NAME@FILE."""
    timm = need("timm", "timm", "timm")
    name, _, file = name.partition("@")
    known = timm.list_models(include_tags=False)
    if not name.startswith("hf-hub:") and name.partition(".")[0] not in known:
        raise InputError(f"timm has no model named {name!r}{_nearest(name, known)}")
    with refusing(f"cannot get timm:{name}", OFFLINE.format(f"timm:{name}@FILE.safetensors")):
        module = timm.create_model(name, pretrained=not file)
    if file:
        load_weights(module, file)
    usual = timm.data.resolve_data_config(pretrained_cfg=module.pretrained_cfg)
    crop = int(usual["input_size"][-1])
    resize = math.floor(crop / usual["crop_pct"])  # as timm's own evaluation has it
    labels = module.pretrained_cfg.get("label_names")
    return Opened(
        module=module,
        statistics=(tuple(map(float, usual["mean"])), tuple(map(float, usual["std"]))),
        image_size=ImageSize(resize, crop),
        classes=[str(label) for label in labels] if labels else None,
        origin="timm metadata",
        content=name,
        notes={"interpolation": usual["interpolation"], **({"weights": file} if file else {})},
    )


def open_hf(name: str) -> Opened:
    """An image classifier of transformers, by its name on the hub or from a local folder; no code, no pickles."""
    transformers = need("transformers", "transformers", "hf")
    local = Path(name).is_dir()
    if not local and (name.startswith(("/", ".", "~")) or name.count("/") > 1):
        raise InputError(f"no folder {name}: hf: takes a name on the hub or a folder made by save_pretrained")
    hint = "it must be an image classifier with safetensors weights and no code of its own" + (
        "" if local else "; check the name and the connection, or give a local folder"
    )
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    with refusing(f"cannot load hf:{name}", hint):
        model = transformers.AutoModelForImageClassification.from_pretrained(
            name, trust_remote_code=False, use_safetensors=True, local_files_only=local, dtype=torch.float32
        )
        usual = _processor_of(name, local)
    labels = getattr(model.config, "id2label", None) or {}
    return Opened(
        module=Logits(model),
        statistics=hf_statistics(usual),
        image_size=hf_image_size(usual),
        classes=[str(labels[key]) for key in sorted(labels)] or None,
        origin="hf image processor" if usual else "",
        content=str(model.config.to_json_string(use_diff=False)),
    )


def _processor_of(name: str, local: bool) -> dict[str, Any]:
    """The settings of the image processor, or none where the model comes without."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        settings, _ = ImageProcessingMixin.get_image_processor_dict(name, local_files_only=local)
    except OSError:
        return {}
    return dict(settings)


def hf_statistics(settings: dict[str, Any]) -> Statistics | None:
    """Mean and deviation for pixels in [0, 1] of a processor that first multiplies pixels of 0 to 255."""
    if not settings:
        return None
    factor = 255 * float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 255.0
    offset = 1.0 if settings.get("rescale_offset") or settings.get("offset") else 0.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if settings.get("do_normalize", True) and settings.get("image_mean") and settings.get("image_std"):
        mean, std = _numbers(settings["image_mean"]), _numbers(settings["image_std"])
        if "EfficientNet" in str(settings.get("image_processor_type")) and settings.get("include_top", True):
            return tuple((m + offset) / factor for m in mean), tuple(s * s / factor for s in std)
    if (mean, std, factor, offset) == ((0.0,), (1.0,), 1.0, 0.0):
        return None
    return tuple((m + offset) / factor for m in mean), tuple(s / factor for s in std)


def hf_image_size(settings: dict[str, Any]) -> ImageSize | None:
    """How the processor fits an image: its shorter side, then the crop; a fixed rectangle counts as both."""
    size = settings.get("size") if settings.get("do_resize", True) else None
    resize = _side(size)
    crop = _side(settings.get("crop_size")) if settings.get("do_center_crop") else None
    share = settings.get("crop_pct")
    if resize is not None and share and resize < 384:  # ConvNeXT resizes past its size and crops to it
        return ImageSize(int(resize / float(share)), resize)
    if crop is None and not (isinstance(size, dict) and "shortest_edge" in size):
        crop = resize
    return None if resize is None and crop is None else ImageSize(resize, crop)


def _side(size: Any) -> int | None:
    """One number of pixels from the ways in which metadata write a size."""
    if isinstance(size, dict):
        sides = [size[key] for key in ("shortest_edge", "height", "width") if size.get(key)]
        return int(min(sides)) if sides else None
    if isinstance(size, Iterable):
        return int(min(size))
    return None if size is None else int(size)


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values) if isinstance(values, Iterable) else (float(values),)


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.partition(".")[0], known, 3)
    return f": did you mean {', '.join(near)}?" if near else f": it has {len(known)} others, such as {known[0]}"
