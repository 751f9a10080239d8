"""Searches: one searcher, one file; the task that owns every network call; callbacks around it."""

from lsgen.search.base import Searcher, SeedRandom
from lsgen.search.callbacks import SearchCallback
from lsgen.search.pgd import LatentPGD
from lsgen.search.random import RandomSampling
from lsgen.search.seeds import DataSeeds, PriorSeeds, SeedSource
from lsgen.search.task import SearchTask

__all__ = [
    "DataSeeds",
    "LatentPGD",
    "PriorSeeds",
    "RandomSampling",
    "SearchCallback",
    "SearchTask",
    "Searcher",
    "SeedRandom",
    "SeedSource",
]
