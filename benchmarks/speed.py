r"""The time of a pass: the bare model, our attacks and those of other libraries, on the same batch in one run.

    PYTHONPATH=src:PACKAGES:benchmarks python benchmarks/speed.py --data cifar10=FILE.npz imagenet=FILE.npz \
        [--cases cifar10-resnet32:128 …] [--only WORD …] [--modes MODE …] [--passes 200 …] [--peers-passes 200] \
        [--rounds 5] [--limit SECONDS] [--record NAME]

In every round each contender runs once, in turn; ratios are taken within a round, and the record holds the median of
the rounds and their spread. Everything has run before, so captured graphs, compiled code and copies of the model exist;
their memory counts.
The unit is a forward and a backward with respect to the input. "bare" is the model alone, eager or as a CUDA graph, in
full float32, tf32 or bf16, with its memory format as it comes or channels last. Other libraries run with torch's
default precision flags, adv-lib also with a model in bf16. Four cases are networks of timm with random weights: the
time of a pass does not depend on them. With several ``--passes`` our attacks run with each of them. ``--modes`` are
ways in which our attacks evaluate the model ("default" is one); ``--peers-passes`` is the number of passes of other
libraries, and of the bare model if below 40: the time per pass hardly depends on it. On a CPU: one thread and process
time.

``benchmarks/bars.py`` runs the cases that a release must pass on a GPU, in about 8 minutes:

    PYTHONPATH=src:PACKAGES:benchmarks python benchmarks/bars.py

``--quality`` measures the time of CW with ten searches and of DDN with 1,000 steps, and the time that Race needs to
reach margins that are as small on average; its budget grows until they are.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from statistics import median
from typing import Any

import torch
from record import CUDA, DEVICE, correct_samples, write
from suite import MODELS
from torch import Tensor, nn

from marginattack.attacks import Attack, MarginAttack, Race
from marginattack.core.classifier import Classifier
from marginattack.core.flags import tf32
from marginattack.core.norms import L2, as_norm
from marginattack.core.validation import Batch
from marginattack.execution import graphs
from marginattack.execution.session import Session, open_session
from marginattack.measuring import measure

CASES = {
    "cuda": (
        "mnist-cnn:128", "mnist-cnn:1024", "cifar10-resnet32:128", "cifar10-resnet32:512",
        "imagenet-efficientnet-lite0:64", "cifar-resnet18:256", "resnet50:64", "vit-base:64", "convnext-tiny:64",
    ),
    "cpu": ("mnist-cnn:64", "cifar10-resnet32:32"),
}  # fmt: skip
OURS: dict[str, tuple[str, Attack, tuple[str, ...]]] = {  # norm, attack, modes
    "race l2": ("l2", Race(), ("", " float32", " plain", " tf32", " bf16", " compiled")),
    "race linf": ("linf", Race(), ("",)),
    "marginattack l2": ("l2", MarginAttack(), ("",)),
}
MODES: dict[str, dict[str, dict[str, Any]]] = {  # of our attacks: how the classifier is evaluated
    "cuda": {
        "": {}, " float32": {"precision": "float32"}, " plain": {"graphs": False, "precision": "float32"},
        " tf32": {"precision": "tf32"}, " compiled": {"compiled": True},
    },
    "cpu": {"": {}, " bf16": {"precision": "bf16"}},
}  # fmt: skip
RANDOM = {  # networks of timm with random weights: their architectures and image sizes
    "cifar-resnet18": ("resnet18", 32), "resnet50": ("resnet50", 224), "vit-base": ("vit_base_patch16_224", 224),
    "convnext-tiny": ("convnext_tiny", 224),
}  # fmt: skip
LEAD = 10  # standard deviations of random logits by which a class is raised, so that decisions are clear as in training
LARGE = 512  # samples in a batch from which on kernel launches do not matter, and compilation is tried
LADDER = (40, 60, 80, 100, 150, 200, 300, 400, 600, 1000, 2000)  # budgets of Race, until its margins are as small

Contender = Callable[[], float]  # runs once and returns its forwards + backwards per sample


@contextmanager
def default_precision() -> Iterator[None]:
    """Torch's default precision flags: convolutions in tf32, matrix products in float32."""
    with tf32(False):
        backends: list[Any] = [torch.backends.cudnn]
        name: str = "allow_tf32"
        value: Any = True
        if hasattr(torch.backends.cudnn, "conv"):
            backends, name, value = [torch.backends.cudnn.conv, torch.backends.cudnn.rnn], "fp32_precision", "tf32"
        for backend in backends if CUDA else []:
            setattr(backend, name, value)
        yield


