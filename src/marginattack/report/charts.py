"""The registry of charts: to add one, write a function ``View -> Chart`` and add a line to ``PLOTS``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from altair.utils.schemapi import debug_mode

from marginattack.report.class_charts import draw_matrix, draw_strips
from marginattack.report.convergence_charts import draw_constraint, draw_distance, draw_progress
from marginattack.report.datasets import View
from marginattack.report.encodings import Chart
from marginattack.report.margin_charts import draw_confidence, draw_curve, draw_histogram, draw_log_curve

HEIGHT = 280


@dataclass(frozen=True)
class Plot:
    """A chart: its name, the function that draws it, and the datasets that it uses."""

    name: str
    draw: Callable[[View], Chart]
    datasets: tuple[str, ...]

    def has_data(self, view: View) -> bool:
        """Return whether there is anything to draw."""
        return all(view.datasets[name].columns["series"] for name in self.datasets)

    def to_spec(self, view: View) -> dict[str, Any]:
        """Return the Vega-Lite spec without data, not validated: validation is slow, and tests do it."""
        with debug_mode(False):
            spec = self.draw(view).to_dict(validate=False)
        return {"height": HEIGHT, **{name: value for name, value in spec.items() if name not in ("config", "$schema")}}


PLOTS = (
    Plot("curve", draw_curve, ("curve",)),
    Plot("curve-log", draw_log_curve, ("curve",)),
    Plot("histogram", draw_histogram, ("rows",)),
    Plot("strips", draw_strips, ("strips",)),
    Plot("matrix", draw_matrix, ("rows", "pairs")),
    Plot("confidence", draw_confidence, ("rows",)),
    Plot("distance", draw_distance, ("trace",)),
    Plot("constraint", draw_constraint, ("trace",)),
    Plot("progress", draw_progress, ("trace",)),
)


def plots_with_data(view: View) -> list[Plot]:
    """Return the plots that have anything to draw."""
    return [plot for plot in PLOTS if plot.has_data(view)]
