"""marginattack bound: lower bounds for the margins of a finished run."""

from typing import Annotated, Any

from typer import Argument, Exit, Option

from marginattack.cli.common import Display, dump_json, one_line_errors, show
from marginattack.cli.measure import make_cluster
from marginattack.cli.options import (
    Address,
    AsJson,
    Engine,
    GpusPerWorker,
    Quiet,
    Unit,
    Verbose,
    Workers,
    check_unit,
    setting_options,
)

METHOD = (
    "Certified: ibp, crown, alpha, exact (small ReLU networks), lipschitz. Estimated: clever. Only the KKT "
    "residual: kkt."
)
Run = Annotated[str, Argument(metavar="RUN", help="Run folder written by `marginattack measure`.")]


@setting_options(
    "model", "model.trust_pickle", "data", "time_limit", "radius", "restarts", "shard_timeout", "device", "max_gib"
)
@one_line_errors(resumable=True)
def bound(
    flags: dict[str, Any],
    run: Run,
    method: Annotated[str, Option(metavar="METHOD", help=METHOD)] = "alpha",
    engine: Engine = "serial",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = None,
    unit: Unit = 1,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Bound the margins of a run from below. Run the same command again to resume."""
    check_unit(unit)
    cluster = make_cluster(engine, address, workers, gpus_per_worker)
    from marginattack.report import text
    from marginattack.runs.bound_run import bound_run
    from marginattack.runs.engines.serial import serial_engine

    display = Display(quiet=quiet, verbose=verbose, note=cluster.note if cluster else str)
    with display.log():
        store = bound_run(run, {**flags, "bound": method}, engine=cluster or serial_engine, progress=display.progress)
    if as_json:
        print(dump_json(text.summarize_run(store, unit=unit)))
    else:
        show(*text.format_run(store, unit=unit))
    for failed in store.manifest["failed_shards"]:
        display.say("{attack} {norm}, shard {shard}, failed: {error}".format(**failed))
    if store.manifest["failed_shards"]:
        raise Exit(1)