def clock() -> float:
    """Seconds, after all work on the GPU is done."""
    if CUDA:
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def allocated() -> int:
    """The bytes of the GPU memory that tensors hold now."""
    return torch.cuda.memory_allocated() if CUDA else 0


def time_pass(run: Contender) -> tuple[float, float]:
    """Seconds per forward and backward, and the peak of the GPU memory that they took, in MiB."""
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    before = allocated()
    began = clock()
    passes = run()
    seconds = clock() - began
    return 2 * seconds / passes, (torch.cuda.max_memory_allocated() - before) / 2**20 if CUDA else 0.0


def bare_model(model: nn.Module, x: Tensor, passes: int, words: list[str]) -> dict[str, Contender]:
    """The model alone: repeated forwards, and backwards of the sum of its largest logits."""
    contenders: dict[str, Contender] = {}
    for precision in ("float32", "tf32", "bf16") if CUDA else ("float32",):
        for layout in ("", " channels last") if precision != "float32" or not CUDA else ("",):
            if not any(word in f"bare graph {precision}{layout}" for word in words):
                continue
            memory_format = torch.channels_last if layout else torch.preserve_format
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            copy = deepcopy(model).to(dtype).requires_grad_(False)
            if layout:
                copy = copy.to(memory_format=memory_format)  # type: ignore[call-overload]
            static = x.to(dtype).to(memory_format=memory_format).clone(memory_format=memory_format).requires_grad_()

            def once(copy: nn.Module = copy, static: Tensor = static) -> Tensor:
                return torch.autograd.grad(copy(static).amax(1).sum(), static)[0]

            if precision == "float32":
                contenders[f"bare plain {precision}{layout}"] = eager(once, passes)
            if CUDA:
                contenders[f"bare graph {precision}{layout}"] = capture(once, passes, precision)
    return contenders


def eager(once: Callable[[], Tensor], passes: int) -> Contender:
    """Forwards and backwards in float32, one after the other."""

    def run() -> float:
        with tf32(False) if CUDA else nullcontext():
            for _ in range(passes // 2):
                once()
        return passes

    return run


def capture(once: Callable[[], Tensor], passes: int, precision: str) -> Contender:
    """A forward and a backward as a CUDA graph, replayed."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with tf32(precision == "tf32"), torch.cuda.stream(stream):
        for _ in range(3):
            once()
    torch.cuda.synchronize()
    with tf32(precision == "tf32"), torch.cuda.graph(graph):
        once()

    def run(alive: Any = once) -> float:  # keeps the model and the input, which the graph reads
        for _ in range(passes // 2):
            graph.replay()
        return passes

    return run


def our_attacks(session: Session, batch: Batch, passes: int, mode: str) -> dict[str, Contender]:
    """Our attacks in an open session, with this budget."""

    def contender(name: str, attack: Attack) -> Contender:
        norm = as_norm(name)
        evaluator = session.calibrate(batch.images, low=attack.low_precision(norm, passes))

        def run() -> float:
            problem = session.problem(batch, norm, budget=passes, evaluator=evaluator)
            problem.solve(attack)
            return float((problem.budget.forwards + problem.budget.backwards).double().mean())

        return run

    return {f"{name}{mode}": contender(norm, attack) for name, (norm, attack, modes) in OURS.items() if mode in modes}


def other_libraries(model: nn.Module, x: Tensor, y: Tensor, passes: int) -> dict[str, Contender]:
    """Attacks of other libraries, called as their users call them."""
    contenders: dict[str, Callable[[int], Any]] = {}
    try:
        from marginattack.attacks.external.advlib import load

        library = load()
        contenders["adv-lib DDN"] = lambda steps: library.ddn(model, x, y, steps=steps)
        contenders["adv-lib FMN"] = lambda steps: library.fmn(model, x, y, norm=2, steps=steps)
        if CUDA:
            coarse = InBf16(model)
            contenders["adv-lib DDN bf16"] = lambda steps: library.ddn(coarse, x, y, steps=steps)
            contenders["adv-lib FMN bf16"] = lambda steps: library.fmn(coarse, x, y, norm=2, steps=steps)
    except ImportError as error:
        print(f"adv-lib is skipped: {error}")
    try:
        import foolbox

        wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=x.device)
        ddn, cw = foolbox.attacks.DDNAttack, foolbox.attacks.L2CarliniWagnerAttack
        contenders["foolbox DDN"] = lambda steps: ddn(steps=steps).run(wrapped, x, y)
        contenders["foolbox CW"] = lambda steps: cw(binary_search_steps=1, steps=steps, abort_early=False).run(
            wrapped, x, y
        )
    except ImportError as error:
        print(f"Foolbox is skipped: {error}")

    def contender(attack: Callable[[int], Any]) -> Contender:
        def run() -> float:
            with default_precision():
                attack(passes // 2)
            return passes

        return run

    return {name: contender(attack) for name, attack in contenders.items()}


class InBf16(nn.Module):
    """A model in bf16 that takes and returns float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = deepcopy(model).to(torch.bfloat16)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images.to(torch.bfloat16))
        return logits.float()


