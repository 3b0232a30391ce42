"""Python files of the user: executed from source, recorded, and isolated from files of the same name elsewhere."""

import importlib
import os
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
INSTALLED = tuple(f"{os.path.realpath(sysconfig.get_path(scheme))}{os.sep}" for scheme in SCHEMES)
PACKAGE = __name__.partition(".")[0]
LOCK = threading.RLock()  # sys.path and sys.modules belong to the whole process


class Recorder(SourceFileLoader):
    """Runs a module from its source, never from cached bytecode, which may be outdated."""

    def __init__(self, name: str, path: str, contents: dict[str, bytes]) -> None:
        super().__init__(name, path)
        self.contents = contents

    def get_code(self, fullname: str) -> CodeType:
        """Compile the bytes that are recorded."""
        self.contents[fullname] = content = self.get_data(self.path)
        return self.source_to_code(content, self.path)


class LocalFinder(MetaPathFinder):
    """Finds modules as Python does, but only files of the user, and records their content."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}  # by name of the module
        self.compiled = compiled_packages()

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a local module; None leaves it to the other finders."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None
        if not is_local(fullname, spec.origin, self.compiled):
            return None
        spec.loader = Recorder(fullname, str(spec.origin), self.contents)
        return spec


@contextmanager
def import_from(folder: Path) -> Iterator[dict[str, bytes]]:
    """Import from this folder first, as when Python runs a script there; yields the source of every local module.

    Local modules are imported anew, and modules imported under the same names before are restored at the end: a second
    folder with a ``helper.py`` gets its own, and the same files give the same sources, in any process.
    """
    finder, entry = LocalFinder(), str(folder)
    with LOCK:
        loaded = list(sys.modules.items())
        before = {name: module for name, module in loaded if is_local(name, _file(module), finder.compiled)}
        for name in before:
            del sys.modules[name]
        others, roots = set(sys.modules), {name.partition(".")[0] for name in before}
        sys.path.insert(0, entry)
        sys.meta_path.insert(0, finder)
        importlib.invalidate_caches()
        try:
            yield finder.contents
        finally:
            sys.meta_path.remove(finder)
            for name in sys.modules.keys() - others:
                if name.partition(".")[0] in roots:
                    del sys.modules[name]  # the model keeps its own
            sys.modules.update(before)
            if entry in sys.path:
                sys.path.remove(entry)


def compiled_packages() -> set[str]:
    """Return the imported packages with compiled parts, which cannot be imported twice."""
    suffixes = tuple(EXTENSION_SUFFIXES)
    loaded = list(sys.modules.items())
    return {
        name.partition(".")[0] for name, module in loaded if "." in name and (_file(module) or "").endswith(suffixes)
    }


def is_local(name: str, file: str | None, compiled: set[str]) -> bool:
    """Whether a module is a file of the user: not of Python, of an installed package, or of a compiled one."""
    root = name.partition(".")[0]
    if file is None or not os.path.isabs(file) or root in (PACKAGE, "__main__") or root in compiled:
        return False
    return not _is_installed(file) and not _is_installed(os.path.realpath(file))


def _is_installed(file: str) -> bool:
    return file.startswith(INSTALLED) or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _file(module: Any) -> str | None:
    """Return the file of a module, or the folder of a package without ``__init__.py``; None for built-in modules."""
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return file if isinstance(file, str) else None
