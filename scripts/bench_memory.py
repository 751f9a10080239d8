"""What `lsgen.memory` gains: decoder and SUT alone, with freed memory given back to the kernel as usual, and kept.

python scripts/bench_memory.py   # needs runs/mnist/{vae,sut_cnn}; µs an image, of the best and the worst process
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median

SIZES = (32, 64, 128, 256, 512)
PROCESSES, PASSES = 3, 12


def one_process(kept: bool) -> None:
    """Prints the median time of a pass at each batch size, in microseconds an image."""
    import torch

    from lsgen import generators, suts
    from lsgen.memory import keep_freed_memory
    from lsgen.types import round8

    if kept and not keep_freed_memory():
        sys.exit("this C library, or its settings, leave nothing to keep")
    generator = generators.pretrained("runs/mnist/vae/best.ckpt").eval()
    sut = suts.pretrained("runs/mnist/sut_cnn/best.ckpt").eval().to(memory_format=torch.channels_last)
    times: dict[int, list[float]] = {n: [] for n in SIZES}
    with torch.no_grad():
        for _ in range(PASSES):
            for n in SIZES:
                z, y = torch.randn(n, *generator.latent_shape), torch.zeros(n, dtype=torch.long)
                started = time.perf_counter()
                sut.logits(round8(generator.decode(z, y)))
                times[n].append(1e6 * (time.perf_counter() - started) / n)
    print(json.dumps({n: median(values) for n, values in times.items()}))


def run() -> None:
    """Processes of both kinds in turn, then the table."""
    found: dict[str, list[dict[str, float]]] = {"as it comes": [], "kept": []}
    for _ in range(PROCESSES):
        for kind, results in found.items():
            done = subprocess.run([sys.executable, __file__, kind], capture_output=True, text=True, check=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
    print(f"| | {' | '.join(map(str, SIZES))} images a pass |\n|---|{'---|' * len(SIZES)}")
    for kind, results in found.items():
        cells = [[r[str(n)] for r in results] for n in SIZES]
        print(f"| {kind} | {' | '.join(f'{min(c):.0f} to {max(c):.0f}' for c in cells)} |")


if __name__ == "__main__":
    one_process(sys.argv[1] == "kept") if len(sys.argv) > 1 else run()
