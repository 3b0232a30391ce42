"""The contribution of each part of Race: the attack without it, on some networks of the suite.

    PYTHONPATH=src:benchmarks python benchmarks/ablation.py [SAMPLES] [MODEL …]

Each row is Race with one setting changed; the excess is over the best of all rows and budgets of a model and norm. The
digits are bundled ones that the suite's own runs do not use.
"""

import sys
from typing import Any

from networks import network
from record import correct_samples, write
from torch import Tensor

from marginattack.analysis import benchmarking as bench
from marginattack.attacks import Attack, MarginAttack, Race
from marginattack.attacks.marginattack import Slide
from marginattack.core.classifier import Classifier
from marginattack.core.norms import as_norm
from marginattack.core.schedules import Cosine
from marginattack.sources.data import samples

FIRST_DIGIT, BUDGETS = 600, (100, 400)
ROWS: dict[str, Attack] = {
    "Race": Race(),
    "without scouting": Race(scouting=0.0),
    "without following classes": Race(candidates=0),
    "without polish": Race(polishing=0.0),
    "gradients from the start": Race(warmup=0.0),
    "signs all along": Race(warmup=1e9),
    "first step of one radius, not three": Race(step=Cosine(1.0, 0.02)),
    "without memory": Race(memory=0.0),
    "no faster growth before the first success": Race(growth=0.0),
    "slides without averaging": Race(average=0.0),
    "no sample counts as nearly linear": Race(trust=0.0),
    "every sample counts as nearly linear": Race(trust=float("inf")),
    "MarginAttack": MarginAttack(),
    "MarginAttack that slides in every norm": MarginAttack(projection=Slide()),
}


def main(number: str = "100", *models: str) -> None:
    """Run every row on each model under ℓ2 and ℓ∞."""
    images, labels = (part[FIRST_DIGIT:] for part in samples("mnist"))
    results = []
    for name in models or ("mnist-gelu", "mnist-kwta", "mnist-cnn-adv"):
        model = network(name)
        classifier = Classifier(model, chunk=500)
        with classifier.held():
            x, y, _ = classifier.accept(*correct_samples(model, images, labels, int(number)))
            results += [compare_rows(name, classifier, x, y, norm) for norm in ("l2", "linf")]
    write("ablation", results)


def compare_rows(model: str, classifier: Classifier, x: Tensor, y: Tensor, norm: str) -> dict[str, Any]:
    """The mean excess of every row on one model under one norm."""
    trials = {
        f"{name}, {budget}": bench.run_trial(classifier, x, y, as_norm(norm), attack, budget=budget)
        for name, attack in ROWS.items()
        for budget in BUDGETS
    }
    best = bench.best_distances(list(trials.values()))
    excess = {name: bench.mean_excess(trial.distance, best) for name, trial in trials.items()}
    print(model, norm, {key: f"{value:.2%}" for key, value in excess.items()}, flush=True)
    return {"model": model, "norm": norm, "n": len(x), "excess": excess}


if __name__ == "__main__":
    main(*sys.argv[1:])
