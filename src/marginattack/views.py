"""Views of margins: accuracies, tables for pandas and polars, a plot, and a summary for notebooks."""

import html
from abc import ABC, abstractmethod
from dataclasses import fields
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from marginattack.core.rounding import rounded_up
from marginattack.errors import InputError, MissingDependencyError

POINTS = 120  # of a curve
WIDTH, HEIGHT = 260, 90  # pixels of the small curve
QUANTILE = 0.99  # of the margins, where a curve ends


class Views(ABC):
    """Accuracies, tables, a plot and a notebook summary of one row per sample; base class of ``Margins``."""

    norm: str
    distance: Tensor
    label: Tensor
    prediction: Tensor
    lower: Tensor
    certified_by: tuple[str, ...]
    classes: tuple[str, ...] | None
    names: tuple[str, ...] | None
    settings: dict[str, Any]

    @abstractmethod
    def summary(self) -> dict[str, float | int]:
        """Summary statistics over all samples."""

    @property
    @abstractmethod
    def closed(self) -> Tensor:
        """Which margins are known to 1 %."""

    def robust_accuracy(self, eps: Any) -> Any:
        """Return the share of samples that are classified correctly and further than ``eps`` from the boundary.

        Args:
            eps: one distance or several, in the unit of the pixels.

        Returns:
            A float for one distance, a list of floats for several.

        Raises:
            InputError: a distance is no number of at least 0; or it was not measured: it is below ``enough``, where
                samples stopped, or beyond the radius within which the attack searched.

        Example:
            >>> import torch
            >>> import marginattack as ma
            >>> logits = torch.tensor([[0.9, 0.2], [0.5, 0.1]])
            >>> margins = ma.measure(torch.nn.Identity(), logits, torch.tensor([0, 0]), norm="l2")
            >>> margins.robust_accuracy([0.1, 0.3, 0.5])
            [1.0, 0.5, 0.0]
        """
        levels = as_levels(eps)
        nearest, furthest = self._measured_range()
        near = levels[(levels > 0) & (_rounded_up(levels) < nearest)]
        if near.numel():
            seen = f"eps is {float(near[0]):.4g}, but samples stopped within {nearest:.4g} (enough)"
            raise InputError(f"{seen}: give 0 or at least {nearest:.4g}, or measure with a smaller enough")
        far = levels[levels > rounded_up(furthest)]
        if far.numel():
            seen = f"eps is {float(far[0]):.4g}, but nothing is known beyond the radius of the attack, {furthest:.4g}"
            raise InputError(f"{seen}: give at most {furthest:.4g}, or measure with a larger radius")
        return self._robust_shares(levels).tolist()

    def certified_accuracy(self, eps: Any) -> Any:
        """Return the share of samples that are classified correctly and certified up to ``eps``.

        Args:
            eps: one distance or several, in the unit of the pixels.

        Returns:
            A float for one distance, a list of floats for several; at most the robust accuracy, 0 without bounds.

        Example:
            >>> import torch
            >>> import marginattack as ma
            >>> ma.measure(torch.nn.Identity(), torch.tensor([[0.9, 0.2]]), [0], norm="linf").certified_accuracy(0.3)
            0.0
        """
        levels = as_levels(eps)
        certified = (self.lower >= levels[..., None]) & (self.prediction == self.label)
        return certified.to(torch.float64).mean(-1).tolist()

    def _robust_shares(self, levels: Tensor) -> Tensor:
        """Robust accuracy at each level; points are within it up to the rounding of float32."""
        robust = (self.distance > _rounded_up(levels)[..., None]) & (self.prediction == self.label)
        return robust.to(torch.float64).mean(-1)

    def _measured_range(self) -> tuple[float, float]:
        """The distances from which and up to which robust accuracy is known; that at 0 always is."""
        within = self.settings.get("within")
        return self.settings.get("enough") or 0.0, float("inf") if within is None else within

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one row per sample, without the images.

        Returns:
            The columns of the result, with ``name`` and the names of the classes if they are known.

        Raises:
            MissingDependencyError: pandas is not installed.

        Example:
            >>> import torch
            >>> import marginattack as ma
            >>> logits = torch.tensor([[0.9, 0.2], [0.5, 0.1]])
            >>> margins = ma.measure(torch.nn.Identity(), logits, [0, 0], norm="linf", budget=20)
            >>> margins.to_pandas()[["label", "adversarial_label", "success"]].values.tolist()
            [[0, 1, True], [0, 1, True]]
        """
        return _require("pandas").DataFrame(self._table())

    def to_polars(self) -> Any:
        """Return a polars DataFrame with one row per sample, without the images; see ``to_pandas``.

        Returns:
            The columns of the result.

        Raises:
            MissingDependencyError: polars is not installed.

        Example:
            >>> import torch
            >>> import marginattack as ma
            >>> margins = ma.measure(torch.nn.Identity(), torch.tensor([[0.9, 0.2]]), [0], norm="linf", budget=20)
            >>> margins.to_polars().shape[0]
            1
        """
        return _require("polars").DataFrame(self._table())

    def plot(self, ax: Any = None) -> Any:
        """Plot the robust accuracy at every distance, with matplotlib or else with Altair.

        Args:
            ax: the matplotlib axes to draw on; by default new ones.

        Returns:
            The matplotlib axes, or an Altair chart if matplotlib is not installed.

        Raises:
            MissingDependencyError: neither of them is installed.

        Example:
            >>> import torch
            >>> import marginattack as ma
            >>> margins = ma.measure(torch.nn.Identity(), torch.tensor([[0.9, 0.2]]), [0], norm="linf", budget=20)
            >>> chart = margins.plot()
        """
        eps, robust = self._curve()
        x, y = f"ε ({self.norm})", "robust accuracy"
        if ax is None:
            try:
                ax = import_module("matplotlib.pyplot").figure().add_subplot()
            except ImportError:
                alt = _require("altair", "matplotlib or Altair")
                data = alt.Data(values=[{x: e, y: r} for e, r in zip(eps, robust, strict=True)])
                scale = alt.Scale(domain=[0, 1])
                line = alt.Chart(data).mark_line(interpolate="step-after")
                return line.encode(alt.X(x, type="quantitative"), alt.Y(y, type="quantitative", scale=scale))
        ax.step(eps, robust, where="post")
        ax.set(xlabel=x, ylabel=y, ylim=(0, 1), xlim=(0, eps[-1]))
        return ax

    def _repr_html_(self) -> str:
        """The summary and a small curve, for notebooks."""
        s = self.summary()
        numbers = {
            "samples": f"{s['n']:,}", "accuracy": percent(s["accuracy"], 1), "median margin": f"{s['median']:.4g}",
            "found": percent(s["success"], 1), "passes": f"{s['forwards'] + s['backwards']:.0f}",
        }  # fmt: skip
        if any(self.certified_by):
            attacked = self.distance > 0
            lower, closed = self.lower[attacked], self.closed[attacked].double()
            numbers |= {"median certified": f"{lower.median():.4g}", "closed": f"{closed.mean():.1%}"}
        head = "".join(f"<th>{name}</th>" for name in numbers)
        cells = "".join(f"<td>{value}</td>" for value in numbers.values())
        enough, radius = self._measured_range()
        note = f", stopped at {enough:.4g}: smaller distances are not margins" if enough else ""
        if radius < float("inf"):
            note = f", within {radius:.4g}: distances are of points in that radius, not margins"
        title = html.escape(f"Margins, {self.norm}{note}")
        return f"<div><b>{title}</b><table><tr>{head}</tr><tr>{cells}</tr></table>{self._svg() if s['n'] else ''}</div>"

    def _svg(self) -> str:
        """The robust accuracy at every distance as a step curve."""
        eps, robust = self._curve()
        path, before = "", robust[0]
        for e, r in zip(eps, robust, strict=True):
            x = WIDTH * e / eps[-1]
            path += f"{' L' if path else 'M'}{x:.1f} {HEIGHT * (1 - before):.1f} L{x:.1f} {HEIGHT * (1 - r):.1f}"
            before = r
        label = html.escape(f"robust accuracy up to ε = {eps[-1]:.3g} ({self.norm})")
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT + 16}" role="img" '
            f'aria-label="{label}"><path d="M0 0 V{HEIGHT} H{WIDTH}" fill="none" stroke="#999"/>'
            f'<path d="{path}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>'
            f'<text x="2" y="{HEIGHT + 12}" font-size="10" fill="#666">{label}</text></svg>'
        )

    def _curve(self) -> tuple[list[float], list[float]]:
        """Distances up to nearly the largest margin, as far as they were measured, and the robust accuracy at each."""
        nearest, furthest = self._measured_range()
        known = self.distance[torch.isfinite(self.distance)]
        last = max(1.05 * float(known.quantile(QUANTILE)) if len(known) else 0.0, 1.05 * nearest) or 1.0
        eps = torch.linspace(nearest, min(last, furthest), POINTS, dtype=torch.float64)
        return eps.tolist(), self._robust_shares(eps).tolist()

    def _table(self) -> dict[str, Any]:
        """The columns with one value per sample, and the names of samples and classes if they are known."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        table: dict[str, Any] = {} if self.names is None else {"name": list(self.names)}
        for name, value in values.items():
            if isinstance(value, Tensor) and value.ndim == 1:
                table[name] = value.numpy()
            elif isinstance(value, tuple) and name not in ("names", "classes"):
                table[name] = list(value)
        if (classes := self.classes) is not None:
            for name in ("label", "prediction", "adversarial_label"):
                table[f"{name}_name"] = [classes[k] if k < len(classes) else str(k) for k in values[name].tolist()]
        return table


