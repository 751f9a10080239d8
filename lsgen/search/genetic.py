"""What the genetic searches share: elites that are never evaluated twice, truncation selection, one-point crossover."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from lsgen.errors import InputError
from lsgen.search.base import Searcher, SeedRandom
from lsgen.types import Evaluation, SearchState, Seeds


@dataclass(frozen=True)
class GeneticState(SearchState):
    """The population of each seed."""

    origin: Tensor  # [S, *L]
    elite: Tensor  # [S, E, *L], best first; none before the first round
    elite_fitness: Tensor  # [S, E]
    fresh: Tensor  # [S, P, *L] to be evaluated next
    size: Tensor  # [S] of the next mutations
    best: Tensor  # [S] fitness of the best individual of the round before


class Genetic(Searcher):
    """A genetic algorithm for every seed at once.

    Args:
        population: Individuals of a seed.
        elites: How many of them live on and have children.
        generations: Rounds.
        as_published: Whether to do what the published code does where it differs from its paper.
    """

    def __init__(self, *, population: int, elites: int, generations: int, as_published: bool) -> None:
        if not (2 <= elites < population and generations >= 0):
            raise InputError(
                f"{type(self).__name__} needs 2 <= elites < population and generations >= 0, got elites={elites}, "
                f"population={population}, generations={generations}"
            )
        self.population, self.elites, self.generations = population, elites, generations
        self.as_published = as_published
        self.steps, self.candidates, self.first = generations, population - elites, elites

    @property
    @abstractmethod
    def first_size(self) -> float:
        """How far the first population lies from the seed, as a standard deviation."""

    @abstractmethod
    def next_size(self, size: Tensor, best: Tensor, before: Tensor) -> Tensor:
        """Size of the next mutations [S], from that of the last and the best fitness of this round and the last."""

    @abstractmethod
    def vary(self, child: Tensor, origin: Tensor, size: Tensor, rng: SeedRandom) -> Tensor:
        """Mutates children [S, C, *L] by about ``size`` [S]; ``origin`` is [S, *L]."""

    def init(self, seeds: Seeds, rng: SeedRandom) -> GeneticState:
        """A population around each seed."""
        origin = seeds.latent
        noise = rng.normal(self.population, *origin.shape[1:])
        nobody = origin.new_empty(len(origin), 0)
        return GeneticState(
            origin=origin,
            elite=nobody.view(len(origin), 0, *origin.shape[1:]),
            elite_fitness=nobody,
            fresh=self.place(origin[:, None] + self.first_size * noise),
            size=torch.full_like(origin.flatten(1)[:, 0], self.first_mutation),
            best=torch.full_like(origin.flatten(1)[:, 0], torch.inf),
        )

    @property
    def first_mutation(self) -> float:
        """Size of the first mutations."""
        return self.first_size

    def place(self, latent: Tensor) -> Tensor:
        """Individuals [S, P, *L] where they may be."""
        return self.inside(latent)

    def ask(self, state: GeneticState) -> Tensor:
        """The individuals that are new, [S, P, *L]: all at first, then the children."""
        return state.fresh

    def tell(self, state: GeneticState, evaluation: Evaluation, rng: SeedRandom) -> GeneticState:
        """Selection, then the next children."""
        elite, fitness = select(
            torch.cat([state.elite, evaluation.latent], dim=1),
            torch.cat([state.elite_fitness, evaluation.fitness], dim=1),
            self.elites,
        )
        size = self.next_size(state.size, fitness[:, 0], state.best)
        child = self.cross(elite, rng)
        return GeneticState(
            origin=state.origin,
            elite=elite,
            elite_fitness=fitness,
            fresh=self.place(self.vary(child, state.origin, size, rng)),
            size=size,
            best=fitness[:, 0],
        )

    def cross(self, elite: Tensor, rng: SeedRandom) -> Tensor:
        """One child for each individual that died, [S, E, *L] -> [S, C, *L]."""
        return crossover(elite, self.population - self.elites, rng)

    def result(self, state: GeneticState) -> Tensor:
        """The best individual where any counts, else the seed, [S, *L]."""
        if not state.elite.shape[1]:
            return state.origin
        found = state.elite_fitness[:, 0].isfinite()
        return state.elite[:, 0].where(found.view(-1, *[1] * (state.origin.dim() - 1)), state.origin)


def select(latent: Tensor, fitness: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The ``n`` individuals with the lowest fitness, best first, of equals the earlier; [S, P, *L], [S, P].

    Example:
        >>> select(torch.tensor([[[5.0], [6.0], [7.0]]]), torch.tensor([[2.0, 1.0, 2.0]]), 2)
        (tensor([[[6.],
                 [5.]]]), tensor([[1., 2.]]))
    """
    order = fitness.argsort(dim=1, stable=True)[:, :n]
    return _pick(latent, order), fitness.gather(1, order)


def crossover(elite: Tensor, n: int, rng: SeedRandom, together: int = 1) -> Tensor:
    """Children [S, n, *L] that have the head of one elite and the tail of another, cut at a random coordinate.

    Groups of ``together`` coordinates are never parted; where there is one group, children are copies.
    """
    s, e = elite.shape[:2]
    genes = elite[0, 0].numel() // together
    draws = rng.uniform(3, n)
    one = (draws[:, 0] * e).long()
    two = (one + 1 + (draws[:, 1] * (e - 1)).long()) % e  # another one, each as likely
    cut = 1 + (draws[:, 2] * (genes - 1)).long()
    head = torch.arange(genes * together, device=elite.device) < cut[..., None] * together
    flat = elite.flatten(2)
    return _pick(flat, one).where(head, _pick(flat, two)).view(s, n, *elite.shape[2:])


def _pick(latent: Tensor, index: Tensor) -> Tensor:
    """Individuals [S, n, *L] of [S, P, *L] at ``index`` [S, n]."""
    s, p = latent.shape[:2]
    rows = index + torch.arange(0, s * p, p, device=latent.device)[:, None]
    return latent.flatten(0, 1).index_select(0, rows.flatten()).view(*index.shape, *latent.shape[2:])


def per_seed(value: Tensor, like: Tensor) -> Tensor:
    """One value a seed [S], shaped so that it multiplies ``like`` [S, P, *L]."""
    return value.view(-1, *[1] * (like.dim() - 1))
