"""Code that the documentation shows must work."""

import re

import torch

from lsgen.search import SeedRandom
from tests.conftest import ROOT
from tests.unit.test_searchers import problem, run


def test_the_searcher_of_the_contributing_guide_works():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "class Drift" in block)
    space: dict = {"__name__": "drift"}
    exec(compile(code, "CONTRIBUTING.md", "exec"), space)
    evaluator, seeds = problem()
    drift = space["Drift"](steps=30)
    found = drift.result(run(drift, evaluator, seeds, SeedRandom(0, 0, 7)))
    with torch.no_grad():
        before, after = (evaluator.score(z[:, None], seeds, False).fitness for z in (seeds.latent, found))
    assert bool((after < before).all())
