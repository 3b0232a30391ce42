"""Settings: from TOML, assignments and options, in that order; errors are one line that names the key."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from marginattack import InputError, MarginAttack
from marginattack.attacks import ATTACKS
from marginattack.core.schedules import Constant
from marginattack.runs.settings import as_toml, build_attack, read_settings

FLAGS = {"model": "zoo:mnist-cnn", "data": "samples:mnist"}

CONFIG = """
model = "zoo:mnist-cnn"
norms = ["l2", "linf"]
budget = 100
data = {source = "samples:mnist", limit = 10}
attack.marginattack.moves = 30
"""


def test_options_override_assignments_which_override_the_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    flags: dict[str, Any] = {"model": None, "data.limit": 30, "seed": 5, "model.normalize": "none"}
    settings = read_settings(tmp_path / "run.toml", ["data.limit=20", "budget=200", "device=cpu"], flags)
    assert (settings.data.limit, settings.budget, settings.seed, settings.device) == (30, 200, 5, "cpu")
    assert (settings.model.source, settings.model.normalize) == ("zoo:mnist-cnn", "none")
    assert settings.norms == ["l2", "linf"]
    assert settings.attack == {"marginattack": {"moves": 30}}


def test_an_option_replaces_the_source_in_a_table(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    settings = read_settings(tmp_path / "run.toml", [], {"data": "x.npz"})
    assert (settings.data.source, settings.data.limit) == ("x.npz", 10)


def test_settings_are_frozen_and_read_back_as_printed(tmp_path: Path) -> None:
    settings = read_settings(None, ["attack.marginattack.moves=30", "data.limit=7"], {**FLAGS, "norms": ["l1"]})
    (tmp_path / "printed.toml").write_text(as_toml(settings))
    assert read_settings(tmp_path / "printed.toml", [], {}) == settings
    with pytest.raises(ValueError, match="frozen"):
        settings.seed = 3
    assert tomllib.loads(as_toml(settings))["attack"] == {"marginattack": {"moves": 30}}


@pytest.mark.parametrize("form", ["model.trust_pickle = true", "[model]\nsource = 'zoo:mnist-cnn'\ntrust_pickle = 1"])
def test_a_file_cannot_grant_trust(tmp_path: Path, form: str) -> None:
    (tmp_path / "run.toml").write_text(form)
    with pytest.raises(
        InputError, match=r"run\.toml sets model\.trust_pickle, which only the command line can grant: add"
    ):
        read_settings(tmp_path / "run.toml", [], FLAGS)
    for assignments, more in ((["model.trust_pickle=true"], {}), ([], {"model.trust_pickle": True})):
        assert read_settings(tmp_path / "run.toml", assignments, {**FLAGS, **more}).model.trust_pickle
    (tmp_path / "run.toml").write_text("model.trust_pickle = false")
    assert not read_settings(tmp_path / "run.toml", [], FLAGS).model.trust_pickle


BAD = {
    "bugdet=3": "no setting named bugdet: did you mean budget?",
    "data.limits=3": "no setting named data.limits: did you mean limit?",
    "budget=0": "setting budget is 0: input should be greater than or equal to 1",
    "budget=many": "setting budget is 'many': input should be a valid integer",
    'norms=["l3"]': "setting norms is ['l3']: no norm named 'l3': choose one of l0, l1, l2, linf",
    'attacks=["gpd"]': "setting attacks is ['gpd']: no attack named 'gpd': did you mean pgd?",
    "lattice=16": "setting lattice is 16: input should be 255",
    "expect_accuracy=95": "setting expect_accuracy is 95: input should be less than or equal to 1",
    "seed.deep=1": "cannot set seed.deep",
    "nothing": "--set 'nothing' is not an assignment: write --set a.b=value",
}


@pytest.mark.parametrize("assignment", BAD)
def test_errors_are_one_line_that_names_the_setting(assignment: str) -> None:
    with pytest.raises(InputError) as caught:
        read_settings(None, ["seed=1", assignment], FLAGS)
    assert str(caught.value).startswith(BAD[assignment])
    assert "\n" not in str(caught.value)


def test_a_config_that_is_invalid_or_missing(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(InputError, match="is not valid TOML"):
        read_settings(tmp_path / "bad.toml", [], {})
    with pytest.raises(InputError, match="cannot read --config"):
        read_settings(tmp_path / "none.toml", [], {})


def test_build_attack_with_numbers_strings_and_constant_schedules() -> None:
    assert {name: build_attack(name, {}) for name in ATTACKS} == {name: ATTACKS[name]() for name in ATTACKS}
    built = build_attack("marginattack", {"moves": 30, "alpha": 0.5, "scan_near": "iterate", "radius": 0.1})
    assert built == MarginAttack(moves=30, alpha=Constant(0.5), scan_near="iterate", radius=0.1)
    assert build_attack("square@0.3", {"queries": 50}) == ATTACKS["square"](eps=0.3, queries=50)  # type: ignore[call-arg]
    preset = build_attack("preset:mnist-l2", {"restarts": 2})
    assert isinstance(preset, MarginAttack)
    assert (preset.restarts, preset.follow) == (2, 0)


def test_a_distance_may_be_a_fraction_and_a_norm_be_written_as_in_papers() -> None:
    settings = read_settings(None, ["attack.pgd.eps=8/255"], {**FLAGS, "attacks": ["pgd"], "norms": ["Linf", "inf"]})
    attack = build_attack("pgd", settings.attack["pgd"])
    assert (getattr(attack, "eps", None), settings.norms) == (8 / 255, ["linf"])
    with pytest.raises(InputError, match=r"attack\.pgd\.eps: '8/x' is not a number: write 0\.5 or 8/255"):
        build_attack("pgd", {"eps": "8/x"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"move": 3}, "marginattack has no setting move: did you mean moves?"),
        ({"moves": "many"}, "attack.marginattack.moves is 'many'"),
        ({"moves": 0}, "attack.marginattack: moves is 0"),
        ({"beta": "cosine"}, "attack.marginattack.beta is 'cosine': give a number"),
        ({"projection": 1}, "attack.marginattack.projection is"),
    ],
)
def test_errors_in_settings_of_an_attack(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_attack("marginattack", values)
    assert str(caught.value).startswith(message)


def test_a_file_may_have_the_former_name_of_precision(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('model = "zoo:mnist-cnn"\ndata = "samples:mnist"\nsearch = "bf16"\n')
    assert read_settings(tmp_path / "run.toml", [], {}).precision == "bf16"
