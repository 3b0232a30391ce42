"""What people do with margins: tables, curves, rows, names, comparisons."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from models import inputs, smooth

import marginattack as ma
from marginattack.analysis.comparison import why_incomparable
from marginattack.analysis.statistics import robust_accuracy
from marginattack.attacks import ATTACKS
from marginattack.attacks.external import EXTERNAL_ATTACKS
from marginattack.attacks.naming import named_attack
from marginattack.margins import MarginsByNorm

CLASSES = ("ant", "bee", "cat", "dog")
QUICK = ma.MarginAttack(moves=8, closing=2, follow=0)


@pytest.fixture(scope="module")
def margins() -> ma.Margins:
    """Eight samples, the first of them misclassified."""
    model = smooth()
    images, labels = inputs(model, n=8)
    labels[0] = (labels[0] + 1) % 4
    m = ma.measure(model, images, labels, "l2", attack=QUICK)
    return replace(m, classes=CLASSES, names=tuple(f"{k}.png" for k in range(8)))


def test_the_perturbation_is_what_was_added_to_the_inputs(margins: ma.Margins) -> None:
    assert margins.original is not None
    assert (margins.original + margins.perturbation).allclose(margins.adversarial)
    assert margins.perturbation.norm(dim=1).double().allclose(margins.distance, rtol=1e-9)
    with pytest.raises(ma.InputError, match="have no inputs"):
        replace(margins, original=None).perturbation  # noqa: B018


ROWS: dict[str, tuple[Any, list[int]]] = {
    "number": (3, [3]),
    "last": (-1, [7]),
    "slice": (slice(2, 5), [2, 3, 4]),
    "list": ([5, 1], [5, 1]),
    "numpy": (np.array([0, 2]), [0, 2]),
    "mask": (torch.arange(8) > 5, [6, 7]),
    "numpy mask": (np.arange(8) < 2, [0, 1]),
    "backwards": (slice(None, None, -3), [7, 4, 1]),
}


@pytest.mark.parametrize(("rows", "numbers"), ROWS.values(), ids=ROWS)
def test_rows_are_chosen_by_number_slice_and_mask(margins: ma.Margins, rows: Any, numbers: list[int]) -> None:
    part = margins[rows]
    assert part.names == tuple(f"{k}.png" for k in numbers)
    assert part.classes == CLASSES
    assert part.distance.equal(margins.distance[numbers])
    assert part.original is not None
    assert margins.original is not None
    assert part.original.equal(margins.original[numbers])
    assert part.summary()["n"] == len(numbers)


def test_no_row_is_chosen_by_an_empty_list(margins: ma.Margins) -> None:
    assert len(margins[[]]) == 0


@pytest.mark.parametrize("rows", ["a", None, 1.5, [0.5]])
def test_rows_that_are_none_are_refused(margins: ma.Margins, rows: Any) -> None:
    with pytest.raises(
        ma.InputError, match=r"^rows are .*: give a number, a slice, a boolean mask or an array of numbers"
    ):
        margins[rows]


def test_fragile_samples_are_found_by_a_condition_and_listed_one_by_one(margins: ma.Margins) -> None:
    fragile = margins[margins.distance < 0.1]
    assert [float(m.distance) for m in fragile] == fragile.distance.tolist()
    assert 0 < len(fragile) < 8
    with pytest.raises(ma.InputError, match=r"mask has shape \(3,\): give one value for each of 8"):
        margins[[True, False, True]]


def test_tables_have_one_row_per_sample_with_names(margins: ma.Margins) -> None:
    pandas, polars = margins.to_pandas(), margins.to_polars()
    assert pandas["distance"].tolist() == polars["distance"].to_list() == margins.distance.tolist()
    assert pandas["name"].tolist() == list(margins.names or ())
    assert pandas["label_name"].tolist() == [CLASSES[k] for k in margins.label.tolist()]
    assert list(pandas.columns) == polars.columns
    assert "adversarial" not in polars.columns
    assert "name" not in replace(margins, names=None, classes=None).to_pandas().columns


def test_a_notebook_shows_the_summary_and_the_curve(margins: ma.Margins) -> None:
    page = margins._repr_html_()
    assert "87.5%" in page
    svg = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    path = svg.findall("{http://www.w3.org/2000/svg}path")[1].attrib["d"]
    heights = [float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", path)]
    assert heights == sorted(heights)  # robust accuracy falls
    assert heights[0] == pytest.approx(90 / 8, abs=0.1)
    assert heights[-1] == 90
    nothing = replace(margins, distance=torch.full((8,), torch.inf, dtype=torch.float64))
    assert "<svg" in nothing._repr_html_()
    assert "certified" not in page
    bounded = replace(margins, lower=margins.distance / 2, certified_by=("crown",) * 8)._repr_html_()
    assert "<th>median certified</th><th>closed</th>" in bounded


class Axes:
    """Matplotlib's, as far as it is used."""

    def step(self, x: list[float], y: list[float], **how: Any) -> None:
        self.x, self.y = x, y

    def set(self, **what: Any) -> None:
        self.what = what


