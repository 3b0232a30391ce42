"""Small versions of the paper's experiments: they check the order of the attacks, not the values."""

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
from marginattack.errors import InputError
from marginattack.reproduce import EXPERIMENTS, ablations, challenge, convergence, experiments, tables, timing
from marginattack.reproduce.rows import Kept, Outcome, Piece, Row, complete, plain, searches
from marginattack.reproduce.show import SHOW
from marginattack.reproduce.subjects import Subject, subject


@pytest.fixture(scope="module")
def mnist() -> Subject:
    return subject("mnist")


def piece(where: Subject, n: int) -> Piece:
    def nothing(name: str) -> Outcome:
        raise AssertionError(name)

    return Piece(
        model=where.model, images=where.images[:n], labels=where.labels[:n], ids=list(range(n)), before=nothing
    )  # fmt: skip


def median(piece: Piece, attack: Any, norm: str) -> float:
    return float(np.median(piece.measured(attack, norm).distance))


def test_cw_in_stages_is_cw_with_each_number_of_searches(mnist: Subject) -> None:
    some = piece(mnist, 3)
    cw = CarliniWagner(searches=3, steps=30, rate=0.1, initial=1.0)
    staged = searches(cw, (1, 3), ("one", "three"))(some)
    for name, number in (("one", 1), ("three", 3)):
        whole = some.measured(replace(cw, searches=number), "l2")
        assert staged[name].distance == whole.distance
        assert staged[name].passes == whole.passes
    assert f"searches={1}," in staged["one"].settings


def test_margins_come_in_the_papers_order_in_l2(mnist: Subject) -> None:
    some = piece(mnist, 8)
    ours = median(some, replace(preset("mnist-l2"), restarts=1, radius=0.0, moves=60, closing=6), "l2")
    assert ours < median(some, DeepFool(), "l2")
    assert ours < median(some, CarliniWagner(searches=3, steps=60, rate=0.05, initial=1e-2), "l2")


def test_margins_come_in_the_papers_order_in_linf(mnist: Subject) -> None:
    some = piece(mnist, 8)
    ours = some.measured(ma.MarginAttack(moves=60, closing=6), "linf").distance
    assert np.median(ours) < median(some, FGSM(), "linf")
    for level in tables.levels("mnist", "linf"):
        pgd = some.measured(PGD(eps=level, steps=30, step=0.01, relative=False), "linf").distance
        assert tables.hits(np.array(ours), level) >= tables.hits(np.array(pgd), level)


def test_cifar_margins_are_below_deepfools() -> None:
    some = piece(subject("cifar10"), 3)
    ours = replace(preset("cifar10-l2"), restarts=1, radius=0.0, moves=40, closing=4, scans=1)
    assert median(some, ours, "l2") < median(some, DeepFool(), "l2")


def test_a_row_goes_on_where_it_was_left_and_gives_the_same(mnist: Subject, tmp_path: Path) -> None:
    row = Row(name="l2 a, b", subject="mnist", n=5, batch=2, run=plain("l2 a, b", DeepFool(steps=3), "l2"))
    kept, lines = Kept(tmp_path), list[str]()
    where = (mnist.model, mnist.images, mnist.labels)
    assert complete(row, kept, *where, limit=0.0, say=lines.append)
    assert len(kept.load(row.name)[row.name].distance) == 2
    assert complete(row, kept, *where, say=lines.append)
    whole = piece(mnist, 5).measured(DeepFool(steps=3), "l2")
    assert kept.load(row.name)[row.name].distance == pytest.approx(whole.distance, rel=1e-4)
    assert not complete(row, kept, *where)
    assert lines[-1].startswith("l2 a, b: 5 of 5")


def test_a_row_whose_settings_changed_tells_both() -> None:
    row = Outcome(settings="A(), searched in tf32", distance=[1.0])
    for settings in ("A(), searched in tf32", "A()", "A()"):
        row.add(Outcome(settings=settings, distance=[2.0]))
    assert row.settings == "A(), searched in tf32; then A()"
    assert row.distance == [1.0, 2.0, 2.0, 2.0]


