"""Searches: one searcher, one file; the task that owns every network call; callbacks around it."""

from lsgen.search.art import ArtAttack
from lsgen.search.base import Searcher, SeedRandom
from lsgen.search.boundary_ga import BoundaryGA
from lsgen.search.callbacks import SearchCallback
from lsgen.search.differential import Differential
from lsgen.search.hill_climb import HillClimb
from lsgen.search.interpolation import Interpolation
from lsgen.search.margin_ga import MarginGA
from lsgen.search.perturbation import ActivationPerturbation
from lsgen.search.pgd import LatentPGD
from lsgen.search.random import RandomSampling
from lsgen.search.seeds import DataSeeds, PairSeeds, PriorSeeds, SeedSource
from lsgen.search.task import SearchTask
from lsgen.search.tracking import SearchGallery

__all__ = [
    "ActivationPerturbation",
    "ArtAttack",
    "BoundaryGA",
    "DataSeeds",
    "Differential",
    "HillClimb",
    "Interpolation",
    "LatentPGD",
    "MarginGA",
    "PairSeeds",
    "PriorSeeds",
    "RandomSampling",
    "SearchCallback",
    "SearchGallery",
    "SearchTask",
    "Searcher",
    "SeedRandom",
    "SeedSource",
]