def test_a_plot_draws_the_robust_accuracy(margins: ma.Margins, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = Axes()
    assert margins.plot(axes) is axes
    assert axes.y == margins.robust_accuracy(axes.x)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    chart = margins.plot().to_dict()
    assert [row["robust accuracy"] for row in chart["data"]["values"]] == axes.y
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(ma.MarginAttackError, match="matplotlib or Altair is not installed: pip install"):
        margins.plot()


def test_robust_accuracy_is_refused_where_it_was_not_measured(margins: ma.Margins) -> None:
    model = smooth()
    assert margins.original is not None
    case, levels = (model, margins.original, margins.label, "linf"), [0.002, 0.01]
    full = ma.measure(*case, budget=100, diagnose=False)
    early = ma.measure(*case, budget=100, diagnose=False, enough=0.01)
    assert [early.robust_accuracy(eps) for eps in (0, 0.01, 0.02)] == full.robust_accuracy([0, 0.01, 0.02])
    with pytest.raises(
        ma.InputError, match=r"eps is 0.002, but samples stopped within 0.01 \(enough\): give 0 or at least"
    ):
        early.robust_accuracy(levels)
    with pytest.raises(ma.InputError, match=r"eps is 0.002, but samples stopped"):
        ma.compare(early, early, eps=levels)
    within = ma.measure(*case, attack="pgd@0.01", diagnose=False)
    assert within.robust_accuracy(torch.tensor(0.01)) == within.robust_accuracy(0.01)
    with pytest.raises(ma.InputError, match=r"eps is 0.02, but nothing is known beyond the radius of the attack, 0.01"):
        within.robust_accuracy([0.01, 0.02])
    for some, first, last in ((early, 0.01, 1.0), (within, 0.0, 0.01), (full, 0.0, 1.0)):
        axes = some.plot(Axes())
        assert axes.x[0] == first
        assert first < axes.x[-1] <= last
        assert axes.y == some.robust_accuracy(axes.x)
        assert "<svg" in some._repr_html_()
    assert "stopped at 0.01: smaller distances are not margins" in early._repr_html_()
    assert "<svg" in ma.evaluate(*case, eps=0.01, attack="pgd@0.01", diagnose=False).margins._repr_html_()


def test_points_that_float32_rounds_off_the_ball_are_within_it(margins: ma.Margins) -> None:
    """Attacks of other libraries return points at ε (1 + 2e-7); ``evaluate`` counts them, and so does every view."""
    peer = replace(margins, distance=torch.full((8,), 0.1 * (1 + 2.4e-7), dtype=torch.float64))
    [evaluated] = ma.evaluation.summarize(peer, [0.1]).robust
    assert peer.robust_accuracy(0.1) == evaluated.accuracy == ma.compare(peer, peer, eps=0.1).robust_a[0.1] == 0
    assert peer.robust_accuracy([[0.0999, 0.1]]) == [[0.875, 0.0]]
    assert robust_accuracy(peer.distance[1:].numpy(), 8, np.array([0.1]))[0].hits == 0


@pytest.mark.parametrize("eps", ["8/255", float("nan"), [0.1, float("nan")], -1, None])
def test_distances_that_are_none_are_refused(margins: ma.Margins, eps: Any) -> None:
    for accuracy in (margins.robust_accuracy, margins.certified_accuracy):
        with pytest.raises(ma.InputError, match=r"^eps is .*: give .*distance.* such as \[2/255, 8/255\]$"):
            accuracy(eps)


def test_nothing_is_shown_as_a_number_where_there_are_no_samples(margins: ma.Margins) -> None:
    wrong = margins[:1]
    for none in (margins[:0], wrong):
        assert "nan%" not in repr(none)
        assert "nan%" not in none._repr_html_()
    assert "<svg" not in margins[:0]._repr_html_()
    assert "success=–" in repr(wrong)


def test_inputs_and_names_are_stored(margins: ma.Margins, tmp_path: Path) -> None:
    margins.save(tmp_path / "m.parquet")
    read = ma.Margins.load(tmp_path / "m.parquet")
    assert (read.names, read.classes) == (margins.names, CLASSES)
    assert read.perturbation.equal(margins.perturbation)
    both = ma.Margins.join([read[:3], read[3:]])
    assert both.names == margins.names
    assert ma.Margins.join([read[:3], replace(read[3:], names=None)]).names is None


def test_a_file_holds_one_norm_and_attack(margins: ma.Margins, tmp_path: Path) -> None:
    margins.save(tmp_path / "m.parquet")
    assert ma.Margins.load(tmp_path / "m.parquet", norm="L2").norm == "l2"
    for wanted, named in (({"norm": "linf"}, "norm='linf'"), ({"attack": "pgd"}, "attack='pgd'")):
        with pytest.raises(
            ma.InputError, match=rf"m.parquet is a file with margins in l2 by MarginAttack\(.*leave out {named}"
        ):
            ma.Margins.load(tmp_path / "m.parquet", **wanted)


@pytest.mark.parametrize("name", [*ATTACKS, "pgd@1/10", "torchattacks:pgd@0.1"])
def test_a_file_is_loaded_by_the_name_of_its_attack(margins: ma.Margins, tmp_path: Path, name: str) -> None:
    attack = repr(replace(EXTERNAL_ATTACKS["torchattacks:pgd"], eps=0.1) if ":" in name else named_attack(name))
    replace(margins, settings=margins.settings | {"attack": attack}).save(tmp_path / "m.parquet")
    assert len(ma.Margins.load(tmp_path / "m.parquet", attack=name)) == 8
    for other in ("fgsm" if name == "race" else "race", f"{name.partition('@')[0]}@0.3", "torchattacks:apgd"):
        with pytest.raises(ma.InputError, match=f"leave out attack='{other}'"):
            ma.Margins.load(tmp_path / "m.parquet", attack=other)


def test_results_by_norm_are_found_by_any_name_of_the_norm(margins: ma.Margins) -> None:
    results = MarginsByNorm(l2=margins)
    assert results.get("L2") is results.get(2) is results["L2"] is margins
    assert "L2" in results
    assert 2 in results
    for other in ("linf", "l7"):
        assert other not in results
        assert results.get(other) is None
        assert results.get(other, 5) == 5


def test_results_of_other_settings_are_not_joined_and_the_settings_are_named(margins: ma.Margins) -> None:
    assert len(ma.Margins.join(part for part in margins)) == 8
    other = replace(margins, settings=margins.settings | {"budget": 7, "seed": 3})
    with pytest.raises(ma.InputError, match=r"different settings: budget is None and 7, seed is 0 and 3$"):
        ma.Margins.join([margins, other])


@pytest.mark.parametrize("name", ["m.csv", "m.npz", "m.pt", "m.json"])
def test_a_suffix_of_another_format_is_refused(margins: ma.Margins, tmp_path: Path, name: str) -> None:
    with pytest.raises(ma.InputError, match=r"saved as Parquet: name it \.parquet, or use to_pandas"):
        margins.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_results_are_compared_on_the_inputs_that_they_share(margins: ma.Margins) -> None:
    further = replace(margins, distance=2 * margins.distance)[[7, 6, 5, 4, 3, 2, 1, 0]]
    found = ma.compare(margins[:6], further, eps=[0.05])
    assert (found.shared, found.n) == (6, 5)  # the first is misclassified
    assert found.accuracy_a == found.accuracy_b == 5 / 6
    assert found.median_ratio == 2
    assert (found.smaller, found.ties, found.larger) == (0, 0, 5)
    assert ma.compare(margins[:6], further, eps=0.05).robust_a == found.robust_a
    assert found.robust_b[0.05] >= found.robust_a[0.05] == margins[:6].robust_accuracy(0.05)
    assert "6 shared samples, 5 correct in both" in str(found)
    by_position = ma.compare(replace(margins, original=None), margins)
    assert (by_position.shared, by_position.ties) == (8, 7)


def test_results_that_cannot_be_compared_are_refused(margins: ma.Margins) -> None:
    with pytest.raises(ma.InputError, match="norms are l2 and linf"):
        ma.compare(margins, replace(margins, norm="linf"))
    with pytest.raises(ma.InputError, match="share no input"):
        ma.compare(margins[:2], margins[2:])
    with pytest.raises(ma.InputError, match="no inputs to match them by"):
        ma.compare(replace(margins, original=None), margins[:3])
    with pytest.raises(ma.InputError, match=r"scale is \(1, 1\) and \(1, 2\) per feature: compare"):
        ma.compare(margins, replace(margins, settings={**margins.settings, "scale": [1.0, 2.0]}))


def test_spaces_are_compared_however_they_are_stated(margins: ma.Margins) -> None:
    """``measure`` states ends and a digest, a run folder lists texts, or a digest of many."""
    plain = {name: value for name, value in margins.settings.items() if name != "bounds"}

    def why(python: dict[str, Any], run: dict[str, Any]) -> str:
        return why_incomparable({"bounds": [0, 1], **python}, {**plain, "space": run})

    assert why({}, {}) == why({"scale": [2.0, 2.0]}, {"scale": ["2.0"]}) == why({}, {"scale": ["1.0"]}) == ""
    assert why({"bounds": [-0.5, 1.0], "box": "ab"}, {"bounds": ["-0.5", "0.0", "1.0", "1.0"]}) == ""
    assert why({"bounds": [-0.5, 1.0], "box": "ab"}, {"bounds": "digest"}) == ""
    assert why({"fixed": True}, {"fixed": ["1.0", "0.0"]}) == why({}, {"fixed": ["0.0", "0.0"]}) == ""
    assert why({}, {"scale": ["2.0"]}).startswith("scale is (1, 1) and (2, 2): compare")
    assert why({"fixed": True}, {}).startswith("fixed is (0, 1) per feature and (0, 0): compare")
    assert why({}, {"bounds": "digest"}).startswith("bounds is (0, 1) and many values")
    assert why({}, {"bounds": ["0.0", "0.5", "1.0", "1.0"]}).startswith("bounds is (0, 1) and (0, 1) per feature")
    runs = [{"space": {"scale": scale}} for scale in (["1.0", "2.0"], ["2.0", "1.0"])]
    assert why_incomparable(*runs).startswith("scale is (1, 2) per feature and others of other features: compare")


OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "targeted": ({"targeted": True}, "targeted is False and True"),
    "within": ({"within": 0.2}, "within is not set and 0.2"),
    "enough": ({"enough": 0.5}, "enough is not set and 0.5"),
    "bounds": ({"bounds": [0.0, 255.0]}, r"bounds is \(0, 1\) and \(0, 255\)"),
}


@pytest.mark.parametrize(("settings", "message"), OTHER.values(), ids=OTHER)
def test_margins_of_another_meaning_are_not_compared(
    margins: ma.Margins, settings: dict[str, Any], message: str
) -> None:
    other = replace(margins, settings=margins.settings | settings)
    with pytest.raises(ma.InputError, match=f"^{message}: compare margins that were measured with the same"):
        ma.compare(margins, other)
    assert ma.compare(other, other).ties == 7
    with pytest.raises(ma.InputError, match="the results have 8 and 0 samples"):
        ma.compare(margins, margins[:0])
