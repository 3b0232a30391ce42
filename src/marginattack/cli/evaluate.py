"""marginattack evaluate: clean and robust accuracy of any model on any data set."""

import warnings
from typing import Annotated, Any

from typer import Option

from marginattack.cli.common import Display, dump_json, make_table, one_line_errors, show
from marginattack.cli.options import AsJson, Config, Eps, Quiet, Set, Verbose, setting_options
from marginattack.runs.settings import read_settings

OPTIONS = ("model*", "data*", "norms", "attacks", "budget", "seed", "expect_accuracy", "batch", "device", "precision",
           "max_gib", "compiled", "randomized", "eot", "rate", "draws", "confidence")  # fmt: skip


@setting_options(*OPTIONS)
@one_line_errors()
def evaluate(
    flags: dict[str, Any],
    eps: Eps = None,
    config: Config = None,
    set_: Set = None,
    despite: Annotated[bool, Option("--despite-findings", help="Evaluate despite grave findings.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate clean and robust accuracy at one or several distances. Stores nothing; 2,000 passes by default."""
    settings = read_settings(config, set_ or [], flags)
    if not eps:
        raise ValueError("no distance given: pass --eps, for example --norm linf --eps 8/255")
    if len(settings.norms) > 1 or len(settings.attacks) > 1:
        kind = "norms" if len(settings.norms) > 1 else "attacks"
        raise ValueError(f"{kind} are {', '.join(getattr(settings, kind))}: evaluate takes one at a time")
    from marginattack import evaluation
    from marginattack.errors import DiagnosisWarning
    from marginattack.execution.session import open_session
    from marginattack.runs.job import check_labels, open_job
    from marginattack.runs.run import diagnose_before

    display, job = Display(quiet=quiet, verbose=verbose), open_job(settings)
    with display.log(), open_session(job.make_classifier()) as session:
        diagnose_before(job, lambda finding: display.say(finding.line()), despite)
        check_labels(job, session)
        batch, n = job.choose_batch(session), len(job.order)
        chunks = (job.samples(range(first, min(first + batch, n)))[1:] for first in range(0, n, batch))
        with display.progress("evaluating", n) as advance, warnings.catch_warnings(record=True) as doubts:
            result = evaluation.evaluate(
                session, chunks, norm=settings.norms[0], eps=eps, budget=settings.budget or evaluation.BUDGET,
                ids=job.order, attack=next(iter(job.attacks.values())), seed=settings.seed, batch=batch,
                progress=advance, diagnose=not despite,
            )  # fmt: skip
    for doubt in doubts:
        if issubclass(doubt.category, DiagnosisWarning):
            display.say(str(doubt.message).removesuffix(" Silence: diagnose=False."))
    if as_json:
        print(dump_json({"model": job.model.name, "data": job.data.name, **result.as_dict()}))
    else:
        show(make_table(result.header(), result.rows(), title=f"{job.model.name} on {job.data.name}"))
