"""How many images go through the networks in one pass: which sizes there may be, and which is the fastest."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from statistics import mean, median
from typing import TYPE_CHECKING

import torch

from lsgen.errors import out_of_memory
from lsgen.search.stream import carried
from lsgen.types import Seeds

if TYPE_CHECKING:
    from lsgen.search.evaluator import Evaluator

SIZES = (32, 64, 128, 256, 512)
MULTIPLE = 32  # of sizes: rows of a ragged last tile may be added up in another order
SMALLER = (1, 4, 8, 16)  # only where 32 images do not fit into memory, or somebody says so
ROWS, PASSES = 256, 8  # of a turn, at most: one small pass between large ones is faster than a row of them
TURNS, ALL_TURNS = 9, 3.0  # how often each size is timed at most, and the seconds after which no other turn begins
SHRINKING = (0.2, 0.6, 1.0)  # shares of the candidates that are left, where seeds end or some need no look
NEARLY = 1.03  # of the shortest time, where shares are such a guess: the largest size that takes no longer is taken
LONG = 2.0  # seconds of a pass after which no larger size is tried
TRIED = 40  # passes that are gone through to learn how full they are


def is_chunk_size(n: int) -> bool:
    """Whether rows of a chunk of ``n`` do not depend on where in it they are."""
    return n in SMALLER or (n > 0 and n % MULTIPLE == 0)


def fastest(evaluator: Evaluator, needs_grad: bool, candidates: int = SIZES[-1], steady: bool = True) -> int:
    """The chunk size that gets rounds of so many candidates done first, padding included, of a few that are tried.

    Sizes take turns, so that another process slows all of them alike. None is tried after one that takes long or does
    not fit into memory; where none fits, smaller ones are.

    Args:
        evaluator: Whose passes are timed.
        needs_grad: Whether they have a way back.
        candidates: How many there are in a full round.
        steady: Whether all rounds are full. Otherwise seeds end, or candidates need no look, and sooner or later rounds
            are smaller; of sizes nearly as fast the largest is taken, which loses least if they are not.
    """
    sizes = sorted({_even(candidates, n) for n in SIZES})
    times = _times(evaluator, sizes, needs_grad) or _times(evaluator, SMALLER, needs_grad)
    rounds = [math.ceil(share * candidates) for share in ((1.0,) if steady else SHRINKING)]
    whole = {
        size: taken * mean(passes_a_round(n, size, evaluator.lanes) for n in rounds) for size, taken in times.items()
    }
    longest = (1.0 if steady else NEARLY) * min(whole.values(), default=0.0)
    return max((size for size, taken in whole.items() if taken <= longest), default=SMALLER[0])


def seconds_per_image(evaluator: Evaluator, chunk: int, needs_grad: bool) -> float:
    """Time of one pass at this chunk size, per image, after a warm-up, unless that took long."""
    taken = seconds(evaluator, chunk, needs_grad)
    return (taken if taken > LONG else seconds(evaluator, chunk, needs_grad)) / chunk


def seconds(evaluator: Evaluator, chunk: int, needs_grad: bool) -> float:
    """Time of one pass."""
    device = evaluator.generator.device
    z = torch.zeros(chunk, *evaluator.generator.latent_shape, device=device)
    y = torch.zeros(chunk, dtype=torch.long, device=device)
    context = carried(Seeds(z, y, target=y))
    started = time.perf_counter()
    evaluator.run(needs_grad, z, *context)[0].cpu()  # waits for a GPU
    return time.perf_counter() - started


def passes_a_round(candidates: int, chunk: int, lanes: int) -> float:
    """Passes that a round of so many candidates takes on average, its lanes filling up each other's chunks.

    Example:
        >>> passes_a_round(100, 32, lanes=2), passes_a_round(100, 64, lanes=2), passes_a_round(100, 64, lanes=1)
        (3.125, 1.6, 2.0)
    """
    if candidates <= chunk or lanes == 1:
        return float(-(-candidates // chunk))
    if lanes * chunk <= (lanes - 1) * candidates:
        return candidates / chunk
    waiting, answered = deque((n, n) for n in (len(range(i, candidates, lanes)) for i in range(lanes))), 0
    for _ in range(TRIED):
        room, ended = chunk, []
        while room and waiting:
            lane, left = waiting.popleft()
            n = min(room, left)
            room, answered = room - n, answered + n
            if n < left:
                waiting.appendleft((lane, left - n))
            else:
                ended.append((lane, lane))
        waiting.extend(ended)
    return TRIED * candidates / answered


def _times(evaluator: Evaluator, sizes: Sequence[int], needs_grad: bool) -> dict[int, float]:
    """Typical seconds of a pass at each of these chunk sizes, up to the last that fits and does not take long."""
    first: dict[int, float] = {}
    for size in sizes:
        try:
            first[size] = seconds(evaluator, size, needs_grad)
        except (RuntimeError, MemoryError) as error:
            if not (isinstance(error, torch.OutOfMemoryError) or out_of_memory(error)):
                raise
            break
        if first[size] > LONG:
            break
    if len(first) < 2:
        return first
    times: dict[int, list[float]] = {size: [] for size in first}
    started = time.perf_counter()
    for _ in range(TURNS):
        for size, taken in times.items():
            turn = range(max(1, min(PASSES, ROWS // size)))
            taken.append(mean(seconds(evaluator, size, needs_grad) for _ in turn))
        if time.perf_counter() - started > ALL_TURNS:
            break
    return {size: median(taken) for size, taken in times.items()}  # not the luckiest: small passes vary more


def _even(n: int, size: int) -> int:
    """The smallest chunk size with which ``n`` rows need no more passes than at ``size``."""
    rows = -(-n // -(-n // size))
    return -(-rows // MULTIPLE) * MULTIPLE
