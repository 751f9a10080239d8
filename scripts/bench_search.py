"""How fast lsgen searches: against the published one-seed-at-a-time loops, and against the networks alone.

    LSGEN_DATA=... python scripts/bench_search.py --data mnist --generator runs/mnist/vae/best.ckpt \\
        --sut runs/mnist/sut_cnn/best.ckpt
    python scripts/bench_search.py --failures
    python scripts/bench_search.py --scaling

In one run, interleaved and repeated, with the same models, seeds and budget:

(a) lsgen with its defaults; (b) the loop as published: one seed at a time, a population a call, elites evaluated again,
lists and copies to the host in each generation, autograd left on; (c) the limit: as many new passes through decoder and
SUT (with the way back to the latent for PGD) at the fastest batch size, and nothing else. No search ends early, so that
all do the same. `--compile` compiles decoder and SUT for (a) and (c), and shows what (a) gains by it.

`--failures` shows what a failure costs in queries and seconds, each search with its own rule to stop.
`--scaling` shows time and memory for 1,000, 10,000 and 100,000 seeds of a tiny generator. Tables go to runs/bench.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgen import Trainer, generators, suts
from lsgen.data import ImageData
from lsgen.generators import CVAE, Generator
from lsgen.memory import keep_freed_memory
from lsgen.objectives import Criterion
from lsgen.search import BoundaryGA, DataSeeds, LatentPGD, MarginGA, PriorSeeds, SearchTask, SeedRandom
from lsgen.search.base import Searcher
from lsgen.search.cases import Outcome
from lsgen.suts import SUT
from lsgen.types import Seeds, round8

OUT = Path("runs/bench")
Bounds = tuple[float, float]


class Never(Criterion):
    """Keeps every search going to the end of its budget."""

    def __call__(self, candidates):  # noqa: ANN001, ANN204
        return torch.zeros_like(candidates.label, dtype=torch.bool)


# --- (b) the published loops, from the facts about them ---------------------------------------------------------------


def published_margin_ga(
    generator: Generator,
    sut: SUT,
    z0: Tensor,
    label: int,
    generations: int,
    bounds: Bounds,
    stops: bool = False,
    extent: float = 1e-4,
) -> tuple[int, bool]:
    """ICST25's loop for one seed, which may stop at a failure; gives its evaluations, and whether it failed the SUT."""
    first = 2 * (bounds[1] - bounds[0]) * extent
    size, before, asked = first, None, 0
    people = [z0 + first * torch.randn_like(z0) for _ in range(25)]
    for _ in range(generations):
        logits = sut.logits(generator.decode(torch.stack(people), torch.full((25,), label)))
        asked += 25
        scores = logits.detach().cpu().numpy()
        fitness = [float(row[label] - max(v for k, v in enumerate(row) if k != label)) for row in scores]
        order = np.argsort(fitness)
        elites = [people[i] for i in order[:10]]
        best = fitness[order[0]]
        if stops and best < 0:
            return asked, True
        size = 2 * size if best == before else first
        before = best
        children = []
        for _ in range(15):
            a, b = random.sample(elites, 2)
            cut = random.randint(1, len(z0) - 1)
            child = torch.cat([a[:cut], b[cut:]])
            children.append(child + (child != z0) * size * torch.randn_like(child))
        people = [p.clamp(*bounds) for p in elites + children]
    return asked, best < 0


def published_boundary_ga(
    generator: Generator, sut: SUT, z0: Tensor, label: int, generations: int, bounds: Bounds, stops: bool = False
) -> tuple[int, bool]:
    """SINVAD's loop for one seed; it goes on after a failure, for a smaller change, and may stop at tiny mutations."""
    size, before, asked = 0.1, None, 0
    people = [z0 + 0.7 * torch.randn_like(z0) for _ in range(50)]
    for _ in range(generations):
        logits = sut.logits(generator.decode(torch.stack(people), torch.full((50,), label)))
        asked += 50
        predicted = logits.detach().cpu().numpy().argmax(1)
        fitness = [float((z - z0).abs().sum()) if k != label else 999.0 for z, k in zip(people, predicted, strict=True)]
        order = np.argsort(fitness)
        elites = [people[i] for i in order[:20]]
        best = fitness[order[0]]
        size = 0.7 * size if best == before else 0.1
        if stops and size < 1e-3:
            break
        before = best
        children = []
        for _ in range(30):
            a, b = random.sample(elites, 2)
            cut = random.randint(1, len(z0) - 1)
            child = torch.cat([a[:cut], b[cut:]])
            child = child + (child != z0) * size * torch.randn_like(child)
            children.append(torch.where(torch.rand_like(child) < 0.5, z0, child))
        people = elites + children
    return asked, best < 999.0


