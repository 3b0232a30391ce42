"""Margins: the result record, one row per sample."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marginattack.core.norms import as_norm
from marginattack.errors import InputError
from marginattack.storage.bounds import UNBOUNDED, read_part
from marginattack.storage.contract import BOUNDS, COLUMNS, find_wrong_column, find_wrong_images
from marginattack.storage.parquet import make_column, read_column, read_metadata, read_table, write_table
from marginattack.storage.paths import StoragePath, parse_path
from marginattack.storage.run_folder import RunFolder
from marginattack.views import Views, choose_rows, percent

FORMAT = 5
DIGESTS_SINCE = 4
BOUNDS_SINCE = 5
CLOSED = 0.01  # a margin is closed if its bounds differ by less than this share of the upper one
SUFFIXES = (".parquet", ".pq", "")


@dataclass(frozen=True, kw_only=True, eq=False)
class Margins(Views):
    """How far each input is from the decision boundary, with the adversarial point that proves it.

    Every row was verified on the plain model. ``rejected`` marks points that failed the verification; they count as
    not found.

    Attributes:
        norm: the norm of the distances: "l2", "linf", "l1" or "l0".
        distance: (n,) float64, in the unit of the pixels; infinite where no adversarial point was found, 0 where the
            input itself is misclassified.
        adversarial: shaped like the images; the image itself if nothing was found.
        success: (n,) bool, whether an adversarial point was found.
        label: (n,) the true class.
        prediction: (n,) the predicted class of the input.
        confidence: (n,) float64, softmax of the prediction.
        adversarial_label: (n,) the predicted class of the adversarial point.
        forwards: (n,) forward passes of the attack.
        backwards: (n,) backward passes of the attack.
        rejected: (n,) bool, found but not adversarial when verified.
        distance_at_90pct: (n,) float64, the best distance when about 90 % of the passes were spent.
        settings: what the margins were measured with: attack, budget, seed, bounds, versions; for a randomised model
            the fields of ``Randomized`` under "randomized".
        original: shaped like ``adversarial``, the inputs; None if they were not stored.
        names: one name per sample, such as its file; None if there are none.
        classes: the names of the classes; None if they are unknown.
        lower: (n,) float64, certified: no adversarial point is nearer; 0 if nothing is certified (``ma.bound``).
        certified_by: the method behind each ``lower``; "" if it is 0.
        kkt: (n,) float64, the KKT residual of each margin (``bounds.kkt_residual``); NaN if it is unknown.
        spread: (n,) float64, by which fraction margins of other seeds exceed the smallest; NaN if there are none.

    Example:
        >>> import torch
        >>> import marginattack as ma
        >>> logits = torch.tensor([[0.9, 0.2], [0.5, 0.1]])  # the identity is a classifier of its own logits
        >>> margins = ma.measure(torch.nn.Identity(), logits, torch.tensor([0, 0]), norm="l2")
        >>> margins
        Margins(l2, n=2, accuracy=100.00%, median=0.3889, success=100.00%)
    """

    norm: str
    distance: Tensor
    adversarial: Tensor
    success: Tensor
    label: Tensor
    prediction: Tensor
    confidence: Tensor
    adversarial_label: Tensor
    forwards: Tensor
    backwards: Tensor
    rejected: Tensor
    distance_at_90pct: Tensor
    settings: dict[str, Any]
    lower: Tensor = field(default_factory=lambda: torch.zeros(0))
    kkt: Tensor = field(default_factory=lambda: torch.zeros(0))
    spread: Tensor = field(default_factory=lambda: torch.zeros(0))
    certified_by: tuple[str, ...] = ()
    original: Tensor | None = None
    names: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, unknown in UNBOUNDED.items():
            if len(getattr(self, name)) == 0:
                object.__setattr__(self, name, torch.full((len(self),), unknown, dtype=torch.float64))
        object.__setattr__(self, "certified_by", self.certified_by or ("",) * len(self))

    def __len__(self) -> int:
        return len(self.distance)

    def __repr__(self) -> str:
        s = self.summary()
        shares = f"accuracy={percent(s['accuracy'], 2)}, median={s['median']:.4g}, success={percent(s['success'], 2)}"
        shares += ", randomized" * bool(self.settings.get("randomized"))
        shares += f", searched in {low}" if (low := self.settings.get("precision", "float32")) != "float32" else ""
        shares += f", stopped at {self.settings['enough']:.4g}" if self.settings.get("enough") else ""
        if (radius := self.settings.get("within")) is not None:
            shares += f", within {radius:.4g}: distances are of points in that radius, not margins"
        return f"Margins({self.norm}, n={s['n']}, {shares})"

    def __getitem__(self, rows: Any) -> "Margins":
        """Select samples by a number, a slice, a boolean mask or an array of numbers."""
        chosen = choose_rows(rows, len(self))
        return replace(self, **{name: _select(value, chosen) for name, value in self._rows().items()})

    def _rows(self) -> dict[str, Any]:
        """The fields that hold one value per sample."""
        names = [each.name for each in fields(self) if each.name != "classes"]
        return {name: vars(self)[name] for name in names if isinstance(vars(self)[name], Tensor | tuple)}

    def __iter__(self) -> Iterator["Margins"]:
        return (self[row] for row in range(len(self)))

    @property
    def perturbation(self) -> Tensor:
        """The adversarial perturbation, adversarial − original; zero if nothing was found.

        Raises:
            InputError: the inputs were not stored.
        """
        if self.original is None:
            raise InputError("these margins have no inputs: measure again, or subtract the inputs from m.adversarial")
        return self.adversarial - self.original

    @property
    def closed(self) -> Tensor:
        """(n,) bool, whether the distance is certified to 1 %: no nearer adversarial point can matter."""
        return (self.lower >= (1 - CLOSED) * self.distance) | (self.distance == 0)

    @property
    def refuted(self) -> Tensor:
        """Deprecated: use ``rejected``."""
        return self._renamed("refuted", "rejected")

    @property
    def late(self) -> Tensor:
        """Deprecated: use ``distance_at_90pct``."""
        return self._renamed("late", "distance_at_90pct")

    def _renamed(self, old: str, new: str) -> Tensor:
        warnings.warn(f"Margins.{old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)
        column: Tensor = getattr(self, new)
        return column

    def summary(self) -> dict[str, float | int]:
        """Return the main figures of the result.

        Returns:
            ``n`` and clean ``accuracy`` of all samples, the number of ``rejected`` points; and over the ``measured``
            samples (those classified correctly, or all if targeted) the ``success`` rate, the ``median`` distance,
            the mean distance of the points found (``mean_found``) and the mean ``forwards`` and ``backwards``.

        Example:
            >>> import torch
            >>> import marginattack as ma
            >>> logits = torch.tensor([[0.9, 0.2], [0.5, 0.1]])
            >>> margins = ma.measure(torch.nn.Identity(), logits, torch.tensor([0, 1]), norm="l2")
            >>> summary = margins.summary()
            >>> summary["accuracy"], summary["measured"], round(summary["median"], 3)
            (0.5, 1, 0.495)
        """
        correct = self.prediction == self.label
        measured = torch.ones_like(correct) if self.settings.get("targeted") else correct
        distance = self.distance[measured]
        return {
            "n": len(self),
            "accuracy": float(correct.double().mean()),
            "measured": int(measured.sum()),
            "success": float(self.success[measured].double().mean()),
            "rejected": int(self.rejected.sum()),
            "median": float(np.median(distance)) if len(distance) else float("nan"),
            "mean_found": float(distance[torch.isfinite(distance)].mean()),
            "forwards": float(self.forwards[measured].double().mean()),
            "backwards": float(self.backwards[measured].double().mean()),
        }

    @staticmethod
    def columns() -> list[str]:
        """Return the names of the fields that hold one row per sample."""
        return [field.name for field in fields(Margins) if field.type is Tensor]

    @staticmethod
    def join(parts: Iterable["Margins"]) -> "Margins":
        """Concatenate results of the same measurement.

        Args:
            parts: one or several results with the same norm, settings and input shape.

        Returns:
            One result with the rows of all parts, in order.

        Raises:
            InputError: there are no parts, or they differ in norm, settings or input shape.

        Example:
            >>> import torch
            >>> import marginattack as ma
            >>> logits, labels = torch.tensor([[0.9, 0.2], [0.5, 0.1]]), torch.tensor([0, 0])
            >>> halves = [ma.measure(torch.nn.Identity(), logits[k], labels[k], norm="l2") for k in ([0], [1])]
            >>> len(ma.Margins.join(halves))
            2
        """
        parts = list(parts)
        if not parts:
            raise InputError("cannot join an empty list of margins: give at least one result")
        first = parts[0]
        for part in parts:
            if part.adversarial.shape[1:] != first.adversarial.shape[1:]:
                shapes = f"{tuple(part.adversarial.shape[1:])} and {tuple(first.adversarial.shape[1:])}"
                raise InputError(f"cannot join margins of inputs of different shapes: {shapes}")
            if differing := _find_differing(first, part):
                raise InputError(f"cannot join margins with different settings: {differing}")
        each = [part._rows() for part in parts]
        rows = {name: [some.get(name) for some in each] for name in each[0]}
        return replace(first, **{name: _concatenate(values) for name, values in rows.items()})

    def save(self, path: str | StoragePath) -> None:
        """Write a Parquet file with one row per sample, atomically.

        Args:
            path: the file, named .parquet, which is replaced if it exists; or a URL such as ``s3://bucket/file``.

        Raises:
            InputError: the name has the suffix of another format.
            OSError: the file cannot be written.

        Example:
            >>> import tempfile, torch
            >>> import marginattack as ma
            >>> margins = ma.measure(torch.nn.Identity(), torch.tensor([[0.9, 0.2]]), torch.tensor([0]), norm="l2")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     margins.save(f"{folder}/margins.parquet")
        """
        import pyarrow as pa

        if (suffix := parse_path(path).suffix) not in SUFFIXES:
            hint = "name it .parquet, or use to_pandas() and its writers, such as to_csv"
            raise InputError(f"{path} ends in {suffix}, but margins are saved as Parquet: {hint}")
        table = pa.table({name: make_column(getattr(self, name)) for name in Margins.columns()})
        table = table.append_column("certified_by", make_column(self.certified_by, "string"))
        shape = list(self.adversarial.shape[1:])
        about = {"format": FORMAT, "norm": self.norm, "shape": shape, "settings": self.settings}
        for name, column in (("original", self.original), ("names", self.names)):
            table = table if column is None else table.append_column(name, make_column(column))
        about |= {} if self.classes is None else {"classes": list(self.classes)}
        write_table(parse_path(path), table, about)

    @staticmethod
    def load(path: str | StoragePath, *, norm: str | None = None, attack: str | None = None) -> "Margins":
        """Read a file that ``save`` wrote, or one attack and norm of a run folder.

        Args:
            path: the file or the run folder; or a URL such as ``s3://bucket/run``.
            norm: which norm of a run folder; required if it has several. A file holds one norm, which must be this.
            attack: which attack of a run folder; required if it has several. A file holds one, which must be this.

        Returns:
            The stored result; of a run folder, the rows of all finished shards.

        Raises:
            InputError: nothing there can be read, or norm and attack do not name one part of the run folder, or what
                the file holds.

        Example:
            >>> import tempfile, torch
            >>> import marginattack as ma
            >>> margins = ma.measure(torch.nn.Identity(), torch.tensor([[0.9, 0.2]]), torch.tensor([0]), norm="l2")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     margins.save(f"{folder}/margins.parquet")
            ...     ma.Margins.load(f"{folder}/margins.parquet")
            Margins(l2, n=1, accuracy=100.00%, median=0.495, success=100.00%)
        """
        path = parse_path(path)
        if path.is_dir():
            folder = RunFolder(path)
            part = folder.find(norm=None if norm is None else as_norm(norm).name, attack=attack)
            found, settings = read_part(folder, part)
            known = [name for name in (*Margins.columns(), "original", "certified_by") if name in found]
            rows = {name: found[name] for name in known} | folder.names(part)
            return Margins(norm=part.norm, settings=settings, **rows)
        hint = "give a file that Margins.save wrote, or a run folder"
        try:
            table = read_table(path, hint=hint)
        except FileNotFoundError:
            raise InputError(f"{path} does not exist: {hint}") from None
        about = read_metadata(table)
        if isinstance(stored := about.get("format"), int) and stored > FORMAT:
            formats = f"format {stored}, this version reads formats up to {FORMAT}"
            raise InputError(f"{path} has {formats}: update marginattack")
        if problem := _find_problem(about, table):
            raise InputError(f"{path} {problem}: {hint}")
        by, other = (
            about["settings"].get("attack", "an attack"),
            norm is not None and as_norm(norm).name != about["norm"],
        )
        if other or (attack is not None and not _is_named(by, attack)):
            held = f"{path} is a file with margins in {about['norm']} by {by}"
            wanted = f"norm={norm!r}" if other else f"attack={attack!r}"
            raise InputError(f"{held}, not a run folder to choose from: leave out {wanted}")
        shapes = {"adversarial": about["shape"]}
        names = [name for name in Margins.columns() if name in table.column_names]  # those of its format
        columns: dict[str, Any] = {name: read_column(table, name, shapes.get(name, ())) for name in names}
        return Margins(norm=about["norm"], settings=about["settings"], **columns, **_read_optional(table, about))


class MarginsByNorm(dict[Any, Margins]):
    """One result per norm, as ``measure(norm=[…])`` returns them; keys are norms by any of their names.

    Example:
        >>> import numpy, torch
        >>> import marginattack as ma
        >>> results = ma.measure(torch.nn.Identity(), torch.tensor([[0.9, 0.2]]), [0], ["L2", numpy.inf], budget=20)
        >>> list(results), results[2].norm
        (['l2', 'linf'], 'l2')
    """

    def __missing__(self, key: Any) -> Margins:
        name = as_norm(key).name
        if not super().__contains__(name):
            raise KeyError(f"{name} was not measured: choose one of {', '.join(self)}")
        return self[name]

    def __contains__(self, key: object) -> bool:
        try:
            return super().__contains__(key) or super().__contains__(as_norm(key).name)  # type: ignore[arg-type]
        except InputError:
            return False

    def get(self, key: Any, default: Any = None) -> Any:
        """The result in a norm by any of its names; ``default`` if it was not measured."""
        return self[key] if key in self else default  # noqa: SIM401 (it would call itself)

    def _repr_html_(self) -> str:
        return "".join(margins._repr_html_() for margins in self.values())


def _find_differing(a: Margins, b: Margins) -> str:
    """The norm or settings that differ between two results, with both values; empty if none does."""
    left, right = ({"norm": each.norm, **each.settings} for each in (a, b))
    names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
    return ", ".join(f"{name} is {left.get(name)!r} and {right.get(name)!r}" for name in names)


def _is_named(stored: str, name: str) -> bool:
    """Whether an attack, stored as its repr such as "PGD(eps=0.1, …)", is the one of this name, such as "pgd@0.1"."""
    base, _, radius = name.partition("@")
    with suppress(ValueError, ZeroDivisionError):
        if radius and f"eps={float(Fraction(radius))!r}," not in stored.replace(")", ","):
            return False
    kind = stored.partition("(")[0]
    known = {kind.lower(), kind.removesuffix("Attack").lower(), "".join(filter(str.isupper, kind)).lower()}  # cw
    return base.replace("-", "").lower() in known or f"(name={base!r}," in stored  # of another library


def _find_problem(about: dict[str, Any], table: Any) -> str | None:
    """Why this is not a complete margins file; None if it is."""
    kinds = {"format": int, "norm": str, "shape": list, "settings": dict}
    if any(not isinstance(about.get(name), kind) for name, kind in kinds.items()):
        return "is not a margins file"
    if about["format"] >= DIGESTS_SINCE and "digest" not in about:
        return "is damaged (it has no digest)"
    columns = {name: COLUMNS[name] for name in Margins.columns() if name in COLUMNS}
    if about["format"] >= BOUNDS_SINCE:
        columns |= {name: BOUNDS[name] for name in (*UNBOUNDED, "certified_by")}
    images = [name for name in ("adversarial", "original") if name == "adversarial" or name in table.column_names]
    return find_wrong_column(table, columns) or find_wrong_images(table, images, about["shape"])


def _read_optional(table: Any, about: dict[str, Any]) -> dict[str, Any]:
    """What only some files hold: the inputs, the names of samples and of classes."""
    found: dict[str, Any] = {}
    if "original" in table.column_names:
        found["original"] = read_column(table, "original", about["shape"])
    texts = {name: table.column(name).to_pylist() for name in {"names", "certified_by"} & set(table.column_names)}
    texts |= {"classes": about["classes"]} if isinstance(about.get("classes"), list) else {}
    return found | {name: tuple(map(str, values)) for name, values in texts.items()}


def _select(value: Any, rows: Tensor) -> Any:
    return value[rows] if isinstance(value, Tensor) else tuple(value[row] for row in rows.tolist())


def _concatenate(values: list[Any]) -> Any:
    if any(value is None for value in values):
        return None
    return torch.cat(values) if isinstance(values[0], Tensor) else tuple(each for value in values for each in value)
