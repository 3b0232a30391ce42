"""The paper's numbers: success rates in percent (Tables 1 to 3), seconds on a P100 (Table 4)."""

from typing import Any

QUANTILES = (0.2, 0.4, 0.6, 0.8)  # of the margins; roughly the paper's levels on its own networks

# The width of the paper's pixels, and the perturbation levels of Tables 1 and 2 in that unit
UNIT = {"mnist": 1.0, "cifar10": 255.0, "imagenet": 255.0}
LEVELS = {
    "l2": {"mnist": (1.00, 1.41, 1.73, 2.0), "cifar10": (8.0, 15.0, 25.0, 40.0), "imagenet": (10.0, 32.0, 50.0, 80.0)},
    "linf": {"mnist": (0.06, 0.08, 0.10, 0.12), "cifar10": (0.2, 0.4, 0.6, 1.0), "imagenet": (0.05, 0.1, 0.2, 0.4)},
}


def _by_data_set(table: dict[str, tuple[Any, Any, Any]]) -> dict[str, dict[str, Any]]:
    """A table with columns for MNIST, CIFAR-10 and ImageNet, keyed by data set; without its empty cells."""
    return {attack: {data: cell for data, cell in zip(UNIT, row, strict=True) if cell} for attack, row in table.items()}


SUCCESS = {
    "l2": _by_data_set({  # Table 1
        "DeepFool": ((17.4, 44.9, 69.9, 84.7), (19.4, 34.5, 52.6, 73.3), (38.7, 55.1, 66.3, 79.8)),
        "CW 3": ((24.6, 62.7, 85.7, 95.3), (23.9, 45.2, 71.6, 91.5), None),
        "CW 5": ((24.8, 63.1, 85.9, 95.4), (24.0, 45.4, 71.7, 91.8), (40.4, 58.7, 71.0, 85.6)),
        "CW 10": ((24.9, 63.2, 86.0, 95.4), (24.0, 45.6, 71.8, 92.1), None),
        "MarginAttack": ((25.7, 66.3, 88.4, 97.1), (24.3, 46.3, 73.9, 93.3), (40.4, 60.6, 74.9, 89.4)),
    }),
    "linf": _by_data_set({  # Table 2
        "FGSM": ((7.55, 13.9, 24.9, 35.4), (18.5, 31.0, 41.1, 54.7), (39.8, 47.2, 60.1, 75.3)),
        "PGD": ((17.1, 42.2, 73.7, 91.8), (18.9, 38.9, 59.1, 84.1), (40.4, 49.8, 68.8, 90.6)),
        "MarginAttack": ((18.1, 43.0, 74.1, 92.1), (21.1, 42.2, 62.6, 87.3), (41.5, 51.3, 69.0, 90.8)),
    }),
}  # fmt: skip

CHALLENGE_LEVEL = 0.3
TABLE_3 = {
    "DAA": 11.21, "MarginAttack": 11.16, "Logit difference": 11.15, "PGD, cross-entropy": 10.38, "PGD, CW loss": 10.29,
}  # fmt: skip

TABLE_4 = _by_data_set({
    "CW 3": (5.77, 100.10, None),
    "CW 5": (8.99, 168.88, 872.28),
    "CW 10": (16.02, 350.10, None),
    "MarginAttack": (3.01, 51.03, 248.82),
    "DeepFool": (1.14, 21.26, 44.41),
    "PGD": (0.87, 33.17, 46.3),
    "FGSM": (0.11, 0.95, 10.05),
})  # fmt: skip
TIMED = {"mnist": 200, "cifar10": 200, "imagenet": 100}  # images per batch in Table 4

# Learning rates of the baselines, in the paper's pixel units
CW_RATE = {"mnist": 0.05, "cifar10": 0.001, "imagenet": 0.01}
PGD_RATE = {"mnist": 0.01, "cifar10": 0.05, "imagenet": 0.1}
CW_SEARCHES = {"mnist": (3, 5, 10), "cifar10": (3, 5, 10), "imagenet": (5,)}
STARTS = {"mnist": 10, "cifar10": 10, "imagenet": 1}
