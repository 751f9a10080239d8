"""Seeds in lanes: full chunks, and the same results as one after the other."""

import pytest
import torch

from lsgen.search import LatentPGD, MarginGA, PairSeeds, PriorSeeds, SearchTask, SeedRandom, evaluator, loop
from lsgen.search.cases import Outcome
from lsgen.search.chunk_size import passes_a_round
from lsgen.search.stream import Stream
from lsgen.types import Evaluation, Seeds
from tests.toys import Asked, Pixels
from tests.unit.test_searchers import SEARCHERS, problem, run


def searched(searcher, *, seeds: int = 11, chunk: int = 8, seen=None, out=(3,), **limits) -> Outcome:
    """A search of some seeds, of which those at ``out`` are not viable; ``seen`` takes down what callbacks are told."""
    sut, pixels = Asked(), Pixels()
    source = PairSeeds() if searcher.needs_other else PriorSeeds()
    task = SearchTask(generator=pixels, sut=sut, searcher=searcher, seeds=source, eval_batch_size=chunk, **limits)
    task.evaluator.chunk = chunk
    if seen is not None:
        task.step_end = lambda *told: seen.append(told)
    latent = 0.3 + 0.4 * torch.rand(seeds, 16, generator=torch.Generator().manual_seed(1))
    label = sut.logits(pixels.decode(latent, torch.zeros(seeds).long())).argmax(1)
    start = Seeds(task.searcher.lift(latent), label, other=latent.flip(0))
    viable = torch.ones(seeds, dtype=torch.bool)
    viable[list(out)] = False
    outcome = Outcome.at(start, torch.zeros_like(viable), viable, task.rounds)
    with torch.no_grad():
        sut.count = 0
        task.run(outcome, start, viable, SeedRandom(0, 0, seeds))
    assert sut.count * task.passes(score=True) == outcome.forward.sum()  # nobody is shown who is not counted
    return outcome


@pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS)
@pytest.mark.parametrize("limits", [{}, {"max_queries": 20}], ids=["free", "limited"])
def test_every_searcher_does_the_same_in_any_number_of_lanes(make, limits, monkeypatch):
    found = []
    for lanes in (1, 2, 3):
        monkeypatch.setattr(evaluator, "LANES", lanes)
        found.append(searched(make(), **limits))
    for name in ("latent", "iterations", "forward", "backward", "broken", "misread"):
        assert all(torch.equal(getattr(found[0], name), getattr(other, name)) for other in found[1:]), name
    assert found[0].budget == found[1].budget == found[2].budget


def passes(searcher, monkeypatch, **problem) -> int:
    """Chunks that a search runs."""
    count = []
    score = loop.Stream._run_chunk
    monkeypatch.setattr(loop.Stream, "_run_chunk", lambda self: count.append(1) or score(self))
    searched(searcher, out=(), **problem)
    return len(count)


def test_nothing_is_padding_while_another_lane_waits(monkeypatch):
    problem = {"seeds": 100, "chunk": 32}
    assert passes(LatentPGD(steps=16), monkeypatch, **problem) == 100 * 16 // 32
    monkeypatch.setattr(evaluator, "LANES", 1)
    assert passes(LatentPGD(steps=16), monkeypatch, **problem) == 4 * 16


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize(("seeds", "chunk"), [(40, 32), (70, 64), (90, 32), (100, 64), (100, 96), (500, 64)])
def test_the_number_of_passes_is_known_in_advance(seeds, chunk, lanes, monkeypatch):
    monkeypatch.setattr(evaluator, "LANES", lanes)
    known = passes_a_round(seeds, chunk, lanes)
    assert passes(LatentPGD(steps=40), monkeypatch, seeds=seeds, chunk=chunk) == pytest.approx(40 * known, rel=0.03)


def test_a_round_that_fits_into_one_chunk_stays_together(monkeypatch):
    assert passes(LatentPGD(steps=16), monkeypatch, seeds=32, chunk=32) == 16


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_of_several_tries_the_best_last_iterate_counts(steps, lanes, monkeypatch):
    monkeypatch.setattr(evaluator, "LANES", lanes)
    searcher = LatentPGD(steps=steps, step_size=0.02, radius=0.3, restarts=6)
    found = searched(searcher, out=()).latent
    networks, seeds = problem(seeds=11, chunk=8)
    last = searcher.ask(run(searcher, networks, seeds, SeedRandom(0, 0, 11)))
    best = networks.score(last, seeds, False).fitness.argmin(1)
    assert (best > 0).any()
    assert torch.equal(found, last[torch.arange(11), best])


