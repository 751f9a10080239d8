"""Searchers on problems whose answers are known; one contract table for all of them."""

import math
import warnings
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from scipy import stats
from torch.nn import functional as F

from lsgen.errors import InputError
from lsgen.generators import CVAE, GAN, VQVAE, Diffusion, PixelSpace
from lsgen.objectives import CrossEntropy, Misclassified, TopConfidence
from lsgen.search import (
    ActivationPerturbation,
    BoundaryGA,
    Differential,
    HillClimb,
    Interpolation,
    LatentPGD,
    MarginGA,
    RandomSampling,
    SeedRandom,
)
from lsgen.search.evaluator import Evaluator
from lsgen.search.genetic import crossover
from lsgen.search.perturbation import Perturbed
from lsgen.types import Evaluation, Seeds, round8
from tests.toys import Linear, Pixels

SEARCHERS = {
    "random": lambda: RandomSampling(),
    "pgd": lambda: LatentPGD(steps=5),
    "pgd early stop": lambda: LatentPGD(steps=5, early_stop=True),
    "pgd l2": lambda: LatentPGD(steps=5, norm="l2", momentum=0.9, restarts=3),
    "pgd restarts": lambda: LatentPGD(steps=5, restarts=2, momentum=0.5),
    "margin ga": lambda: MarginGA(population=7, elites=3, generations=6, extent="high"),
    "boundary ga": lambda: BoundaryGA(population=8, elites=3, generations=6),
    "differential": lambda: Differential(other=Linear(seed=1), population=8, elites=3, generations=6),
    "hill climb": lambda: HillClimb(passes=2, step=0.2),
    "interpolation": lambda: Interpolation(share=0.3),
    "perturbation": lambda: ActivationPerturbation(steps=5, stages=2),
    "perturbation in a ball": lambda: ActivationPerturbation(steps=5, step_size=0.5, radius=0.7),
}


def problem(searcher=None, seeds: int = 7, chunk: int = 32):
    """Random images and a linear SUT that reads them rightly; bound to the searcher where one is given."""
    generator, sut = Pixels(), Linear()
    latent = 0.3 + 0.4 * torch.rand(seeds, 16, generator=torch.Generator().manual_seed(1))
    label = sut.logits(generator.decode(latent, torch.zeros(seeds).long())).argmax(1)
    objective, criterion = CrossEntropy(), Misclassified()
    if searcher is not None:
        generator, latent = searcher.bind(generator), searcher.lift(latent)
        objective, criterion = searcher.objective(targeted=False), searcher.criterion(targeted=False)
    return Evaluator(generator, sut, objective, criterion, chunk), Seeds(latent, label, other=latent.flip(0))


def run(searcher, evaluator, seeds, rng, steps=None):
    state = searcher.init(seeds, rng)
    for _ in range(searcher.steps if steps is None else steps):
        state = searcher.tell(state, evaluator.score(searcher.ask(state), seeds, searcher.needs_grad), rng)
    return state


@pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS)
def test_candidates_and_results_have_the_latents_shape(make):
    searcher = make()
    evaluator, seeds = problem(searcher)
    state = searcher.init(seeds, SeedRandom(0, 0, 7))
    assert searcher.ask(state).shape[0] == 7
    assert searcher.ask(state).shape[2:] == evaluator.generator.latent_shape
    assert searcher.result(state).shape == (7, *evaluator.generator.latent_shape)


@pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS)
def test_every_round_has_as_many_candidates_as_announced(make):
    """Query budgets are worked out from it."""
    searcher = make()
    evaluator, seeds = problem(searcher)
    rng, asked = SeedRandom(0, 0, 7), []
    state = searcher.init(seeds, rng)
    for _ in range(searcher.steps):
        z = searcher.ask(state)
        asked.append(z.shape[1])
        state = searcher.tell(state, evaluator.score(z, seeds, searcher.needs_grad), rng)
    assert asked == [searcher.candidates + searcher.first * (i == 0) for i in range(searcher.steps)]


@pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS)
def test_a_seed_does_the_same_alone_as_among_others(make):
    searcher, index = make(), torch.tensor([1, 4])
    evaluator, seeds = problem(searcher)
    together = searcher.result(run(searcher, evaluator, seeds, SeedRandom(0, 0, 7)))
    rng = SeedRandom(0, 0, 7)
    rng.keep(index)
    assert torch.equal(searcher.result(run(searcher, evaluator, seeds.take(index), rng)), together[index])


@pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS)
def test_the_same_stream_gives_the_same_result_and_the_seeds_stay_untouched(make):
    searcher = make()
    evaluator, seeds = problem(searcher)
    before = seeds.latent.clone()
    results = [searcher.result(run(searcher, evaluator, seeds, SeedRandom(3, 1, 7))) for _ in range(2)]
    assert torch.equal(*results)
    assert torch.equal(seeds.latent, before)


@pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS)
def test_a_state_can_go_on_with_some_of_its_seeds(make):
    searcher = make()
    evaluator, seeds = problem(searcher)
    state = run(searcher, evaluator, seeds, SeedRandom(0, 0, 7), steps=min(2, searcher.steps))
    few = state.take(torch.tensor([6, 0]))
    assert torch.equal(searcher.ask(few), searcher.ask(state)[[6, 0]])
    assert torch.equal(searcher.result(few), searcher.result(state)[[6, 0]])


@pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS)
def test_pixels_stay_pixels(make):
    """Every searcher is its own baseline in PixelSpace, and counts no change that no image has."""
    searcher = make()
    if isinstance(searcher, ActivationPerturbation):
        searcher.stages = None  # there are none
    space, sut = searcher.bind(PixelSpace(image_shape=(1, 4, 4), num_classes=2)), Linear()
    images = torch.rand(7, 1, 4, 4, generator=torch.Generator().manual_seed(1)).round()  # black and white
    latent, label = searcher.lift(images), sut.logits(images).argmax(1)
    seeds = Seeds(latent, label, other=latent.flip(0))
    goals = searcher.objective(targeted=False), searcher.criterion(targeted=False)
    evaluator, state = Evaluator(space, sut, *goals, 32), None
    rng = SeedRandom(0, 0, 7)
    state = searcher.init(seeds, rng)
    for _ in range(searcher.steps):
        asked = searcher.ask(state)
        assert asked.min() >= 0
        assert asked.max() <= 1
        state = searcher.tell(state, evaluator.score(asked, seeds, searcher.needs_grad), rng)
    found = searcher.result(state)
    assert torch.equal(found, found.clamp(0, 1))


@pytest.mark.parametrize("make", [SEARCHERS["margin ga"], SEARCHERS["boundary ga"], SEARCHERS["hill climb"]])
def test_on_a_quadratic_the_best_never_gets_worse(make):
    searcher, goal = make(), torch.full((16,), 0.8)
    searcher.bind(Pixels())
    seeds, rng, best = Seeds(torch.zeros(5, 16), torch.zeros(5).long()), SeedRandom(0, 0, 5), []
    state = searcher.init(seeds, rng)
    for _ in range(searcher.steps):
        z = searcher.ask(state)
        fitness = (z - goal).square().sum(-1)
        nobody = torch.zeros_like(fitness, dtype=torch.bool)
        state = searcher.tell(state, Evaluation(z, torch.zeros(*fitness.shape, 2), fitness, nobody, None), rng)
        best.append((searcher.result(state) - goal).square().sum(-1))
    assert all((b <= a).all() for a, b in pairwise(best))
    assert (best[-1] < best[0]).all()


def test_in_pixel_space_a_boundary_is_as_near_as_its_image():
    searcher = SEARCHERS["boundary ga"]()
    space, sut = searcher.bind(PixelSpace(image_shape=(1, 4, 4), num_classes=2)), Linear()
    images = torch.rand(7, 1, 4, 4, generator=torch.Generator().manual_seed(1)).round()
    seeds = Seeds(images, sut.logits(images).argmax(1))
    evaluator = Evaluator(space, sut, searcher.objective(targeted=False), Misclassified(), 32)
    state = run(searcher, evaluator, seeds, SeedRandom(0, 0, 7))
    found, known = searcher.result(state), state.best.isfinite()
    assert known.any()
    shown = (space.decode(found, seeds.label) - images).abs().flatten(1).sum(1)
    torch.testing.assert_close(state.best[known], shown[known])


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
    assert torch.equal(few.coins(0.5, 3, 7), everyone.coins(0.5, 3, 7)[[8]])


@pytest.mark.parametrize("heads", [0.0, 0.2, 0.5, 1 - 2**-40])
def test_coins_are_fair(heads):
    coins = SeedRandom(5, 2, 10).coins(heads, 101, 401).double()
    spread = max(math.sqrt(heads * (1 - heads)), 1e-9)
    assert abs(coins.mean() - heads) <= 5 * spread / math.sqrt(coins.numel())
    for one, other in ((coins[:-1], coins[1:]), (coins[:, :-1], coins[:, 1:]), (coins[..., :-1], coins[..., 1:])):
        agree = ((one - heads) * (other - heads)).mean()  # neighbours along no axis know of each other
        assert abs(agree) <= 5 * spread**2 / math.sqrt(one.numel())


