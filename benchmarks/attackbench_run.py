r"""The default attack under somebody else's counting: AttackBench (PyPI: attackbenchlib), beside its own attacks.

    pip install --no-deps --target PACKAGES attackbenchlib foolbox==3.3.4 eagerpy adv-lib==0.2.8
    PYTHONPATH=src:benchmarks:PACKAGES python benchmarks/attackbench_run.py [--samples 32] [--norms l2 linf]

AttackBench wraps the network, counts the propagations of each sample, answers none beyond the budget, and keeps the
nearest adversarial point that it saw itself. Its attacks have the settings with which it publishes them: its
preconfigured ones, and those of adv-lib in its configurations. Local optimality is its own function, relative to the
attacks that are run. The record keeps the rows of other norms. wandb, which its runner imports to look for stored
results, is replaced by a stub where it is missing, and so is torchvision, from which it takes data sets.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np
import torch
from networks import network
from record import DEVICE, RECORDS, correct_samples, read, write
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import marginattack as ma
from marginattack.attacks.external.advlib import load as load_advlib
from marginattack.reproduce.markdown import table
from marginattack.sources.data import samples

CHECKS = 8  # forwards of ``measure`` beside the attack: validation, calibration, verification
PRECONFIGURED = {
    "l2": ("fmn", "fab", "deepfool", "superdeepfool", "trust_region"), "linf": ("fmn", "fab", "trust_region"),
    "l1": ("fmn", "fab"), "l0": ("fmn",),
}  # fmt: skip
ADVLIB = {
    "l2": ("ddn_NQ", "alma_l2", "pdgd"), "linf": ("pdpgd",),
    "l1": ("alma_l1", "pdpgd"), "l0": ("pdpgd_l0",),
}  # fmt: skip


class _Anything(ModuleType):
    """A module in which every name is defined."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def stub_missing(*names: str) -> None:
    """Replace modules that cannot be imported by ones in which every name is defined."""
    for name in names:
        try:
            import_module(name)
        except (ImportError, RuntimeError):  # RuntimeError: torchvision without its C++ operators
            for loaded in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
                del sys.modules[loaded]
            module = _Anything(name)
            module.__spec__, module.__path__ = ModuleSpec(name, None, is_package=True), []
            sys.modules[name] = module


def race(model: nn.Module, inputs: Tensor, labels: Tensor, threat_model: str, budget: int) -> Tensor:
    """The default attack as AttackBench calls it."""
    found = ma.measure(model, inputs, labels, threat_model, budget=budget - CHECKS, batch=len(inputs))
    return found.adversarial.to(inputs)


def attacks(norm: str, budget: int) -> dict[str, Callable[..., Tensor]]:
    """Ours, AttackBench's preconfigured ones, and adv-lib's in AttackBench's configurations, for a norm."""
    ready, configs = import_module("attackbench.preconfigured"), import_module("attackbench.attacks.adv_lib.configs")
    wrap = import_module("attackbench.attacks.adv_lib.wrapper").adv_lib_wrapper

    def ours(model: nn.Module, inputs: Tensor, labels: Tensor, threat_model: str) -> Tensor:
        return race(model, inputs, labels, threat_model, budget)

    found: dict[str, Callable[..., Tensor]] = {"race": ours}
    found |= {f"preconfigured:{name}": getattr(ready, name) for name in PRECONFIGURED[norm]}
    for name in ADVLIB[norm]:
        getter = getattr(configs, f"get_adv_lib_{name.removesuffix(f'_{norm}')}")
        chosen = getattr(configs, f"adv_lib_{name}")() | {"threat_model": norm}
        made = getter(**{key: chosen[key] for key in signature(getter).parameters if key in chosen})

        def run(model: nn.Module, inputs: Tensor, labels: Tensor, made: Any = made) -> Tensor:
            points: Tensor = wrap(model, inputs, labels, made)
            return points

        found[f"adv_lib:{name}"] = run
    return found


def evaluate(name: str, norm: str, count: int, budget: int) -> list[dict[str, Any]]:
    """AttackBench's results of all attacks under a norm."""
    bench, metrics = import_module("attackbench"), import_module("attackbench.metrics.optimality")
    model = network(name).to(DEVICE)
    images, labels = (part.cpu() for part in correct_samples(model, *samples(name.split("-")[0]), count))
    loader, rows, results = DataLoader(TensorDataset(images, labels), batch_size=len(images)), [], []
    for title, attack in attacks(norm, budget).items():
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "out of query budget", at every query beyond it
            result = bench.run_attack(network(name).to(DEVICE), loader, attack, norm, query_budget=budget, seed=0)
        distance = np.array(result["distances"][norm], dtype=float)
        spent = np.array(result["num_forwards"]) + np.array(result["num_backwards"])
        rows.append({
            "norm": norm, "attack": title, "n": len(images), "success": float(np.isfinite(distance).mean()),
            "median": float(np.median(distance)), "queries": float(spent.mean()), "most": int(spent.max()),
            "failed": bool(any(result["batch_failures"])), "seconds": round(time.perf_counter() - began, 1),
        })  # fmt: skip
        results.append(result)
        print(rows[-1], flush=True)
    scores = metrics.compare_attacks_optimality(results, norm, [row["attack"] for row in rows])["optimality_scores"]
    return sorted((row | {"optimality": float(scores[row["attack"]])} for row in rows), key=lambda r: -r["optimality"])


def main() -> None:
    """Run all norms, print the ranking, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mnist-cnn")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--norms", nargs="+", default=["l2", "linf"], choices=list(ADVLIB))
    parser.add_argument("--budget", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    stub_missing("wandb", "torchvision", "torchvision.transforms", "torchvision.datasets")
    load_advlib()
    rows = [row for norm in options.norms for row in evaluate(options.model, norm, options.samples, options.budget)]
    print("\n".join(format_table(rows)))
    known = read(RECORDS / "attackbench.json")[1]["rows"] if (RECORDS / "attackbench.json").exists() else []
    rows += [row for row in known if row["norm"] not in options.norms]
    write("attackbench", {"model": options.model, "budget": options.budget, "rows": rows})


def format_table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows in Markdown."""
    header = ("norm", "attack", "n", "local optimality", "success", "median", "queries", "most", "seconds")
    return table(header, [
        (r["norm"], r["attack"], r["n"], f"{r['optimality']:.4f}", f"{r['success']:.1%}", f"{r['median']:.4g}",
         f"{r['queries']:.0f}", r["most"], r["seconds"]) for r in rows
    ])  # fmt: skip


if __name__ == "__main__":
    main()
