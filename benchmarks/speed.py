r"""What a pass costs: the bare model, our attacks and others', on the same batch in one run. Ratios are the result.

    PYTHONPATH=src:PEERS:benchmarks python benchmarks/speed.py --data cifar10=FILE.npz imagenet=FILE.npz \
        [--cases cifar10-resnet32:128 …] [--only WORD …] [--modes MODE …] [--passes 200] [--peers-passes 200] \
        [--rounds 5]

In every round each contender runs once, in turn; a ratio is taken within a round, and the record holds the median of
the rounds and their spread. Everything ran before, so that what is captured or compiled is there; its memory counts.
The unit is a forward and a backward with respect to the input. "bare" is the model alone, plain or as a CUDA graph, in
full float32, tf32 or bf16, its weights and input laid out as they come or channels last. Peers run as they come, with
torch's own precision flags. ``--modes`` are ways in which our attacks look at the model; ``--peers-passes`` is how many
passes a peer makes, 40 the bare model: what a pass costs hardly depends on it. On a CPU: one thread and process time.

``--quality`` measures another thing: how long CW with ten searches and DDN with 1,000 steps take, and how long Race
takes to margins that are as small on average; its budgets grow until they are.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from statistics import median
from typing import Any

import torch
from record import write
from suite import SUBJECTS, read
from torch import Tensor, nn

from marginattack.attacks import Attack, MarginAttack, Race
from marginattack.core.classifier import Classifier
from marginattack.core.flags import tf32
from marginattack.core.norms import L2, as_norm
from marginattack.core.problem import Problem
from marginattack.execution import graphs
from marginattack.measuring import measure

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
CASES = {
    "cuda": (
        "mnist-cnn:128", "mnist-cnn:1024", "cifar10-resnet32:128", "cifar10-resnet32:512",
        "imagenet-efficientnet-lite0:64",
    ),
    "cpu": ("mnist-cnn:64", "cifar10-resnet32:32"),
}  # fmt: skip
OURS: dict[str, tuple[str, Attack, tuple[str, ...]]] = {  # norm, attack, modes
    "race l2": ("l2", Race(), ("", " plain", " tf32", " bf16", " compiled", " bf16 compiled")),
    "race linf": ("linf", Race(), ("",)),
    "marginattack l2": ("l2", MarginAttack(), ("",)),
}
MODES: dict[str, dict[str, dict[str, Any]]] = {  # of our attacks: how the classifier is looked at
    "cuda": {
        "": {}, " plain": {"graphs": False}, " tf32": {"search": "tf32"}, " bf16": {"search": "bf16"},
        " compiled": {"compiled": True}, " bf16 compiled": {"compiled": True, "search": "bf16"},
    },
    "cpu": {"": {}},
}  # fmt: skip
LARGE = 512  # samples side by side, from which on launches are not what counts, and compiling is tried
WARM = 2  # runs before the clock is started; looks are captured in the first, which a few would be needed for elsewhere
LADDER = (40, 60, 80, 100, 150, 200, 300, 400, 600, 1000, 2000)  # budgets of Race, until it is as near

Timed = Callable[[], float]  # runs once; how many forwards + backwards a sample that was


@contextmanager
def as_they_come() -> Iterator[None]:
    """Torch's own precision flags: convolutions in tf32, products in float32."""
    with tf32(False):
        places: list[Any] = [torch.backends.cudnn]
        name: str = "allow_tf32"
        value: Any = True
        if hasattr(torch.backends.cudnn, "conv"):
            places, name, value = [torch.backends.cudnn.conv, torch.backends.cudnn.rnn], "fp32_precision", "tf32"
        for place in places if CUDA else []:
            setattr(place, name, value)
        yield


def clock() -> float:
    """Seconds, when all that was asked for is done."""
    if CUDA:
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def timed(run: Timed) -> tuple[float, float]:
    """Seconds for a forward and a backward, and MiB of a GPU's memory that were taken at most."""
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    began = clock()
    passes = run()
    seconds = clock() - began
    return 2 * seconds / passes, (torch.cuda.max_memory_allocated() - before) / 2**20 if CUDA else 0.0