def published_pgd(
    generator: Generator, sut: SUT, z0: Tensor, label: int, steps: int, bounds: Bounds, stops: bool = False
) -> tuple[int, bool]:
    """Speth's Alg. 1 for one seed; it takes all steps, and its last iterate counts, which ``stops`` has judged."""
    delta, y = torch.zeros_like(z0), torch.tensor([label])
    for _ in range(steps):
        z = (z0 + delta).unsqueeze(0).requires_grad_()
        loss = F.cross_entropy(sut.logits(generator.decode(z, y)), y)
        loss.backward()
        delta = (delta + 0.05 * z.grad[0].sign()).clamp(-0.5, 0.5)
    if not stops:
        return steps, False
    predicted = sut.logits(generator.decode((z0 + delta).unsqueeze(0), y)).argmax(1)
    return steps + 1, bool(predicted != y)


# --- (c) the limit ----------------------------------------------------------------------------------------------------


def limit(task: SearchTask, n: int, chunk: int) -> None:
    """``n`` images through decoder and SUT in batches of ``chunk``, with gradients where the searcher needs them."""
    z = torch.zeros(chunk, *task.generator.latent_shape)
    y = torch.zeros(chunk, dtype=torch.long)
    grad = task.searcher.needs_grad
    for start in range(0, n, chunk):
        with torch.set_grad_enabled(grad):
            point = z[: n - start].detach().requires_grad_(grad)
            logits = task.evaluator.logits(round8(task.evaluator.decode(point, y[: n - start])))
            if grad:
                torch.autograd.grad(logits.sum(), point)


# --- measuring --------------------------------------------------------------------------------------------------------


def methods(generations: int, steps: int) -> dict[str, tuple[Searcher, Callable, int]]:
    """Searcher, published loop and rounds of each method."""
    return {
        "MarginGA": (MarginGA(generations=generations), published_margin_ga, generations),
        "BoundaryGA": (BoundaryGA(generations=generations, smallest=0.0), published_boundary_ga, generations),
        "LatentPGD": (LatentPGD(steps=steps), published_pgd, steps),
    }


def best_chunk(task: SearchTask, compiled: bool) -> int:
    """The batch size at which the limit is reached; compiled code has one shape only."""
    if compiled:
        return task.evaluator.chunk
    times: dict[int, list[float]] = {n: [] for n in (32, 64, 128, 256, 512)}
    for _ in range(5):
        for n, taken in times.items():
            taken.append(_timed(lambda n=n: limit(task, 512, n)))
    return min(times, key=lambda n: median(times[n]))


def compare(options: argparse.Namespace) -> str:
    """The table of one generator and SUT."""
    data = ImageData(name=options.data)
    text = "| method | seeds × rounds | lsgen, new images/s | published loop, images/s | time of loop / lsgen | "
    text += "time of lsgen / limit | batch: lsgen, limit |"
    text += " time not compiled / compiled |\n|---|---|---|---|---|---|---|---|\n" if options.compile else ""
    text += "" if options.compile else "\n|---|---|---|---|---|---|---|\n"
    for n in options.seeds:
        for name, (searcher, loop, rounds) in methods(options.generations, options.steps).items():
            if name not in options.methods:
                continue
            task, seeds = prepare(options, searcher, n, data)
            text += _row(name, task, loop, rounds, seeds, options) + "\n"
            print(text.splitlines()[-1], flush=True)
    return text


