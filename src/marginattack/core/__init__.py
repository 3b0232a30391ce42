"""The optimisation problem: norms, losses, draws, the classifier and queries to it."""
