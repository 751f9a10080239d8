"""How often a search makes the host wait for the device: a GPU stands idle meanwhile.

There is no GPU in the tests. Instead, a mode takes every tensor for one on a device, except what ``.cpu()`` gave and
what was made of that alone, and counts the calls that need a device's numbers on the host.
"""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from lsgen.objectives import CrossEntropy, Misclassified
from lsgen.search import HillClimb, LatentPGD, PriorSeeds, SearchTask, SeedRandom
from lsgen.search.cases import Outcome
from lsgen.search.evaluator import Evaluator
from lsgen.surprise import DSA, LSA, SurpriseDistance
from lsgen.types import Seeds
from tests.toys import Linear, Pixels
from tests.unit.test_searchers import SEARCHERS

T = torch.Tensor
WAITS = {T.__bool__, T.__int__, T.__float__, T.__index__, T.item, T.tolist, T.numpy, T.cpu, T.equal, torch.equal}
WAITS |= {T.nonzero, torch.nonzero, T.unique, torch.unique, T.masked_select, torch.masked_select, T.__contains__}
BY_INDEX = {T.__getitem__, T.__setitem__}  # a mask is looked up with nonzero


class Waits(TorchFunctionMode):
    """Counts."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        on_host = bool(tensors) and all(getattr(t, "on_host", False) for t in tensors)
        if not on_host:
            masks = func in BY_INDEX and any(
                isinstance(t, torch.Tensor) and t.dtype == torch.bool for t in tree_leaves(args[1])
            )
            self.count += func in WAITS or masks
        result = func(*args, **(kwargs or {}))
        if func is T.cpu:
            result = result.clone()
        if func is T.cpu or on_host:
            for t in tree_leaves(result):
                if isinstance(t, torch.Tensor):
                    t.on_host = True
        return result


def waits(searcher, steps: int, **parts) -> int:
    """Of a search of seven seeds that takes so many steps."""
    searcher.steps = steps
    sut, pixels = Linear(), Pixels()
    task = SearchTask(generator=pixels, sut=sut, searcher=searcher, seeds=PriorSeeds(), eval_batch_size=32, **parts)
    task.searcher.steps = steps  # HillClimb has counted the coordinates
    latent = 0.3 + 0.4 * torch.rand(7, 16, generator=torch.Generator().manual_seed(1))
    label = sut.logits(pixels.decode(latent, torch.zeros(7).long())).argmax(1)
    seeds = Seeds(task.searcher.lift(latent), label, other=latent.flip(0))
    everyone = torch.ones(7, dtype=torch.bool)
    outcome = Outcome.at(seeds, ~everyone, everyone, steps)
    with torch.no_grad(), Waits() as mode:
        task.run(outcome, seeds, everyone, SeedRandom(0, 0, 7))
    return mode.count


STEPPING = {name: make for name, make in SEARCHERS.items() if make().steps or name == "hill climb"}


@pytest.mark.parametrize("name", STEPPING)
def test_the_host_waits_for_a_gpu_once_a_step(name, monkeypatch):
    monkeypatch.setattr(Evaluator, "lanes", 1)  # as on a GPU
    assert waits(STEPPING[name](), steps=6) <= 1 + 6  # the first is for the seeds that are viable


class OnGPU(Pixels):
    """Says that it is on a GPU."""

    device = torch.device("cuda")


def test_seeds_go_in_one_lane_on_a_gpu():
    on_cpu, on_gpu = (Evaluator(g, Linear(), CrossEntropy(), Misclassified()) for g in (Pixels(), OnGPU()))
    assert on_cpu.lanes > on_gpu.lanes == 1


@pytest.mark.parametrize(("surprise", "more"), [(LSA(min_std=0.1, max_units=4), 0), (DSA(), 1)])
def test_surprise_by_class_waits_to_know_the_classes(surprise, more):
    objective, sut = SurpriseDistance(surprise=surprise, target=1.0), Linear()
    pixels = torch.rand(60, 16, generator=torch.Generator().manual_seed(0))
    surprise.fit(pixels, sut.logits(pixels).argmax(1))
    objective._sut = sut
    assert waits(HillClimb(), steps=6, objective=objective) == 1 + 6 * (1 + more)  # one chunk a step


def test_waits_are_counted():
    never_done = LatentPGD(radius=0.0)
    assert waits(never_done, steps=6) == 1 + 6
    with Waits() as mode:
        x = torch.arange(3.0)
        host = x.cpu()
        assert float(host[host > 1].sum()) == 2.0  # on the host already
        assert mode.count == 1
        x[x > 1] = 0
        assert not (x > 1).any()
        assert mode.count == 3
