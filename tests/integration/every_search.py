"""Runs every searcher of the contract table on the toy problem: ``python -m tests.integration.every_search OUT N``.

N processes share the blocks; see test_equal.py.
"""

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lsgen.data import ImageData
from lsgen.generators import PixelSpace
from lsgen.search import BoundaryGA, DataSeeds, Differential, HillClimb, LatentPGD, PairSeeds, SearchTask
from lsgen.search.art import ArtAttack
from lsgen.surprise import DSA, LSA, SurpriseDistance
from lsgen.trainer import Trainer
from tests.toys import Linear, Pixels
from tests.unit.test_searchers import SEARCHERS

AIMED = {"seeds": DataSeeds(per_class=3, target="each")}


def searches() -> dict[str, dict[str, Any]]:
    """Parts of a task that differ from the usual ones, by name."""
    found: dict[str, dict[str, Any]] = {name: {"searcher": make()} for name, make in SEARCHERS.items()}
    small = {"population": 8, "elites": 3, "generations": 6}
    found["differential"] = {"searcher": Differential(other=Linear(num_classes=3, seed=1), **small)}
    found["interpolation"] |= {"seeds": PairSeeds(per_class=2, others_per_class=2)}
    found["pgd, aimed"] = {"searcher": LatentPGD(steps=5), **AIMED}
    found["boundary ga, aimed"] = {"searcher": BoundaryGA(**small), **AIMED}
    for surprise in (LSA(min_std=0.01), DSA()):
        goal = SurpriseDistance(surprise=surprise, target=5.0)
        found[f"hill climb, {type(surprise).__name__}"] = {"searcher": HillClimb(passes=1), "objective": goal}
    if find_spec("art"):
        attack = ArtAttack(attack="ProjectedGradientDescent", settings={"num_random_init": 1, "verbose": False})
        pixels = PixelSpace(image_shape=(1, 4, 4), num_classes=3)
        found["art"] = {"searcher": attack, "generator": pixels}
        universal = ArtAttack(attack="UniversalPerturbation", settings={"max_iter": 2, "verbose": False})
        found["art, by Python's random numbers"] = {"searcher": universal, "generator": pixels}
    return found


def run(data: Path, out: Path, processes: int = 1) -> None:
    """One suite for each search, in ``out``."""
    strategy = {"strategy": "ddp", "devices": processes} if processes > 1 else {"devices": 1}
    trainer = Trainer(default_root_dir=out, accelerator="cpu", enable_progress_bar=False, logger=False, **strategy)
    usual = {"generator": Pixels(num_classes=3), "seeds": DataSeeds(per_class=6), "block_size": 6}
    for name, parts in searches().items():
        task = SearchTask(**{**usual, **parts}, sut=Linear(num_classes=3), eval_batch_size=4)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the SUT reads only")
            trainer.search(task, datamodule=ImageData(name="npz", path=str(data)), out=str(out / name))


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
