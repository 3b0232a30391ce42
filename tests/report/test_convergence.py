"""What the page says about the way of an attack to its margins."""

from itertools import pairwise
from pathlib import Path

import pytest
from runs import real_run

from marginattack.report.convergence import extrapolate, judge_budget, summarize_phases
from marginattack.report.datasets import build_views
from marginattack.report.page import render_page
from marginattack.report.series import group_by_norm, read_runs


def test_phases_of_race_are_named_and_cover_its_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = real_run(tmp_path / "run", digits=4, norms=("l2",), attacks=["race"], attack={}, budget=200)
    (view,) = build_views(group_by_norm(read_runs([run])))
    assert view.phased
    spans = view.datasets["spans"].rows()
    for sample in {span["id"] for span in spans}:
        mine = [span for span in spans if span["id"] == sample]
        assert mine[0]["phase"] == "profile"
        assert [span["phase"] for span in mine][-2:] == ["polish", "closing"]
        assert mine[0]["p1"] == 0
        assert all(a["p2"] == b["p1"] for a, b in pairwise(mine))
        assert mine[-1]["p2"] <= 200
        assert sum(span["first"] for span in mine) == 1
    table = summarize_phases(spans)
    assert all(0 <= row["fall"] < 1 and row["about"] for row in table)
    fall = judge_budget(view.group[0])
    assert fall is not None
    assert 0 <= fall["median"] <= fall["ninth"] <= 1
    monkeypatch.setattr("marginattack.report.page.bundle_script", str)  # slow, and not the point
    page = render_page([run])
    assert "In the last tenth of its passes the attack lowered" in page
    assert "Phases of the traced samples in ℓ2" in page
    assert "This is an extrapolation, not a measurement." in page
    for phase in {span["phase"] for span in spans}:
        assert f"</span>{phase}</span>" in page  # in the key
    assert "ranks the other classes" in page or "a descent from the input" in page


def test_the_anytime_curve_is_extrapolated() -> None:
    def trace(*bests: float | None) -> list[dict[str, object]]:
        return [{"id": i, "query": q, "passes": 25 * (q + 1), "best": best}
                for i in range(4) for q, best in enumerate(bests)]  # fmt: skip

    found = extrapolate(trace(1.0, 0.9, 0.85, 0.9**1.5))
    assert found is not None
    assert found["first"] == pytest.approx(0.1)
    assert found["second"] == pytest.approx(1 - 0.9**0.5)
    assert found["next"] == pytest.approx(1 - 0.9**0.25)  # half as much again, in logarithms
    assert extrapolate(trace(None, 1.0, 1.0, 1.0)) is None  # nothing was found in a quarter of the passes
    flat = extrapolate(trace(1.0, 1.0, 1.0, 1.0))
    assert flat is not None
    assert flat["next"] == 0
