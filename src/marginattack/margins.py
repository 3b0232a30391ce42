"""Margins: the result record, one row a sample."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FORMAT = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Margins:
    """How far each input is from the decision boundary, and the adversarial point that shows it.

    ``distance`` is infinite where nothing was found and 0 where the input is already misclassified. Every row was
    checked on the bare model: ``rejected`` marks those whose point did not hold there, which count as not found.
    """

    norm: str
    distance: Tensor  # (n,) float64, in the unit of the pixels
    adversarial: Tensor  # like the images; the image itself where nothing was found
    success: Tensor  # (n,) bool
    label: Tensor  # (n,)
    prediction: Tensor  # (n,) of the image itself
    confidence: Tensor  # (n,) float64, the softmax of the prediction
    adversarial_label: Tensor  # (n,) of the adversarial image
    forwards: Tensor  # (n,) passes spent by the attack
    backwards: Tensor
    rejected: Tensor  # (n,) bool
    distance_at_90pct: Tensor  # (n,) float64, the best distance when about nine tenths of the passes were spent
    settings: dict[str, Any]  # what made this: attack, budget, seed, bounds, versions

    def __len__(self) -> int:
        return len(self.distance)

    def __repr__(self) -> str:
        s = self.summary()
        shares = f"accuracy={s['accuracy']:.2%}, median={s['median']:.4g}, success={s['success']:.2%}"
        return f"Margins({self.norm}, n={s['n']}, {shares})"

    def robust_accuracy(self, eps: float | Sequence[float]) -> Any:
        """The share of samples that are classified rightly and lie further than eps from the boundary."""
        levels = torch.as_tensor(eps, dtype=torch.float64)
        held = (self.distance > levels[..., None]) & (self.prediction == self.label)
        share = held.to(torch.float64).mean(-1)
        return share.tolist()

    def summary(self) -> dict[str, float | int]:
        """n, clean accuracy, and of the samples classified rightly: success rate, margins, passes spent."""
        right = self.prediction == self.label
        if self.settings.get("targeted"):
            right = torch.ones_like(right)
        distance = self.distance[right]
        found = distance[torch.isfinite(distance)]
        return {
            "n": len(self),
            "accuracy": float((self.prediction == self.label).double().mean()),
            "measured": int(right.sum()),
            "success": float(self.success[right].double().mean()),
            "rejected": int(self.rejected.sum()),
            "median": float(np.median(distance)) if len(distance) else float("nan"),
            "mean_found": float(found.mean()),
            "forwards": float(self.forwards[right].double().mean()),
            "backwards": float(self.backwards[right].double().mean()),
        }

    @staticmethod
    def columns() -> list[str]:
        """The names of the fields that hold one row a sample."""
        return [field.name for field in fields(Margins) if field.type is Tensor]

    @staticmethod
    def join(parts: Sequence["Margins"]) -> "Margins":
        """Several results of the same measurement as one, in order."""
        if not parts:
            raise ValueError("nothing to join: give at least one Margins")
        first = parts[0]
        for part in parts:
            if part.adversarial.shape[1:] != first.adversarial.shape[1:]:
                shapes = f"{tuple(part.adversarial.shape[1:])} and {tuple(first.adversarial.shape[1:])}"
                raise ValueError(f"cannot join margins of inputs of shapes {shapes}")
            if (part.norm, part.settings) != (first.norm, first.settings):
                raise ValueError(
                    f"cannot join margins made with different settings: {part.settings} and {first.settings}"
                )
        joined: dict[str, Any] = {
            name: torch.cat([getattr(part, name) for part in parts]) for name in Margins.columns()
        }
        return replace(first, **joined)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a Parquet file, whole or not at all."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {name: getattr(self, name) for name in Margins.columns()}
        images = columns.pop("adversarial")
        table = pa.table({name: column.numpy() for name, column in columns.items()})
        flat = pa.array(images.flatten().numpy())
        table = table.append_column("adversarial", pa.FixedSizeListArray.from_arrays(flat, images[0].numel()))
        about = {"format": FORMAT, "norm": self.norm, "shape": list(images.shape[1:]), "settings": self.settings}
        table = table.replace_schema_metadata({"marginattack": json.dumps(about)})
        path = Path(path)
        scratch = path.with_name(path.name + f".{os.getpid()}.tmp")
        try:
            pq.write_table(table, scratch)
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)

    @staticmethod
    def load(path: str | os.PathLike[str], *, norm: str | None = None, attack: str | None = None) -> "Margins":
        """Read what ``save`` wrote, or one part of a run folder: name its norm and attack where it has several."""
        from marginattack.storage.paths import place

        if place(path).is_dir():
            from marginattack.storage.run_folder import Store

            store = Store(path)
            return store.margins(store.find(norm=norm, attack=attack))
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path)
            about = json.loads((table.schema.metadata or {})[b"marginattack"])
        except FileNotFoundError:
            raise ValueError(f"{path} does not exist: give a file that Margins.save wrote, or a run folder") from None
        except (pa.ArrowInvalid, KeyError):
            raise ValueError(
                f"{path} is no margins file, or a damaged one: give a file that Margins.save wrote"
            ) from None
        if about["format"] != FORMAT:
            raise ValueError(f"{path} has format {about['format']}, this version reads {FORMAT}: update marginattack")
        images = table.column("adversarial").combine_chunks().flatten().to_numpy(zero_copy_only=False)
        columns = {
            name: torch.from_numpy(table.column(name).to_numpy().copy())
            for name in Margins.columns()
            if name != "adversarial"
        }
        adversarial = torch.from_numpy(images.copy()).reshape(-1, *about["shape"])
        return Margins(norm=about["norm"], settings=about["settings"], adversarial=adversarial, **columns)
