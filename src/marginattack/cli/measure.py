"""marginattack measure and diagnose: on any model and any data."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marginattack.cli.common import one_line_errors, progress
from marginattack.cli.results import AsJson, Unit, checked_unit, show

if TYPE_CHECKING:
    from marginattack.analysis.diagnose import Finding
    from marginattack.runs.engines.ray import Cluster

MODELS = (
    "zoo:NAME, file.py:factory or pkg.mod:factory (Python code, which is executed), .pt2, .onnx, "
    "torchvision:NAME, timm:NAME, hf:NAME"
)
DATA = "samples:NAME, .npz with x and y, an image folder, torchvision:NAME, hf:NAME"

Config = Annotated[Path | None, typer.Option(help="TOML file of settings; flags go before it.", show_default=False)]
Set = Annotated[list[str] | None, typer.Option("--set", help="One setting, as attack.race.passes=1000; repeat.")]
Model = Annotated[str | None, typer.Option(help=MODELS)]
DataSource = Annotated[str | None, typer.Option("--data", help=DATA)]
Normalize = Annotated[
    str | None, typer.Option(help="imagenet, cifar10, MEAN/STD, none, or auto: as the model's source states.")
]
Resize = Annotated[int | None, typer.Option(help="Resize to this size in front of the model.")]
Crop = Annotated[int | None, typer.Option(help="Cut out the middle of this size in front of the model.")]
TrustPickle = Annotated[bool | None, typer.Option("--trust-pickle", help="Load pickles, which can execute any code.")]
Labels = Annotated[str | None, typer.Option(help="File of labels for a folder of images.")]
Split = Annotated[str | None, typer.Option(help="Split of a data set by name.")]
ImageSize = Annotated[str | None, typer.Option(help="Fit image files: 224, or 256/224 (resize, then crop).")]
Limit = Annotated[int | None, typer.Option(help="The first so many samples.")]
Shuffle = Annotated[int | None, typer.Option(metavar="SEED", help="Shuffle the samples, before --limit.")]
Expect = Annotated[float | None, typer.Option(help="Accuracy that was claimed, 0 to 1; far less is a grave finding.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; a GPU where there is one.")]


Attack = Annotated[list[str] | None, typer.Option(help="As `marginattack list attacks`, or preset:NAME; repeat.")]
Target = Annotated[str | None, typer.Option(help="random, least-likely, or a file of classes, one a row of the data.")]
OnlyCorrect = Annotated[bool | None, typer.Option("--only-correct", help="Leave out what is misclassified.")]
Lattice = Annotated[int | None, typer.Option(help="255: also find images that are adversarial at 8 bits.")]
Batch = Annotated[int | None, typer.Option(help="Samples side by side; by default as many as fit into memory.")]
Search = Annotated[str | None, typer.Option(help="float32, tf32 or bf16: precision of the search, not of the result.")]
Compiled = Annotated[bool | None, typer.Option("--compiled", help="On a GPU: torch.compile, for large data sets.")]
Despite = Annotated[bool, typer.Option("--despite-findings", help="Measure also after a grave finding.")]
EngineName = Annotated[str, typer.Option("--engine", help="serial: in this process; ray: on a Ray cluster.")]
RayAddress = Annotated[str | None, typer.Option(help="Ray cluster: auto, or HOST:PORT; else one on this machine.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Ray: processes; one a GPU, or one a core without GPUs.")]
Gpus = Annotated[float | None, typer.Option(min=0, help="Ray: GPUs of each worker; also a part of one, as 0.5.")]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print the settings as TOML and stop.")]


def measure(
    model: Model = None, data: DataSource = None,
    out: Annotated[str | None, typer.Option(help="Run folder to write or go on with; or s3://bucket/folder.")] = None,
    norm: Annotated[list[str] | None, typer.Option(help="l2, linf, l1 or l0; repeat.")] = None,
    attack: Attack = None,
    budget: Annotated[int | None, typer.Option(help="Forwards + backwards a sample, never exceeded.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random draws.")] = None,
    target: Target = None, only_correct: OnlyCorrect = None, lattice: Lattice = None,
    normalize: Normalize = None, resize: Resize = None, crop: Crop = None, trust_pickle: TrustPickle = None,
    labels: Labels = None, split: Split = None, image_size: ImageSize = None, limit: Limit = None,
    shuffle: Shuffle = None, expect_accuracy: Expect = None, device: Device = None, batch: Batch = None,
    search: Search = None, compiled: Compiled = None, config: Config = None, set_: Set = None,
    print_config: PrintConfig = False, despite_findings: Despite = False,
    engine: EngineName = "serial", address: RayAddress = None, workers: Workers = None, gpus_per_worker: Gpus = None,
    unit: Unit = 1, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Measure the margins of a data set on a model, into a run folder; the same command goes on where it stopped."""
    with one_line_errors("the same command goes on"):
        checked_unit(unit)
        flags = {
            "model": model, "data": data, "norms": norm, "attacks": attack, "budget": budget, "seed": seed,
            "target": target, "only_correct": only_correct, "lattice": lattice, "model.normalize": normalize,
            "model.resize": resize, "model.crop": crop, "model.trust_pickle": trust_pickle, "data.labels": labels,
            "data.split": split, "data.image_size": image_size, "data.limit": limit, "data.shuffle": shuffle,
            "expect_accuracy": expect_accuracy, "device": device, "batch": batch, "search": search,
            "compiled": compiled,
        }  # fmt: skip
        from marginattack.runs.settings import as_toml, read_settings

        settings = read_settings(config, set_ or [], flags)
        if print_config:
            print(as_toml(settings), end="")
            return
        if out is None:
            raise ValueError("no run folder is stated: give --out RUN")
        cluster = _cluster(engine, address, workers, gpus_per_worker)
        from marginattack.report import text
        from marginattack.runs.engines.serial import in_this_process
        from marginattack.runs.run import run

        store = run(
            settings, out, tell=_tell, despite=despite_findings, engine=cluster or in_this_process,
            progress=partial(progress, note=cluster.note) if cluster else progress,
        )  # fmt: skip
        if as_json:
            print(text.dump_json(text.summarize_run(store, unit=unit)))
        else:
            show(
                [
                    *text.format_run(store, unit=unit),
                    f"Stored in {store.path}; `marginattack report {store.path}` shows it.",
                ]
            )

        if store.manifest["verified"]["failed"] or store.manifest["set_aside"]:
            raise typer.Exit(1)


