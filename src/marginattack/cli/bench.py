"""marginattack bench: attacks side by side on a model, each with the same passes."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from marginattack.cli.common import one_line_errors
from marginattack.cli.measure import DataSource, Device, Model, Normalize, TrustPickle
from marginattack.cli.results import AsJson

if TYPE_CHECKING:
    from torch import Tensor

    from marginattack.core.classifier import Classifier

DEFAULT = ["race", "marginattack", "deepfool", "search"]
HELP_ATTACK = "As `marginattack list attacks`, or preset:NAME; repeat."
HELP_PEER = "An attack of another library, as advlib:ddn, foolbox:fmn or secml:ddn; repeat."


def bench(
    model: Model = None, data: DataSource = None,
    norm: Annotated[str, typer.Option(help="l2, linf or l1.")] = "l2",
    budget: Annotated[list[int] | None, typer.Option(help="Forwards + backwards a sample; repeat. 400.")] = None,
    attack: Annotated[list[str] | None, typer.Option(help=HELP_ATTACK)] = None,
    peer: Annotated[list[str] | None, typer.Option(help=HELP_PEER)] = None,
    limit: Annotated[int, typer.Option(help="The first so many samples that are classified rightly.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the random draws.")] = 0,
    normalize: Normalize = None, trust_pickle: TrustPickle = None, device: Device = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Compare attacks on one model and data set: margins found with the same number of passes, ours and others'."""
    with one_line_errors():
        names = [*(attack or ([] if peer else DEFAULT)), *(peer or [])]
        if model is None or data is None:
            raise ValueError("no model or no data is stated: give --model and --data, as zoo:mnist-cnn samples:mnist")
        if limit < 1 or min(budget or [1]) < 1:
            raise ValueError("--limit and --budget start at 1")
        from marginattack.analysis import benchmarking as b
        from marginattack.core.norms import as_norm

        contenders = {size: {name: b.attack_by_name(name, size) for name in names} for size in budget or [400]}
        chosen = as_norm(norm)
        classifier, images, labels = _open(model, data, limit, normalize or "auto", bool(trust_pickle), device)
        trials: dict[str, list[b.Trial]] = {name: [] for name in names}
        with classifier.held():
            images, labels, _ = classifier.accept(images, labels)
            for size, attacks in contenders.items():
                for name, each in attacks.items():
                    print(f"marginattack: {name}, {size} passes", file=sys.stderr)
                    found = b.run_trial(classifier, images, labels, chosen, each, budget=size, seed=seed)
                    trials[name].append(found)
        best = b.best_distances([trial for each in trials.values() for trial in each])
        if as_json:
            rows = [
                {"attack": name, "budget": trial.budget, "settings": trial.attack, **b.summary(trial, best)}
                for name, each in trials.items()
                for trial in each
            ]
            print(json.dumps(rows, indent=1))
        else:
            _show(b.COLUMNS, b.table(trials), f"{norm}, {len(images)} samples of {data} on {model}")


def _open(
    model: str, data: str, limit: int, normalize: str, trust_pickle: bool, device: str | None
) -> tuple["Classifier", "Tensor", "Tensor"]:
    import torch

    from marginattack.analysis.benchmarking import first_correct
    from marginattack.core.classifier import Classifier
    from marginattack.sources.data import open_data
    from marginattack.sources.models import open_model

    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    opened = open_model(model, normalize=normalize, trust_pickle=trust_pickle, device=place)
    source = open_data(data, image_size=opened.image_size, trust_pickle=trust_pickle)
    classifier = Classifier(opened.module, chunk=256)
    with classifier.held():
        images, labels = first_correct(classifier, source.read, len(source), limit)
    return classifier, images, labels


def _show(header: tuple[str, ...], rows: list[tuple[str, ...]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, title=title)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
