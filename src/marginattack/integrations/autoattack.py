"""AutoAttack's class with our attack: change the import, keep the script.

``from marginattack.integrations.autoattack import AutoAttack`` instead of ``from autoattack import AutoAttack``. The
standard version runs ``Race`` instead of the four attacks; adversarial points are verified. The class of pyautoattack,
which returns pairs, is in ``marginattack.integrations.pyautoattack``.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from marginattack.attacks import APGD, Attack, Race, Square
from marginattack.attacks.external import external_attack
from marginattack.attacks.external.base import ExternalAttack, ProblemInfo
from marginattack.attacks.external.pyautoattack import NORMS
from marginattack.core.classifier import Classifier
from marginattack.core.losses import CROSS_ENTROPY, DLR, TARGETED_DLR, Loss
from marginattack.core.norms import as_norm
from marginattack.core.randomized import Randomized
from marginattack.core.rounding import rounded_up
from marginattack.errors import InputError, choose, one_line
from marginattack.evaluation import BUDGET, check_distances
from marginattack.execution.session import Session, open_session
from marginattack.measuring import as_attack, measure
from marginattack.storage.files import write_atomically

EOT = 20  # draws per query of a randomised model, as in AutoAttack
VERSIONS = {"standard": BUDGET, "plus": 5 * BUDGET, "rand": EOT * 400, "custom": BUDGET}  # passes per sample of Race


class Function(nn.Module):
    """A function from inputs to logits as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: Tensor) -> Tensor:
        return self.function(images)


@dataclass(kw_only=True)
class State:
    """The progress of an evaluation, in the format of AutoAttack's ``EvaluationState``.

    An unfinished attack is listed among the finished ones as NAME:ROWS, with the number of rows done.
    """

    attacks: list[str]
    path: Path | None
    run: dict[str, int | None] = field(default_factory=dict)  # rows done; None: all
    robust: Tensor | None = None
    clean: float = float("nan")

    @classmethod
    def load(cls, attacks: list[str], path: Path | None, n: int) -> "State":
        """The state of n samples in the file, or a new one."""
        if path is None or not path.exists():
            return cls(attacks=attacks, path=path)
        try:
            stored = json.loads(path.read_text())
            split = [(name.partition(":")[0], name.partition(":")[2]) for name in stored["_run_attacks"]]
            run = {name: int(rows) if rows else None for name, rows in split}
            flags, clean, names = (stored[key] for key in ("_robust_flags", "_clean_accuracy", "_attacks_to_run"))
            robust = None if flags is None else torch.tensor(flags, dtype=torch.bool)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} holds no state of an evaluation ({one_line(error)}): remove it") from None
        if names != sorted(attacks):
            raise InputError(f"{path} is of an evaluation with {names}, not {attacks}: give another state_path")
        if robust is not None and len(robust) != n:
            raise InputError(f"{path} is of {len(robust)} images, not {n}: give the same images, or another state_path")
        return cls(attacks=attacks, path=path, run=run, robust=robust, clean=clean)

    def save(self) -> None:
        """Write the file, if there is one."""
        if self.path is None:
            return
        run = [name if rows is None else f"{name}:{rows}" for name, rows in self.run.items()]
        flags = None if self.robust is None else self.robust.tolist()
        stored = {"_attacks_to_run": sorted(self.attacks), "path": str(self.path), "_run_attacks": run,
                  "_robust_flags": flags, "_last_saved": str(datetime.now()), "_SAVE_TIMEOUT": 60,
                  "_clean_accuracy": self.clean}  # fmt: skip
        with write_atomically(self.path) as file:
            file.write(json.dumps(stored).encode())


