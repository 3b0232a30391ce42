"""Registry: objects by name, of this package and of other packages through entry points."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import TypeVar

from marginattack.errors import describe

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Bundled objects by name, and the entry points of ``group``, which are loaded at the first use.

    Loading them earlier would fail for a package that is still being imported. Entry points that cannot be loaded are
    left out, with a warning.

    Args:
        group: The group of entry points, such as "marginattack.attacks".
        bundled: The objects of this package.
        key: Maps the name of an entry point and the object that it loads to the name here.
    """

    def __init__(
        self, group: str, bundled: Mapping[str, T], key: Callable[[str, T], str] = lambda name, _: name
    ) -> None:
        self._group, self._known, self._key, self._loaded = group, dict(bundled), key, False

    def __getitem__(self, name: str) -> T:
        return self._known[name] if name in self._known else self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())

    def _all(self) -> dict[str, T]:
        if not self._loaded:
            self._loaded = True
            for plugin in entry_points(group=self._group):
                try:
                    thing: T = plugin.load()
                    self._known.setdefault(self._key(plugin.name, thing), thing)
                except Exception as error:
                    where = f"{self._group}: {plugin.name} = {plugin.value}"
                    hint = "update or uninstall its package"
                    warnings.warn(f"{where} cannot be loaded ({describe(error)}): {hint}", stacklevel=2)
        return self._known
