"""Runs every searcher of the contract table on the toy problem: ``python -m tests.integration.every_search OUT N``.

N processes share the blocks; see test_equal.py.
"""

import sys
import warnings
from pathlib import Path

from lsgen.data import ImageData
from lsgen.search import DataSeeds, Differential, PairSeeds, SearchTask
from lsgen.trainer import Trainer
from tests.toys import Linear, Pixels
from tests.unit.test_searchers import SEARCHERS


def run(data: Path, out: Path, processes: int = 1) -> None:
    """One suite for each searcher, in ``out``."""
    strategy = {"strategy": "ddp", "devices": processes} if processes > 1 else {"devices": 1}
    trainer = Trainer(default_root_dir=out, accelerator="cpu", enable_progress_bar=False, logger=False, **strategy)
    for name, make in SEARCHERS.items():
        searcher = make()
        if isinstance(searcher, Differential):
            searcher = Differential(other=Linear(num_classes=3, seed=1), population=8, elites=3, generations=6)
        task = SearchTask(
            generator=Pixels(num_classes=3),
            sut=Linear(num_classes=3),
            searcher=searcher,
            seeds=PairSeeds(per_class=2, others_per_class=2) if searcher.needs_other else DataSeeds(per_class=6),
            block_size=4,
            eval_batch_size=32,
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the SUT reads only")
            trainer.search(task, datamodule=ImageData(name="npz", path=str(data)), out=str(out / name))


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
