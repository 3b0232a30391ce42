"""marginattack bench: compare attacks on one model with equal budgets."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from marginattack.cli.common import Display, dump_json, make_table, one_line_errors, show
from marginattack.cli.options import AsJson, Quiet, Seed, setting_options
from marginattack.runs.settings import Settings, read_settings

if TYPE_CHECKING:
    from marginattack.core.validation import Batch
    from marginattack.execution.session import Session

DEFAULTS = ["race", "marginattack", "deepfool", "search"]
BUDGET = "Forward plus backward passes per sample. Repeatable.  [default: 400]"
ATTACK = "Attack: a name from `marginattack list attacks`, preset:NAME, or NAME@EPS within a radius. Repeatable."
PEER = "Attack of another library: advlib:ddn, foolbox:fmn, autoattack:square@0.3, … Repeatable."


@setting_options("model", "data", "model.normalize", "model.trust_pickle", "device", "max_gib")
@one_line_errors()
def bench(
    flags: dict[str, Any],
    norm: Annotated[str, Option(metavar="NORM", help="Norm of the margins: l2, linf, l1 or l0.")] = "l2",
    budget: Annotated[list[int] | None, Option(metavar="N", help=BUDGET)] = None,
    attack: Annotated[list[str] | None, Option(metavar="ATTACK", help=ATTACK)] = None,
    peer: Annotated[list[str] | None, Option(metavar="PEER", help=PEER)] = None,
    limit: Annotated[int, Option(metavar="N", help="Use the first N correctly classified samples.")] = 100,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare attacks on one model. Ours and those of other libraries get the same number of passes."""
    names = [*(attack or ([] if peer else DEFAULTS)), *(peer or [])]
    settings = read_settings(None, [], flags)
    if limit < 1 or min(budget or [1]) < 1:
        raise ValueError("--limit and --budget must be at least 1")
    from marginattack.analysis import benchmarking as b
    from marginattack.core.norms import as_norm

    contenders = {size: {name: b.attack_by_name(name, size) for name in names} for size in budget or [400]}
    chosen = as_norm(norm)
    for each in next(iter(contenders.values())).values():
        each.check_norm(chosen)
    trials: dict[str, list[b.Trial]] = {name: [] for name in names}
    with _open(settings, limit) as (session, samples):
        for size, attacks in contenders.items():
            for name, each in attacks.items():
                Display(quiet=quiet).say(f"{name}, {size} passes")
                trials[name].append(b.run_trial(session, samples, chosen, each, budget=size, seed=seed))
    if as_json:
        best = b.best_distances([trial for each in trials.values() for trial in each])
        rows = [
            {"attack": name, "budget": trial.budget, "settings": trial.attack, **b.summary(trial, best)}
            for name, each in trials.items()
            for trial in each
        ]
        print(dump_json(rows))
    else:
        title = f"{norm}, {len(samples)} samples of {settings.data.source} on {settings.model.source}"
        show(make_table(b.COLUMNS, b.table(trials), title=title), b.LEGEND)


@contextmanager
def _open(settings: Settings, limit: int) -> Iterator[tuple["Session", "Batch"]]:
    """Open the model, and the first samples of the data set that it classifies correctly."""
    import torch

    from marginattack.analysis.benchmarking import first_correct
    from marginattack.core.classifier import Classifier
    from marginattack.execution.session import open_session
    from marginattack.sources.data import open_data
    from marginattack.sources.models import open_model

    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    wanted, trust, most = settings.model, settings.model.trust_pickle, settings.max_gib
    model = open_model(wanted.source, normalize=wanted.normalize, trust_pickle=trust, device=device, max_gib=most)
    data = open_data(settings.data.source, image_size=model.image_size, trust_pickle=trust, max_gib=most)
    with open_session(Classifier(model.module, batch_size=256)) as session:
        yield session, session.validate(*first_correct(session, data.read, len(data), limit))
