"""Provenance of the results: command, hashes, settings, versions and sessions of each run."""

from collections.abc import Sequence
from typing import Any

from marginattack.report.series import Series
from marginattack.storage.run_folder import Store


def describe_runs(every: Sequence[Series]) -> list[dict[str, Any]]:
    """Return one record per run for the template."""
    stores = {str(series.store.path): series.store for series in every}
    return [_describe_run(store, [s.seen for s in every if s.store is store]) for store in stores.values()]


def _describe_run(store: Store, seen: Sequence[int]) -> dict[str, Any]:
    manifest = store.manifest
    sessions = manifest.get("sessions", [])
    missing = [part for _, part in store.pending()]
    return {
        "path": str(store.path), "data": manifest["data"]["name"],
        "partial": [
            {"part": part.name, "missing": missing.count(part), "of": len(store.shards)}
            for part in store.parts if part in missing
        ],
        "facts": [(name, value) for name, value in _list_facts(manifest) if value not in (None, "")],
        "settings": _flatten(manifest.get("settings", {})),
        "sessions": sessions, "command": sessions[0]["command"] if sessions else None,
        "seen": max(seen), "planned": manifest["samples"],
    }  # fmt: skip


def _list_facts(manifest: dict[str, Any]) -> list[tuple[str, Any]]:
    model, data, verified = manifest["model"], manifest["data"], manifest.get("verified")
    preprocessing = ", ".join(f"{name}: {value}" for name, value in _flatten(model.get("preprocessing")))
    return [
        ("Model", model["name"]), ("SHA-256 of the model", model["digest"]), ("Preprocessing", preprocessing),
        ("Data", data["name"]), ("SHA-256 of the data", data["digest"]),
        ("Inputs", f"{data['n']:,} of shape {tuple(data['shape'])}"),
        *((f"Attack {name}", settings) for name, settings in manifest.get("attacks", {}).items()),
        *((f"Version of {name}", version) for name, version in manifest.get("versions", {}).items()),
        ("Started", manifest.get("started")), ("Finished", manifest.get("finished") or "not yet"),
        ("Verified", verified and f"{verified['rows']:,} stored rows, {verified['failed']:,} failed"),
    ]  # fmt: skip


def _flatten(tree: Any, name: str = "") -> list[tuple[str, str]]:
    """Flatten a tree of settings to dotted names, without those that are None."""
    if isinstance(tree, dict):
        return [pair for key, value in tree.items() for pair in _flatten(value, f"{name}.{key}".strip("."))]
    return [] if tree is None else [(name, str(tree))]
