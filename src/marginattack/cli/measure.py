"""marginattack measure and diagnose: on any model and any data."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marginattack.cli.common import one_line_errors, progress
from marginattack.cli.results import AsJson, Unit, checked_unit, show

if TYPE_CHECKING:
    from marginattack.diagnose import Finding

MODELS = (
    "zoo:NAME, file.py:factory or pkg.mod:factory (Python code, which is executed), .pt2, .onnx, "
    "torchvision:NAME, timm:NAME, hf:NAME"
)
DATA = "samples:NAME, .npz with x and y, an image folder, torchvision:NAME, hf:NAME"

Config = Annotated[Path | None, typer.Option(help="TOML file of settings; flags go before it.", show_default=False)]
Set = Annotated[list[str] | None, typer.Option("--set", help="One setting, as attack.marginattack.moves=100; repeat.")]
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
Despite = Annotated[bool, typer.Option("--despite-findings", help="Measure also after a grave finding.")]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print the settings as TOML and stop.")]


def measure(
    model: Model = None, data: DataSource = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to write, or to go on with.")] = None,
    norm: Annotated[list[str] | None, typer.Option(help="l2, linf, l1 or l0; repeat.")] = None,
    attack: Attack = None,
    budget: Annotated[int | None, typer.Option(help="Forwards + backwards a sample, never exceeded.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random draws.")] = None,
    target: Target = None, only_correct: OnlyCorrect = None, lattice: Lattice = None,
    normalize: Normalize = None, resize: Resize = None, crop: Crop = None, trust_pickle: TrustPickle = None,
    labels: Labels = None, split: Split = None, image_size: ImageSize = None, limit: Limit = None,
    shuffle: Shuffle = None, expect_accuracy: Expect = None, device: Device = None, batch: Batch = None,
    config: Config = None, set_: Set = None, print_config: PrintConfig = False, despite_findings: Despite = False,
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
            "expect_accuracy": expect_accuracy, "device": device, "batch": batch,
        }  # fmt: skip
        from marginattack.settings import as_toml, read_settings

        settings = read_settings(config, set_ or [], flags)
        if print_config:
            print(as_toml(settings), end="")
            return
        if out is None:
            raise ValueError("no run folder is stated: give --out RUN")
        from marginattack.report import text
        from marginattack.run import run

        store = run(settings, out, progress=progress, tell=_tell, despite=despite_findings)
        if as_json:
            print(text.dumped(text.as_json(store, unit=unit)))
        else:
            show(
                [
                    *text.as_text(store, unit=unit),
                    f"Stored in {store.path}; `marginattack report {store.path}` shows it.",
                ]
            )

        if store.manifest["verified"]["failed"]:
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

        from marginattack.settings import read_settings

        flags = {
            "model": model, "data": data, "model.normalize": normalize, "model.resize": resize, "model.crop": crop,
            "model.trust_pickle": trust_pickle, "data.labels": labels, "data.split": split,
            "data.image_size": image_size, "data.limit": limit, "data.shuffle": shuffle,
            "expect_accuracy": expect_accuracy, "device": device,
        }  # fmt: skip
        from marginattack.job import examine, open_job

        findings = examine(open_job(read_settings(config, set_ or [], flags)))
        if as_json:
            print(json.dumps([asdict(finding) for finding in findings], indent=1))
        for finding in [] if as_json else findings:
            print(finding.line())
        if not findings and not as_json:
            print("nothing found: margins of this model can be measured")
        if any(finding.grade == "grave" for finding in findings):
            raise typer.Exit(1)


def _tell(finding: "Finding") -> None:
    print(f"marginattack: {finding.line()}", file=sys.stderr)
