"""Models by name: the bundled zoo, torchvision, timm and Hugging Face, with the preprocessing of their metadata."""

import math
import sys
import warnings
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from marginattack.errors import InputError
from marginattack.sources.classes import imagenet_classes
from marginattack.sources.common import explain_errors, import_extra, suggest
from marginattack.sources.images import ImageSize
from marginattack.sources.model_base import LoadedModel, LogitsOnly, ModelOptions, load_weights
from marginattack.sources.networks import zoo
from marginattack.sources.preprocess import Statistics

OFFLINE = "check the name and the connection, or pass local weights as {}@FILE.safetensors"


def open_zoo(source: str, options: ModelOptions) -> LoadedModel:
    """Open a bundled network, which takes pixels in [0, 1]."""
    return LoadedModel(module=zoo(source.removeprefix("zoo:")))


def open_torchvision(source: str, options: ModelOptions) -> LoadedModel:
    """Open a classifier of torchvision with its DEFAULT weights, others by name (NAME@IMAGENET1K_V1), or a file."""
    models = import_extra("torchvision.models", "torchvision")
    name, _, weights_name = source.removeprefix("torchvision:").partition("@")
    known = models.list_models(module=models)
    if name not in known:
        raise InputError(f"torchvision has no classifier named {name!r}: {suggest(name, known)}")
    available = models.get_model_weights(name)
    is_file = bool(weights_name) and weights_name not in available.__members__
    weights = available["DEFAULT" if is_file else weights_name or "DEFAULT"]
    hint = OFFLINE.format(f"torchvision:{name}")
    with explain_errors(f"cannot get the weights of torchvision:{name}", hint), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some constructors warn of a change of their initial weights
        module = models.get_model(name, weights=None if is_file else weights)
    if is_file:
        load_weights(module, weights_name, options)
    transforms = weights.transforms()
    return LoadedModel(
        module=module,
        statistics=(_floats(transforms.mean), _floats(transforms.std)),
        image_size=ImageSize(_side(transforms.resize_size), _side(transforms.crop_size)),
        classes=[str(label) for label in weights.meta["categories"]] if "categories" in weights.meta else None,
        origin="torchvision metadata",
        content=name,
        notes={"weights": weights_name if is_file else str(weights)},
    )


def open_timm(source: str, options: ModelOptions) -> LoadedModel:
    """Open a pretrained model of timm, or its architecture with the weights of a local file, NAME@FILE."""
    timm = import_extra("timm", "timm")
    name, _, file = source.removeprefix("timm:").partition("@")
    known = timm.list_models(include_tags=False)
    architecture = name.partition(".")[0]
    if not name.startswith("hf-hub:") and architecture not in known:
        raise InputError(f"timm has no model named {name!r}: {suggest(architecture, known)}")
    with explain_errors(f"cannot get timm:{name}", OFFLINE.format(f"timm:{name}")):
        module = timm.create_model(name, pretrained=not file)
    if file:
        load_weights(module, file, options)
    config = timm.data.resolve_data_config(pretrained_cfg=module.pretrained_cfg)
    crop = int(config["input_size"][-1])
    labels = module.pretrained_cfg.get("label_names") or imagenet_classes(int(getattr(module, "num_classes", 0)))
    return LoadedModel(
        module=module,
        statistics=(_floats(config["mean"]), _floats(config["std"])),
        image_size=ImageSize(math.floor(crop / config["crop_pct"]), crop),  # as in timm's own evaluation
        classes=[str(label) for label in labels] if labels else None,
        origin="timm metadata",
        content=name,
        notes={"interpolation": config["interpolation"], **({"weights": file} if file else {})},
    )


