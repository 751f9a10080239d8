"""Objectives and criteria by hand."""

import math

import pytest
import torch

from lsgen.errors import InputError
from lsgen.objectives import (
    Confident,
    ConfidentTarget,
    CrossEntropy,
    DifferentialDistance,
    Disagree,
    IsTarget,
    LatentDistance,
    LogitMargin,
    Misclassified,
    TopConfidence,
    Within,
)
from lsgen.types import Candidates
from tests.toys import Linear


def candidates(logits, label, target=None, latent=None, image=None) -> Candidates:
    logits, label = torch.tensor(logits), torch.tensor(label)
    latent = torch.zeros(len(label), 2) if latent is None else torch.tensor(latent)
    target = torch.full_like(label, -1) if target is None else torch.tensor(target)
    image = torch.zeros(len(label), 1, 4, 4) if image is None else image
    return Candidates(latent, image, logits, label, target, torch.zeros_like(latent))


TWO = candidates([[3.0, 1.0, 0.0], [0.0, 2.0, 2.5]], [0, 0], [1, 2], [[1.0, -2.0], [0.0, 0.5]])
P = TWO.logits.softmax(1)


@pytest.mark.parametrize(
    ("objective", "wanted"),
    [
        (CrossEntropy(), P[:, 0].log()),
        (CrossEntropy(targeted=True), -torch.stack([P[0, 1], P[1, 2]]).log()),
        (LogitMargin(), torch.tensor([2.0, -2.5])),
        (LogitMargin(targeted=True), torch.tensor([2.0, -0.5])),
        (TopConfidence(), torch.stack([P[0, 0], P[1, 2]])),
        (ConfidentTarget(margin=0.3), torch.stack([P[0, 0] - P[0, 1], P[1, 1] - P[1, 2]]) + 0.3),
        (LatentDistance(), torch.tensor([math.inf, 0.5])),
        (LatentDistance(targeted=True), torch.tensor([math.inf, 0.5])),
    ],
    ids=lambda v: type(v).__name__,
)
def test_objectives_by_hand(objective, wanted):
    torch.testing.assert_close(objective(TWO), wanted)


@pytest.mark.parametrize("targeted", [False, True])
def test_nothing_scores_below_its_floor(targeted):
    latent = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    label = torch.arange(200) % 3
    latent[:20] = 0  # copies of their seeds, which are read rightly
    logits = torch.eye(3)[label].where(latent.any(1)[:, None].logical_not(), torch.randn(200, 3))
    some = Candidates(latent, torch.zeros(200, 1, 4, 4), logits, label, (label + 1) % 3, torch.zeros_like(latent))
    objective = LatentDistance(targeted=targeted)
    fitness, floor = objective(some), objective.floor(some.latent, some.origin)
    assert fitness.isfinite().any()
    assert (fitness >= floor).all()
    assert floor[:20].isinf().all()


@pytest.mark.parametrize(
    ("criterion", "wanted"),
    [
        (Misclassified(), [False, True]),
        (IsTarget(), [False, True]),
        (Confident(margin=0.5), [False, True]),  # second: .593 - .049
        (Confident(margin=0.6), [False, False]),
        (Confident(margin=0.2, targeted=True), [False, True]),  # second: .593 - .359
        (Confident(margin=0.3, targeted=True), [False, False]),
        (Within(radius=3.0, norm="l1"), [True, True]),
        (Within(radius=2.9, norm="l1"), [False, True]),
        (Within(radius=2.0, norm="linf"), [True, True]),
        (Within(radius=2.2, norm="l2"), [False, True]),
        (Misclassified() & Within(radius=0.4), [False, False]),
        (Misclassified() & Within(radius=0.5), [False, True]),
    ],
)
def test_criteria_by_hand(criterion, wanted):
    assert criterion(TWO).tolist() == wanted


@pytest.mark.parametrize(("norm", "radius"), [("linf", 0.1), ("linf", 0.5), ("l2", 0.1), ("l2", 3.0), ("l1", 0.7)])
def test_points_that_a_searcher_puts_at_the_edge_are_within(norm, radius):
    draw = torch.Generator().manual_seed(0)
    origin, step = torch.randn(500, 100, generator=draw) * 3, torch.randn(500, 100, generator=draw)
    order = {"l1": 1, "l2": 2, "linf": torch.inf}[norm]
    step = radius * (step.sign() if norm == "linf" else step / step.norm(p=order, dim=1, keepdim=True))
    zeros = torch.zeros(500)
    for scale, wanted in ((1.0, True), (1.001, False)):
        some = Candidates(origin + scale * step, zeros.view(-1, 1, 1, 1), zeros[:, None], zeros, zeros, origin)
        assert Within(radius=radius, norm=norm)(some).tolist() == [wanted] * 500


def test_classes_on_a_par_do_not_lead():
    par = candidates([[1.0, 1.0, 0.0]], [0], [1])
    assert not Confident(margin=0.0)(par)
    assert not Confident(margin=0.0, targeted=True)(par)


def test_two_suts_that_disagree():
    other, image = Linear(seed=3), torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    logits = other.logits(image).detach()
    both = torch.stack([logits[0], logits[1].flip(0)])  # the first SUT agrees on one image, not on the other
    seen = candidates(both.tolist(), [int(logits[0].argmin()), int(logits[1].argmax())], image=image)
    assert Disagree(other=other)(seen).tolist() == [False, True]
    near = candidates(both.tolist(), seen.label.tolist(), latent=[[0.5, 0.5], [1.0, 1.0]], image=image)
    first, second = both.softmax(1), logits.softmax(1)
    at = seen.label[:, None]
    wanted = torch.tensor([1.0, 2.0]) * (2 + first.gather(1, at) - second.gather(1, at)).squeeze(1)
    published = DifferentialDistance(other=other, threshold=0.5)(near)  # of two classes, below half is not the larger
    torch.testing.assert_close(published, wanted.where(first.gather(1, at).squeeze(1) <= 0.5, torch.inf))
    counts = (first.argmax(1) != seen.label) & (first.argmax(1) != second.argmax(1))
    torch.testing.assert_close(DifferentialDistance(other=other)(near), wanted.where(counts, torch.inf))
    strict = DifferentialDistance(other=other, threshold=0.0)(near)
    assert strict.isinf().all()  # the first SUT still gives the label something


def test_a_second_sut_for_other_images_is_refused():
    with pytest.raises(InputError, match="the second SUT takes"):
        Disagree(other=Linear(side=5)).check(Linear())


@pytest.mark.parametrize(
    "make",
    [lambda: Confident(margin=1.0), lambda: ConfidentTarget(margin=-0.1), lambda: Within(radius=-1.0)],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(InputError):
        make()
