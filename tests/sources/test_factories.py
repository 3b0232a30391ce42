"""--model file.py:factory: what runs is what is hashed, each folder has its own modules, and errors are one line."""

import importlib
import os
import py_compile
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from model_helpers import assert_refused, assert_same_model, linear

from marginattack.sources.local_code import import_from
from marginattack.sources.models import open_model

FACTORY = """
    import torch
    from torch import nn
    from helper_of_factory import WIDTH

    class Net(nn.Sequential):
        pass

    def make():
        torch.manual_seed(3)
        return Net(nn.Flatten(), nn.Linear(12, WIDTH), nn.Dropout(0.5))

    def broken():
        raise KeyError("no weights\\nhere")

    def number():
        return 3

    def leaving():
        raise SystemExit(1)

    def wanting(weights):
        return nn.Linear(2, 2)

    def bare():
        return nn.Flatten()

    value = 7
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my net.py").write_text(textwrap.dedent(FACTORY))
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").write_text("")
    (tmp_path / "my_package" / "nets.py").write_text(textwrap.dedent(FACTORY))
    (tmp_path / "helper_of_factory.py").write_text("WIDTH = 5\n")
    for name in ("helper_of_factory", "my_package", "my_package.nets"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return str(tmp_path / "my net.py")


def test_factory_in_a_file_with_its_neighbours(factory: str) -> None:
    path = list(sys.path)
    opened = assert_same_model(f"{factory}:make", linear(), shape=(3, 2, 2))
    assert opened.was_training
    assert sys.path == path


def test_factory_in_a_package_of_the_working_folder(factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(factory).parent)
    assert_same_model("my_package.nets:make", linear(), shape=(3, 2, 2))
    assert_same_model("my net.py:make", linear(), shape=(3, 2, 2))
    assert_refused("no module named my_package.nots", "my_package.nots:make")


def test_broken_factories(factory: str, tmp_path: Path) -> None:
    assert_refused(r"factory .*:broken fails: KeyError: .no weights", f"{factory}:broken")
    assert_refused("fails: SystemExit: 1", f"{factory}:leaving")
    assert_refused("fails: TypeError: .*missing 1 required positional argument", f"{factory}:wanting")
    assert_refused("returns int: it must return a torch.nn.Module", f"{factory}:number")
    assert_refused("has no factory 'value': .*make, broken", f"{factory}:value")
    assert_refused("has no factory 'nothing'", f"{factory}:nothing")
    assert_refused("no file .*absent.py", f"{tmp_path}/absent.py:make")
    assert_refused(r"name the function that builds the model, .*\.py:factory", factory)
    (tmp_path / "bad.py").write_text("def make(:\n")
    assert_refused("bad.py fails to run: SyntaxError", f"{tmp_path}/bad.py:make")
    assert_refused("no module named no_such_module_at_all", "no_such_module_at_all:make")
    (tmp_path / "needs.py").write_text("import no_such_module_at_all\n")
    assert_refused("needs.py fails to run: ModuleNotFoundError", f"{tmp_path}/needs.py:make")


def test_a_factory_of_a_module_without_parameters(factory: str) -> None:
    opened = open_model(f"{factory}:bare", normalize="0.5/0.25")
    assert opened.module(torch.full((2, 3, 1, 1), 1.0)).tolist() == [[2.0] * 3] * 2


def test_the_digest_depends_on_the_weights_and_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    text = "import torch\ndef make():\n    torch.manual_seed({})\n    return torch.nn.Linear(2, 2)\n"
    digests = []
    for source in (text.format(0), text.format(0), text.format(1), text.format(0) + "# a change\n"):
        file.write_text(source)
        digests.append(open_model(f"{file}:make").digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert (
        open_model(f"{file}:make", normalize="0.5/0.5", resize=3).digest == digests[3]
    )  # preprocessing is recorded separately


# What made the rows -------------------------------------------------------------------------------------------------


def net(folder: Path, helper: str, main: str = "") -> str:
    """A factory whose logits are a number of its neighbour ``shared_helper``, which gets it from a package."""
    (folder / "shared_parts").mkdir(parents=True, exist_ok=True)
    (folder / "shared_parts" / "values.py").write_text(helper)  # a package without __init__.py
    (folder / "shared_helper.py").write_text("from shared_parts.values import VALUE\n")
    (folder / "net.py").write_text(main or textwrap.dedent(MAIN))
    return f"{folder / 'net.py'}:make"


MAIN = """
    import torch
    from torch import nn
    import shared_parts.values
    from shared_helper import VALUE

    class Net(nn.Module):
        def forward(self, images):
            return images.flatten(1)[:, :2] * VALUE + 0 * shared_parts.values.VALUE

    def make():
        return Net()
