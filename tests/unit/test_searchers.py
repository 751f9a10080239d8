"""Searchers on problems whose answers are known; one contract table for all of them."""

import math

import pytest
import torch
from torch.nn import functional as F

from lsgen.errors import InputError
from lsgen.objectives import CrossEntropy, Misclassified
from lsgen.search import LatentPGD, RandomSampling, SeedRandom
from lsgen.search.evaluator import Evaluator
from lsgen.types import Seeds, round8
from tests.toys import Linear, Pixels

SEARCHERS = {
    "random": lambda: RandomSampling(),
    "pgd": lambda: LatentPGD(steps=5),
    "pgd early stop": lambda: LatentPGD(steps=5, early_stop=True),
}


def problem(seeds: int = 7, chunk: int = 32):
    generator, sut = Pixels(), Linear()
    latent = 0.3 + 0.4 * torch.rand(seeds, 16, generator=torch.Generator().manual_seed(1))
    label = sut.logits(generator.decode(latent, torch.zeros(seeds).long())).argmax(1)
    return Evaluator(generator, sut, CrossEntropy(), Misclassified(), chunk), Seeds(latent, label)


def run(searcher, evaluator, seeds, rng, steps=None):
    state = searcher.init(seeds, rng)
    for _ in range(searcher.steps if steps is None else steps):
        state = searcher.tell(state, evaluator.score(searcher.ask(state), seeds.label, searcher.needs_grad), rng)
    return state


@pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS)
def test_candidates_and_results_have_the_latents_shape(make):
    _, seeds = problem()
    searcher = make()
    state = searcher.init(seeds, SeedRandom(0, 0, 7))
    assert searcher.ask(state).shape[0] == 7
    assert searcher.ask(state).shape[2:] == (16,)
    assert searcher.result(state).shape == (7, 16)


@pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS)
def test_a_seed_does_the_same_alone_as_among_others(make):
    evaluator, seeds = problem()
    searcher, index = make(), torch.tensor([1, 4])
    together = searcher.result(run(searcher, evaluator, seeds, SeedRandom(0, 0, 7)))
    rng = SeedRandom(0, 0, 7)
    rng.keep(index)
    few = Seeds(seeds.latent[index], seeds.label[index])
    assert torch.equal(searcher.result(run(searcher, evaluator, few, rng)), together[index])


@pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS)
def test_the_same_stream_gives_the_same_result_and_the_seeds_stay_untouched(make):
    evaluator, seeds = problem()
    before = seeds.latent.clone()
    results = [make().result(run(make(), evaluator, seeds, SeedRandom(3, 1, 7))) for _ in range(2)]
    assert torch.equal(*results)
    assert torch.equal(seeds.latent, before)


def test_pgd_on_a_linear_sut_reaches_the_corner_of_the_ball():
    evaluator, seeds = problem()
    searcher = LatentPGD(steps=10, step_size=0.05, radius=0.2)  # 0.5 of steps in a ball of 0.2: the clamp must act
    found = searcher.result(run(searcher, evaluator, seeds, SeedRandom(0, 0, 7)))
    w = evaluator.sut.layer.weight
    uphill = (w[1 - seeds.label] - w[seeds.label]).sign()  # where cross entropy grows, two classes
    torch.testing.assert_close(found, seeds.latent + 0.2 * uphill)


def test_pgd_of_no_step_or_no_radius_is_random_sampling():
    evaluator, seeds = problem()
    for searcher in (LatentPGD(steps=0), LatentPGD(radius=0.0), RandomSampling()):
        assert torch.equal(searcher.result(run(searcher, evaluator, seeds, SeedRandom(0, 0, 7))), seeds.latent)


def test_a_radius_that_cannot_be_reached_changes_nothing():
    evaluator, seeds = problem()
    wide, wider = (LatentPGD(steps=4, step_size=0.05, radius=r) for r in (0.2, 7.0))
    results = [s.result(run(s, evaluator, seeds, SeedRandom(0, 0, 7))) for s in (wide, wider)]
    assert torch.equal(*results)


def test_pgd_follows_the_published_pseudocode_seed_by_seed():
    """Speth, Alg. 1, written as a slow loop over one seed at a time."""
    evaluator, seeds = problem()
    step, radius, n = 0.05, 0.12, 4
    for z, c, found in zip(
        seeds.latent,
        seeds.label,
        LatentPGD(steps=n, step_size=step, radius=radius).result(
            run(LatentPGD(steps=n, step_size=step, radius=radius), evaluator, seeds, SeedRandom(0, 0, 7))
        ),
        strict=True,
    ):
        delta = torch.zeros_like(z)
        for _ in range(n):
            point = (z + delta).requires_grad_()
            image = round8(evaluator.generator.decode(point[None], c[None]))
            loss = F.cross_entropy(evaluator.sut.logits(image), c[None])
            delta = delta + step * torch.autograd.grad(loss, point)[0].sign()
            delta = delta.clamp(-radius, radius)
        torch.testing.assert_close(found, z + delta)


@pytest.mark.parametrize(
    "bad", [{"steps": -1}, {"step_size": 0.0}, {"radius": -0.1}, {"step_size": math.nan}, {"radius": math.inf}]
)
def test_pgd_refuses_impossible_settings(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        LatentPGD(**bad)


def test_draws_of_a_seed_do_not_depend_on_who_else_is_active():
    everyone, few = SeedRandom(5, 2, 10), SeedRandom(5, 2, 10)
    few.keep(torch.tensor([3, 8]))
    few.keep(torch.tensor([1]))
    assert torch.equal(few.normal(4), everyone.normal(4)[[8]])
    assert torch.equal(few.uniform(2), everyone.uniform(2)[[8]])


def test_blocks_and_seeds_have_streams_of_their_own():
    draws = [SeedRandom(seed, block, 1).normal(1).item() for seed in range(10) for block in range(10)]
    assert len(set(draws)) == 100
