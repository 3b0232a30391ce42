"""What must change for a decision to change? Tabular data: each feature has its unit, its bounds, or stays fixed.

$ python examples/tabular.py
"""

import torch
from torch import Tensor, nn

import marginattack as ma

FEATURES = ["age", "income", "debt ratio", "accounts"]
MEAN, UNIT = torch.tensor([40.0, 45_000, 0.4, 3]), torch.tensor([12.0, 20_000, 0.2, 2])
BOUNDS = ([18, 0, 0, 0], [100, torch.inf, 1, 20])
FIXED = [True, False, False, False]  # nobody changes their age


class Scorer(nn.Module):
    """A small network on standardised features; logits of "denied" and "granted"."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.layers((rows - MEAN) / UNIT)
        return logits


def make_applicants(n: int) -> tuple[Tensor, Tensor]:
    """Random applicants, and whether a rule of thumb grants them a loan."""
    low, high = torch.tensor([18.0, 5_000, 0, 0]), torch.tensor([90.0, 120_000, 1, 10])
    rows = low + (high - low) * torch.rand(n, 4, generator=torch.Generator().manual_seed(1))
    return rows, (rows[:, 1] / 60_000 - 2 * rows[:, 2] > 0).long()


def main() -> ma.Margins:
    """Train, measure in ℓ1, which prefers few changes, and say what would change each decision."""
    scorer, (rows, labels) = Scorer(), make_applicants(400)
    optimizer = torch.optim.Adam(scorer.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(scorer(rows), labels).backward()
        optimizer.step()
    decided = scorer(rows[:8]).argmax(1)
    margins = ma.measure(scorer, rows[:8], decided, norm="l1", bounds=BOUNDS, scale=UNIT, fixed=FIXED, budget=200)
    for decision, change, distance in zip(decided, margins.perturbation, margins.distance, strict=True):
        changes = [f"{name} {value:+.3g}" for name, value in zip(FEATURES, change.tolist(), strict=True) if value]
        print(f"{('denied', 'granted')[decision]}, {distance:.2f} units from the other: {', '.join(changes)}")
    return margins


if __name__ == "__main__":
    main()
