"""The paper's experiments: ``marginattack reproduce NAME``, one table or figure each."""

from marginattack.reproduce.experiments import EXPERIMENTS as EXPERIMENTS
from marginattack.reproduce.experiments import reproduce as reproduce
