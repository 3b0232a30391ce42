"""Reports on stored runs: a self-contained HTML page, figures and tables for papers, text and JSON."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from marginattack.errors import InputError
from marginattack.storage.files import make_folder, write_atomically
from marginattack.storage.paths import StoragePath

REQUIRED = ("altair", "jinja2", "vl_convert", "PIL")  # the extra marginattack[report]


def write_report(
    runs: Sequence[str | StoragePath], out: Path, *, eps: Sequence[float | int] = (), unit: float | int = 1
) -> None:
    """Write one self-contained HTML file about one or several runs.

    Args:
        runs: Run folders that ``marginattack measure --out`` wrote.
        out: The file to write. It is replaced atomically.
        eps: Distances, in ``unit``, whose robust accuracy the page tabulates; the smallest is pinned.
        unit: Unit of distances that the page shows first: 1 (pixels from 0 to 1) or 255.

    Raises:
        InputError: A run cannot be read, ``out`` cannot be written, or the extra ``report`` is not installed.

    Example:
        >>> write_report(["runs/digits"], Path("report.html"))  # doctest: +SKIP
    """
    _check(unit)
    from marginattack.report.page import render_page

    page = render_page(list(map(str, runs)), [float(level) for level in eps], unit)
    _write(Path(out), page.encode(errors="backslashreplace"))


def write_figures(
    run: str | StoragePath, folder: Path, *, eps: Sequence[float | int] = (), unit: float | int = 1
) -> list[Path]:
    """Write every chart of a run as SVG, PDF and PNG, and its tables as LaTeX and CSV.

    Args:
        run: A run folder that ``marginattack measure --out`` wrote.
        folder: The folder to write into.
        eps: Distances, in ``unit``, of the table of robust accuracies; charts mark the smallest.
        unit: Unit of distances: 1 (pixels from 0 to 1) or 255.

    Returns:
        The files that were written.

    Raises:
        InputError: The run cannot be read, a file cannot be written, or the extra ``report`` is not installed.

    Example:
        >>> write_figures(Path("runs/digits"), Path("figures"))  # doctest: +SKIP
    """
    _check(unit)
    from marginattack.report.figures import render_figures

    files = render_figures(str(run), [float(level) for level in eps], unit)
    return [_write(Path(folder) / name, content) for name, content in files]


def _check(unit: float | int) -> None:
    """Refuse to start without the packages of the extra, or with another unit."""
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