def open_hf(source: str, options: ModelOptions) -> LoadedModel:
    """Open an image classifier of transformers, from the hub or a local folder, without pickles and custom code."""
    transformers = import_extra("transformers", "hf")
    name = source.removeprefix("hf:")
    local = Path(name).is_dir()
    if not local and (name.startswith(("/", ".", "~")) or name.count("/") > 1):
        raise InputError(f"no folder {name}: pass hf: with a name on the hub or a folder made by save_pretrained")
    hint = "it must be an image classifier with safetensors weights and without custom code"
    hint += "" if local else "; check the name and the connection, or pass a local folder"
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    with explain_errors(f"cannot load hf:{name}", hint):
        model = transformers.AutoModelForImageClassification.from_pretrained(
            name, trust_remote_code=False, use_safetensors=True, local_files_only=local, dtype=torch.float32
        )
        processor = _load_processor(name, local)
    labels = getattr(model.config, "id2label", None) or {}
    return LoadedModel(
        module=LogitsOnly(model),
        statistics=hf_statistics(processor),
        image_size=hf_image_size(processor),
        classes=[str(labels[key]) for key in sorted(labels)] or None,
        origin="hf image processor" if processor else "",
        content=str(model.config.to_json_string(use_diff=False)),
    )


def open_robustbench(source: str, options: ModelOptions) -> LoadedModel:
    """Open a model of RobustBench's zoo: NAME for CIFAR-10 and ℓ∞, or NAME@DATASET/THREAT."""
    if not options.trust_pickle:
        raise InputError(f"{source} is a pickle, which can execute code: add --trust-pickle if you trust it")
    name, _, rest = source.removeprefix("robustbench:").partition("@")
    dataset, _, threat = (rest or "cifar10/Linf").partition("/")
    robustbench = import_robustbench("utils")
    hint = "check the name, as in robustbench:Carmon2019Unlabeled@cifar10/Linf, and the connection"
    with explain_errors(f"cannot get {source}", hint):
        module = robustbench.load_model(name, dataset=dataset, threat_model=threat or "Linf")
    return LoadedModel(module=module, content=f"{name} {dataset} {threat}")


def import_robustbench(module: str) -> Any:
    """Import a module of RobustBench, which depends on pyautoattack, but imports it by its former name."""
    if find_spec("autoattack") is None and find_spec("pyautoattack"):
        sys.modules["autoattack"] = import_module("pyautoattack")
        sys.modules["autoattack.state"] = import_module("pyautoattack.state")
    return import_extra(f"robustbench.{module}", "robustbench")


def _load_processor(name: str, local: bool) -> dict[str, Any]:
    """Load the settings of the image processor; none if the model has no processor."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        settings, _ = ImageProcessingMixin.get_image_processor_dict(name, local_files_only=local)
    except OSError:
        return {}
    return dict(settings)


def hf_statistics(settings: dict[str, Any]) -> Statistics | None:
    """Return mean and deviation for pixels in [0, 1] of a processor that rescales pixels of 0 to 255 first."""
    if not settings:
        return None
    factor = 255 * float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 255.0
    offset = 1.0 if settings.get("rescale_offset") or settings.get("offset") else 0.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if settings.get("do_normalize", True) and settings.get("image_mean") and settings.get("image_std"):
        mean, std = _floats(settings["image_mean"]), _floats(settings["image_std"])
        if "EfficientNet" in str(settings.get("image_processor_type")) and settings.get("include_top", True):
            std = tuple(s * s for s in std)  # this processor divides twice
    if (mean, std, factor, offset) == ((0.0,), (1.0,), 1.0, 0.0):
        return None
    return tuple((m + offset) / factor for m in mean), tuple(s / factor for s in std)


def hf_image_size(settings: dict[str, Any]) -> ImageSize | None:
    """Return how the processor resizes and crops; a fixed rectangle counts as both."""
    size = settings.get("size") if settings.get("do_resize", True) else None
    resize = _side(size)
    crop = _side(settings.get("crop_size")) if settings.get("do_center_crop") else None
    share = settings.get("crop_pct")
    if resize is not None and share and resize < 384:  # ConvNeXT resizes to more than its size and crops to it
        return ImageSize(int(resize / float(share)), resize)
    if crop is None and not (isinstance(size, dict) and "shortest_edge" in size):
        crop = resize
    return None if resize is None and crop is None else ImageSize(resize, crop)


def _side(size: Any) -> int | None:
    """Return one number of pixels from any form in which metadata write a size."""
    if isinstance(size, dict):
        sides = [size[key] for key in ("shortest_edge", "height", "width") if size.get(key)]
        return int(min(sides)) if sides else None
    if isinstance(size, Iterable):
        return int(min(size))
    return None if size is None else int(size)


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values) if isinstance(values, Iterable) else (float(values),)
