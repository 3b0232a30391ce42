"""The paper's figures as data: success rates in per cent (Tables 1 to 3), seconds on a P100 (Table 4)."""

QUANTILES = (0.2, 0.4, 0.6, 0.8)  # of the margins; the paper's levels follow them roughly on its own networks

# The width of the paper's pixels, and the perturbation levels of Tables 1 and 2 in that unit
UNIT = {"mnist": 1.0, "cifar10": 255.0, "imagenet": 255.0}
LEVELS = {
    "l2": {"mnist": (1.00, 1.41, 1.73, 2.0), "cifar10": (8.0, 15.0, 25.0, 40.0), "imagenet": (10.0, 32.0, 50.0, 80.0)},
    "linf": {"mnist": (0.06, 0.08, 0.10, 0.12), "cifar10": (0.2, 0.4, 0.6, 1.0), "imagenet": (0.05, 0.1, 0.2, 0.4)},
}

Rates = dict[str, tuple[float, ...]]

TABLE_1: dict[str, Rates] = {
    "DeepFool": {
        "mnist": (17.4, 44.9, 69.9, 84.7), "cifar10": (19.4, 34.5, 52.6, 73.3), "imagenet": (38.7, 55.1, 66.3, 79.8),
    },
    "CW 3": {"mnist": (24.6, 62.7, 85.7, 95.3), "cifar10": (23.9, 45.2, 71.6, 91.5)},
    "CW 5": {
        "mnist": (24.8, 63.1, 85.9, 95.4), "cifar10": (24.0, 45.4, 71.7, 91.8), "imagenet": (40.4, 58.7, 71.0, 85.6),
    },
    "CW 10": {"mnist": (24.9, 63.2, 86.0, 95.4), "cifar10": (24.0, 45.6, 71.8, 92.1)},
    "MarginAttack": {
        "mnist": (25.7, 66.3, 88.4, 97.1), "cifar10": (24.3, 46.3, 73.9, 93.3), "imagenet": (40.4, 60.6, 74.9, 89.4),
    },
}  # fmt: skip

TABLE_2: dict[str, Rates] = {
    "FGSM": {
        "mnist": (7.55, 13.9, 24.9, 35.4), "cifar10": (18.5, 31.0, 41.1, 54.7), "imagenet": (39.8, 47.2, 60.1, 75.3),
    },
    "PGD": {
        "mnist": (17.1, 42.2, 73.7, 91.8), "cifar10": (18.9, 38.9, 59.1, 84.1), "imagenet": (40.4, 49.8, 68.8, 90.6),
    },
    "MarginAttack": {
        "mnist": (18.1, 43.0, 74.1, 92.1), "cifar10": (21.1, 42.2, 62.6, 87.3), "imagenet": (41.5, 51.3, 69.0, 90.8),
    },
}  # fmt: skip

SUCCESS = {"l2": TABLE_1, "linf": TABLE_2}

CHALLENGE_LEVEL = 0.3
TABLE_3 = {
    "DAA": 11.21, "MarginAttack": 11.16, "Logit difference": 11.15, "PGD, cross-entropy": 10.38, "PGD, CW loss": 10.29,
}  # fmt: skip

TABLE_4: dict[str, dict[str, float]] = {
    "CW 3": {"mnist": 5.77, "cifar10": 100.10},
    "CW 5": {"mnist": 8.99, "cifar10": 168.88, "imagenet": 872.28},
    "CW 10": {"mnist": 16.02, "cifar10": 350.10},
    "MarginAttack": {"mnist": 3.01, "cifar10": 51.03, "imagenet": 248.82},
    "DeepFool": {"mnist": 1.14, "cifar10": 21.26, "imagenet": 44.41},
    "PGD": {"mnist": 0.87, "cifar10": 33.17, "imagenet": 46.3},
    "FGSM": {"mnist": 0.11, "cifar10": 0.95, "imagenet": 10.05},
}
TIMED = {"mnist": 200, "cifar10": 200, "imagenet": 100}  # images a batch in Table 4

# Learning rates of the baselines, in the paper's pixels
CW_RATE = {"mnist": 0.05, "cifar10": 0.001, "imagenet": 0.01}
PGD_RATE = {"mnist": 0.01, "cifar10": 0.05, "imagenet": 0.1}
STARTS = {"mnist": 10, "cifar10": 10, "imagenet": 1}