def test_blocks_and_seeds_have_streams_of_their_own():
    draws = [SeedRandom(seed, block, 1).normal(1).item() for seed in range(10) for block in range(10)]
    assert len(set(draws)) == 100


# PGD beyond the paper


def test_pgd_in_an_l2_ball_reaches_the_point_farthest_uphill():
    searcher = LatentPGD(steps=20, step_size=0.05, radius=0.3, norm="l2")
    evaluator, seeds = problem()
    found = searcher.result(run(searcher, evaluator, seeds, SeedRandom(0, 0, 7)))
    w = evaluator.sut.layer.weight
    uphill = F.normalize(w[1 - seeds.label] - w[seeds.label], dim=1)
    torch.testing.assert_close(found, seeds.latent + 0.3 * uphill, atol=1e-3, rtol=0)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_momentum_adds_earlier_gradients_by_hand(norm):
    searcher = LatentPGD(steps=3, step_size=0.1, radius=9.0, norm=norm, momentum=0.5)
    _, seeds = problem(seeds=1)
    state, draw = searcher.init(seeds, SeedRandom(0, 0, 1)), torch.Generator().manual_seed(0)
    velocity, delta = torch.zeros(16), torch.zeros(16)
    for scale in (1, 10, 0.1):
        g = scale * torch.randn(1, 1, 16, generator=draw)
        evaluation = Evaluation(searcher.ask(state), torch.zeros(1, 1, 2), torch.zeros(1, 1), torch.zeros(1, 1) > 0, g)
        state = searcher.tell(state, evaluation, SeedRandom(0, 0, 1))
        velocity = 0.5 * velocity + g[0, 0] / g.abs().sum()
        delta = delta - 0.1 * (velocity.sign() if norm == "linf" else velocity / velocity.square().sum().sqrt())
    torch.testing.assert_close(state.delta[0, 0], delta)


@pytest.mark.parametrize(("norm", "order", "beta"), [("linf", math.inf, 1), ("l2", 2, 8.5)])
def test_the_first_try_begins_at_the_seed_and_restarts_all_over_the_ball(norm, order, beta):
    searcher = LatentPGD(radius=0.2, norm=norm, restarts=5)
    _, seeds = problem(searcher, seeds=2000)
    begin = searcher.init(seeds, SeedRandom(0, 0, 2000)).delta
    assert torch.equal(begin[:, 0], torch.zeros(2000, 16))
    tries = begin[:, 1:].flatten(0, 1) / 0.2
    lengths = tries.norm(p=order, dim=1)
    assert float(lengths.max()) <= 1 + 1e-6
    assert stats.kstest(lengths**16, "uniform").statistic < 0.025  # as volume grows
    solid = Seeds(seeds.latent.view(2000, 1, 4, 4), seeds.label)  # a latent with axes is no other one
    shaped = searcher.init(solid, SeedRandom(0, 0, 2000)).delta
    assert torch.equal(shaped.flatten(2), begin)
    coordinates = stats.beta(beta, beta, loc=-1, scale=2)  # of an even spread: (dimension + 1) / 2 in a Euclidean ball
    assert max(stats.kstest(x, coordinates.cdf).statistic for x in tries.T) < 0.025


def test_fgsm_is_one_step_in_pixel_space():
    evaluator, seeds = problem()
    found = run(LatentPGD(steps=1, step_size=0.1, radius=0.1), evaluator, seeds, SeedRandom(0, 0, 7))
    w = evaluator.sut.layer.weight
    torch.testing.assert_close(found.delta[:, 0], 0.1 * (w[1 - seeds.label] - w[seeds.label]).sign())


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize(
    "searcher",
    [
        LatentPGD(step_size=0.1, radius=9.0, norm="l2"),
        LatentPGD(step_size=0.1, radius=9.0, norm="l2", momentum=0.5),
        ActivationPerturbation(step_size=0.1, stages=0),
    ],
)
def test_a_step_has_its_length_however_sure_the_sut_is(searcher, size):
    _, seeds = problem(searcher)
    state = searcher.init(seeds, SeedRandom(0, 0, 7))
    z = searcher.ask(state)
    grad = size * torch.randn(z.shape, generator=torch.Generator().manual_seed(0))
    nobody = torch.zeros(7, 1, dtype=torch.bool)
    state = searcher.tell(
        state, Evaluation(z, torch.zeros(7, 1, 2), torch.zeros(7, 1), nobody, grad), SeedRandom(0, 0, 7)
    )
    moved = (searcher.result(state) - seeds.latent).norm(dim=1)
    torch.testing.assert_close(moved, torch.full((7,), 0.1))


