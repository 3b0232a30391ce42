"""Reports on stored runs: a self-contained HTML page, figures and tables for papers, text and JSON."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from marginattack.errors import InputError
from marginattack.storage.files import make_folder, write_atomically
from marginattack.storage.paths import StoragePath
from marginattack.views import as_levels

REQUIRED = ("altair", "jinja2", "vl_convert", "PIL")  # the extra marginattack[report]
OTHERS = (".pdf", ".svg", ".png", ".json", ".txt", ".md", ".tex", ".csv")  # suffixes of formats that a page has not


def write_report(
    runs: Sequence[str | StoragePath], out: Path, *, eps: Sequence[float | int] = (), unit: float | int = 1
) -> None:
    """Write one self-contained HTML file about one or several runs.

    Args:
        runs: Run folders that ``marginattack measure --out`` wrote.
        out: The file to write, named .html. It is replaced atomically.
        eps: Distances, in ``unit``, for the table of robust accuracies; the smallest is pinned.
        unit: Initial unit of distances on the page: 1 (pixels from 0 to 1) or 255.

    Raises:
        InputError: A run cannot be read, ``out`` cannot be written or has the suffix of another format, a distance is
            negative, or the extra ``report`` is not installed.

    Example:
        >>> write_report(["runs/digits"], Path("report.html"))  # doctest: +SKIP
    """
    _check(unit)
    if (suffix := Path(out).suffix).lower() in OTHERS:
        raise InputError(f"{out} ends in {suffix}, but a report is an HTML page: name it .html, or use write_figures")
    from marginattack.report.page import render_page

    page = render_page(list(map(str, runs)), _as_floats(eps), unit)
    _write(Path(out), page.encode(errors="backslashreplace"))


def write_figures(
    runs: str | StoragePath | Sequence[str | StoragePath],
    folder: Path,
    *,
    eps: Sequence[float | int] = (),
    unit: float | int = 1,
    width: float | int = 6.75,
    serif: bool = False,
) -> list[Path]:
    """Write one figure with several panels, every chart as SVG, PDF and PNG, and the tables as LaTeX and CSV.

    The panels (``panels.pdf``, ``panels.svg``) show robust accuracy and margins of every norm, with text of 8 points.
    Several runs are overlaid: the panels show their robust accuracy, the tables have one row per run, and only charts
    that compare runs are written.

    Args:
        runs: A run folder that ``marginattack measure --out`` wrote, or several.
        folder: The folder to write into.
        eps: Distances, in ``unit``, of the table of robust accuracies; charts mark the smallest.
        unit: Unit of distances: 1 (pixels from 0 to 1) or 255.
        width: Width of the panels in inches: 3.25 for a column, 6.75 for a page in most templates.
        serif: Use a serif font, as most papers do.

    Returns:
        The files that were written.

    Raises:
        InputError: The run cannot be read, a file cannot be written, ``width`` is out of range, or the extra
            ``report`` is not installed.

    Example:
        >>> write_figures(Path("runs/digits"), Path("figures"))  # doctest: +SKIP
    """
    _check(unit)
    if not 2 <= width <= 20:
        raise InputError(f"width is {width}: give inches from 2 to 20, such as 3.25 for a column or 6.75 for a page")
    from marginattack.report.figures import render_figures

    paths = [str(run) for run in runs] if isinstance(runs, list | tuple) else [str(runs)]
    files = render_figures(paths, _as_floats(eps), unit, width=width, serif=serif)
    return [_write(Path(folder) / name, content) for name, content in files]


def _as_floats(eps: Sequence[float | int]) -> list[float]:
    """Convert levels to floats of at least 0; a ``Level`` keeps its text."""
    as_levels(list(eps))
    return [level if isinstance(level, float) else float(level) for level in eps]


def _check(unit: float | int) -> None:
    """Raise InputError if packages of the extra are missing, or for another unit."""
    missing = [name for name in REQUIRED if find_spec(name) is None]
    if missing:
        raise InputError(f"reports need {', '.join(missing)}: pip install 'marginattack[report]'")
    if unit not in (1, 255):
        raise InputError(f"unit is {unit}: choose 1 (pixels from 0 to 1) or 255")


def _write(path: Path, content: bytes) -> Path:
    try:
        make_folder(path.parent)
        with write_atomically(path) as file:
            file.write(content)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    return path
