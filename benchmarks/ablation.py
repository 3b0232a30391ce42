"""The contribution of each part of Race: the attack without it, on some networks of the suite.

    PYTHONPATH=src:benchmarks python benchmarks/ablation.py [SAMPLES] [MODEL …]

Each row is Race with one setting changed; the excess is over the best of all rows and budgets of a model and norm. The
digits are bundled ones that the suite's own runs do not use.
"""

import sys
from dataclasses import replace
from typing import Any

from networks import network
from record import correct_samples, write

from marginattack.analysis import benchmarking as bench
from marginattack.attacks import Attack, MarginAttack, Race
from marginattack.attacks.marginattack import TangentProjection
from marginattack.attacks.race.phases import Profile, Table
from marginattack.attacks.race.rules import DescentRule, SlideRule
from marginattack.core.classifier import Classifier
from marginattack.core.norms import as_norm
from marginattack.core.schedules import Cosine
from marginattack.core.validation import Batch
from marginattack.execution.session import Session, open_session
from marginattack.sources.data import samples

FIRST_DIGIT, BUDGETS = 600, (100, 400)


def change_tables(**changes: Any) -> Race:
    """Race with these changes of all its tables."""
    race = Race()
    near_linear, curved, masked = (
        Profile("changed", replace(each.short, **changes), replace(each.long, **changes))
        for each in (race.near_linear, race.curved, race.masked)
    )
    return replace(race, near_linear=near_linear, curved=curved, masked=masked)


def change_rules(kind: type[DescentRule] | type[SlideRule], **changes: Any) -> Race:
    """Race with these changes of all search rules of a kind."""

    def change(table: Table) -> Table:
        phases = (
            replace(phase, rule=replace(phase.rule, **changes)) if isinstance(phase.rule, kind) else phase
            for phase in table.search
        )
        return replace(table, search=tuple(phases))

    race = Race()
    near_linear, curved, masked = (
        Profile("changed", change(each.short), change(each.long))
        for each in (race.near_linear, race.curved, race.masked)
    )
    return replace(race, near_linear=near_linear, curved=curved, masked=masked)


ROWS: dict[str, Attack] = {
    "Race": Race(),
    "without scouting": Race().without("scout"),
    "without following classes": Race(candidates=0),
    "without proposals": Race().without("propose"),
    "masked samples as curved ones": Race(masked=Race().curved),
    "without polish": change_tables(polish_weight=0.0),
    "gradients from the start": change_rules(DescentRule, warmup=0.0),
    "signs all along": change_rules(DescentRule, warmup=1e9),
    "first step of one radius, not three": change_rules(DescentRule, step=Cosine(1.0, 0.02)),
    "without memory": change_rules(DescentRule, memory=0.0),
    "no faster growth before the first success": change_rules(DescentRule, growth=0.0),
    "slides without averaging": change_rules(SlideRule, average=0.0),
    "no sample counts as nearly linear": Race(trust=0.0),
    "every sample counts as nearly linear": Race(trust=float("inf")),
    "MarginAttack": MarginAttack(),
    "MarginAttack that slides in every norm": MarginAttack(projection=TangentProjection()),
}


def main(number: str = "100", *models: str) -> None:
    """Run every row on each model under ℓ2 and ℓ∞."""
    images, labels = (part[FIRST_DIGIT:] for part in samples("mnist"))
    results = []
    for name in models or ("mnist-gelu", "mnist-kwta", "mnist-cnn-adv"):
        model = network(name)
        with open_session(Classifier(model, batch_size=500)) as session:
            batch = session.validate(*correct_samples(model, images, labels, int(number)))
            results += [compare_rows(name, session, batch, norm) for norm in ("l2", "linf")]
    write("ablation", results)


def compare_rows(model: str, session: Session, batch: Batch, norm: str) -> dict[str, Any]:
    """The mean excess of every row on one model under one norm."""
    trials = {
        f"{name}, {budget}": bench.run_trial(session, batch, as_norm(norm), attack, budget=budget)
        for name, attack in ROWS.items()
        for budget in BUDGETS
    }
    best = bench.best_distances(list(trials.values()))
    excess = {name: bench.mean_excess(trial.distance, best) for name, trial in trials.items()}
    print(model, norm, {key: f"{value:.2%}" for key, value in excess.items()}, flush=True)
    return {"model": model, "norm": norm, "n": len(batch), "excess": excess}


if __name__ == "__main__":
    main(*sys.argv[1:])