# genetic searches


@pytest.mark.parametrize("name", ["margin ga", "boundary ga"])
def test_the_best_never_gets_worse_and_elites_are_not_asked_for_again(name):
    searcher = SEARCHERS[name]()
    evaluator, seeds = problem(searcher)
    rng = SeedRandom(0, 0, 7)
    state, best, asked = searcher.init(seeds, rng), [], []
    for _ in range(searcher.steps):
        asked.append(searcher.ask(state).shape[1])
        state = searcher.tell(state, evaluator.score(searcher.ask(state), seeds, False), rng)
        best.append(state.elite_fitness[:, 0])
    assert all(bool((b <= a).all()) for a, b in pairwise(best))
    assert asked == [searcher.population] + (searcher.steps - 1) * [searcher.population - searcher.elites]
    assert torch.equal(searcher.result(state), state.elite[:, 0].where(best[-1].isfinite()[:, None], seeds.latent))


@torch.no_grad()
def slow_margin_ga(evaluator, z0, label, searcher, draw):
    """ICST25's loop for one seed, from the paper: lists of individuals, one at a time."""
    low, high = evaluator.generator.latent.bounds
    first = 2 * (high - low) * 1e-3
    size, before = first, math.inf
    people = [(z0 + first * noise).clamp(low, high) for noise in draw("normal", searcher.population, 16)]
    scored = []
    for _ in range(searcher.generations):
        for z in people:
            logits = evaluator.sut.logits(round8(evaluator.generator.decode(z[None], label[None])))[0]
            scored.append((float(logits[label] - logits[1 - label]), z))
        scored = sorted(scored, key=lambda pair: pair[0])[: searcher.elites]
        size = 2 * size if scored[0][0] == before else first
        before = scored[0][0]
        n = searcher.population - searcher.elites
        one, two, cut = draw("uniform", 3, n)
        noise = draw("normal", n, 16)
        people = []
        for i in range(n):
            a = int(one[i] * searcher.elites)
            b = (a + 1 + int(two[i] * (searcher.elites - 1))) % searcher.elites
            point = 1 + int(cut[i] * 15)
            child = torch.cat([scored[a][1][:point], scored[b][1][point:]])
            child = torch.where(child != z0, child + size * noise[i], child)
            people.append(child.clamp(low, high))
    return scored[0][1]


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (0.45, 0.55)], ids=["wide", "narrow"])
def test_margin_ga_follows_the_paper_seed_by_seed(bounds):
    searcher = SEARCHERS["margin ga"]()
    evaluator, seeds = problem(searcher)
    evaluator.generator.latent_bounds.copy_(torch.tensor(bounds))
    searcher.bind(evaluator.generator)
    found = searcher.result(run(searcher, evaluator, seeds, SeedRandom(0, 0, 7)))
    for i in range(7):
        wanted = slow_margin_ga(evaluator, seeds.latent[i], seeds.label[i], searcher, draws_of(i))
        torch.testing.assert_close(found[i], wanted)


@pytest.mark.parametrize("searcher", [MarginGA(), BoundaryGA(reset=0.0)], ids=["margin ga", "boundary ga"])
def test_noise_falls_only_on_genes_that_differ_from_the_seeds(searcher):
    _, seeds = problem()
    size, differs = torch.linspace(0.1, 0.7, 7), torch.arange(16) % 3 == 0
    child = (seeds.latent + differs)[:, None].repeat(1, 4, 1)
    varied = searcher.vary(child, seeds.latent, size, SeedRandom(0, 0, 7))
    noise = size[:, None, None] * SeedRandom(0, 0, 7).normal(4, 16)
    torch.testing.assert_close(varied, child + differs * noise)


@torch.no_grad()
def slow_sinvad_ga(searcher, fitness, z0, draw, *, start, shrink, progress, reset):
    """SINVAD's Fig. 3 for one seed, with the numbers of its code; ``fitness`` looks at one individual."""
    size, before = 0.1, math.inf
    people = [z0 + start * noise for noise in draw("normal", searcher.population, 16)]
    scored = []
    for _ in range(searcher.generations):
        scored = sorted(scored + [(fitness(z), z) for z in people], key=lambda pair: pair[0])[: searcher.elites]
        best = scored[0][0]
        size = shrink * size if best == before or abs(before - best) < progress else 0.1
        before = best
        n = searcher.population - searcher.elites
        one, two, cut = draw("uniform", 3, n)
        noise, back = draw("normal", n, 16), draw("coins", reset, n, 16)
        people = []
        for i in range(n):
            a = int(one[i] * searcher.elites)
            b = (a + 1 + int(two[i] * (searcher.elites - 1))) % searcher.elites
            point = 1 + int(cut[i] * 15)
            child = torch.cat([scored[a][1][:point], scored[b][1][point:]])
            child = child + size * noise[i] * (child != z0)
            people.append(torch.where(back[i], z0, child))
    return scored[0][1] if scored[0][0] < math.inf else z0


