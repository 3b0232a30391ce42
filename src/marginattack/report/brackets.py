"""Brackets of a series: how many are closed, which are the widest, and evidence of optimality for the others."""

from typing import Any

import numpy as np

from marginattack.analysis.statistics import median_or_nan
from marginattack.report.series import Series

CLOSED = (0.01, 0.1, 0.5)  # relative differences between the lower and the upper bound
MAX_WIDEST = 10
HOW_TO_READ = (
    "Lower: certified, no adversarial example is nearer. KKT residual: how much nearer the tangent plane at the "
    "adversarial point comes; near 0 means a local minimum. Spread: largest over smallest margin across seeds, minus "
    "1; well above 0 means several local minima. Neither is a bound."
)


def summarize_brackets(series: Series, scale: float | int = 1) -> dict[str, Any]:
    """Summarize the bounds of a series that has some; distances are multiplied by ``scale``."""
    column = {name: values[series.measured] for name, values in series.columns.items()}
    lower, upper = column["lower"], column["distance"]
    ratio = np.divide(lower, upper, out=np.zeros_like(lower), where=np.isfinite(upper) & (upper > 0))
    ratio[np.isinf(lower)] = 1.0
    known = {name: column[name][~np.isnan(column[name])] for name in ("kkt", "spread", "estimate")}
    return {
        "method": series.store.manifest["bounds"]["settings"]["method"], "measured": len(lower),
        "certified": int((lower > 0).sum()),
        "closed": {f"{share:g}": int((ratio >= 1 - share).sum()) for share in CLOSED},
        "median_lower": scale * median_or_nan(lower), "median_upper": scale * median_or_nan(upper),
        "median_ratio": median_or_nan(ratio),
        **{f"median_{name}": median_or_nan(known[name]) for name in ("kkt", "spread")},
        **{f"largest_{name}": float(known[name].max(initial=np.nan)) for name in ("kkt", "spread") if len(known[name])},
        "median_estimate": scale * median_or_nan(known["estimate"]),
        "estimates_refuted": int((column["estimate"] > upper).sum()),
        "widest": _list_widest(series, column, scale),
    }  # fmt: skip


def _list_widest(series: Series, column: dict[str, np.ndarray], scale: float | int) -> list[dict[str, Any]]:
    """The samples with the widest brackets; those without an adversarial example first."""
    with np.errstate(invalid="ignore"):
        width = np.where(np.isinf(column["lower"]), 0.0, column["distance"] - column["lower"])
    rows = np.argsort(-width, kind="stable")[:MAX_WIDEST]
    return [
        {"id": int(column["id"][i]), **({"name": str(column["name"][i])} if "name" in column else {}),
         "label": series.classes[int(column["label"][i])],
         "lower": scale * float(column["lower"][i]), "upper": scale * float(column["distance"][i]),
         "certified_by": str(column["certified_by"][i]), "kkt": float(column["kkt"][i]),
         "spread": float(column["spread"][i])}
        for i in rows.tolist() if width[i] > 0
    ]  # fmt: skip
