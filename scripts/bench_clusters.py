"""What failure regions of a large suite cost: `lsgen cluster` on 100,000 challenging cases in 16 dimensions.

The suite is made up: groups of latents and scattered ones between them, ten classes, images of 1×28×28.

Run: python scripts/bench_clusters.py [--cases 100000] [--dimensions 16] [--structure groups|none]
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from lsgen.analysis.clusters import cluster
from lsgen.search.cases import Cases
from lsgen.suite import Suite, load_suite

CLASSES, BLOCK, PASSING, GROUPS = 10, 5000, 20_000, 40
INTEGERS = ("seed_id", "seed_predicted", "predicted", "iterations", "queries", "backward_queries")
TRUE = ("viable", "success", "retired")


def latents(cases: int, dimensions: int, structure: str, rng: np.random.Generator) -> np.ndarray:
    scattered = 1.2 * rng.standard_normal((cases, dimensions), dtype=np.float32)
    if structure == "none":
        return scattered
    centres = np.random.default_rng(1).standard_normal((GROUPS, dimensions), dtype=np.float32)  # those of every block
    grouped = centres[rng.integers(0, GROUPS, cases)] + np.float32(0.3 / 1.2) * scattered
    return np.where(rng.random((cases, 1)) < 1 / 3, scattered, grouped)


def make_suite(path: Path, cases: int, dimensions: int, structure: str) -> Suite:
    rng = np.random.default_rng(0)
    total = cases + PASSING
    suite, blocks = Suite(path), -(-total // BLOCK)
    os.close(suite.open({"identity": "0", "blocks": blocks, "num_classes": CLASSES, "stopped_by": None}, "{}"))
    challenging = rng.permutation(total) < cases
    for block in range(blocks):
        rows = np.arange(block * BLOCK, min(total, (block + 1) * BLOCK))
        n, label = len(rows), torch.from_numpy(rows % CLASSES)
        failed = torch.from_numpy(challenging[rows])
        columns = dict.fromkeys(INTEGERS, label) | {"id": torch.from_numpy(rows), "label": label, "failed": failed}
        columns |= dict.fromkeys(TRUE, torch.ones(n, dtype=torch.bool))
        columns |= {
            "p_true": torch.where(failed, 0.01, 0.9),
            "seed_p_true": torch.ones(n),
            "boundary_gap": torch.ones(n),
        }
        image = torch.from_numpy(rng.integers(0, 256, (n, 1, 28, 28), dtype=np.uint8))
        found = torch.from_numpy(latents(n, dimensions, structure, rng))
        arrays = {"latent": found, "seed_latent": found, "image": image, "seed_image": image}
        suite.write(Cases(block, columns, arrays | {"logits": torch.zeros(n, CLASSES)}))
    suite.finish()
    return load_suite(path)


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=16)
    parser.add_argument("--structure", choices=("groups", "none"), default="groups")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        suite = make_suite(Path(folder) / "suite", options.cases, options.dimensions, options.structure)
        before, started, cpu = memory(), time.perf_counter(), time.process_time()
        found = cluster(suite)
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    over_all = sum(region.scope == "all" for region in found.regions)
    print(f"{options.cases:,} challenging cases in {options.dimensions} dimensions, structure: {options.structure}")
    print(f"regions:      {over_all} over all classes, {len(found.regions) - over_all} within classes")
    print(f"time:         {wall:8.0f} s, {cpu:.0f} s of it on the processor")
    print(f"peak memory:  {memory():8.0f} MB, {before:.0f} MB of it before")


if __name__ == "__main__":
    main()