def draws_of(i):
    """The numbers that seed ``i`` of seven gets, draw by draw."""
    rng = SeedRandom(0, 0, 7)
    return lambda kind, *shape: getattr(rng, kind)(*shape)[i]


def one_image(evaluator, z, label):
    """What the SUT is shown of one latent, [1, C, H, W]."""
    return round8(evaluator.generator.decode(z[None], label[None]))


def test_boundary_ga_follows_the_paper_seed_by_seed():
    searcher = BoundaryGA(population=8, elites=3, generations=6, as_published=True)
    evaluator, seeds = problem(searcher)
    found = searcher.result(run(searcher, evaluator, seeds, SeedRandom(0, 0, 7)))
    assert not torch.equal(found, seeds.latent)
    for i, (z0, label) in enumerate(zip(seeds.latent, seeds.label, strict=True)):

        def fitness(z, z0=z0, label=label):
            wrong = int(evaluator.sut.logits(one_image(evaluator, z, label)).argmax()) != int(label)
            return float((z - z0).abs().sum()) if wrong else math.inf

        wanted = slow_sinvad_ga(searcher, fitness, z0, draws_of(i), start=0.7, shrink=0.7, progress=0, reset=0.5)
        torch.testing.assert_close(found[i], wanted)


def test_differential_follows_the_paper_seed_by_seed():
    other = Linear(seed=1)
    searcher = Differential(other=other, population=8, elites=3, generations=20, progress=0.3, as_published=True)
    evaluator, seeds = problem(searcher)
    found = searcher.result(run(searcher, evaluator, seeds, SeedRandom(0, 0, 7)))
    assert not torch.equal(found, seeds.latent)
    rule_matters = []
    for i, (z0, label) in enumerate(zip(seeds.latent, seeds.label, strict=True)):

        def fitness(z, z0=z0, label=label):
            image = one_image(evaluator, z, label)
            one, two = (sut.logits(image).softmax(1)[0, label] for sut in (evaluator.sut, other))
            return float((z - z0).abs().sum() * (2 + one - two)) if one <= 0.5 else math.inf

        wanted, without_rule = (
            slow_sinvad_ga(searcher, fitness, z0, draws_of(i), start=1.2, shrink=0.5, progress=progress, reset=0.2)
            for progress in (0.3, 0)
        )
        torch.testing.assert_close(found[i], wanted)
        rule_matters.append(not torch.allclose(wanted, without_rule))
    assert any(rule_matters)


@pytest.mark.parametrize("progress", [-1.0, math.nan, math.inf])
def test_progress_is_a_length(progress):
    with pytest.raises(InputError, match="progress must be finite"):
        Differential(other=Linear(), progress=progress)


def test_differential_shrinks_its_mutations_also_after_little_progress():
    searcher, inf = Differential(other=Linear(seed=1), progress=0.25), torch.inf
    best, before = torch.tensor([2.0, 2.0, 2.0, 2.0, inf]), torch.tensor([2.0, 2.125, 2.25, inf, inf])
    assert searcher.stagnates(best, before).tolist() == [True, True, False, False, True]
    sizes = searcher.next_size(torch.full((5,), 0.08), best, before)
    torch.testing.assert_close(sizes, torch.tensor([0.04, 0.04, 0.1, 0.1, 0.096]))


def test_boundary_ga_ends_when_its_mutations_are_tiny_and_looks_further_while_nothing_counts():
    searcher = BoundaryGA(smallest=0.04)
    inf = torch.inf
    size, best, before = torch.full((4,), 0.1), torch.tensor([2.0, 2.0, inf, 1.0]), torch.tensor([2.0, 3.0, inf, inf])
    torch.testing.assert_close(searcher.next_size(size, best, before), torch.tensor([0.07, 0.1, 0.12, 0.1]))
    published = BoundaryGA(as_published=True).next_size(size, best, before)
    torch.testing.assert_close(published, torch.tensor([0.07, 0.1, 0.07, 0.1]))
    _, seeds = problem(searcher)
    state = replace(searcher.init(seeds, SeedRandom(0, 0, 7)), size=torch.tensor([0.1, 0.03, 0.04, 1, 1, 1, 1]))
    assert searcher.done(state).tolist() == [False, True, False, False, False, False, False]


