"""The code of the migration pages runs against the real library, and ours is at most as robust, up to one sample."""

import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from models import inputs, smooth
from torch import Tensor, nn

from marginattack.attacks.external.advlib import load
from marginattack.sources.data import samples
from marginattack.sources.networks import zoo

DOCS = Path(__file__).parents[2] / "docs"
EPS, EPS_L2 = 8 / 255, 0.5
PEERS = {"autoattack": "pyautoattack", "foolbox": "foolbox", "adv-lib": "adv_lib", "art": "art.attacks.evasion"}
BLOCK = re.compile(r"^```python ?(\S*)\n(.+?)^```", flags=re.DOTALL | re.MULTILINE)


def small() -> tuple[nn.Module, Tensor, Tensor]:
    """A network of which some samples are robust within 8/255."""
    model = nn.Sequential(nn.Flatten(), Scaled(smooth(d=225, classes=10, dtype=torch.float32))).eval()
    return (model, *inputs(model, (1, 15, 15), n=6))


class Scaled(nn.Module):
    """The network on inputs whose differences from 1/2 are a fraction of what they are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(0.5 + (images - 0.5) / 60)
        return logits


def robust(scope: dict[str, Any], eps: float) -> int:
    """Samples that are still classified correctly, at points inside the radius."""
    model, images, points = scope["model"], scope["images"], scope["adversarial"]
    distance = (points - images).flatten(1)
    within = (distance.norm(dim=1) <= EPS_L2) if scope["norm"] == "l2" else (distance.abs().amax(1) <= 1.001 * eps)
    with torch.no_grad():
        fooled = (model(points).argmax(1) != scope["labels"]) & within
    return int((~fooled).sum())


def run_page(name: str, case: tuple[nn.Module, Tensor, Tensor], eps: float = EPS) -> dict[str, int]:
    """Run the blocks of a page in order, with this radius; how many samples each side left robust."""
    blocks = BLOCK.findall((DOCS / f"migrate-from-{name}.md").read_text())
    scope: dict[str, Any] = dict(zip(("model", "images", "labels"), case, strict=True))
    scope["norm"] = "l2" if name == "adv-lib" else "linf"
    left = dict[str, int]()
    for kind, code in blocks:
        if kind == "no-run":
            continue
        with warnings.catch_warnings(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            exec(code.replace("8 / 255", repr(eps)), scope)
        if kind:
            count = int((~scope["success"][-1]).sum()) if name == "foolbox" else robust(scope, eps)
            left[kind] = max(count, left.get(kind, 0))  # of several blocks, the worst
    return left


@pytest.mark.parametrize("name", PEERS)
def test_the_pairs_of_a_page_agree_or_ours_is_lower(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load() if name == "adv-lib" else import_module(PEERS[name])
    except ImportError as error:
        pytest.skip(f"its code needs {error.name}")
    if name == "autoattack":  # its 5,000 queries take most of the time; the slow test has them all
        square = import_module("pyautoattack.square").SquareAttack
        monkeypatch.setattr(square, "n_queries", property(lambda _: 300, lambda *_: None), raising=False)
    left = run_page(name, small())
    assert 0 < left["ours"] <= left["theirs"] < 6


@pytest.mark.slow
@pytest.mark.parametrize(("network", "eps"), [("mnist-cnn", 0.0938), ("cifar10-resnet32", 0.00218)])
def test_autoattacks_page_on_bundled_networks(network: str, eps: float) -> None:
    """At radii near the median margin; benchmarks/records/eval-script.json has more samples."""
    pytest.importorskip("pyautoattack")
    images, labels = samples(network.partition("-")[0], 8)
    left = run_page("autoattack", (zoo(network), images.contiguous(), labels), eps)
    assert 0 < left["ours"] <= left["theirs"] + 1
    assert left["theirs"] < 8


def test_every_migration_page_is_run() -> None:
    assert {path.stem.removeprefix("migrate-from-") for path in DOCS.glob("migrate-from-*.md")} == set(PEERS)
