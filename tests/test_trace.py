"""Traces: one row per query and sample, with the move that led there."""

import pytest
import torch
from models import inputs, smooth
from problems import validated

import marginattack as ma
from marginattack.runs.trace import trace


def test_a_trace_has_a_row_per_query_with_the_move_that_led_there() -> None:
    model, ids = smooth(), torch.tensor([5, 6, 7])
    attack = ma.MarginAttack(moves=10, closing=2, follow=0, scans=0, rescue=0)
    with validated(ma.Classifier(model), *inputs(model, n=3), ids=ids) as (session, batch):
        rows = trace(session, batch, ma.L2, attack)
        alone = trace(session, batch.select(slice(1)), ma.L2, attack)
        solution = session.solve(batch, ma.L2, attack)
    first = [k for k, number in enumerate(rows["id"]) if number == 5]
    columns = {name: [values[k] for k in first] for name, values in rows.items()}
    assert columns["move"] == ["", *["restoration", "projection"] * 4, *["closing"] * 2]
    assert columns["query"] == list(range(11))
    assert columns["passes"] == [*range(2, 21, 2), 21]
    assert columns["distance"][0] == 0 < columns["c"][0]
    assert columns["distance"] == pytest.approx(alone["distance"])
    assert columns["best"] == sorted(columns["best"], reverse=True)
    crossed = [size for size, c in zip(columns["distance"], columns["c"], strict=True) if c < 0]
    assert columns["best"][-1] == min(crossed) == pytest.approx(float(solution.distance[0]))