def test_a_success_counts_before_a_lower_fitness():
    latent, nan, inf = torch.arange(4.0).expand(4, 4)[..., None], torch.nan, torch.inf
    fitness = torch.tensor([[1, 3.0, 2, 9], [1, 3, 2, 9], [nan, 3, 2, inf], [inf, nan, inf, inf]])
    success = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]).bool()
    evaluation = Evaluation(latent, torch.zeros(4, 4, 2), fitness, success, None)
    assert loop._best(evaluation).flatten().tolist() == [2, 0, 2, 3]


def test_callbacks_are_told_of_whole_steps_in_the_order_of_the_block():
    seen = []
    outcome = searched(MarginGA(population=7, elites=3, generations=4, extent="high"), seen=seen, max_queries=200)
    assert [step for step, *_ in seen] == [0, 1, 2, 3]
    for _, evaluation, seeds, told in seen:
        assert told is outcome
        assert len(evaluation.fitness) == len(seeds.label)
    _, evaluation, seeds, _ = seen[0]
    assert len(seeds.label) == 10  # one of eleven is not viable
    whole = []
    searched(MarginGA(population=7, elites=3, generations=4, extent="high"), seen=whole, chunk=128)
    assert torch.equal(seeds.latent, whole[0][2].latent)
    assert torch.equal(evaluation.latent, whole[0][1].latent)


def test_rounds_share_chunks_and_get_their_own_answers():
    evaluator, seeds = problem(seeds=7, chunk=4)
    z = torch.rand(7, 3, 16, generator=torch.Generator().manual_seed(2))
    wanted = evaluator.score(z, seeds, True)
    stream = Stream(evaluator, True)
    parts = [torch.tensor([0, 2]), torch.tensor([1, 3, 4, 5, 6])]
    rounds = [stream.put(z[part], seeds.take(part)) for part in parts]
    found = [stream.get(one) for one in rounds]
    for part, one in zip(parts, found, strict=True):
        for name in ("latent", "logits", "fitness", "success", "grad"):
            assert torch.equal(getattr(one, name), getattr(wanted, name)[part]), name


@torch.no_grad()
@pytest.mark.parametrize("needs_grad", [False, True])
def test_a_round_of_which_nobody_is_worth_a_look_costs_no_pass(monkeypatch, needs_grad):
    evaluator, seeds = problem(seeds=3, chunk=4)
    monkeypatch.setattr(evaluator, "score_chunk", None)
    stream = Stream(evaluator, needs_grad)
    nobody = stream.get(stream.put(seeds.latent[:, None], seeds, torch.zeros(0, dtype=torch.long)))
    assert nobody.logits.shape == (3, 1, 2)
    assert nobody.fitness.tolist() == [[torch.inf]] * 3
    assert not nobody.success.any()
    assert not nobody.asked.any()
    assert (nobody.grad is not None) == needs_grad


def test_parts_of_a_stream_draw_what_the_whole_would_have():
    whole, parts = SeedRandom(5, 2, 6), [torch.tensor([0, 4]), torch.tensor([1, 2, 5])]
    one, two = SeedRandom(5, 2, 6).split(parts)
    normal, uniform = whole.normal(3), whole.uniform(2, 2)
    assert torch.equal(one.normal(3), normal[parts[0]])
    assert torch.equal(one.uniform(2, 2), uniform[parts[0]])
    two.keep(torch.tensor([0, 2]))  # before it has read what was drawn for it
    assert torch.equal(two.normal(3), normal[[1, 5]])
    two.uniform(2, 2).zero_()
    assert torch.equal(two.normal(4), whole.normal(4)[[1, 5]])
    two.keep(torch.zeros(0, dtype=torch.long))
    one.normal(4)
    one.normal(4)
    assert not two._drawn  # nothing piles up for a part that has ended


def test_parts_that_draw_differently_are_found_out():
    one, two = SeedRandom(5, 2, 6).split([torch.tensor([0, 4]), torch.tensor([1, 2, 5])])
    one.normal(3)
    with pytest.raises(RuntimeError, match=r"must draw the same shapes.*\(3,\) by randn.*\(2,\) by randn"):
        two.normal(2)
