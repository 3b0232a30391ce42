"""Small versions of the paper's experiments: they check the ranking of the attacks, not the values."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import marginattack as ma
from marginattack.attacks import FGSM, PGD, CarliniWagner, DeepFool
from marginattack.attacks.presets import preset
from marginattack.cli import app
from marginattack.core.losses import Hinge, Margin
from marginattack.errors import InputError
from marginattack.reproduce import (
    EXPERIMENTS,
    ablations,
    challenge,
    convergence,
    experiments,
    readings,
    success_rates,
    timing,
)
from marginattack.reproduce.models_under_test import ModelUnderTest, load_model_under_test
from marginattack.reproduce.records import decode, find_fault, provenance
from marginattack.reproduce.runner import Batch, Outcome, attack_row, load_outcomes, run_cw, run_row


@pytest.fixture(scope="module")
def mnist() -> ModelUnderTest:
    return load_model_under_test("mnist")


def first_images(test: ModelUnderTest, n: int) -> Batch:
    def no_outcome(name: str) -> Outcome:
        raise AssertionError(name)

    images, labels = test.images[:n], test.labels[:n]
    return Batch(model=test.model, images=images, labels=labels, ids=list(range(n)), outcome_of=no_outcome)


def median(batch: Batch, attack: Any, norm: str) -> float:
    return float(np.median(batch.measure(attack, norm).distance))


def test_resumed_cw_is_cw_with_each_number_of_searches(mnist: ModelUnderTest) -> None:
    batch = first_images(mnist, 3)
    cw = CarliniWagner(searches=3, steps=30, rate=0.1, initial=1.0)
    resumed = run_cw(cw, {1: "one", 3: "three"})(batch)
    for name, number in (("one", 1), ("three", 3)):
        single_run = batch.measure(replace(cw, searches=number), "l2")
        assert resumed[name].distance == single_run.distance
        assert resumed[name].passes == single_run.passes
    assert "searches=1," in resumed["one"].settings


def test_attacks_rank_as_in_the_paper_in_l2(mnist: ModelUnderTest) -> None:
    batch = first_images(mnist, 8)
    ours = median(batch, replace(preset("mnist-l2"), restarts=1, radius=0.0, moves=60, closing=6), "l2")
    assert ours < median(batch, DeepFool(), "l2")
    assert ours < median(batch, CarliniWagner(searches=3, steps=60, rate=0.05, initial=1e-2), "l2")


def test_the_papers_settings_are_above_fgsm_in_linf(mnist: ModelUnderTest) -> None:
    batch = first_images(mnist, 8)
    published = replace(preset("mnist-linf"), restarts=1, radius=0.0, moves=100, closing=10, scans=1)
    assert median(batch, published, "linf") < median(batch, FGSM(), "linf")


def test_our_defaults_are_at_or_above_pgd_in_linf(mnist: ModelUnderTest) -> None:
    batch = first_images(mnist, 8)
    ours = batch.measure(ma.MarginAttack(moves=60, closing=6), "linf").distance
    for level in success_rates.levels("mnist", "linf"):
        pgd = batch.measure(PGD(eps=level, steps=30, step=0.01, relative=False), "linf").distance
        assert success_rates.count_hits(np.array(ours), level) >= success_rates.count_hits(np.array(pgd), level)


def test_cifar_margins_are_below_deepfools() -> None:
    batch = first_images(load_model_under_test("cifar10"), 3)
    ours = replace(preset("cifar10-l2"), restarts=1, radius=0.0, moves=40, closing=4, scans=1)
    assert median(batch, ours, "l2") < median(batch, DeepFool(), "l2")


def test_an_interrupted_row_resumes_with_the_same_result(mnist: ModelUnderTest, tmp_path: Path) -> None:
    row = attack_row("l2 a, b", DeepFool(steps=3), "l2", model="mnist", n=5, batch_size=2)
    lines = list[str]()
    assert run_row(row, tmp_path, mnist, limit=0.0, log=lines.append)
    assert len(load_outcomes(tmp_path, row.name)[row.name].distance) == 2
    assert run_row(row, tmp_path, mnist, log=lines.append)
    at_once = first_images(mnist, 5).measure(DeepFool(steps=3), "l2")
    assert load_outcomes(tmp_path, row.name)[row.name].distance == pytest.approx(at_once.distance, rel=1e-4)
    assert not run_row(row, tmp_path, mnist)
    assert lines[-1].startswith("l2 a, b: 5 of 5")


def test_a_row_whose_settings_changed_states_both() -> None:
    row = Outcome(settings="A(), searched in tf32", distance=[1.0])
    for settings in ("A(), searched in tf32", "A()", "A()"):
        row.extend(Outcome(settings=settings, distance=[2.0]))
    assert row.settings == "A(), searched in tf32; then A()"
    assert row.distance == [1.0, 2.0, 2.0, 2.0]


def test_pgd_needs_the_margins_and_attacks_at_every_level(mnist: ModelUnderTest, tmp_path: Path) -> None:
    row = next(row for row in success_rates.rows("mnist", quick=True) if row.name == "linf PGD")
    with pytest.raises(InputError, match="needs the margins of linf MarginAttack"):
        run_row(row, tmp_path, replace(mnist, images=mnist.images[:2], labels=mnist.labels[:2]))
    ours = Outcome(settings="", distance=[0.05, 0.15])
    run = row.run(replace(first_images(mnist, 2), outcome_of=lambda name: ours))["linf PGD"]
    assert run.extra["levels"] == sorted({*success_rates.levels("mnist", "linf"), 0.05})
    found = [d for d in run.distance if np.isfinite(d)]
    assert all(d <= max(run.extra["levels"]) * (1 + success_rates.TOLERANCE) for d in found)


def test_formulas_as_printed_are_worse(mnist: ModelUnderTest) -> None:
    batch = first_images(mnist, 6)
    for norm, wrong in (
        ("l2", ablations.TangentProjectionAsPrinted()),
        ("linf", ablations.LinearProjectionAsPrinted(b=0.1)),
    ):
        right = replace(preset(f"mnist-{norm}"), restarts=1, radius=0.0, moves=60, closing=10, scans=1)
        assert 1.05 * median(batch, right, norm) < median(batch, replace(right, projection=wrong), norm)


def test_eq_8_with_its_sign_corrected_is_the_tangent_projection_far_from_the_box() -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Linear(6, 3), torch.full((4, 6), 0.5)
    y = model(x).argmax(1)
    ours = replace(preset("mnist-l2"), restarts=1, radius=0.0, scans=0, moves=20, closing=2)
    a = ma.measure(model, x, y, "l2", attack=ours).distance
    b = ma.measure(
        model, x, y, "l2", attack=replace(ours, projection=ablations.TangentProjectionAsPrinted(sign=-1.0))
    ).distance
    assert torch.allclose(a, b, rtol=1e-3)


def test_every_experiment_runs_and_formats_the_outcomes_so_far(
    mnist: ModelUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two_images(name: str, files: object, device: str) -> ModelUnderTest:
        return replace(mnist, images=mnist.images[:2], labels=mnist.labels[:2])

    monkeypatch.setattr(experiments, "load_model_under_test", two_images)
    chosen = {"mnist": ["l2 DeepFool", "linf FGSM"], "challenge": ["PGD, cross"],
              "timing": ["mnist DeepFool", "mnist CW"], "convergence": ["mnist l2 5 ", "mnist l2 10 "],
              "ablations": ["l2 target scans: 0"], "readings": ["mnist our"], "race": ["l2"],
              "losses": ["hinge"], "gap": ["the paper's"]}  # fmt: skip
    for name, rows in chosen.items():
        record = experiments.reproduce(name, tmp_path, quick=True, only=rows, log=lambda line: None)
        assert json.loads((tmp_path / f"{name}-quick.json").read_text()) == record
        text = "\n".join(EXPERIMENTS[name].markdown(record["numbers"]))
        assert ("|" in text) == (name != "mnist")  # its table needs MarginAttack's quantiles
        assert "not run yet" in text or name in ("convergence", "ablations", "readings", "race", "losses", "gap")
        if name == "timing":
            spent = {attack: row["passes"] for attack, row in record["numbers"]["mnist"].items()}
            assert [spent[f"CW {number}{timing.END}"] for number in (3, 5, 10)] == [300, 500, 1000]
            assert spent["CW 10"] < 1000
            assert "CW 10, to the end | 16.02" in text


def test_each_of_our_attacks_is_compared_with_the_others() -> None:
    far = {"MarginAttack": 3.0, "MarginAttack, our defaults": 2.0, success_rates.RACE: 1.0, "PGD": 2.5}
    assert {f"linf {name}" for name in far} <= {row.name for row in success_rates.rows("cifar10")}
    n = {success_rates.RACE: 2}
    outcomes = {
        f"linf {name}": Outcome(settings=name, distance=[d / 255] * n.get(name, 4), passes=[1] * n.get(name, 4))
        for name, d in far.items()
    }
    lines = EXPERIMENTS["cifar10"].markdown(success_rates.summarise("cifar10", outcomes))
    assert "| against | the paper's settings | our defaults | Race | n |" in lines
    (gains,) = [line for line in lines if line.startswith("| PGD") and "+" in line]
    _, _, paper_s, ours, race, counts, _ = (cell.strip() for cell in gains.split("|"))
    assert paper_s == ours == "+0.0 / +0.0 / +0.0 / +0.0 / +0.0 / +0.0 / +0.0 / +0.0"
    assert race == "+0.0 / +0.0 / +0.0 / +100.0 / +0.0 / +0.0 / +0.0 / +0.0"  # the paper's last level is 1
    assert counts == "4, 4, 2"


def test_readings_differ_in_the_design_or_in_the_count_of_beta() -> None:
    published = preset("mnist-linf")
    by_name = readings.readings(published)
    assert by_name["linearised, β by pairs"] == published
    assert len({(repr(attack.projection), attack.beta(1, 90)) for attack in by_name.values()}) == 6
    assert by_name["linearised, tuned until misclassified"] == replace(published, until_misclassified=True)
    assert [by_name[f"exact, β {count}"].beta(0, 90) for count in ("by pairs", "by moves")] == [1.0, 0.5]
    assert by_name["exact, β from the second pair"].beta(1, 90) == pytest.approx(1 / 3)


def test_readings_are_tested_against_pgd_on_the_samples_that_both_have() -> None:
    far = Outcome(settings="", distance=[0.05] * 8 + [0.5], passes=[1] * 9)
    pgd = Outcome(settings="", distance=[0.07] * 8, passes=[1] * 8)
    numbers = readings.summarise({"mnist exact, β by pairs": far, "mnist PGD": pgd})
    ours, theirs = (decode(row["distances"]) for row in numbers["mnist"]["rows"].values())
    first, second, *_ = readings.sign_tests(ours, theirs, numbers["mnist"]["levels"])
    assert (first["n"], first["ours"], first["theirs"]) == (8, 8, 0)
    assert first["p"] == pytest.approx(2 * 0.5**8)
    assert (second["ours"], second["p"]) == (0, 1.0)
    text = "\n".join(EXPERIMENTS["readings"].markdown(numbers))
    assert "| exact, β by pairs | 9 | 88.9 / 88.9 / 88.9 / 88.9" in text
    assert "8, 0 (0.0078) / 0, 0 (1)" in text


def test_hinge_50_and_the_margin_make_the_same_steps_until_a_sample_is_fooled() -> None:
    model = load_model_under_test("challenge")
    batch = first_images(model, 12)
    pgd = PGD(eps=0.35, steps=20, step=0.03, relative=False, random=True)
    hinge, margin = (batch.measure(replace(pgd, loss=loss), "linf") for loss in (Hinge(), Margin()))
    assert hinge.distance == margin.distance
    assert hinge.passes == margin.passes
    logits = torch.tensor([[0.0, 60.0], [0.0, 40.0]])  # by 60 the hinge is flat, but such a sample is fooled
    labels = torch.zeros(2, dtype=torch.long)
    assert Hinge()(logits, labels).tolist() == [-50.0, -40.0]
    assert Margin()(logits, labels).tolist() == [-60.0, -40.0]


def test_a_record_states_every_process_that_measured_a_part(mnist: ModelUnderTest, tmp_path: Path) -> None:
    for folder, only in ((tmp_path / "a", ["l2"]), (tmp_path / "b", ["linf"])):
        row = next(row for row in EXPERIMENTS["race"].rows() if row.name == only[0])
        run_row(replace(row, n=2, batch_size=2), folder / "race", mnist)
        part = provenance(f"command {only[0]}", "a CPU") | {"commit": "abc1234", "rows": only}
        (folder / f"race/part-{only[0]}.json").write_text(json.dumps(part))
    record = experiments.merge("race", tmp_path / "both", [tmp_path / "a", tmp_path / "b"])
    assert sorted(record["numbers"]["rows"]) == ["l2", "linf"]
    assert sorted(part["command"] for part in record["parts"]) == ["command l2", "command linf"]
    assert find_fault(record) is None
    assert json.loads((tmp_path / "both/race.json").read_text()) == record
    with pytest.raises(InputError, match="has no outcomes of race"):
        experiments.merge("race", tmp_path / "none", [tmp_path / "c"])


def outcome(n: int, first: float) -> Outcome:
    return Outcome(settings="", distance=list(np.linspace(first, first + 1, n)), passes=[3] * n)


def test_rates_are_compared_on_the_same_samples() -> None:
    outcomes = {"l2 MarginAttack": outcome(10, 0.5), "l2 CW 3": outcome(5, 0.9)}
    row = success_rates.summarise("mnist", outcomes)["l2"]["rows"]["CW 3"]
    assert (row["n"], row["beside"]["MarginAttack"]["n"]) == (5, 5)
    assert row["beside"]["MarginAttack"]["ours"][0] == 5
    assert row["beside"]["MarginAttack"]["theirs"][0] == 1
    text = "\n".join(EXPERIMENTS["mnist"].markdown(success_rates.summarise("mnist", outcomes)))
    assert "not run yet" in text
    assert "24.6 / 62.7 / 85.7 / 95.3" in text


def test_the_challenge_counts_points_within_its_level() -> None:
    outcomes = {"MarginAttack": Outcome(settings="", distance=[0.0, 0.3, 0.31, np.inf], passes=[1] * 4)}
    numbers = challenge.summarise(outcomes)
    assert (numbers["rows"]["MarginAttack"]["hits"], numbers["rows"]["MarginAttack"]["wrong"]) == (2, 1)
    assert numbers["any"] == {"n": 4, "attacks": ["MarginAttack"], "hits": 2}
    assert "50.0 (" in "\n".join(EXPERIMENTS["challenge"].markdown(numbers))


def test_the_path_of_an_image_ends_nearer_than_its_first_restoration() -> None:
    extra = convergence.trace_path(first_images(load_model_under_test("cifar10"), 1))["path"].extra
    assert len(extra["distance"]) == len(extra["c"]) == len(extra["move"])
    assert min(b for b in extra["best"] if b is not None) < extra["distance"][1]


BAD = {
    "reproduce anything": "cannot reproduce 'anything': choose one of mnist, cifar10",
    "reproduce mnist --data none.npz": "--data none.npz: no such file",
    "reproduce mnist --device nonsense": "--device nonsense cannot be used",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_line(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"marginattack: {BAD[command]}")
    assert result.stderr.count("\n") == 1


def test_imagenet_states_its_requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite_pytorch", None)
    result = CliRunner().invoke(app, ["reproduce", "imagenet", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "pip install --no-deps efficientnet_lite_pytorch" in result.stderr
    assert "--data FILE.npz" in result.stderr


def test_data_files_go_to_the_data_set_that_they_name(tmp_path: Path) -> None:
    assert experiments.files_for("challenge", ["mnist=a.npz", "cifar10=b.npz"]) == ["a.npz"]
    assert experiments.files_for("cifar10", ["c.npz"]) == ["c.npz"]
    x = np.zeros((2, 28, 28), np.uint8)
    np.savez(tmp_path / "m.npz", x_test=x, y_test=np.array([1, 2]), x_train=x[:1], y_train=np.array([0]))
    test = load_model_under_test("mnist", [str(tmp_path / "m.npz")])
    assert (tuple(test.images.shape), test.labels.tolist()) == ((2, 1, 28, 28), [1, 2])
    with pytest.raises(InputError, match=r"x is torch\.uint8 of shape"):
        load_model_under_test("cifar10", [str(tmp_path / "m.npz")])
