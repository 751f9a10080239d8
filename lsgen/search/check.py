"""Which parts of a search work together, and whether its blocks fit into memory."""

from __future__ import annotations

import math

from lsgen.errors import InputError
from lsgen.memory import total_memory
from lsgen.objectives import Criterion, Objective
from lsgen.search.base import Searcher
from lsgen.search.seeds import SeedSource
from lsgen.suts import SUT

COPIES = 3  # of a round's candidates that are in memory at once, at least: theirs, their noise, and what comes of both


def check_fit(searcher: Searcher, objective: Objective, criterion: Criterion, sut: SUT, seeds: SeedSource) -> None:
    """Refuses parts that cannot work together, before anything runs.

    Raises:
        InputError: They cannot.
    """
    name, goals = type(searcher).__name__, (objective, criterion)
    aims = searcher.minimises or searcher.asks_by_itself  # otherwise nobody goes by the objective
    searcher.check(targeted=seeds.targeted)
    for goal in goals:
        goal.check(sut)
    if searcher.needs_grad and not sut.differentiable:
        raise InputError(f"{name} follows gradients, and the SUT is a black box (differentiable: false)")
    if searcher.needs_grad and not objective.differentiable:
        raise InputError(f"{name} follows gradients, and {type(objective).__name__} has none to follow")
    aiming = [type(goal).__name__ for goal in (goals if aims else goals[1:]) if goal.needs_target]
    if aiming and not seeds.targeted:
        raise InputError(f"{aiming[0]} aims at a class, and the seeds have no target: set seeds.target")
    if seeds.targeted and not aiming:
        raise InputError(
            "the seeds have targets, and neither objective nor criterion aims at them: leave seeds.target out, or set "
            "targeted: true where an objective or criterion has it"
        )
    if seeds.targeted and searcher.minimises and not objective.needs_target:
        raise InputError(
            f"{name} would minimise {type(objective).__name__}, which does not aim at the seeds' targets: set an "
            f"objective that does (targeted: true where it has that), or leave seeds.target out"
        )
    if criterion.holds_at_seeds and not searcher.needs_other:  # a mixture is no seed
        raise InputError(
            f"{type(criterion).__name__} holds for every seed as it is, so there is nothing to search: join it with "
            f"another criterion by Both, e.g. with Misclassified"
        )
    if objective.at_the_edge and criterion.lead > 0:
        raise InputError(
            f"{type(objective).__name__} is lowest at the decision boundary, where no class leads by "
            f"{criterion.lead:g}: minimise LogitMargin, or leave the margin out of the criterion"
        )
    if searcher.needs_other and not seeds.paired:
        raise InputError(f"{name} mixes images, and {type(seeds).__name__} gives single ones: use PairSeeds")
    if seeds.paired and not searcher.needs_other:
        raise InputError(f"{type(seeds).__name__} gives pairs of images, and {name} takes single ones: use DataSeeds")


def check_memory(searcher: Searcher, latent_shape: tuple[int, ...], seeds: int) -> None:
    """Refuses blocks of so many seeds whose candidates alone are more than this machine holds: it would be killed.

    Raises:
        InputError: They are.
    """
    candidates, size, memory = searcher.first + searcher.candidates, math.prod(latent_shape), total_memory()
    of_seed = COPIES * 4 * size * candidates
    if seeds * of_seed > memory:
        fits = memory // (2 * of_seed)
        raise InputError(
            f"block_size: {type(searcher).__name__} keeps {candidates} candidates of {size:,} numbers each for every "
            f"seed of a block, which takes {seeds * of_seed / 1e9:.0f} GB or more for {seeds} seeds, and this machine "
            f"has {memory / 1e9:.0f}: "
            + (f"set block_size to at most {fits}" if fits else "even one seed needs fewer candidates")
        )