@torch.no_grad()
def random_case(name: str, batch: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network with random weights, random images, and the class that it predicts for them."""
    import timm

    architecture, side = RANDOM[name]
    torch.manual_seed(0)
    model: Any = timm.create_model(architecture, num_classes=10 if side == 32 else 1000)
    if side == 32:  # the stem for small images
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    model = model.to(DEVICE).eval().requires_grad_(False)
    x = torch.rand(batch, 3, side, side, device=DEVICE)
    logits = model(x)
    label = logits.mean(0).argmax()
    model.get_classifier().bias[label] += LEAD * logits.std()
    return model, x, label.expand(batch).clone()


def open_case(name: str, batch: int, files: dict[str, list[str]]) -> tuple[nn.Module, Tensor, Tensor]:
    """A model, and a batch that it classifies correctly; small sets are repeated: a pass takes the same time."""
    if name in RANDOM:
        return random_case(name, batch)
    suite_model = MODELS[name]
    model = suite_model.open().to(DEVICE).eval().requires_grad_(False)
    images, labels = correct_samples(model, *suite_model.read(files))
    repeats = -(-batch // len(images))
    x, y = (part.repeat(repeats, *[1] * (part.ndim - 1))[:batch] for part in (images, labels))
    return model, x, y


def measure_case(name: str, files: dict[str, list[str]], options: argparse.Namespace) -> dict[str, Any]:
    """Time all contenders on one model and batch."""
    model_name, _, size = name.partition(":")
    model, x, y = open_case(model_name, int(size), files)
    if options.quality:
        return {"model": model_name, "batch": len(x), **compare_quality(model, x, y)}
    bare = bare_model(model, x, min(40, *options.passes, options.peers_passes), options.only)
    contenders = bare | other_libraries(model, x, y, options.peers_passes)
    contenders = select(contenders, options.only)
    memory = {each: time_pass(run)[1] for each, run in contenders.items()}  # of the first run: captured graphs stay
    left_out = "plain" if len(x) >= LARGE else "compiled"
    modes = {
        mode: flags
        for mode, flags in MODES[DEVICE].items()
        if left_out not in mode and (mode.strip() or "default") in options.modes
    }
    classifiers = {mode: Classifier(model, batch_size=len(x), **flags) for mode, flags in modes.items()}
    reasons: dict[str, Any] = {}
    with ExitStack() as stack:
        for mode, classifier in classifiers.items():
            before = allocated()
            session = stack.enter_context(open_session(classifier))
            batch = session.validate(x, y)
            ours = {
                f"{each}, {passes} passes" if len(options.passes) > 1 else each: run
                for passes in options.passes
                for each, run in our_attacks(session, batch, passes, mode).items()
            }
            copies = (allocated() - before) / 2**20  # of the model: folded, in 16 bits
            for each, run in select(ours, options.only).items():
                contenders[each] = run
                memory[each] = copies + max(time_pass(run)[1] for _ in range(options.warm_ups))
            low = session.calibrate(batch.images, low=Race().low_precision(L2, max(options.passes)))
            reasons[mode] = session.describe(low.search_precision)
        rounds: list[dict[str, tuple[float, float]]] = []
        began = time.perf_counter()
        while len(rounds) < options.rounds and (not rounds or time.perf_counter() - began < options.limit):
            rounds.append({each: time_pass(run) for each, run in contenders.items()})
    rows = [summary(each, rounds, memory[each]) for each in contenders]
    for row in rows:
        print(name, row, flush=True)
    return {
        "model": model_name, "batch": len(x), "passes of peers": options.peers_passes,
        "passes": options.passes[0] if len(options.passes) == 1 else options.passes, "rows": rows, "execution": reasons,
    }  # fmt: skip


def select(contenders: dict[str, Contender], words: list[str]) -> dict[str, Contender]:
    """Those whose names contain one of the words."""
    return {name: run for name, run in contenders.items() if any(word in name for word in words)}


def compare_quality(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """The seconds of CW and DDN, and of Race to the same mean distance."""
    import foolbox

    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=x.device)
    attacks = {
        "CW, 10 searches of 1,000 steps": foolbox.attacks.L2CarliniWagnerAttack(binary_search_steps=10, steps=1000),
        "DDN, 1,000 steps": foolbox.attacks.DDNAttack(steps=1000),
    }
    results = {}
    measure(model, x, y, "l2", budget=LADDER[0], batch=len(x))  # warm-up: loads the libraries of both sides
    foolbox.attacks.DDNAttack(steps=10).run(wrapped, x, y)
    for name, attack in attacks.items():
        began = clock()
        with default_precision():
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
            ours = float("inf")  # it never reached them
        results[name] = {
            "seconds": seconds, "mean": mean, "missed": int(missed.sum()), "Race: budget": budget,
            "Race: seconds": ours, "Race: mean": float(margins.distance[~missed.cpu()].mean()),
            "times as fast": seconds / ours,
        }  # fmt: skip
        print(name, results[name], flush=True)
    return results


def summary(name: str, rounds: list[dict[str, tuple[float, float]]], memory: float) -> dict[str, Any]:
    """The median of the rounds, their range, and the peak memory."""
    ms = [1e3 * each[name][0] for each in rounds]
    return {
        "name": name, "ms": round(median(ms), 4), "from": round(min(ms), 4), "to": round(max(ms), 4),
        "MiB": round(max(memory, *(each[name][1] for each in rounds))), "rounds": [round(value, 4) for value in ms],
    }  # fmt: skip


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=[], metavar="NAME=FILE")
    parser.add_argument("--cases", nargs="+", default=CASES[DEVICE], metavar="MODEL:BATCH")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD")
    parser.add_argument(
        "--modes", nargs="+", default=[mode.strip() or "default" for mode in MODES[DEVICE]], metavar="MODE"
    )
    parser.add_argument("--passes", type=int, nargs="+", default=[200])
    parser.add_argument("--peers-passes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=float("inf"))  # seconds per case after which no round begins
    parser.add_argument("--warm-ups", type=int, default=2)  # untimed runs of ours; graphs are captured in the first
    parser.add_argument("--quality", action="store_true")
    parser.add_argument("--record", metavar="NAME")  # of the record; by default speed-DEVICE or quality-DEVICE
    return parser.parse_args()


def main() -> None:
    """Run the chosen cases."""
    options = parse()
    if not CUDA:
        torch.set_num_threads(1)
    files = {name: paths.split(",") for name, _, paths in (entry.partition("=") for entry in options.data)}
    graphs.CAPTURE_AFTER = 0
    results: list[dict[str, Any]] = []
    for name in options.cases:
        results.append(measure_case(name, files, options))
        write(options.record or f"{'quality' if options.quality else 'speed'}-{DEVICE}", results)


if __name__ == "__main__":
    main()
