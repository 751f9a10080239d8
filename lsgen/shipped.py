"""The configurations that come with lsgen."""

from __future__ import annotations

from pathlib import Path


def shipped_configs() -> Path:
    """The folder of shipped configurations, in a wheel or in a checkout."""
    package = Path(__file__).parent
    return next(p for p in (package / "configs", package.parent / "configs") if p.is_dir())


def training(checkpoint: str | Path) -> str:
    """The command that leaves a checkpoint there: shipped configurations leave theirs in runs/<data>/<model>."""
    folder = Path(checkpoint).parent
    config = f"{folder.relative_to('runs')}.yaml" if folder.is_relative_to("runs") else ""
    if not (shipped_configs() / config).is_file():
        return "lsgen fit"
    near = Path("configs") / config
    return f"lsgen fit --config {near if near.is_file() else shipped_configs() / config}"