@pytest.mark.parametrize(("start", "mutation"), [(0.7, 0.1), (0.2, 0.3)])
def test_while_nothing_counts_boundary_gas_mutations_grow_no_larger_than_what_it_began_with(start, mutation):
    searcher, nothing = BoundaryGA(start=start, mutation=mutation), torch.tensor([torch.inf])
    size = torch.tensor([mutation])
    for _ in range(20):
        size = searcher.next_size(size, nothing, nothing)
    torch.testing.assert_close(size, torch.tensor([max(start, mutation)]))


def test_margin_gas_step_comes_from_the_generators_bounds():
    generator = Pixels()
    generator.latent_bounds.copy_(torch.tensor([-3.865, 3.456]))
    low, high = MarginGA(extent="low"), MarginGA(extent="high")
    low.bind(generator)
    high.bind(generator)
    assert low.first_size == pytest.approx(0.001464, abs=1e-6)  # as published for MNIST's VAE
    assert high.first_size == pytest.approx(0.01464, abs=1e-5)
    generator.latent_bounds.fill_(math.nan)
    with pytest.raises(InputError, match="has none"):
        low.bind(generator)
    for wrong in ((1.0, 1.0), (-math.inf, math.inf)):
        generator.latent_bounds.copy_(torch.tensor(wrong))
        with pytest.raises(InputError, match="fit it again"):
            low.bind(generator)


def test_as_published_copies_on_a_gan_and_splices_diffusion_between_channels():
    searcher = MarginGA(population=7, elites=3, as_published=True)
    gan = GAN(width=2)
    gan.latent_bounds.copy_(torch.tensor([-4.0, 4.0]))
    searcher.bind(gan)
    elite = torch.randn(2, 3, 100)
    children = searcher.cross(elite, SeedRandom(0, 0, 2))
    assert children.shape == (2, 4, 100)
    assert all(any(torch.equal(child, e) for e in elite[s]) for s in range(2) for child in children[s])
    diffusion = Diffusion(image_shape=(3, 8, 8), channels=(8,), guidance=3.5)
    diffusion.latent_bounds.copy_(torch.tensor([-4.0, 4.0]))
    assert searcher.bind(diffusion).guidance == 1.4
    assert diffusion.guidance == 3.5
    elite = torch.arange(3.0)[None, :, None, None, None].expand(1, 3, 3, 8, 8)
    channels = searcher.cross(elite, SeedRandom(0, 0, 1)).flatten(3)
    assert bool((channels.amin(3) == channels.amax(3)).all())  # no channel is parted
    assert MarginGA().bind(diffusion) is diffusion
    diffusion.guidance = 2.0
    with pytest.warns(UserWarning, match=r"judges its seeds at guidance 3\.5, this generator at 2\.0"):
        searcher.bind(diffusion)
    never_without_a_label = Diffusion(image_shape=(3, 8, 8), channels=(8,), guidance=1.0, label_dropout=0.0)
    never_without_a_label.latent_bounds.copy_(torch.tensor([-4.0, 4.0]))
    with pytest.raises(InputError, match=r"guidance 1\.4, and this Diffusion was trained with label_dropout 0"):
        searcher.bind(never_without_a_label)
    assert MarginGA().bind(never_without_a_label) is never_without_a_label


def test_a_long_stall_does_not_blow_up_margin_gas_step():
    searcher = MarginGA()
    searcher.bind(Pixels())
    size, best = torch.tensor([0.001]), torch.tensor([1.0])
    for _ in range(200):
        size = searcher.next_size(size, best, best)
    assert float(size) == 1.0  # the width of the space


def test_crossover_takes_the_head_of_one_and_the_tail_of_another():
    elite = torch.arange(4.0)[None, :, None].expand(1, 4, 10)  # individual i is all i
    children = crossover(elite, 200, SeedRandom(0, 0, 1))[0]
    assert bool((children[:, 0] != children[:, -1]).all())  # two distinct parents, both contribute
    changes = (children.diff(dim=1) != 0).sum(1)
    assert changes.tolist() == [1] * 200
    assert set(children[:, 0].tolist()) == set(children[:, -1].tolist()) == {0.0, 1.0, 2.0, 3.0}


# hill climbing, interpolation, perturbation


