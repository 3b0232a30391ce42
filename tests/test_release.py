"""What is uploaded: its size and metadata, what it imports, and that the hints for installing it are true."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import yaml

from marginattack import __version__
from marginattack.sources.networks import ZOO
from marginattack.sources.weights import RELEASE

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOME = PROJECT["urls"]["Homepage"]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(f"marginattack-{__version__}.dist-info/METADATA"))


def test_the_index_accepts_the_files(dist: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("PASSED") == 2


def test_the_wheel_is_small_and_complete(wheel: Path) -> None:
    assert wheel.stat().st_size <= 3_000_000
    with zipfile.ZipFile(wheel) as archive:
        names = [name.removeprefix("marginattack/") for name in archive.namelist()]
    assert {"py.typed", "report/templates/page.html.j2", "sources/samples/mnist.npz"} <= set(names)
    weights = {name for name in ZOO if f"sources/zoo/{name}.safetensors" in names}
    assert weights == {"cifar10-resnet32", "cifar10-resnet32-adv"}
    assert not [name for name in names if name.startswith(("tests", "docs", "examples"))]


def test_the_page_on_the_index_has_absolute_links_and_the_images_exist(wheel: Path) -> None:
    readme = str(metadata(wheel).get_payload())
    defined = dict(re.findall(r"^\[(.+?)\]: (\S+)$", readme, flags=re.MULTILINE))
    assert set(re.findall(r"\]\[([^\]]+)\]", readme)) == set(defined)
    targets = [*defined.values(), *re.findall(r"\]\(([^)\s]+)", readme)]
    assert len(targets) >= 10
    for target in targets:
        local = re.fullmatch(rf"{HOME}/(?:blob|tree|raw)/main/([^#]+)(#.+)?", target)
        assert local or target.startswith("https://"), f"README.md: {target} is relative, which breaks on the index"
        assert local is None or (ROOT / local[1]).exists(), f"README.md: {target}: no such file"


def test_one_address_everywhere() -> None:
    assert RELEASE.startswith(f"{HOME}/releases/download/")
    for name in ("CITATION.cff", "mkdocs.yml"):
        assert HOME in (ROOT / name).read_text(), name


def test_citation_has_the_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_nothing_is_published_untested() -> None:
    release, tests = (
        yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text()) for name in ("release", "test")
    )
    assert release["jobs"]["test"]["uses"] == "./.github/workflows/test.yml"
    assert {"test", "build"} <= set(release["jobs"]["publish"]["needs"])
    assert "workflow_call" in tests[True]  # YAML reads the key "on" as a boolean
    assert "make test" in [step.get("run") for step in tests["jobs"]["test"]["steps"]]


def test_extras_named_in_hints_exist() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    named = re.findall(r"marginattack\[([\w,]+)\]", "".join(path.read_text() for path in files))
    assert len(named) >= 10
    assert {extra for names in named for extra in names.split(",")} <= set(PROJECT["optional-dependencies"])


def test_import_takes_at_most_300_ms_beyond_torch(tmp_path: Path) -> None:
    """CPU time, with bytecode, which pip writes when it installs a wheel; other processes do not count."""
    code = (
        "import json, time, torch; start = time.process_time(); import marginattack as ma; ma.measure; "
        "print(json.dumps(time.process_time() - start))"
    )
    path = f"{ROOT / 'src'}"
    environment = {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(tmp_path), "OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment).stdout
        for _ in range(2)
    ]
    assert json.loads(runs[-1]) <= 0.3
