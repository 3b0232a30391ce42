"""Where the numbers come from: settings, hashes, versions, sessions, and the command that makes them again."""

from collections.abc import Sequence
from typing import Any

from marginattack.report.summary import Series
from marginattack.storage.run_folder import RunFolder


def runs(every: Sequence[Series]) -> list[dict[str, Any]]:
    """One record a run."""
    stores = {str(series.store.path): series.store for series in every}
    return [_run(store, [series for series in every if series.store is store]) for store in stores.values()]


def _run(store: RunFolder, parts: Sequence[Series]) -> dict[str, Any]:
    manifest = store.manifest
    sessions = manifest.get("sessions", [])
    return {
        "path": str(store.path), "model": manifest["model"]["name"], "data": manifest["data"]["name"],
        "partial": [
            {"part": part.name, "missing": sum(each == part for _, each in store.pending()), "of": len(store.shards)}
            for part in store.parts if any(each == part for _, each in store.pending())
        ],
        "facts": [(name, value) for name, value in _facts(manifest) if value not in (None, "")],
        "settings": _flat(manifest.get("settings", {})),
        "sessions": sessions, "command": sessions[0]["command"] if sessions else None,
        "seen": max((series.seen for series in parts), default=0), "of": manifest["samples"],
    }  # fmt: skip


def _facts(manifest: dict[str, Any]) -> list[tuple[str, Any]]:
    model, data, verified = manifest["model"], manifest["data"], manifest.get("verified")
    checked = (
        verified
        and f"{verified['rows']:,} stored rows read back and checked on the model, {verified['failed']:,} failed"
    )
    return [
        ("Model", model["name"]), ("Model's SHA-256", model["digest"]),
        ("Preprocessing", _told(model.get("preprocessing"))),
        ("Data", data["name"]), ("Data's SHA-256", data["digest"]),
        ("Inputs", f"{data['n']:,} of shape {tuple(data['shape'])}"),
        *((f"Attack {name}", told) for name, told in manifest.get("attacks", {}).items()),
        *((f"Version of {name}", told) for name, told in manifest.get("versions", {}).items()),
        ("Started", manifest.get("started")), ("Finished", manifest.get("finished") or "not yet"), ("Checked", checked),
    ]  # fmt: skip


def _told(preprocessing: Any) -> str:
    stated = {name: value for name, value in (preprocessing or {}).items() if value is not None}
    return ", ".join(f"{name}: {value}" for name, value in stated.items())


def _flat(tree: Any, name: str = "") -> list[tuple[str, str]]:
    """Settings as dotted names, those that were left open apart."""
    if isinstance(tree, dict):
        return [pair for key, value in tree.items() for pair in _flat(value, f"{name}.{key}".strip("."))]
    return [] if tree is None else [(name, str(tree))]