def diagnose(
    model: Model = None, data: DataSource = None, normalize: Normalize = None, resize: Resize = None, crop: Crop = None,
    trust_pickle: TrustPickle = None, labels: Labels = None, split: Split = None, image_size: ImageSize = None,
    limit: Limit = None, shuffle: Shuffle = None, expect_accuracy: Expect = None, device: Device = None,
    config: Config = None, set_: Set = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Say what would make margins of this model on these data meaningless or too large. Exit code 1: it is grave."""
    with one_line_errors():
        from dataclasses import asdict

        from marginattack.runs.settings import read_settings

        flags = {
            "model": model, "data": data, "model.normalize": normalize, "model.resize": resize, "model.crop": crop,
            "model.trust_pickle": trust_pickle, "data.labels": labels, "data.split": split,
            "data.image_size": image_size, "data.limit": limit, "data.shuffle": shuffle,
            "expect_accuracy": expect_accuracy, "device": device,
        }  # fmt: skip
        from marginattack.runs.job import examine, open_job

        findings = examine(open_job(read_settings(config, set_ or [], flags)))
        if as_json:
            print(json.dumps([asdict(finding) for finding in findings], indent=1))
        for finding in [] if as_json else findings:
            print(finding.line())
        if not findings and not as_json:
            print("nothing found: margins of this model can be measured")
        if any(finding.grade == "grave" for finding in findings):
            raise typer.Exit(1)


def _cluster(engine: str, address: str | None, workers: int | None, gpus: float | None) -> "Cluster | None":
    """The engine that is named, where it is not this process."""
    if engine == "ray":
        from marginattack.runs.engines.ray import Cluster

        return Cluster(address=address, workers=workers, gpus=gpus)
    if engine != "serial":
        raise ValueError(f"no engine is named {engine!r}: choose from serial, ray")
    for flag, value in (("--address", address), ("--workers", workers), ("--gpus-per-worker", gpus)):
        if value is not None:
            raise ValueError(f"{flag} {value} is for a cluster: add --engine ray")
    return None


def _tell(finding: "Finding") -> None:
    print(f"marginattack: {finding.line()}", file=sys.stderr)