def prepare(options: argparse.Namespace, searcher: Searcher, n: int, data: ImageData) -> tuple[SearchTask, Seeds]:
    """What lsgen would set up, and ``n`` seeds."""
    generator, sut = generators.pretrained(options.generator), suts.pretrained(options.sut)
    kind = DataSeeds if generator.encodes else PriorSeeds
    source = kind(per_class=-(-n // data.num_classes))
    task = SearchTask(
        generator=generator,
        sut=sut,
        searcher=searcher,
        seeds=source,
        criterion=Never() if searcher.stops_at_success else None,
        block_size=10_000,
    )
    task.lay_out()
    plan = source.plan(data).take(torch.arange(n))
    task.evaluator.chunk = options.eval_batch_size or task.fastest_chunk(len(plan))
    if options.compile:
        task.evaluator.compile()
    block = source.block(0, torch.arange(len(plan)), plan, data)
    with torch.no_grad():
        latent = source.latents(block, generator, task.evaluator.encode, SeedRandom(0, 0, len(plan)))
    return task, Seeds(searcher.lift(latent), plan.label)


def _row(name: str, task: SearchTask, loop: Callable, rounds: int, seeds: Seeds, options: argparse.Namespace) -> str:
    times: dict[str, list[float]] = {"lsgen": [], "loop": [], "limit": [], "not compiled": []}
    bounds = task.generator.latent.bounds or (-4.0, 4.0)
    plain = _as_loaded(options)
    new = _search(task, seeds)
    chunk, asked = best_chunk(task, options.compile), 0
    limit(task, new, chunk)  # as the searches, warmed up
    for _ in range(options.repeats):
        times["lsgen"].append(_timed(lambda: _search(task, seeds)))
        times["limit"].append(_timed(lambda: limit(task, new, chunk)))
        if options.compile:
            times["not compiled"].append(_timed(lambda: _not_compiled(task, seeds)))
        started = time.perf_counter()
        asked = sum(loop(*plain, z, int(y), rounds, bounds)[0] for z, y in zip(seeds.latent, seeds.label, strict=True))
        times["loop"].append(time.perf_counter() - started)
    speed = {"lsgen": new / median(times["lsgen"]), "loop": asked / median(times["loop"])}
    gain = [b / a for a, b in zip(times["lsgen"], times["loop"], strict=True)]
    over = [a / c for a, c in zip(times["lsgen"], times["limit"], strict=True)]
    row = (
        f"| {name} | {len(seeds.label)} × {rounds} | {speed['lsgen']:,.0f} | {speed['loop']:,.0f} | "
        f"{_spread(gain)} | {_spread(over)} | {task.evaluator.chunk}, {chunk} |"
    )
    if options.compile:
        row += f" {_spread([b / a for a, b in zip(times['lsgen'], times['not compiled'], strict=True)])} |"
    return row


def _as_loaded(options: argparse.Namespace) -> tuple[Generator, SUT]:
    """Both models as the published loops use them, autograd on."""
    plain = generators.pretrained(options.generator), suts.pretrained(options.sut)
    for model in plain:
        model.requires_grad_(True)
    return plain


def _search(task: SearchTask, seeds: Seeds) -> int:
    """One whole search of the seeds, without judging and writing; gives its number of new evaluations."""
    everyone = torch.ones_like(seeds.label, dtype=torch.bool)
    outcome = Outcome.at(seeds, ~everyone, everyone, task.searcher.steps)
    with torch.no_grad():
        task.run(outcome, seeds, everyone, SeedRandom(0, 0, len(seeds.label)))
    return int(outcome.forward.sum())


def _not_compiled(task: SearchTask, seeds: Seeds) -> None:
    """The same search, its networks as they are without `compile`."""
    evaluator, compiled = task.evaluator, (task.evaluator.decode, task.evaluator.logits)
    evaluator.decode, evaluator.logits = task.space.decode, task.sut.logits
    _search(task, seeds)
    evaluator.decode, evaluator.logits = compiled


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


# --- what a failure costs ---------------------------------------------------------------------------------------------


def failures(options: argparse.Namespace) -> str:
    """Queries and seconds for each failure, of whole searches with their own stopping rules, as suites and as loops."""
    data = ImageData(name=options.data)
    per_class = -(-options.seeds[-1] // data.num_classes)
    text = (
        "| method | seeds | lsgen: failures | queries each | seconds each | published loop: failures | queries each | "
    )
    text += "seconds each |\n|---|---|---|---|---|---|---|---|\n"
    searchers = methods(options.generations, options.steps)
    far = MarginGA(generations=options.generations, extent="high"), partial(published_margin_ga, extent=1e-3)
    searchers["MarginGA"] = (*far, options.generations)  # at low extent it hardly finds any
    searchers["BoundaryGA"] = (BoundaryGA(generations=options.generations), *searchers["BoundaryGA"][1:])
    searchers["LatentPGD, early_stop"] = (LatentPGD(steps=options.steps, early_stop=True), published_pgd, options.steps)
    for name, (searcher, loop, rounds) in searchers.items():
        generator, sut = generators.pretrained(options.generator), suts.pretrained(options.sut)
        task = SearchTask(generator=generator, sut=sut, searcher=searcher, seeds=DataSeeds(per_class=per_class))
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(default_root_dir=folder, enable_progress_bar=False, logger=False)
            suite = trainer.search(task, datamodule=data, out=f"{folder}/suite")
            summary, viable = suite.summary, torch.from_numpy(suite.table["viable"].to_numpy("bool"))
        prepared, seeds = prepare(options, searcher, per_class * data.num_classes, data)
        seeds = seeds.take(viable.nonzero().squeeze(1))
        bounds = prepared.generator.latent.bounds or (-4.0, 4.0)
        plain, started = _as_loaded(options), time.perf_counter()
        known = [
            loop(*plain, z, int(y), rounds, bounds, stops=True) for z, y in zip(seeds.latent, seeds.label, strict=True)
        ]
        seconds, found = time.perf_counter() - started, sum(failed for _, failed in known)
        own = [summary["queries_per_failure"], summary["seconds_per_failure"]]
        theirs = [sum(n for n, _ in known) / found, seconds / found] if found else [None, None]
        cells = [f"{queries or math.nan:,.0f} | {cost or math.nan:.2f}" for queries, cost in (own, theirs)]
        text += f"| {name} | {len(known)} | {summary['failed']} | {cells[0]} | "
        text += f"{found} | {cells[1]} |\n"
        print(text.splitlines()[-1], flush=True)
    return text


# --- scaling ----------------------------------------------------------------------------------------------------------


class Tiny(SUT):
    """A linear classifier of 8×8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.num_classes, self.image_shape = 10, (1, 8, 8)
        self.layer = nn.Linear(64, 10)

    def logits(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def one_size(seeds: int) -> None:
    """A whole `lsgen search` of so many seeds, with its suite; prints seconds and the largest memory."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        images = np.random.default_rng(0).integers(0, 256, (100, 8, 8), dtype=np.uint8)
        for part in ("train", "test"):
            np.savez(f"{folder}/{part}.npz", images=images, labels=np.arange(100) % 10)
        task = SearchTask(
            generator=CVAE(image_shape=(1, 8, 8), width=2, latent_dim=4),
            sut=Tiny(),
            searcher=LatentPGD(steps=5),
            seeds=PriorSeeds(per_class=seeds // 10),
            block_size=1000,
            eval_batch_size=512,
        )
        trainer = Trainer(default_root_dir=folder, enable_progress_bar=False, logger=False)
        started = time.perf_counter()
        trainer.search(task, datamodule=ImageData(name="npz", path=folder), out=f"{folder}/suite")
        seconds = time.perf_counter() - started
    print(f"RESULT {seconds:.1f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}")


def scaling() -> str:
    """Time and memory, each size in a process of its own."""
    text = "| seeds | seconds | seconds per 1,000 seeds | largest memory, MiB |\n|---|---|---|---|\n"
    for seeds in (1_000, 10_000, 100_000):
        done = subprocess.run(
            [sys.executable, __file__, "--one-size", str(seeds)], capture_output=True, text=True, check=True
        )
        seconds, memory = next(x for x in done.stdout.splitlines() if x.startswith("RESULT")).split()[1:]
        text += f"| {seeds:,} | {seconds} | {float(seconds) * 1000 / seeds:.2f} | {memory} |\n"
        print(text.splitlines()[-1], flush=True)
    return text


def run() -> None:
    """Parses arguments and writes the tables."""
    parser = argparse.ArgumentParser(description="How fast lsgen searches.")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--generator", default="runs/mnist/vae/best.ckpt")
    parser.add_argument("--sut", default="runs/mnist/sut_cnn/best.ckpt")
    parser.add_argument("--seeds", type=int, nargs="+", default=[20, 100], help="how many, one or more sizes")
    parser.add_argument("--generations", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--methods", nargs="+", default=["MarginGA", "BoundaryGA", "LatentPGD"], metavar="NAME")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--eval-batch-size", type=int, help="of lsgen; auto without it")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--failures", action="store_true", help="what a failure costs, in place of speed")
    parser.add_argument("--scaling", action="store_true", help="many seeds, in place of speed")
    parser.add_argument("--one-size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_size:
        return one_size(options.one_size)
    keep_freed_memory()  # as `lsgen search` does; the published loops gain by it too
    name = f"search_speed{'_compiled' if options.compile else ''}"
    if options.scaling:
        name, text = "scaling", scaling()
    elif options.failures:
        name, text = "failures", failures(options)
    else:
        text = compare(options)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.md").write_text(text, encoding="utf-8")
    return None


if __name__ == "__main__":
    run()
