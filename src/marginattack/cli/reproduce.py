"""marginattack reproduce: the paper's experiments."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from marginattack.cli.common import one_line_errors


def reproduce(
    experiment: Annotated[
        str, typer.Argument(help="mnist, cifar10, imagenet, challenge, timing, convergence or ablations")
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Few samples and moves: about three minutes on two cores.")
    ] = False,
    data: Annotated[
        list[str] | None,
        typer.Option(help="An .npz file with x (uint8) and y, instead of the bundled samples; NAME=FILE; repeat."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for results; what is there is continued.")] = Path(
        "reproduced"
    ),
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Run an experiment of the paper and print its table, the paper's figures beside ours."""
    with one_line_errors(f"run it again with --out {out} to continue"):
        from marginattack.reproduce import EXPERIMENTS
        from marginattack.reproduce import reproduce as run

        record = run(
            experiment, out, quick=quick, data=data or (), device=device, log=lambda line: print(line, file=sys.stderr)
        )
        print(EXPERIMENTS[experiment].about)
        print("\n".join(EXPERIMENTS[experiment].markdown(record["numbers"])))
        where = record["conditions"]
        print(f"\n{where['command']}, {where['date']}, {where['hardware']}, commit {where['commit']}")
