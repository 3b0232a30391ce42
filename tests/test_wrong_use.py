"""Wrong use of the command line: one line on stderr that names the fix, and exit code 2; typos get a suggestion."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from marginattack.cli import app

SOURCES = "--model zoo:mnist-cnn --data samples:mnist"
MEASURE = f"measure {SOURCES} --out run"
CALLS = {
    # typos
    "mesure": "no command named 'mesure': did you mean measure?",
    f"{MEASURE} --bugdet 3": "no option named --bugdet: did you mean --budget?",
    "report run --txt": "no option named --txt: did you mean --text?",
    "--vresion": "no option named --vresion: did you mean --version?",
    f"{MEASURE} --norm l3": "marginattack: --norm l3: no norm named 'l3': choose one of l0, l1, l2, linf",
    f"{MEASURE} --norm l2,linf": "--norm l2,linf: give one at a time: --norm l2 --norm linf",
    f"{MEASURE} --attack race,pgd": "--attack race,pgd: give one at a time: --attack race --attack pgd",
    f"{MEASURE} --target foo": "nor a file of classes: foo not found; choose one of random, least-likely",
    f"{MEASURE} --norm l22": "no norm named 'l22': did you mean l2?",
    f"{MEASURE} --norm l_inff": "no norm named 'l_inff': did you mean linf?",
    f"{MEASURE} --attack gpd": "no attack named 'gpd': did you mean pgd?",
    f"{MEASURE} --attack pdg@8/255": "--attack pdg@8/255: no attack named 'pdg@8/255': did you mean pgd@8/255?",
    f"{MEASURE} --attack ddn": "no attack named 'ddn': did you mean advlib:ddn?",
    f"{MEASURE} --attack xyzzy": "no attack named 'xyzzy': see marginattack list attacks",
    f"bench {SOURCES} --peer sqare@0.3": "no attack named 'sqare@0.3': did you mean square@0.3?",
    f"{MEASURE} --attack preset:mnist": "no attack named 'preset:mnist': did you mean preset:mnist-l2?",
    f"bench {SOURCES} --attack rase": "no attack named 'rase': did you mean race?",
    f"bench {SOURCES} --attack pgd": "PGD has no radius: give its name with one, NAME@8/255, or PGD(eps=8/255)",
    f"bench {SOURCES} --attack daa --norm l2": "DAA supports linf, not l2: choose another norm or attack",
    f"bench {SOURCES} --attack deepfool --norm l1": "DeepFool supports l2, linf, not l1",
    f"bench {SOURCES} --peer autoattack:square": "autoattack:square needs a radius above 0",
    f"bench {SOURCES} --peer advlib:dnd": "no attack named 'advlib:dnd': did you mean advlib:ddn?",
    "measure --model zoo:mnst-cnn --data samples:mnist --out run": "did you mean mnist-cnn?",
    "measure --model mnist-cnn --data samples:mnist --out run": "did you mean zoo:mnist-cnn?",
    "measure --model trochvision:vgg11 --data samples:mnist --out run": "did you mean torchvision:NAME?",
    "measure --model net.py --data samples:mnist --out run": "name the function that builds the model, net.py:factory",
    "measure --model zoo:mnist-cnn --data samples:mnsit --out run": "no samples named 'mnsit': did you mean mnist?",
    "measure --model zoo:mnist-cnn --data sample:mnist --out run": "no such file or folder: did you mean samples:NAME?",
    "measure --model zoo:mnist-cnn --data mnist --out run": "did you mean samples:mnist?",
    f"{MEASURE} --set bugdet=3": "no setting named bugdet: did you mean budget?",
    f"{MEASURE} --set data.limits=3": "no setting named data.limits: did you mean limit?",
    f"{MEASURE} --set attack.race.pases=100": "race has no setting pases: did you mean passes?",
    f"{MEASURE} --engine rey": "no engine named 'rey': did you mean ray?",
    f"{MEASURE} --target randm": "did you mean random?",
    "list attack": "cannot list 'attack': did you mean attacks?",
    "reproduce mnsit": "cannot reproduce 'mnsit': did you mean mnist?",
    "check run --robust-accuracy linff@8/255:0.4": "no norm named 'linff': did you mean linf?",
    # what is missing
    f"measure {SOURCES}": "no run folder given: pass --out RUN",
    "measure --data samples:mnist --out run": "no model given: pass --model",
    "measure --model zoo:mnist-cnn --out run": "no data given: pass --data",
    f"measure {SOURCES} --out": "--out has no value: write --out VALUE",
    "report": "RUN is missing: Run folders written by `marginattack measure`.",
    "list": "KIND is missing: attacks, norms, presets, models or data.",
    "compare run": "compare needs at least two runs: marginattack compare RUN RUN…",
    "check run": "nothing to check: give an accuracy, a robust accuracy or a median margin",
    # values
    f"evaluate {SOURCES} --limit 2 --norm linf --eps 8": "the distance 8 is given, but no input is farther "
    "away than 1 in linf: did you mean 8/255?",
    f"evaluate {SOURCES} --limit 2 --norm l2 --eps 28": "no input is farther away than 28 in l2: did you mean 28/255?",
    f"{MEASURE} --limit 2 --norm linf --attack pgd@8": "the distance 8 is given, but no input is farther away",
    f"{MEASURE} --budget many": "--budget is 'many': ",
    f"{MEASURE} --budget 0": "--budget 0: input should be greater than or equal to 1",
    f"{MEASURE} --set budget": "--set 'budget' is not an assignment: write --set a.b=value",
    f"{MEASURE} --set attack.race.trust=1/x": "attack.race.trust",
    f"{MEASURE} --workers 2": "--workers 2 needs a Ray cluster: add --engine ray",
    f"{MEASURE} --unit 256": "--unit is 256: choose 1 or 255",
    f"{MEASURE} --expect-accuracy 95": "--expect-accuracy 95.0: input should be less than or equal to 1",
    f"{MEASURE} --device gpu": "pass cpu, cuda or cuda:0",
    f"{MEASURE} --precision fp8": "--precision fp8: input should be 'auto', 'float32'",
    f"{MEASURE} --eot 3": "it applies to randomised models only: add --randomized",
    f"{MEASURE} extra": "'extra' belongs to no option: write --option VALUE",
    f"{MEASURE} --config none.toml": "check the path, or write one with --print-config",
    "measure --model zoo:mnist-cnn --data none.npz --out run": "none.npz: no such file: check the path",
    "report none": "it has no manifest.json; give a folder that `measure --out` wrote",
    "report none --eps 8:255": "'8:255' is not a number: write 0.5 or 8/255",
    "check run --accuracy 90": "accuracy must be at least 90: give a share from 0 to 1, such as 0.9",
    "check run --median-margin 0.5": "write NORM:MARGIN, for example l2:0.5",
    "check run --robust-accuracy linf:0.4": "write NORM@EPS:ACCURACY, for example linf@8/255:0.45",
    "check run --accuracy 0.9 --github-summary": "not set; leave it out outside of GitHub Actions",
    f"bench {SOURCES} --limit 0": "--limit and --budget must be at least 1",
    "demo --digits 1001": "choose 1 to 1,000",
}


@pytest.mark.parametrize("call", CALLS)
def test_wrong_use_is_one_line_that_names_the_fix(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    result = CliRunner().invoke(app, call.split(), prog_name="marginattack")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("marginattack: ")
    assert CALLS[call] in result.stderr
    assert list(tmp_path.iterdir()) == []
