"""Bounding one shard of a run: lower bounds, the KKT residual, and the spread over further runs of the attack."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from marginattack.bounds.clever import clever
from marginattack.bounds.optimality import kkt_residual
from marginattack.bounds.search import bound
from marginattack.core.norms import NORMS
from marginattack.errors import InputError
from marginattack.execution.session import Session, open_session
from marginattack.margins import Margins
from marginattack.measuring import measure_samples
from marginattack.runs.failures import model_errors
from marginattack.runs.job import Job
from marginattack.storage.bounds import commit_bounds, join_refined, nearest_images
from marginattack.storage.run_folder import Part, RunFolder, numeric_columns

CERTIFYING = ("ibp", "crown", "alpha", "exact", "lipschitz")
TRIED_RADIUS = 1e-3  # of the trial that checks whether a model can be bounded
TRIED_SECONDS = 1.0
SECONDS = 20.0  # default time limit per sample
START = 100.0  # times the largest value: the search starts here if neither the attack nor the box limits it


def bound_settings(job: Job) -> dict[str, Any]:
    """Everything that the bounds of a run depend on, besides the run."""
    return {"method": job.settings.bound, **job.settings.model_dump(include={"time_limit", "radius", "restarts"})}


def check_bounds(job: Job) -> None:
    """Raise InputError for a model that cannot be bounded, by a trial on the first sample."""
    s = job.settings
    if s.shard and (s.time_limit or 0) * s.shard > s.shard_timeout:
        needed = f"a shard of {s.shard} samples may take {s.shard} × {s.time_limit:g} s"
        raise InputError(f"{needed}, but --shard-timeout is {s.shard_timeout} s: raise it, or lower --time-limit")
    images, upper = job.samples([0])[1], torch.tensor([TRIED_RADIUS])
    with open_session(job.make_classifier()) as session:
        session.space.require_plain("bound")
        for norm in s.norms if s.bound in CERTIFYING else ():
            label = session.predict(images)
            bound(session, images, label, norm, upper=upper, method=str(s.bound), time_limit=TRIED_SECONDS)


def bound_shard(job: Job, folder: RunFolder, session: Session, part: Part, shard: int) -> None:
    """Compute the bounds of one shard, or refine existing ones, and commit them."""
    table = folder.read(part, shard)
    joined, earlier = join_refined(folder, part, shard, table)
    columns = numeric_columns(joined) | nearest_images(folder, part, shard, margins=table)
    known: dict[str, Any] = {name: columns[name] for name in Margins.columns() if name in columns}
    if earlier:
        known["certified_by"] = tuple(joined.column("certified_by").to_pylist())
    margins = Margins(norm=part.norm, settings={}, **known)
    estimate = estimated = columns.get("estimate", torch.full_like(margins.distance, torch.nan))
    if len(margins):
        with model_errors(columns["id"], "while bounding"):
            margins, estimate = _bound(job, session, part, columns["original"], columns["id"], margins)
    bounds = {
        "id": columns["id"], "lower": margins.lower, "certified_by": list(margins.certified_by),
        "upper": margins.distance, "adversarial_label": margins.adversarial_label, "kkt": margins.kkt,
        "spread": margins.spread, "estimate": torch.where(estimate.isnan(), estimated, estimate),
    }  # fmt: skip
    if bool((margins.distance < numeric_columns(table)["distance"]).any()):
        bounds["adversarial"] = margins.adversarial
    commit_bounds(folder, part, shard, table, bounds, bound_settings(job), earlier)


def _bound(
    job: Job, session: Session, part: Part, images: Tensor, ids: Tensor, margins: Margins
) -> tuple[Margins, Tensor]:
    """The margins with their bounds, KKT residuals and spread, and CLEVER's estimates."""
    s, label = job.settings, margins.label
    estimate = torch.full_like(margins.distance, torch.nan)
    if s.restarts:
        margins = _restart(job, session, part, images, ids, margins)
    if s.bound in CERTIFYING:
        lo, hi = session.classifier.bounds_for(images)
        upper = margins
        if not bool(torch.isfinite(lo).all() and torch.isfinite(hi).all()):
            upper = replace(margins, distance=margins.distance.clamp(max=START * float(images.abs().max())))
        seconds = s.time_limit or SECONDS
        found = bound(session, images, label, part.norm, upper=upper, method=s.bound, time_limit=seconds)
        margins = found.add_to(margins)
    elif s.bound == "clever":
        assert s.radius is not None
        estimate = clever(session.classifier, images, label, part.norm, radius=s.radius, seed=s.seed).estimate
    return replace(margins, kkt=kkt_residual(session, images, margins)), estimate


def _restart(job: Job, session: Session, part: Part, images: Tensor, ids: Tensor, margins: Margins) -> Margins:
    """Run the attack again with other seeds; keep the nearest points, and compute the spread of the distances."""
    samples, runs = session.validate(images, margins.label, ids=ids), [margins]
    for seed in range(job.settings.seed + 1, job.settings.seed + 1 + job.settings.restarts):
        again, session = measure_samples(
            session, samples, NORMS[part.norm], job.attacks[part.attack], batch=session.batch_size,
            budget=job.settings.budget, seed=seed, progress=None,
        )  # fmt: skip
        runs.append(again)
    distances = torch.stack([run.distance for run in runs])
    least, nearest = distances.min(0)
    spread = torch.where(least > 0, distances.amax(0) / least - 1, torch.nan)  # ∞ where a run found nothing, NaN if all
    row = torch.arange(len(least))
    best = {
        name: torch.stack([getattr(run, name) for run in runs])[nearest, row]
        for name in ("distance", "adversarial", "success", "adversarial_label", "rejected")
    }
    return replace(margins, spread=spread, **best)  # type: ignore[arg-type]
