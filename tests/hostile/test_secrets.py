"""Keys in addresses, arguments and the environment: refused or hidden, in everything that is printed or stored."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from run_folders import MODELS, data
from typer.testing import CliRunner

from marginattack.cli import app
from marginattack.errors import InputError, describe, redact
from marginattack.report import write_report
from marginattack.sources.data import open_data
from marginattack.sources.models import open_model
from marginattack.storage.paths import parse_path, refuse_keys

FORMAT_1 = Path(__file__).parent.parent / "data/run-format-1"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCY"
WITH_KEYS = [
    f"s3://AKIAEXAMPLE:{SECRET}@bucket/run",
    f"s3:/AKIAEXAMPLE:{SECRET}@bucket/run",
    f"s3://{SECRET.replace('/', '')}@bucket/run",
    f"s3://bucket/run?aws_secret_access_key={SECRET}",
    f"abfs://container:{SECRET}@account/run",
    f"https://user:{SECRET}@host/run",
]
OPTIONS = ["--model", "--data", "--out", "--set=target", "--address"]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("address", WITH_KEYS)
def test_keys_in_an_address_are_refused_and_not_printed(address: str, option: str, tmp_path: Path) -> None:
    values = {"--model": "zoo:mnist-cnn", "--data": "samples:mnist", "--out": str(tmp_path / "run"), "--engine": "ray"}
    values = {**values, option: address}
    arguments = [f"{name}={value}" if "=" in name else word for name, value in values.items()
                 for word in ([name, value] if "=" not in name else [name])]  # fmt: skip
    for command in (["measure", *arguments], ["report", address]):
        result = CliRunner().invoke(app, command)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert SECRET not in result.output
        assert SECRET.replace("/", "") not in result.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("opens", [open_model, open_data, parse_path])
def test_the_error_itself_does_not_hold_the_key(opens: object) -> None:
    for address in WITH_KEYS:
        with pytest.raises(InputError) as caught:
            opens(address)  # type: ignore[operator]
        assert SECRET not in str(caught.value)


def test_addresses_without_keys_pass() -> None:
    for address in (
        "s3://bucket/a@b", "s3://bucket/a:b@c", "s3:/bucket/run", "abfs://box@account.dfs.core.windows.net/run",
        "/a@b:c/d@e", "timm:resnet50@/w.safetensors", "hf:/models/a@b", "nets/a@b.py:make", "ray://127.0.0.1:10001",
    ):  # fmt: skip
        refuse_keys(address)


def test_print_config_does_not_print_keys() -> None:
    address = f"https://user:{SECRET}@host/model.onnx"
    result = CliRunner().invoke(app, ["measure", "--model", address, "--data", "samples:mnist", "--print-config"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert SECRET not in result.stderr


def test_secrets_do_not_reach_the_manifest_or_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path))  # a path
    arguments = [
        "measure",
        "--model",
        f"{MODELS}:small",
        "--data",
        str(data(tmp_path / "a.npz", 4)),
        "--attack",
        "fgsm",
    ]
    arguments += ["--out", str(tmp_path / "run")]
    seen = ["--note", "hf_abcdefgh", f"--api-key={SECRET}", f"https://u:{SECRET}@host/?a=1&token={SECRET}"]
    monkeypatch.setattr(sys, "argv", ["marginattack", *arguments, *seen])  # as if there were such options
    assert CliRunner().invoke(app, arguments).exit_code == 0
    command = json.loads((tmp_path / "run/manifest.json").read_text())["sessions"][0]["command"]
    assert f"--out {tmp_path}/run" in command
    assert command.endswith("--note *** --api-key=*** 'https://***@host/?a=***&token=***'")
    for file in tmp_path.glob("run/*.json"):
        assert SECRET not in file.read_text()
        assert "hf_abcdefgh" not in file.read_text()
    assert describe(OSError("401 for hf_abcdefgh")) == "OSError: 401 for ***"
    assert redact("weights@v2.pt: 10:30, key=value, a?b, s3://bucket/run") == (
        "weights@v2.pt: 10:30, key=value, a?b, s3://bucket/run"
    )


def test_keys_in_the_manifest_of_an_older_version_do_not_reach_a_report(tmp_path: Path) -> None:
    shutil.copytree(FORMAT_1, tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["sessions"][0]["command"] = f"marginattack measure --out s3://AKIAEXAMPLE:{SECRET}@bucket/run"
    manifest.write_text(json.dumps(content))
    write_report([tmp_path / "run"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "--out s3://***@bucket/run" in page
    assert SECRET not in page
