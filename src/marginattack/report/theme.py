"""Colours, dashes and fonts of the charts, for light and dark backgrounds."""

from typing import Any

# Distinguishable with colour vision deficiencies, and at least 3:1 on both backgrounds; lines differ in dashes too.
PALETTE = ("#2b7bc8", "#c2620a", "#1c8a63", "#a355b5", "#8a7420", "#c4487a", "#4f7f8f", "#7a6fd0")
BLUE, ORANGE, GREEN = PALETTE[:3]
GREY = "#7a7f87"
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 4], [12, 4], [1, 4], [6, 2, 2, 2])

# text, secondary text, grid lines, background: the same as in page.css; then the blue of small and thin marks
THEMES = {
    "light": ("#1c1f24", "#5a616b", "#e3e6ea", "#ffffff", BLUE),
    "dark": ("#e8eaed", "#a5adb8", "#343a43", "#1b1e23", "#7db5ee"),
}
# of these colours in the charts of the page
NAMES = ("theme_text", "theme_secondary", "theme_line", "theme_ground", "theme_blue")


def vega_config(font: str = "system-ui, sans-serif", size: int = 12, *, theme: str = "light") -> dict[str, Any]:
    """Return the Vega-Lite config for a font and its size.

    The colours of the theme are parameters, so that the page can change them without redrawing its charts.
    """
    text, secondary, line, *_ = ({"expr": name} for name in NAMES)
    return {
        "params": [{"name": name, "value": value} for name, value in zip(NAMES, THEMES[theme], strict=True)],
        "background": None, "font": font, "view": {"stroke": None}, "padding": 2,
        "axis": {"labelColor": secondary, "titleColor": text, "gridColor": line, "domainColor": secondary,
                 "tickColor": secondary, "labelFontSize": size, "titleFontSize": size, "titleFontWeight": 500,
                 "labelOverlap": True},
        "axisX": {"labelFlush": size},  # labels near an end stay inside
        "legend": {"labelColor": text, "titleColor": text, "orient": "top", "labelFontSize": size, "labelLimit": 260,
                   "symbolStrokeWidth": 2, "columns": 2},
        "text": {"color": text, "fontSize": size}, "rule": {"color": text}, "tick": {"color": text},
        "rect": {"stroke": None}, "title": {"color": text, "fontSize": size + 1, "anchor": "start"},
    }  # fmt: skip
