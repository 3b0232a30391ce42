"""Python files of the user: run from their source, recorded, and kept apart from files of the same name elsewhere."""

import importlib
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

SCHEMES = ("stdlib", "platstdlib", "purelib", "platlib")
INSTALLED = tuple(f"{Path(sysconfig.get_path(scheme)).resolve()}/" for scheme in SCHEMES)
PACKAGE = __name__.partition(".")[0]
LOCK = threading.RLock()  # the path and the table of modules are those of the process


class Recorder(SourceFileLoader):
    """Runs a module from its source, never from cached bytecode, which may be that of another source."""

    def __init__(self, name: str, path: str, contents: dict[str, bytes]) -> None:
        super().__init__(name, path)
        self.contents = contents

    def get_code(self, fullname: str) -> CodeType:
        """Compile the bytes that are recorded."""
        self.contents[fullname] = content = self.get_data(self.path)
        return self.source_to_code(content, self.path)


class LocalFinder(MetaPathFinder):
    """Finds modules as Python does, but only those that are files of the user, and records their content."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}  # by name of the module

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a local module; None leaves it to the other finders."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader or not is_local(fullname, spec.origin):
            return None
        spec.loader = Recorder(fullname, str(spec.origin), self.contents)
        return spec


@contextmanager
def import_from(folder: Path) -> Iterator[dict[str, bytes]]:
    """Import from this folder first, as when Python runs a script there; yields the source of every local module.

    Local modules are imported afresh, whatever was imported under their names before, and what was is put back at the
    end: a second folder with a ``helper.py`` gets its own, and the same files give the same sources, in any process.
    """
    finder, entry = LocalFinder(), str(folder)
    with LOCK:
        offered = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
        before = {name: module for name, module in list(sys.modules.items()) if _is_replaced(name, module, offered)}
        for name in before:
            del sys.modules[name]
        sys.path.insert(0, entry)
        sys.meta_path.insert(0, finder)
        importlib.invalidate_caches()
        try:
            yield finder.contents
        finally:
            sys.meta_path.remove(finder)
            roots = {name.partition(".")[0] for name in before}
            for name in [name for name in sys.modules if name.partition(".")[0] in roots]:
                del sys.modules[name]  # the model keeps its own
            sys.modules.update(before)
            if entry in sys.path:
                sys.path.remove(entry)


def _is_replaced(name: str, module: Any, offered: set[str]) -> bool:
    """Whether a module is imported afresh: the folder may have its own of this name, or it was recorded before."""
    recorded = isinstance(getattr(module, "__loader__", None), Recorder)
    if not recorded and name.partition(".")[0] not in offered:
        return False
    folders = getattr(module, "__path__", ())  # a package without __init__.py has no file
    return is_local(name, getattr(module, "__file__", None) or next(iter(folders), None))


def is_local(name: str, file: str | None) -> bool:
    """Whether a module is a file of the user: not of Python, of an installed package, or of one with compiled parts."""
    root = name.partition(".")[0]
    if root in (PACKAGE, "__main__") or file is None:
        return False
    path = str(Path(file).resolve())
    if path.startswith(INSTALLED) or "/site-packages/" in path or "/dist-packages/" in path:
        return False
    parts = [
        str(getattr(part, "__file__", "")) for key, part in list(sys.modules.items()) if key.startswith(f"{root}.")
    ]
    return not any(part.endswith(tuple(EXTENSION_SUFFIXES)) for part in parts)  # it could not be imported twice