def bare(model: nn.Module, x: Tensor, passes: int) -> dict[str, Timed]:
    """The model alone: a forward, and a backward of the sum of its largest logits, again and again."""
    contenders: dict[str, Timed] = {}
    for precision in ("float32", "tf32", "bf16") if CUDA else ("float32",):
        for layout in ("", " channels last") if precision != "float32" or not CUDA else ("",):
            last = torch.channels_last if layout else torch.preserve_format
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            copy = deepcopy(model).to(dtype).requires_grad_(False)
            if layout:
                copy = copy.to(memory_format=last)  # type: ignore[call-overload]
            static = x.to(dtype).to(memory_format=last).clone(memory_format=last).requires_grad_()

            def once(copy: nn.Module = copy, static: Tensor = static) -> Tensor:
                return torch.autograd.grad(copy(static).amax(1).sum(), static)[0]

            def plain(once: Any = once, precision: str = precision) -> float:
                with tf32(precision == "tf32") if CUDA else nullcontext():
                    for _ in range(passes // 2):
                        once()
                return passes

            if precision == "float32":
                contenders[f"bare plain {precision}{layout}"] = plain
            if CUDA:
                contenders[f"bare graph {precision}{layout}"] = captured(once, passes, precision)
    return contenders


def captured(once: Callable[[], Tensor], passes: int, precision: str) -> Timed:
    """A forward and a backward as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with tf32(precision == "tf32"), torch.cuda.stream(stream):
        for _ in range(3):
            once()
    torch.cuda.synchronize()
    with tf32(precision == "tf32"), torch.cuda.graph(graph):
        once()

    def run(kept: Any = once) -> float:  # with it the model and the input, which the graph reads
        for _ in range(passes // 2):
            graph.replay()
        return passes

    return run


def ours(classifier: Classifier, x: Tensor, y: Tensor, passes: int, mode: str) -> dict[str, Timed]:
    """Our attacks, on a held classifier."""

    def contender(norm: str, attack: Attack) -> Timed:
        def run() -> float:
            problem = Problem(classifier, x, y, as_norm(norm), budget=passes)
            problem.solve(attack)
            return float((problem.forwards + problem.backwards).double().mean())

        return run

    return {f"{name}{mode}": contender(norm, attack) for name, (norm, attack, modes) in OURS.items() if mode in modes}


def peers(model: nn.Module, x: Tensor, y: Tensor, passes: int) -> dict[str, Timed]:
    """Others' attacks as they come, called as their users call them."""
    contenders: dict[str, Callable[[int], Any]] = {}
    try:
        from marginattack.integrations.advlib import load

        library = load()
        contenders["adv-lib DDN"] = lambda steps: library.ddn(model, x, y, steps=steps)
        contenders["adv-lib FMN"] = lambda steps: library.fmn(model, x, y, norm=2, steps=steps)
    except ImportError as error:
        print(f"without adv-lib: {error}")
    try:
        import foolbox

        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=x.device)
        ddn, cw = foolbox.attacks.DDNAttack, foolbox.attacks.L2CarliniWagnerAttack
        contenders["foolbox DDN"] = lambda steps: ddn(steps=steps).run(wrapped, x, y)
        contenders["foolbox CW"] = lambda steps: cw(binary_search_steps=1, steps=steps, abort_early=False).run(
            wrapped, x, y
        )
    except ImportError as error:
        print(f"without Foolbox: {error}")

    def contender(attack: Callable[[int], Any]) -> Timed:
        def run() -> float:
            with as_they_come():
                attack(passes // 2)
            return passes

        return run

    return {name: contender(attack) for name, attack in contenders.items()}


def case(name: str, data: dict[str, str], asked: argparse.Namespace) -> dict[str, Any]:
    """Everything on one model and batch."""
    model_name, _, batch = name.partition(":")
    subject = SUBJECTS[model_name]
    if subject.data in data:
        images, labels = read([data[subject.data]])
    else:
        from marginattack.sources.data import samples

        images, labels = samples(subject.data)
    model = subject.open().to(DEVICE).eval().requires_grad_(False)
    with torch.no_grad():
        right = torch.cat([model(part.to(DEVICE)).argmax(1).cpu() for part in images.split(64)]) == labels
    many = -(-int(batch) // int(right.sum()))  # small sets are repeated: a pass costs the same
    x, y = (part[right].repeat(many, *[1] * (part.ndim - 1))[: int(batch)].to(DEVICE) for part in (images, labels))
    if asked.quality:
        return {"model": model_name, "batch": len(x), **quality(model, x, y)}
    contenders = wanted(bare(model, x, min(40, asked.passes)) | peers(model, x, y, asked.peers_passes), asked.only)
    held = {name_of: timed(run)[1] for name_of, run in contenders.items()}  # MiB at first: what was captured stays
    left_out = "plain" if len(x) >= LARGE else "compiled"
    modes = {
        mode: flags for mode, flags in MODES[DEVICE].items() if left_out not in mode and mode.strip() in asked.modes
    }
    classifiers = {mode: Classifier(model, chunk=len(x), **flags) for mode, flags in modes.items()}
    rounds: list[dict[str, tuple[float, float]]] = [{} for _ in range(asked.rounds)]
    with ExitStack() as stack:
        for mode, classifier in classifiers.items():
            stack.enter_context(classifier.held())
            _, _, _ = classifier.accept(x, y)
            classifier.meet(x.cpu(), classifier.answers(x.cpu()))
            for name_of, run in wanted(ours(classifier, x, y, asked.passes, mode), asked.only).items():
                contenders[name_of] = run
                held[name_of] = max(timed(run)[1] for _ in range(WARM))
        for found in rounds:
            found |= {name_of: timed(run) for name_of, run in contenders.items()}
    rows = [summary(n, rounds, held[n]) for n in rounds[0]]
    for row in rows:
        print(name, row, flush=True)
    why = {mode: [c.graphs.why, c.compiler.why] for mode, c in classifiers.items()}
    return {
        "model": model_name, "batch": len(x), "passes": asked.passes, "passes of peers": asked.peers_passes,
        "rows": rows, "no graphs, not compiled": why,
    }  # fmt: skip


def wanted(contenders: dict[str, Timed], words: list[str]) -> dict[str, Timed]:
    """Those whose names hold one of the words."""
    return {name: run for name, run in contenders.items() if any(word in name for word in words)}


def quality(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Seconds that CW and DDN take, and Race to the same mean distance."""
    import foolbox

    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=x.device)
    rivals = {
        "CW, 10 searches of 1,000 steps": foolbox.attacks.L2CarliniWagnerAttack(binary_search_steps=10, steps=1000),
        "DDN, 1,000 steps": foolbox.attacks.DDNAttack(steps=1000),
    }
    found = {}
    measure(model, x, y, "l2", budget=LADDER[0], batch=len(x))  # both sides ran before, so that libraries are loaded
    foolbox.attacks.DDNAttack(steps=10).run(wrapped, x, y)
    for name, attack in rivals.items():
        began = clock()
        with as_they_come():
            points = attack.run(wrapped, x, y)
        seconds = clock() - began
        with torch.no_grad():
            missed = model(points).argmax(1) == y
        mean = float(L2.size((points - x).flatten(1))[~missed].mean())
        for budget in LADDER:
            with torch.random.fork_rng(devices=[]):
                began = clock()
                margins = measure(model, x, y, "l2", budget=budget, batch=len(x))
                ours = clock() - began
            if float(margins.distance[~missed.cpu()].mean()) <= mean:
                break
        else:
            ours = float("inf")  # it never was as near
        found[name] = {
            "seconds": seconds, "mean": mean, "missed": int(missed.sum()), "Race: budget": budget,
            "Race: seconds": ours, "Race: mean": float(margins.distance[~missed.cpu()].mean()),
            "times as fast": seconds / ours,
        }  # fmt: skip
        print(name, found[name], flush=True)
    return found


def summary(name: str, rounds: list[dict[str, tuple[float, float]]], held: float) -> dict[str, Any]:
    """The median of the rounds, and from where to where they go."""
    ms = [1e3 * each[name][0] for each in rounds]
    return {
        "name": name, "ms": round(median(ms), 4), "from": round(min(ms), 4), "to": round(max(ms), 4),
        "MiB": round(max(held, *(each[name][1] for each in rounds))), "rounds": [round(value, 4) for value in ms],
    }  # fmt: skip


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FILE")
    parser.add_argument("--cases", nargs="+", default=CASES[DEVICE], metavar="MODEL:BATCH")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD")
    parser.add_argument("--modes", nargs="+", default=[mode.strip() for mode in MODES[DEVICE]], metavar="MODE")
    parser.add_argument("--passes", type=int, default=200)
    parser.add_argument("--peers-passes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quality", action="store_true")
    asked = parser.parse_args()
    if not CUDA:
        torch.set_num_threads(1)
    data = dict(entry.split("=", 1) for entry in asked.data)
    graphs.OFTEN = 0
    done: list[dict[str, Any]] = []
    for name in asked.cases:
        done.append(case(name, data, asked))
        write(f"{'quality' if asked.quality else 'speed'}-{DEVICE}", done)


if __name__ == "__main__":
    main()