def as_levels(eps: Any) -> Tensor:
    """Distances as a tensor of float64 of the same shape."""
    try:
        levels = torch.as_tensor(eps, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"eps is {eps!r}: give a distance, or a list of distances such as [2/255, 8/255]") from None
    if not bool((levels >= 0).all()):
        raise InputError(f"eps is {eps!r}: give distances of at least 0, such as [2/255, 8/255]")
    return levels


def _rounded_up(levels: Tensor) -> Tensor:
    """The largest distances that count as within these."""
    return torch.tensor([*map(rounded_up, levels.flatten().tolist())], dtype=levels.dtype).view_as(levels)


def choose_rows(rows: Any, n: int) -> Tensor:
    """The numbers of the rows of n that a number, a slice, a boolean mask or an array of numbers selects."""
    if isinstance(rows, slice):
        return torch.tensor(range(n)[rows], dtype=torch.int64)  # a step may be negative, unlike torch's
    try:
        index = torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError):
        index = torch.zeros(1)  # no rows
    if index.numel() == 0:  # such as [], which torch takes for floats
        return torch.zeros(0, dtype=torch.int64)
    if index.is_floating_point() or index.is_complex():
        raise InputError(f"rows are {rows!r}: give a number, a slice, a boolean mask or an array of numbers")
    if index.dtype == torch.bool and index.shape != (n,):
        raise InputError(f"the mask has shape {tuple(index.shape)}: give one value for each of {n} samples")
    return torch.arange(n)[index].reshape(-1)


def percent(share: float, digits: int) -> str:
    """A share in percent; a dash for NaN, of no samples."""
    return "–" if share != share else f"{share:.{digits}%}"


def _require(package: str, named: str = "") -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise MissingDependencyError(f"{named or package} is not installed: pip install {package}") from None
