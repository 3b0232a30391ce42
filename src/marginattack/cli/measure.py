"""marginattack measure and diagnose: any model on any data set."""

from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from marginattack.cli.common import Display, dump_json, one_line_errors, show
from marginattack.cli.options import (
    Address,
    AsJson,
    Config,
    Engine,
    GpusPerWorker,
    Quiet,
    Set,
    Unit,
    Verbose,
    Workers,
    check_unit,
    setting_options,
)
from marginattack.errors import choose
from marginattack.runs.settings import as_toml, read_settings
from marginattack.storage.paths import refuse_keys

if TYPE_CHECKING:
    from marginattack.runs.engines.ray import Cluster

OUT = "Run folder to write or resume; a path or s3://bucket/folder."


@setting_options("*")
@one_line_errors(resumable=True)
def measure(
    flags: dict[str, Any],
    out: Annotated[str | None, Option(metavar="RUN", help=OUT)] = None,
    config: Config = None,
    set_: Set = None,
    print_config: Annotated[bool, Option("--print-config", help="Print the settings as TOML and exit.")] = False,
    despite: Annotated[bool, Option("--despite-findings", help="Measure despite grave findings.")] = False,
    engine: Engine = "serial",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = None,
    unit: Unit = 1,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Measure margins into a run folder. Run the same command again to resume an interrupted run."""
    check_unit(unit)
    settings = read_settings(config, set_ or [], flags)
    if print_config:
        print(dump_json(settings.model_dump()) if as_json else as_toml(settings).rstrip())
        return
    if out is None:
        raise ValueError("no run folder given: pass --out RUN")
    cluster = make_cluster(engine, address, workers, gpus_per_worker)
    from marginattack.report import text
    from marginattack.runs.engines.serial import serial_engine
    from marginattack.runs.run import run

    display = Display(quiet=quiet, verbose=verbose, note=cluster.note if cluster else str)
    with display.log():
        store = run(
            settings, out, ignore_findings=despite, engine=cluster or serial_engine, progress=display.progress,
            on_finding=lambda finding: display.say(finding.line()),
        )  # fmt: skip
    if as_json:
        print(dump_json(text.summarize_run(store, unit=unit)))
    else:  # findings were shown already
        show(
            *text.format_run(store, unit=unit, findings=quiet),
            f"Stored in {store.path}; report: `marginattack report {store.path}`",
        )
    if store.manifest["verified"]["failed"] or store.manifest["failed_shards"]:
        raise Exit(1)


@setting_options("model*", "data*", "expect_accuracy", "device", "randomized", "max_gib")
@one_line_errors()
def diagnose(flags: dict[str, Any], config: Config = None, set_: Set = None, as_json: AsJson = False) -> None:
    """Check a model and data set. Finds problems that make margins meaningless or too large; exit code 1 if grave."""
    settings = read_settings(config, set_ or [], flags)
    from dataclasses import asdict

    from marginattack.runs.job import open_job, run_preflight

    seen = run_preflight(open_job(settings))
    if as_json:
        accuracy = None if seen.correct is None else seen.correct / seen.samples
        print(dump_json({**asdict(seen), "accuracy": accuracy}))
    else:
        print("\n".join(finding.line() for finding in seen.findings) or "No problems found.")
        if seen.correct is not None:
            print(f"Accuracy: {seen.correct / seen.samples:.1%} ({seen.correct} of {seen.samples} samples).")
    if any(finding.grade == "grave" for finding in seen.findings):
        raise Exit(1)


def make_cluster(engine: str, address: str | None, workers: int | None, gpus: float | None) -> "Cluster | None":
    """Make the Ray engine; None for the serial engine, which takes no cluster options."""
    if engine == "ray":
        from marginattack.runs.engines.ray import Cluster

        refuse_keys(address or "")
        return Cluster(address=address, workers=workers, gpus=gpus)
    if engine != "serial":
        raise ValueError(f"no engine named {engine!r}: {choose(engine, ('serial', 'ray'))}")
    for flag, value in (("--address", address), ("--workers", workers), ("--gpus-per-worker", gpus)):
        if value is not None:
            raise ValueError(f"{flag} {value} needs a Ray cluster: add --engine ray")
    return None