def test_pgd_counts_what_it_fooled_within_less_and_needs_the_margins(mnist: Subject, tmp_path: Path) -> None:
    row = next(row for row in tables.rows("mnist", quick=True) if row.name == "linf PGD")
    with pytest.raises(InputError, match="needs the margins of linf MarginAttack"):
        complete(row, Kept(tmp_path), mnist.model, mnist.images[:2], mnist.labels[:2])
    ours = Outcome(settings="", distance=[0.05, 0.15])
    run = row.run(replace(piece(mnist, 2), before=lambda name: ours))["linf PGD"]
    assert run.extra["levels"] == sorted({*tables.levels("mnist", "linf"), 0.05})
    found = [d for d in run.distance if np.isfinite(d)]
    assert all(d <= max(run.extra["levels"]) * (1 + tables.HAIR) for d in found)


def test_formulas_as_printed_are_worse(mnist: Subject) -> None:
    some = piece(mnist, 6)
    for norm, wrong in (("l2", ablations.SlideAsPrinted()), ("linf", ablations.ShrinkAsPrinted(b=0.1))):
        right = replace(preset(f"mnist-{norm}"), restarts=1, radius=0.0, moves=60, closing=10, scans=1)
        assert 1.05 * median(some, right, norm) < median(some, replace(right, projection=wrong), norm)


def test_slide_with_its_sign_mended_is_slide_where_no_wall_is_near() -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Linear(6, 3), torch.full((4, 6), 0.5)
    y = model(x).argmax(1)
    ours = replace(preset("mnist-l2"), restarts=1, radius=0.0, scans=0, moves=20, closing=2)
    a = ma.measure(model, x, y, "l2", attack=ours).distance
    b = ma.measure(model, x, y, "l2", attack=replace(ours, projection=ablations.SlideAsPrinted(sign=-1.0))).distance
    assert torch.allclose(a, b, rtol=1e-3)