def test_hill_climbing_goes_down_a_quadratic_and_tries_one_coordinate_at_a_time():
    searcher = HillClimb(passes=40, step=0.3)
    searcher.bind(Pixels(side=2))
    assert searcher.steps == 161
    rng, goal = SeedRandom(0, 0, 3), torch.tensor([0.1, -0.4, 0.8, 0.0])
    state = searcher.init(Seeds(torch.zeros(3, 4), torch.zeros(3).long()), rng)
    fitness = []
    for step in range(searcher.steps):
        z = searcher.ask(state)
        moved = (z[:, 0] != state.latent).sum(1)
        assert moved.tolist() == [int(step > 0)] * 3
        value = (z - goal).square().sum(-1)
        state = searcher.tell(state, Evaluation(z, z[..., :2], value, value < 0, None), rng)
        fitness.append(state.fitness)
    assert all(bool((b <= a).all()) for a, b in pairwise(fitness))
    assert float(fitness[-1].max()) < 0.02


@torch.no_grad()
def test_hill_climbing_follows_the_paper_seed_by_seed():
    searcher = HillClimb(passes=3, step=0.2)
    evaluator, seeds = problem(searcher)
    found = searcher.result(run(searcher, evaluator, seeds, SeedRandom(0, 0, 7)))
    assert not torch.equal(found, seeds.latent)
    for i, (z, label) in enumerate(zip(seeds.latent, seeds.label, strict=True)):
        draw = draws_of(i)

        def fitness(z, label=label):
            return -F.cross_entropy(evaluator.sut.logits(one_image(evaluator, z, label)), label[None])

        for _ in range(3):  # SINVAD's Fig. 2: each coordinate in turn, kept where it helps
            for coordinate in range(16):
                moved = z.clone()
                moved[coordinate] += 0.2 * draw("normal")
                z = moved if fitness(moved) < fitness(z) else z
        torch.testing.assert_close(found[i], z)


def test_interpolation_is_exact_and_its_ends_are_the_two_images():
    _, seeds = problem()
    for share in (0.0, 0.25, 1.0):
        searcher = Interpolation(share=share)
        found = searcher.result(searcher.init(seeds, SeedRandom(0, 0, 7)))
        torch.testing.assert_close(found, (1 - share) * seeds.latent + share * seeds.other)


