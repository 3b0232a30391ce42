"""marginattack reproduce: the experiments of the paper."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from marginattack.cli.common import Display, dump_json, one_line_errors
from marginattack.cli.options import AsJson, Quiet

NAMES = "mnist, cifar10, imagenet, challenge, timing, convergence, readings, ablations, race, losses or gap."
DATA = ".npz file with x (uint8) and y that replaces the bundled samples. Repeatable."


@one_line_errors(resumable=True)
def reproduce(
    experiment: Annotated[str, Argument(metavar="EXPERIMENT", help=NAMES)],
    quick: Annotated[bool, Option("--quick", help="Few samples and moves: about three minutes on two cores.")] = False,
    data: Annotated[list[str] | None, Option(metavar="[NAME=]FILE", help=DATA)] = None,
    out: Annotated[Path, Option("--out", "-o", metavar="FOLDER", help="Folder of results.")] = Path("reproduced"),
    device: Annotated[str, Option(metavar="DEVICE", help="cpu or cuda.")] = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce an experiment of the paper. Prints its table, with the paper's figures next to ours."""
    from marginattack.reproduce import EXPERIMENTS
    from marginattack.reproduce import reproduce as run

    record = run(experiment, out, quick=quick, data=data or (), device=device, log=Display(quiet=quiet).say)
    if as_json:
        print(dump_json(record))
        return
    print(EXPERIMENTS[experiment].about)
    print("\n".join(EXPERIMENTS[experiment].markdown(record["numbers"])))
    print("\n{command}, {date}, {hardware}, commit {commit}".format(**record["conditions"]))
