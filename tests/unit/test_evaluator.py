import pytest
import torch

from lsgen.generators import CVAE
from lsgen.objectives import CrossEntropy, LatentDistance, Misclassified
from lsgen.search.evaluator import Evaluator
from lsgen.search.stream import Stream
from lsgen.suts import Classifier
from lsgen.types import Seeds, from_uint8
from tests.toys import Linear, Pixels


@pytest.fixture(scope="module")
def networks():
    torch.manual_seed(0)
    return Evaluator(CVAE(width=4).eval(), Classifier().eval(), CrossEntropy(), Misclassified(), chunk=32)


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 4, 8, 16, 32, 64, 96])  # whatever a search may take
def test_a_candidate_scores_the_same_whoever_shares_its_chunk(networks, monkeypatch, chunk):
    monkeypatch.setattr(networks, "chunk", chunk)
    z, y = torch.randn(70, 16), torch.arange(70) % 10
    whole = networks.score(z[:, None], Seeds(z, y), needs_grad=True)
    for part in (slice(0, 1), slice(5, 38), slice(69, 70)):
        alone = networks.score(z[part, None], Seeds(z[part], y[part]), needs_grad=True)
        assert torch.equal(alone.logits, whole.logits[part])
        assert torch.equal(alone.grad, whole.grad[part])
        assert torch.equal(alone.success, whole.success[part])


@torch.no_grad()
def test_the_loops_verdict_is_that_on_the_stored_image(networks):
    z, y = torch.randn(40, 16), torch.arange(40) % 10
    scored, judged = networks.score(z[:, None], Seeds(z, y), needs_grad=True), networks.judge(z, Seeds(z, y))
    assert torch.equal(scored.logits[:, 0], judged.logits)
    assert torch.equal(scored.success[:, 0], judged.success)
    again = networks.sut.logits(from_uint8(judged.image[:32]))
    assert torch.equal(again, judged.logits[:32])


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_half_precision_ends_at_the_networks(networks, precision):
    z, y = torch.randn(5, 1, 16), torch.arange(5)
    whole = networks.score(z, Seeds(z[:, 0], y), needs_grad=True)
    with torch.autocast("cpu", dtype=precision):
        assert networks.sut.logits(torch.zeros(1, 1, 28, 28)).dtype == precision
        half = networks.score(z, Seeds(z[:, 0], y), needs_grad=True)
    for name in ("latent", "logits", "fitness", "grad"):
        assert getattr(half, name).dtype == torch.float32, name
    torch.testing.assert_close(half.fitness, whole.fitness, atol=0.02, rtol=0.02)
    assert half.grad.isfinite().all()
    assert (half.grad.flatten(1).norm(dim=1) > 0).all()


def test_gradients_are_those_of_the_fitness():
    evaluator = Evaluator(Pixels(), Linear(), CrossEntropy(), Misclassified(), chunk=32)
    z, y = torch.full((3, 1, 16), 0.5), torch.tensor([0, 1, 0])
    grad = evaluator.score(z, Seeds(z[:, 0], y), needs_grad=True).grad
    p = evaluator.sut.logits(from_uint8(evaluator.judge(z[:, 0], Seeds(z[:, 0], y)).image)).softmax(1)
    onehot = torch.nn.functional.one_hot(y, 2)
    torch.testing.assert_close(grad[:, 0], (onehot - p) @ evaluator.sut.layer.weight)  # of minus the cross entropy


class Flat(CrossEntropy):
    """Has no slope."""

    def __call__(self, candidates):
        return super().__call__(candidates).detach()


def test_a_fitness_without_a_slope_has_gradients_of_zero():
    evaluator = Evaluator(Pixels(), Linear(), Flat(), Misclassified(), chunk=4)
    z = torch.full((3, 1, 16), 0.5)
    assert not evaluator.score(z, Seeds(z[:, 0], torch.tensor([0, 1, 0])), needs_grad=True).grad.any()


class Undecided(Linear):
    """Has no answer to some images: NaN, or one infinite logit."""

    def logits(self, x):
        return super().logits(x) + torch.tensor([[0.0, 0], [torch.nan, torch.nan], [0, torch.inf], [0, -torch.inf]])


@torch.no_grad()
@pytest.mark.parametrize("label", [0, 1])
def test_no_answer_is_no_success_and_no_fitness(label):
    """The largest of a row of NaN would be the first."""
    evaluator = Evaluator(Pixels(), Undecided(), LatentDistance(), Misclassified(), chunk=4)
    z, y = torch.rand(4, 16), torch.full((4,), label)
    scored, judged = evaluator.score(z[:, None], Seeds(0 * z, y), False), evaluator.judge(z, Seeds(0 * z, y))
    assert scored.fitness.isnan().flatten().tolist() == [False, True, True, True]
    assert not scored.success[1:].any()
    assert torch.equal(scored.success[:, 0], judged.success)


def test_populations_keep_their_order(networks):
    z, y = torch.randn(6, 5, 16), torch.arange(6)
    scored = networks.score(z, Seeds(z[:, 0], y), needs_grad=False)
    assert scored.grad is None
    assert scored.fitness.shape == (6, 5)
    alone = networks.score(z[4:5, 3:4], Seeds(z[4:5, 0], y[4:5]), needs_grad=False)
    assert torch.equal(scored.logits[4, 3], alone.logits[0, 0])


@torch.no_grad()
@pytest.mark.parametrize("bar", [3.0, 0.0])
def test_who_cannot_get_below_the_bar_is_not_asked_about(networks, monkeypatch, bar):
    monkeypatch.setattr(networks, "objective", LatentDistance())
    z, y = torch.rand(6, 5, 16), torch.arange(6)
    z[:, 1] += 1
    seeds = Seeds(torch.zeros(6, 16), y)
    everyone = networks.score(z, seeds, needs_grad=False)
    promising = networks.promising(z, seeds, torch.full((6,), 4 * bar))
    stream = Stream(networks, needs_grad=False)
    some = stream.get(stream.put(z, seeds, promising.flatten().nonzero().squeeze(1)))
    assert torch.equal(some.asked, z.sum(-1) < 4 * bar)
    assert int(some.shown) == int(some.asked.sum())
    assert torch.equal(some.fitness, everyone.fitness.where(some.asked, torch.inf))
    assert torch.equal(some.logits[some.asked], everyone.logits[some.asked])
    assert not some.success[~some.asked].any()
