"""What the first pass of a process imports."""

import subprocess
import sys

CODE = """
import sys, torch, marginattack as ma
model = torch.nn.Linear(6, 3)
x = torch.rand(4, 6)
ma.measure(model, x, model(x).argmax(1), "l2", budget=20)
print(*({"sympy", "torch.fx.experimental.symbolic_shapes"} & set(sys.modules)))
"""


def test_the_first_gradient_does_not_import_sympy() -> None:
    """It takes 0.7 s, or 3 s where Python has not compiled it yet."""
    output = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    assert output.strip() == ""
