"""Margins during training: every k epochs, within a time limit, logged by the real libraries offline."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision_stub
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import marginattack as ma
from marginattack.integrations import training
from marginattack.integrations.training import measure_epoch


@pytest.fixture(scope="module")
def case() -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 4, generator=generator)
    return nn.Sequential(nn.Identity(), nn.Dropout(0.5)), x, torch.where(torch.arange(40) < 4, 3, x.argmax(1))


def test_a_fixed_subset_is_measured_every_few_epochs(case: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = case
    model.train()
    values = [measure_epoch(model, x, y, epoch, every=3, norm="linf", eps=[0.05, 0.2], budget=20) for epoch in range(6)]
    assert [bool(each) for each in values] == [False, False, True, False, False, True]
    assert values[2] == values[5]
    assert model.training
    for eps in (0.05, np.array([0.05]), torch.tensor(0.05)):
        assert measure_epoch(model, x, y, 2, norm="linf", eps=eps, budget=20).items() <= values[2].items()
    with pytest.raises(ma.InputError, match="eps is -1: give distances above 0"):
        measure_epoch(model, x, y, 2, eps=-1)
    margins = ma.measure(model, x, y, "linf", budget=20, diagnose=False)
    assert values[2]["margin/median"] == pytest.approx(margins.summary()["median"])
    assert values[2]["margin/robust_accuracy_0.05"] == margins.robust_accuracy(0.05)
    assert values[2]["margin/accuracy"] == margins.summary()["accuracy"] < 1
    assert values[2]["margin/p10"] < values[2]["margin/median"] < values[2]["margin/p90"]


def test_the_time_limit_holds(case: tuple[nn.Module, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 11.0])
    monkeypatch.setattr(training, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(clock))}))
    values = measure_epoch(*case, 0, seconds=10.0, budget=20)
    assert values["margin/samples"] == 2 * training.CHUNK


class Recorder:
    """What a W&B run, MLflow or a logger of Lightning is called with."""

    def __init__(self, method: str) -> None:
        self.calls: list[Any] = []
        setattr(self, method, lambda values, step: self.calls.append((values, step)))


@pytest.mark.parametrize("method", ["log", "log_metrics"])
def test_loggers_are_recognised_by_their_methods(case: tuple[nn.Module, Tensor, Tensor], method: str) -> None:
    recorder = Recorder(method)
    values = measure_epoch(*case, 1, budget=20, log=recorder, step=70)
    assert recorder.calls == [(values, 70)]
    with pytest.raises(ma.InputError, match="log is an int, which has neither"):
        measure_epoch(*case, 1, budget=20, log=3)
    with pytest.raises(ma.InputError, match="every is 0"):
        measure_epoch(*case, 1, every=0)
    with pytest.raises(ma.InputError, match="seconds is 0"):
        measure_epoch(*case, 1, seconds=0.0)


def test_tensorboard(case: tuple[nn.Module, Tensor, Tensor], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="its writer is used")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        values = measure_epoch(*case, 4, budget=20, log=writer, eps=[0.1])
    stored = EventAccumulator(str(tmp_path))
    stored.Reload()
    assert set(stored.Tags()["scalars"]) == set(values)
    (curve,) = stored.Histograms("margin/distance")
    assert (curve.step, curve.histogram_value.num) == (4, 40 * values["margin/accuracy"])
    (median,) = stored.Scalars("margin/median")
    assert (median.step, median.value) == (4, pytest.approx(values["margin/median"]))


@pytest.mark.filterwarnings("ignore")
def test_mlflow(case: tuple[nn.Module, Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="its file store is used")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        values = measure_epoch(*case, 4, budget=20, log=mlflow, eps=[0.1])
    assert mlflow.get_run(run.info.run_id).data.metrics == pytest.approx(values)
    curve = mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/margin/curve-4.json")
    accuracy = dict(zip(curve["eps"], curve["robust_accuracy"], strict=True))
    largest = max(eps for eps in accuracy if eps <= 0.1)
    assert accuracy[largest] == pytest.approx(values["margin/robust_accuracy_0.1"])
    assert accuracy[max(accuracy)] == 0


@pytest.mark.filterwarnings("ignore")
def test_wandb(case: tuple[nn.Module, Tensor, Tensor], tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb", reason="its offline mode is used")
    with wandb.init(mode="offline", dir=tmp_path) as run:
        values = measure_epoch(*case, 4, budget=20, log=run, eps=[0.1])
    wandb.teardown()  # its service has written the file
    (file,) = tmp_path.rglob("*.wandb")
    assert [key for key in (*values, "histogram") if key.encode() not in file.read_bytes()] == []


@pytest.mark.filterwarnings("ignore")
def test_the_callback_of_lightning(case: tuple[nn.Module, Tensor, Tensor], tmp_path: Path) -> None:
    torchvision_stub.install()
    lightning = pytest.importorskip("lightning.pytorch", reason="its trainer is used")
    from marginattack.integrations.lightning import MarginCallback

    _, x, y = case

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Linear(4, 4)

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.network(images)
            return logits

        def training_step(self, batch: Any, _: int) -> Tensor:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1.0)

    module, logger = Module(), lightning.loggers.CSVLogger(tmp_path)
    trainer = lightning.Trainer(
        max_epochs=4, accelerator="cpu", logger=logger, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, log_every_n_steps=1,
        callbacks=[MarginCallback(x[:8], y[:8], every=2, norm="linf", eps=[0.1], budget=20)],
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(x, y), batch_size=8))
    last = measure_epoch(module, x[:8], y[:8], 3, norm="linf", eps=[0.1], budget=20)
    seen = {key: float(value) for key, value in trainer.callback_metrics.items()}
    assert seen == pytest.approx(last, nan_ok=True)
    rows = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert len(rows) == 3  # the header, and epochs 1 and 3