def test_interpolation_warns_of_a_model_for_another_share():
    model = VQVAE(width=2, num_codes=4, interpolation=0.2)
    with pytest.warns(UserWarning, match=r"λ = 0.2 and is searched at 0.1"):
        Interpolation(share=0.1).bind(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Interpolation(share=0.2).bind(model)


@torch.no_grad()
def test_a_perturbation_of_a_stage_is_an_addition_to_its_output():
    torch.manual_seed(0)
    generator = CVAE(width=4).eval()
    space = Perturbed(generator, 2)
    z, y = torch.randn(3, 16), torch.arange(3)
    assert torch.equal(space.decode(space.lift(z), y), generator.decode(z, y))
    change = 0.1 * torch.randn(3, *space.latent_shape)
    parts = [p.unflatten(1, s) for p, s in zip(change.split(space.sizes, 1), space.shapes, strict=True)]
    hidden = torch.cat([z + parts[0], generator.embedding(y)], dim=1)
    for i, stage in enumerate(generator.stages):
        hidden = stage(hidden) + (parts[i + 1] if i < 2 else 0)
    torch.testing.assert_close(space.decode(space.lift(z) + change, y), hidden.sigmoid())
    assert not generator.stages[0]._forward_hooks


def test_the_walk_follows_the_paper_seed_by_seed():
    torch.manual_seed(0)
    generator, sut = (
        CVAE(image_shape=(1, 16, 16), width=2, latent_dim=4).eval().requires_grad_(False),
        Linear(side=16, num_classes=10),
    )
    searcher = ActivationPerturbation(steps=4, step_size=0.3, radius=0.8, stages=1)
    z, label = torch.randn(3, 4), torch.tensor([1, 2, 3])
    space = searcher.bind(generator)
    evaluator = Evaluator(space, sut, TopConfidence(), Misclassified(), 32)
    seeds = Seeds(searcher.lift(z), label)
    found = searcher.result(run(searcher, evaluator, seeds, SeedRandom(0, 0, 3)))
    for i in range(3):
        p = [torch.zeros(1, 4), torch.zeros(1, *space.shapes[1])]  # of the latent, and of the first stage's output
        for _ in range(4):
            p = [part.requires_grad_() for part in p]
            hidden = torch.cat([z[i : i + 1] + p[0], generator.embedding(label[i : i + 1])], dim=1)
            hidden = generator.stages[0](hidden) + p[1]
            for stage in generator.stages[1:]:
                hidden = stage(hidden)
            confidence = sut.logits(round8(hidden.sigmoid())).softmax(1).amax()
            grads = torch.autograd.grad(confidence, p)
            length = sum(float(g.square().sum()) for g in grads) ** 0.5
            p = [(part - 0.3 * g / length).detach() for part, g in zip(p, grads, strict=True)]
            size = sum(float(part.square().sum()) for part in p) ** 0.5
            p = [part * min(1, 0.8 / size) for part in p]
        change = torch.cat([part.flatten() for part in p])
        torch.testing.assert_close(found[i] - seeds.latent[i], change, rtol=1e-4, atol=1e-5)


def test_the_walk_has_steps_of_one_length_and_stays_in_its_ball():
    searcher = ActivationPerturbation(steps=4, step_size=0.3, radius=1.0, stages=1)
    evaluator, seeds = problem(searcher)
    state, lengths = searcher.init(seeds, SeedRandom(0, 0, 7)), []
    for _ in range(5):
        moved = searcher.tell(state, evaluator.score(searcher.ask(state), seeds, True), SeedRandom(0, 0, 7))
        lengths.append((moved.latent - seeds.latent).norm(dim=1))
        state = moved
    torch.testing.assert_close(lengths[0], torch.full((7,), 0.3))
    assert float(torch.stack(lengths).max()) <= 1 + 1e-5


def test_the_stages_of_a_gan_are_those_of_its_average_also_while_it_trains():
    space = ActivationPerturbation().bind(GAN(width=2).train())
    assert space.sizes[1] > 0


def test_as_published_the_step_doubles_beyond_the_width_of_the_space():
    for as_published, most in ((False, 1.0), (True, math.inf)):
        searcher = MarginGA(population=5, elites=2, as_published=as_published, extent="high")
        searcher.bind(Pixels())
        size, same = torch.tensor([searcher.first_size]), torch.tensor([1.0])
        for _ in range(20):
            size = searcher.next_size(size, same, same)
        assert size.item() == pytest.approx(min(most, 2**20 * searcher.first_size))


def test_a_third_of_the_stages_by_default_and_no_more_than_there_are():
    searcher = ActivationPerturbation()
    assert len(searcher.bind(CVAE(width=4)).first) == 2  # of 4 stages, rounded up
    with pytest.raises(InputError, match="has 2 stages to change, 3 are asked for"):
        ActivationPerturbation(stages=3).bind(Pixels())
    with pytest.raises(InputError, match="PixelSpace has 0 stages to change, 1 are asked for"):
        ActivationPerturbation(stages=1).bind(PixelSpace())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LatentPGD(norm="l7"), "linf, l2"),
        (lambda: LatentPGD(restarts=0), "restarts"),
        (lambda: MarginGA(elites=1), "elites"),
        (lambda: MarginGA(population=10), "population"),
        (lambda: MarginGA(extent="huge"), "low or high"),
        (lambda: BoundaryGA(shrink=1.0), "shrink"),
        (lambda: BoundaryGA(reset=1.0), "reset"),
        (lambda: HillClimb(step=0.0), "step"),
        (lambda: Interpolation(share=1.2), "between 0 and 1"),
        (lambda: ActivationPerturbation(step_size=0.0), "step_size"),
        (lambda: ActivationPerturbation(radius=-1.0), "radius"),
    ],
)
def test_refuses_impossible_settings(make, says):
    with pytest.raises(InputError, match=says):
        make()


@pytest.mark.parametrize(
    ("searcher", "published"),
    [
        (LatentPGD, {"steps": 20, "step_size": 0.05, "radius": 0.5, "momentum": 0.0, "early_stop": False}),
        (MarginGA, {"population": 25, "elites": 10, "generations": 250, "extent": "low"}),
        (
            BoundaryGA,
            {"population": 50, "elites": 20, "generations": 500, "start": 0.7, "mutation": 0.1, "shrink": 0.7}
            | {"smallest": 1e-3, "reset": 0.5},
        ),
        (
            partial(Differential, other=Linear()),
            {"generations": 5000, "start": 1.2, "mutation": 0.1, "shrink": 0.5, "progress": 1e-3, "reset": 0.2},
        ),
        (HillClimb, {"passes": 3, "step": 1.0}),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_defaults_are_those_of_the_papers(searcher, published):
    made = searcher()
    assert {name: getattr(made, name) for name in published} == published
