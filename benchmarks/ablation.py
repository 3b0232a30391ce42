"""What each ingredient of Race buys: the attack without it, on some networks of the suite.

    PYTHONPATH=src:benchmarks python benchmarks/ablation.py [SAMPLES] [MODEL …]

Each row is Race with one setting changed; the pool that excess refers to is over all rows and budgets of a model and
norm.
The digits are bundled ones beyond those of the suite's own runs.
"""

import sys
from typing import Any

from networks import NETWORKS, network
from record import write

from marginattack.analysis import benchmarking as bench
from marginattack.attacks import Attack, MarginAttack, Race
from marginattack.attacks.marginattack import Slide
from marginattack.core.classifier import Classifier
from marginattack.core.norms import as_norm
from marginattack.core.schedules import Cosine
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

FIRST, BUDGETS = 600, (100, 400)  # the first digit
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
    images, labels = samples("mnist")
    found = []
    for model in models or ("mnist-gelu", "mnist-kwta", "mnist-cnn-adv"):
        classifier = Classifier(network(model) if model in NETWORKS else zoo(model), chunk=500)
        with classifier.held():
            right = classifier.predict(images[FIRST:]) == labels[FIRST:]
            x, y, _ = classifier.accept(images[FIRST:][right][: int(number)], labels[FIRST:][right][: int(number)])
            for norm in ("l2", "linf"):
                found.append(compared(model, classifier, x, y, norm))
    write("ablation", found)


def compared(model: str, classifier: Classifier, x: Any, y: Any, norm: str) -> dict[str, Any]:
    """Every row on one model under one norm."""
    trials = {
        (name, budget): bench.trial(classifier, x, y, as_norm(norm), attack, budget=budget)
        for name, attack in ROWS.items()
        for budget in BUDGETS
    }
    best = bench.pooled(list(trials.values()))
    excess = {f"{name}, {budget}": bench.mean_excess(trial.distance, best) for (name, budget), trial in trials.items()}
    print(model, norm, {key: f"{value:.2%}" for key, value in excess.items()}, flush=True)
    return {"model": model, "norm": norm, "n": len(x), "excess": excess}


if __name__ == "__main__":
    main(*sys.argv[1:])
