"""What `compile: true` gains for the diffusion model: training steps and samples, with and without, interleaved.

    python scripts/bench_compile.py

Prints the median ratio over repeats, for the settings of configs/mnist/diffusion.yaml on random images.
"""

from __future__ import annotations

import time
from statistics import median

import torch
import yaml

from lsgen.generators import Diffusion
from lsgen.shipped import shipped_configs

BATCH, REPEATS = 64, 7


def step(model: Diffusion) -> None:
    """One gradient."""
    model.train()
    x, y = torch.rand(BATCH, *model.image_shape), torch.arange(BATCH) % model.num_classes
    model.velocity(2 * x - 1, torch.full((BATCH,), 500), y).square().mean().backward()
    model.zero_grad()


@torch.no_grad()
def sample(model: Diffusion) -> None:
    """One batch of images."""
    y = torch.arange(BATCH) % model.num_classes
    model.eval().decode(torch.randn(BATCH, *model.latent_shape), y)


def run() -> None:
    """Measures and prints."""
    config = yaml.safe_load((shipped_configs() / "mnist/diffusion.yaml").read_text(encoding="utf-8"))
    settings = config["model"]["init_args"]
    models = {flag: Diffusion(**{**settings, "compile": flag}) for flag in (False, True)}
    for name, work in {"training step": step, "sampling": sample}.items():
        times: dict[bool, list[float]] = {False: [], True: []}
        for repeat in range(REPEATS + 1):
            for flag, model in models.items():
                started = time.perf_counter()
                work(model)
                if repeat:  # the first compiles
                    times[flag].append(time.perf_counter() - started)
        ratios = [plain / fast for plain, fast in zip(times[False], times[True], strict=True)]
        speed = BATCH / median(times[False])
        print(
            f"{name}: {speed:.0f} images/s, compiled {median(ratios):.2f} times ({min(ratios):.2f}–{max(ratios):.2f})"
        )


if __name__ == "__main__":
    run()
