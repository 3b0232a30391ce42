"""Merge rows of an experiment that were measured in several folders into one record with all their conditions.

python experiments/merge.py EXPERIMENT OUT FOLDER…
"""

import sys
from pathlib import Path

from marginattack.reproduce.experiments import merge

if __name__ == "__main__":
    name, out, *folders = sys.argv[1:]
    merge(name, Path(out), [Path(folder) for folder in folders])