class AutoAttack:
    """The robust accuracy of a model within one radius, with the interface of AutoAttack.

    Args:
        model: Maps images in [0, 1] to logits.
        norm: "Linf", "L2" or "L1".
        eps: The radius.
        seed: Seed of the random draws, by default 0, so that results are reproducible.
        verbose: Whether to print progress as AutoAttack does.
        attacks_to_run: With version="custom": names of attacks of this package ("race", "marginattack", …) or of
            AutoAttack ("apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square"; FAB runs pyautoattack's code, which
            must be installed).
        version: "standard": Race with 2,000 passes per sample; "plus": with 10,000; "rand", for models that draw random
            numbers: with 20 draws per query; "custom".
        device: Where a model without tensors runs; others run where their tensors are.
        log_path: A file to which the lines are appended.
        budget: Forwards + backwards per sample of Race; by default that of the version.

    Attributes:
        apgd, apgd_targeted, fab, square: settings of AutoAttack's attacks for the custom version, such as
            ``apgd.n_restarts``; the defaults are AutoAttack's.
        robust_accuracy: the result of the last evaluation.

    Raises:
        InputError: An argument is invalid.

    Example:
        >>> import torch
        >>> from marginattack.integrations.autoattack import AutoAttack
        >>> images, labels = torch.tensor([[0.9, 0.2], [0.5, 0.1]]), torch.tensor([0, 0])
        >>> adversary = AutoAttack(torch.nn.Identity(), norm="Linf", eps=0.3, verbose=False, budget=100)
        >>> points = adversary.run_standard_evaluation(images, labels, bs=2)
        >>> points.argmax(1)
        tensor([0, 1])
    """

    def __init__(
        self, model: nn.Module | Callable[[Tensor], Tensor], norm: str = "Linf", eps: float = 0.3,
        seed: int | None = None, verbose: bool = True, attacks_to_run: Sequence[str] = (), version: str = "standard",
        is_tf_model: bool = False, device: Any = None, log_path: str | Path | None = None, *, budget: int | None = None,
    ) -> None:  # fmt: skip
        if version not in VERSIONS:
            raise InputError(f"no version named {version!r}: {choose(version, VERSIONS)}")
        if is_tf_model:
            raise InputError("is_tf_model is True, but only PyTorch models are supported: convert it, e.g. to ONNX")
        self.attacks_to_run = list(attacks_to_run)
        if version != "custom" and self.attacks_to_run:
            raise InputError(f"attacks_to_run is {self.attacks_to_run}: it needs version='custom'")
        if version != "custom":
            self.attacks_to_run = ["race"]
        self.model, self.norm, self.version = model, as_norm(norm), version
        (self.epsilon,) = check_distances(eps)
        self.seed, self.verbose, self.log_path = seed or 0, verbose, log_path
        self.robust_accuracy = float("nan")
        self.budget = budget or VERSIONS[version]
        self.device = None if device is None or not torch.cuda.is_available() else device
        self.apgd = SimpleNamespace(n_restarts=5, n_iter=100, rho=0.75)
        self.apgd_targeted = SimpleNamespace(n_restarts=1, n_iter=100, rho=0.75, n_target_classes=9)
        self.square = SimpleNamespace(n_restarts=1, n_queries=5000, p_init=0.8)
        self.fab = SimpleNamespace(n_restarts=5, n_iter=100, n_target_classes=9)

    def run_standard_evaluation(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = False,
        state_path: str | Path | None = None, strict: bool = False, *, batch_size: int | None = None,
    ) -> Any:  # fmt: skip
        """Attack each sample until one of the attacks succeeds.

        Args:
            x_orig: The images.
            y_orig: Their labels.
            bs: How many are attacked at a time.
            return_labels: Whether to return the predicted classes too.
            state_path: A file from which an interrupted evaluation resumes; for samples done before, the original image
                is returned.
            strict: Accepted for compatibility with AutoAttack: checks always raise.
            batch_size: Another name of ``bs``, which AutoAttack's example script uses.

        Returns:
            The adversarial images, or the original ones if the model is robust or they were misclassified before; with
            ``return_labels`` the predicted classes too.

        Raises:
            InputError: The model cannot be measured, there are no attacks or too few labels, or the state is of
                another evaluation.
        """
        if not self.attacks_to_run:
            raise InputError("attacks_to_run is empty: version='custom' needs names, such as ['apgd-ce', 'square']")
        if len(x_orig) == 0 or len(x_orig) != len(y_orig):
            raise InputError(f"{len(x_orig)} images, but {len(y_orig)} labels: give images, and one label per image")
        state = State.load(self.attacks_to_run, None if state_path is None else Path(state_path), len(x_orig))
        x_orig = x_orig.detach()
        x_adv, y_adv = x_orig.clone(), y_orig.clone()
        with open_session(self._classifier(x_orig, batch_size or bs)) as session:
            predicted = session.predict(x_orig.cpu()).to(y_orig)
            y_adv.copy_(predicted)
            if state.robust is None:
                state.robust = (predicted == y_orig).cpu()
                state.clean = float(state.robust.double().mean())
                state.save()
            self._log(f"initial accuracy: {state.clean:.2%}")
            began = time.perf_counter()
            for name in self.attacks_to_run:
                self._run(session, name, state, (x_orig, y_orig, x_adv, y_adv), batch_size or bs)
                robust = float(state.robust.double().mean())
                seconds = time.perf_counter() - began
                self._log(f"robust accuracy after {name.upper()}: {robust:.2%} (total time {seconds:.1f} s)")
        change = self.norm.size((x_adv - x_orig).double().flatten(1))
        self._log(
            f"max {self.norm} perturbation: {float(change.max()):.5f}, nan in tensor: {int(x_adv.isnan().sum())}, "
            f"max: {float(x_adv.max()):.5f}, min: {float(x_adv.min()):.5f}"
        )
        self.robust_accuracy = float(state.robust.double().mean())
        self._log(f"robust accuracy: {self.robust_accuracy:.2%}")
        return (x_adv, y_adv) if return_labels else x_adv

    def run_standard_evaluation_individual(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = False, strict: bool = False, *,
        batch_size: int | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Run each attack on all samples; arguments, and results per attack, as of ``run_standard_evaluation``."""
        names, found = self.attacks_to_run, {}
        for name in names:
            part = self._alone(name)
            began = time.perf_counter()
            x_adv, y_adv = part.run_standard_evaluation(x_orig, y_orig, batch_size or bs, return_labels=True)
            found[name] = (x_adv, y_adv) if return_labels else x_adv
            robust, seconds = float((y_adv == y_orig).double().mean()), time.perf_counter() - began
            self._log(f"robust accuracy by {name.upper()} \t {robust:.2%} \t (time attack: {seconds:.1f} s)")
        return found

    def clean_accuracy(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> float:
        """The accuracy on these images."""
        with open_session(self._classifier(x_orig, bs)) as session:
            accuracy = float((session.predict(x_orig.cpu()) == y_orig.cpu()).double().mean())
        self._log(f"clean accuracy: {accuracy:.2%}")
        return accuracy

    def _run(self, session: Session, name: str, state: State, tensors: tuple[Tensor, ...], bs: int) -> None:
        """Run one attack on the samples that are still robust, and enter its results."""
        x_orig, y_orig, x_adv, y_adv = tensors
        assert state.robust is not None
        done = state.run.get(name, 0)
        todo = state.robust.nonzero()[:, 0] if done is not None else torch.zeros(0, dtype=torch.int64)
        todo = todo[todo >= (done or 0)]
        batches = todo.split(bs) if len(todo) else ()
        attack = self._attack(name)
        own = isinstance(attack, Race)
        for number, rows in enumerate(batches, 1):
            here = rows.to(x_orig.device)
            margins = measure(
                session, x_orig[here], y_orig[here], self.norm, attack=attack, budget=self.budget if own else None,
                enough=self.epsilon if own and session.randomized is None else None, seed=self.seed, ids=rows, batch=bs,
                diagnose=number == 1,
            )  # fmt: skip
            found = margins.success & (margins.distance <= rounded_up(self.epsilon))
            state.robust[rows[found]] = False
            where = found.to(x_orig.device)
            x_adv[here[where]] = margins.adversarial[found].to(x_adv)
            y_adv[here[where]] = margins.adversarial_label[found].to(y_adv)
            state.run[name] = int(rows[-1]) + 1
            state.save()
            self._log(
                f"{name} - {number}/{len(batches)} - {int(found.sum())} out of {len(rows)} successfully perturbed"
            )
        state.run[name] = None
        state.save()

    def _attack(self, name: str) -> Attack:
        """The attack of this name, of AutoAttack or of this package."""
        eps, apgd, targeted = self.epsilon, self.apgd, self.apgd_targeted
        losses: dict[str, Loss] = {"apgd-ce": CROSS_ENTROPY, "apgd-dlr": DLR}
        if name in losses:
            return APGD(eps=eps, steps=apgd.n_iter, restarts=apgd.n_restarts, rho=apgd.rho, loss=losses[name])
        if name == "apgd-t":
            return APGD(eps=eps, steps=targeted.n_iter, restarts=targeted.n_restarts, rho=targeted.rho,
                        candidates=targeted.n_target_classes, loss=TARGETED_DLR)  # fmt: skip
        if name == "square":
            return Square(eps=eps, queries=self.square.n_queries, p=self.square.p_init, restarts=self.square.n_restarts)
        return self._fab(name) if name in ("fab", "fab-t") else as_attack(name)

    def _fab(self, name: str) -> ExternalAttack:
        """FAB of pyautoattack with these settings; the targeted form has one start per class, as in AutoAttack."""
        targeted, fab = name == "fab-t", self.fab

        def settings(info: ProblemInfo) -> dict[str, Any]:
            classes = min(fab.n_target_classes, info.classes - 1)
            return {"norm": NORMS[info.norm], "eps": info.eps, "n_iter": fab.n_iter, "targeted": targeted,
                    "n_restarts": 1 if targeted else fab.n_restarts, "n_target_classes": classes}  # fmt: skip

        return replace(external_attack(f"autoattack:{name}@{self.epsilon}"), choose_settings=settings)

    def _classifier(self, images: Tensor, bs: int) -> Classifier:
        """The model, on images in [0, 1]."""
        module = self.model if isinstance(self.model, nn.Module) else Function(self.model)
        rule = Randomized(eot=EOT) if self.version == "rand" else False
        return Classifier(module, batch_size=bs, randomized=rule, device=self.device or images.device)

    def _alone(self, name: str) -> "AutoAttack":
        """The same evaluation with one attack, which prints nothing."""
        alone = AutoAttack(self.model, str(self.norm), self.epsilon, self.seed, version=self.version)
        vars(alone).update({**vars(self), "attacks_to_run": [name], "verbose": False, "log_path": None})
        return alone

    def _log(self, line: str) -> None:
        if self.verbose:
            print(line)
        if self.log_path is not None:
            with open(self.log_path, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")