def test_every_experiment_runs_shows_and_summarises_what_there_is(
    mnist: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(name: str, files: object, device: str) -> Subject:
        return replace(mnist, images=mnist.images[:2], labels=mnist.labels[:2])

    monkeypatch.setattr(experiments, "subject", small)
    chosen = {"mnist": ["l2 DeepFool", "linf FGSM"], "challenge": ["PGD, cross"],
              "timing": ["mnist DeepFool", "mnist CW"], "convergence": ["mnist l2 5 ", "mnist l2 10 "],
              "ablations": ["l2 target scans: 0"]}  # fmt: skip
    for name, rows in chosen.items():
        record = experiments.reproduce(name, tmp_path, quick=True, only=rows, say=lambda line: None)
        assert json.loads((tmp_path / f"{name}-quick.json").read_text()) == record
        text = "\n".join(SHOW[name](record["numbers"]))
        assert ("|" in text) == (name != "mnist")  # its table needs MarginAttack's quantiles
        assert "not run yet" in text or name in ("convergence", "ablations")
        if name == "timing":
            spent = {attack: row["passes"] for attack, row in record["numbers"]["mnist"].items()}
            assert [spent[f"CW {number}{timing.END}"] for number in (3, 5, 10)] == [300, 500, 1000]
            assert spent["CW 10"] < 1000
            assert "CW 10, to the end | 16.02" in text
    assert EXPERIMENTS.keys() == SHOW.keys()


def test_every_attack_of_ours_stands_beside_the_others() -> None:
    far = {"MarginAttack": 3.0, "MarginAttack, our defaults": 2.0, tables.RACE: 1.0, "PGD": 2.5}
    assert {f"linf {name}" for name in far} <= {row.name for row in tables.rows("cifar10")}
    n = {tables.RACE: 2}
    outcomes = {
        f"linf {name}": Outcome(settings=name, distance=[d / 255] * n.get(name, 4), passes=[1] * n.get(name, 4))
        for name, d in far.items()
    }
    lines = SHOW["cifar10"](tables.summarise("cifar10", outcomes))
    assert "| against | the paper's settings | our defaults | Race | n |" in lines
    (gains,) = [line for line in lines if line.startswith("| PGD") and "+" in line]
    _, _, paper_s, ours, race, counts, _ = (cell.strip() for cell in gains.split("|"))
    assert paper_s == ours == "+0.0 / +0.0 / +0.0 / +0.0 / +0.0 / +0.0 / +0.0 / +0.0"
    assert race == "+0.0 / +0.0 / +0.0 / +100.0 / +0.0 / +0.0 / +0.0 / +0.0"  # the paper's last level is 1
    assert counts == "4, 4, 2"


def made(n: int, first: float) -> Outcome:
    return Outcome(settings="", distance=list(np.linspace(first, first + 1, n)), passes=[3] * n)


def test_rates_are_compared_on_the_same_samples() -> None:
    outcomes = {"l2 MarginAttack": made(10, 0.5), "l2 CW 3": made(5, 0.9)}
    row = tables.summarise("mnist", outcomes)["l2"]["rows"]["CW 3"]
    assert (row["n"], row["beside"]["MarginAttack"]["n"]) == (5, 5)
    assert row["beside"]["MarginAttack"]["ours"][0] == 5
    assert row["beside"]["MarginAttack"]["theirs"][0] == 1
    text = "\n".join(SHOW["mnist"](tables.summarise("mnist", outcomes)))
    assert "not run yet" in text
    assert "24.6 / 62.7 / 85.7 / 95.3" in text


def test_the_challenge_counts_what_lies_within_its_level() -> None:
    outcomes = {"MarginAttack": Outcome(settings="", distance=[0.0, 0.3, 0.31, np.inf], passes=[1] * 4)}
    numbers = challenge.summarise(outcomes)
    assert (numbers["rows"]["MarginAttack"]["hits"], numbers["rows"]["MarginAttack"]["wrong"]) == (2, 1)
    assert numbers["any"] == {"n": 4, "attacks": ["MarginAttack"], "hits": 2}
    assert "50.0 (" in "\n".join(SHOW["challenge"](numbers))


def test_the_path_of_an_image_ends_nearer_than_its_first_hop(mnist: Subject) -> None:
    extra = convergence.path(piece(subject("cifar10"), 1))["path"].extra
    assert len(extra["distance"]) == len(extra["c"]) == len(extra["move"])
    assert min(b for b in extra["best"] if b is not None) < extra["distance"][1]


BAD = {
    "reproduce nothing": "cannot reproduce 'nothing': choose one of mnist, cifar10",
    "reproduce mnist --data none.npz": "--data none.npz: no such file",
    "reproduce mnist --device nonsense": "--device nonsense cannot be used",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_ends_with_one_line(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"marginattack: {BAD[command]}")
    assert result.stderr.count("\n") == 1


def test_imagenet_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite_pytorch", None)
    result = CliRunner().invoke(app, ["reproduce", "imagenet", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "pip install --no-deps efficientnet_lite_pytorch" in result.stderr
    assert "--data FILE.npz" in result.stderr


def test_data_files_go_to_the_subject_they_name(tmp_path: Path) -> None:
    assert experiments.files_for("challenge", ["mnist=a.npz", "cifar10=b.npz"]) == ["a.npz"]
    assert experiments.files_for("cifar10", ["c.npz"]) == ["c.npz"]
    x = np.zeros((2, 28, 28), np.uint8)
    np.savez(tmp_path / "m.npz", x_test=x, y_test=np.array([1, 2]), x_train=x[:1], y_train=np.array([0]))
    where = subject("mnist", [str(tmp_path / "m.npz")])
    assert (tuple(where.images.shape), where.labels.tolist()) == ((2, 1, 28, 28), [1, 2])
    with pytest.raises(InputError, match=r"x is torch\.uint8 of shape"):
        subject("cifar10", [str(tmp_path / "m.npz")])