"""


def scale(source: str) -> float:
    return float(open_model(source).module(torch.ones(1, 1, 2, 2))[0, 0])


def test_modules_that_a_factory_imports_belong_to_the_digest(tmp_path: Path) -> None:
    digests = [open_model(net(tmp_path, text)).digest for text in ("VALUE = 1\n", "VALUE = 1\n", "VALUE = 1  # new\n")]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_two_folders_with_modules_of_the_same_names_load_each_their_own(tmp_path: Path) -> None:
    sources = [net(tmp_path / name, f"VALUE = {value}\n") for value, name in enumerate("ab", 1)]
    models = [open_model(source) for source in (*sources, *sources)]
    ones = torch.ones(1, 1, 2, 2)
    assert [float(model.module(ones)[0, 0]) for model in models] == [1, 2, 1, 2]
    assert models[0].digest == models[2].digest
    assert models[1].digest == models[3].digest
    assert models[0].digest != models[1].digest


def test_modules_of_the_calling_program_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    net(own, "VALUE = 5\n")
    monkeypatch.syspath_prepend(own)
    for name in ("shared_helper", "shared_parts", "shared_parts.values"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    mine = {name: importlib.import_module(name) for name in ("shared_helper", "shared_parts.values")}
    assert scale(net(tmp_path / "other", "VALUE = 7\n")) == 7
    assert {name: sys.modules[name] for name in mine} == mine
    assert mine["shared_helper"].VALUE == 5


def test_stale_bytecode_of_an_imported_module_does_not_run(tmp_path: Path) -> None:
    source, file = net(tmp_path, "VALUE = 1\n"), tmp_path / "shared_parts" / "values.py"
    py_compile.compile(str(file), doraise=True)
    times = file.stat()
    net(tmp_path, "VALUE = 2\n")  # the same size, and by its time the same file
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert scale(source) == 2


BUFFERS = """
    import numpy as np
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, value, attribute):
            super().__init__()
            self.register_buffer("scale", torch.tensor(value), persistent=False)
            self.plain = torch.tensor(attribute)

        def forward(self, images):
            return images.flatten(1)[:, :2] * self.scale + self.plain

    def make():
        return Net(*np.load({!r}).tolist())
"""


def test_tensors_outside_the_state_dict_belong_to_the_digest(tmp_path: Path) -> None:
    source, digests = net(tmp_path, "", textwrap.dedent(BUFFERS.format(str(tmp_path / "values.npy")))), []
    for values in ([1.0, 2.0], [1.0, 2.0], [3.0, 2.0], [1.0, 4.0]):
        np.save(tmp_path / "values.npy", values)
        digests.append(open_model(source).digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_the_digest_does_not_depend_on_what_was_imported_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for a module of another folder on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lent_values.py").write_text("VALUE = 3\n")
    source = net(tmp_path / "a", "from lent_values import VALUE\n")
    digest = open_model(source).digest
    monkeypatch.delitem(sys.modules, "lent_values")
    importlib.import_module("lent_values")
    assert open_model(source).digest == digest
    (tmp_path / "lent_values.py").write_text("VALUE = 4\n")
    assert open_model(source).digest != digest


def test_a_pickle_finds_its_classes_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = "from torch import nn\n\n\nclass Net(nn.Linear):\n    pass\n"
    (tmp_path / "net_of_pickle.py").write_text(net)
    with import_from(tmp_path):
        torch.save(importlib.import_module("net_of_pickle").Net(4, 3), tmp_path / "model.pt")
    monkeypatch.delitem(sys.modules, "net_of_pickle")
    assert_refused("loading it runs the code in it: pass --trust-pickle", tmp_path / "model.pt")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    line = assert_refused("cannot unpickle .*No module named 'net_of_pickle'", tmp_path / "model.pt", trust_pickle=True)
    assert f"searched in {tmp_path / 'elsewhere'} and the installed packages; run it there, or define" in line
    monkeypatch.chdir(tmp_path)
    assert_refused("pass --trust-pickle", "model.pt")
    assert "net_of_pickle" not in sys.modules
    first = open_model("model.pt", trust_pickle=True)
    assert first.module(torch.rand(2, 4)).shape == (2, 3)
    assert open_model("model.pt", trust_pickle=True).digest == first.digest
    (tmp_path / "net_of_pickle.py").write_text(net + "    scale = 2\n")
    assert open_model("model.pt", trust_pickle=True).digest != first.digest
