"""Surprise adequacy against scipy and brute force, and the objective that aims at a value of it."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import gaussian_kde

from lsgen import surprise
from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.surprise import DSA, LSA, SurpriseDistance
from lsgen.types import Candidates, describe, from_uint8
from tests.toys import Linear, write_npz


def training(*, n: int = 240, f: int = 6, classes: int = 3, seed: int = 0):
    """Activations that are correlated and lie elsewhere for each class, and their classes."""
    rng = torch.Generator().manual_seed(seed)
    predicted = torch.arange(n) % classes
    mixed = torch.randn(n, f, generator=rng).double() @ torch.randn(f, f, generator=rng).double()
    return mixed + 2.0 * predicted[:, None], predicted


def fitted(kind):
    kind.fit(*training())
    return kind


KINDS = {"lsa": lambda: LSA(min_std=0.1), "by_class": lambda: LSA(min_std=0.1, by_class=True), "dsa": DSA}


@pytest.fixture(params=KINDS)
def kind(request):
    return fitted(KINDS[request.param]())


# --- against references ------------------------------------------------------------------------------------------


def test_lsa_is_minus_scipys_log_density():
    train, predicted = training()
    x, _ = training(seed=1)
    wanted = -gaussian_kde(train.T.numpy()).logpdf(x.T.numpy())
    np.testing.assert_allclose(fitted(LSA(min_std=0.1))(x, predicted), wanted, rtol=1e-11)


def test_lsa_by_class_is_under_the_density_of_the_predicted_class():
    train, label = training()
    x, predicted = training(seed=1)
    kdes = [gaussian_kde(train[label == k].T.numpy()) for k in range(3)]
    wanted = [-kdes[k].logpdf(row.numpy())[0] for row, k in zip(x, predicted, strict=True)]
    np.testing.assert_allclose(fitted(LSA(min_std=0.1, by_class=True))(x, predicted), wanted, rtol=1e-11)


def test_lsa_stays_finite_and_steep_where_the_density_is_zero_in_floating_point():
    train, _ = training()
    x = torch.tensor([100.0, 1e4, 1e8])[:, None].expand(3, 6).double().requires_grad_()
    kde = gaussian_kde(train.T.numpy())
    assert (kde(x.detach().T.numpy()) == 0).all()
    values = fitted(LSA(min_std=0.1))(x, torch.zeros(3).long())
    np.testing.assert_allclose(values.detach(), -kde.logpdf(x.detach().T.numpy()), rtol=1e-9)
    (grad,) = torch.autograd.grad(values.sum(), x)
    assert grad.isfinite().all()
    assert (grad.norm(dim=1) > 1).all()


def test_dsa_is_what_a_loop_finds():
    train, label = (t.numpy() for t in training())
    x, predicted = training(seed=1, n=50)
    wanted = []
    for row, k in zip(x.numpy(), predicted.numpy(), strict=True):
        same, rest = train[label == k], train[label != k]
        to_same = [np.linalg.norm(row - other) for other in same]
        neighbour = same[np.argmin(to_same)]
        wanted.append(min(to_same) / min(np.linalg.norm(neighbour - other) for other in rest))
    np.testing.assert_allclose(fitted(DSA())(x, predicted), wanted, rtol=1e-12)


def test_dsa_of_a_training_image_is_exactly_zero_also_where_classes_meet():
    train = torch.tensor([[3.0, 1e3], [3.0, 1e3], [0.1, 0.7]])
    dsa, predicted = DSA(), torch.tensor([0, 1, 1])
    dsa.fit(train, predicted)
    assert dsa(train, predicted).tolist() == [0, 0, 0]


def test_gradients_are_those_of_finite_differences(kind):
    x, predicted = training(seed=2, n=5)
    assert torch.autograd.gradcheck(lambda z: kind(z, predicted), x.requires_grad_())


# --- batches -----------------------------------------------------------------------------------------------------


def test_chunks_change_nothing(kind, monkeypatch):
    x, predicted = training(seed=1)
    before = kind(x, predicted)
    monkeypatch.setattr(surprise, "ROWS", 1000)
    monkeypatch.setattr(surprise, "CHUNK", 7)
    kind.fit(*training())
    torch.testing.assert_close(kind(x, predicted), before, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_a_candidate_scores_the_same_whoever_else_is_scored(name):
    kind = KINDS[name]()
    kind.fit(*training(n=900, f=50))  # large enough for rounding to differ with the shape of a matrix product
    x, predicted = training(seed=1, n=200, f=50)
    whole = kind(x.requires_grad_(), predicted)
    (slope,) = torch.autograd.grad(whole.sum(), x)
    for part in (torch.tensor([3]), torch.arange(20, 61), torch.randperm(200)):
        alone = kind(x[part], predicted[part])
        (own,) = torch.autograd.grad(alone.sum(), x)
        assert torch.equal(alone, whole[part])
        assert torch.equal(own[part], slope[part])


def test_float32_comes_back_as_float32(kind):
    x, predicted = training(seed=1)
    values = kind(x.float(), predicted)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values.double(), kind(x, predicted), rtol=1e-4, atol=1e-4)


# --- which activations count -------------------------------------------------------------------------------------


def with_still_units(features):
    """Unit 0 never moves, unit 1 only a little, unit 2 not for class 0."""
    x, predicted = features
    x = x.clone()
    x[:, 0] = 7.0
    x[:, 1] *= 0.01
    x[predicted == 0, 2] = 0.0
    return x, predicted


@pytest.mark.parametrize(("by_class", "units"), [(False, [2, 3, 4]), (True, [3, 4, 5])])
def test_the_first_units_that_vary_enough_are_used(by_class, units):
    train, label = with_still_units(training())
    x, predicted = with_still_units(training(seed=1))
    lsa = LSA(min_std=0.3, max_units=3, by_class=by_class)
    lsa.fit(train, label)
    groups = [label == k for k in range(3)] if by_class else 3 * [label >= 0]
    kdes = [gaussian_kde(train[group][:, units].T.numpy()) for group in groups]
    wanted = [-kdes[k].logpdf(row[units].numpy())[0] for row, k in zip(x, predicted, strict=True)]
    np.testing.assert_allclose(lsa(x, predicted), wanted, rtol=1e-11)


@pytest.mark.parametrize("make", [lambda n: LSA(min_std=0.1, per_class=n), lambda n: DSA(per_class=n)])
def test_per_class_takes_a_spread_part_of_each_class(make):
    train, predicted = training(n=90)
    few, same = make(15), make(None)
    few.fit(train, predicted)
    index = torch.cat([torch.linspace(0, 29, 15).long() * 3 + k for k in range(3)])
    same.fit(train[index], predicted[index])
    x, k = training(seed=1)
    torch.testing.assert_close(few(x, k), same(x, k), rtol=1e-12, atol=1e-12)


def test_units_that_copy_each_other_are_survived():
    def with_copies(x, shift=1.0):
        return torch.cat([x, 3 * x[:, :1] + shift, x[:, 1:2] - x[:, 2:3]], dim=1)

    lsa, (train, label), (x, predicted) = LSA(min_std=0.1), training(), training(seed=1)
    lsa.fit(with_copies(train), label)
    usual, odd = lsa(with_copies(x), predicted), lsa(with_copies(x, 2.0), predicted)
    alone = gaussian_kde(train.T.numpy(), bw_method=len(train) ** (-1 / 12))  # the bandwidth of all eight units
    added = usual.numpy() + alone.logpdf(x.T.numpy())
    assert np.ptp(added) < 0.1  # copies that behave make all candidates likelier by one factor
    assert (odd > usual + 100).all()  # breaks a rule that all training images keep
    assert (odd < 1e7).all()  # as the ridge has it; rounding alone would make it 1e15 or so


def test_a_root_of_senseless_pivots_is_not_trusted():
    covariance = torch.tensor([[1.0, 1 - 1e-13], [1 - 1e-13, 1.0]], dtype=torch.float64)
    torch.linalg.cholesky(covariance)  # passes
    assert float(surprise._cholesky(covariance)[1, 1]) == pytest.approx(math.sqrt(2e-6), rel=1e-3)
    assert torch.equal(surprise._cholesky(torch.eye(2)), torch.eye(2))


def test_the_standard_deviation_is_that_of_numpy():
    train, label = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 0, 0])
    LSA(min_std=0.81, max_units=1).fit(train, label)
    with pytest.raises(InputError, match=r"the largest is 0.816"):
        LSA(min_std=0.82, max_units=1).fit(train, label)


def test_a_class_never_seen_is_infinitely_surprising_unless_classes_are_pooled():
    x, predicted = torch.zeros(2, 6, requires_grad=True), torch.tensor([0, 9])
    assert fitted(LSA(min_std=0.1))(x, predicted).isfinite().all()
    for kind in (fitted(LSA(min_std=0.1, by_class=True)), fitted(DSA())):
        values = kind(x, predicted)
        assert values.isinf().tolist() == [False, True]
        (grad,) = torch.autograd.grad((values - 5).abs().sum(), x)
        assert grad.isfinite().all()
        assert (grad[1] == 0).all()


def test_an_activation_that_two_classes_share_has_no_slope():
    dsa = DSA()
    dsa.fit(torch.tensor([[1.0, 1], [1, 1], [5, 5], [0, 9]]), torch.tensor([0, 1, 0, 1]))
    x = torch.tensor([[1.5, 1], [1, 1], [5, 6]], requires_grad=True)
    values = dsa(x, torch.tensor([0, 0, 0]))
    torch.testing.assert_close(values, torch.tensor([math.inf, 0.0, 1 / math.hypot(4, 4)]))
    (grad,) = torch.autograd.grad((values - 5).abs().sum(), x)
    assert grad.isfinite().all()
    assert grad[2].any()


# --- as an objective ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return ImageData(name="npz", path=str(write_npz(tmp_path_factory.mktemp("npz"), n=300)))


def candidates(sut, image):
    n = len(image)
    return Candidates(image, image, sut.logits(image), torch.zeros(n).long(), torch.full((n,), -1), image)


@pytest.mark.parametrize("images", [None, 100])
def test_surprise_distance_is_the_way_to_the_target(data, images):
    sut, target = Linear(), 7.0
    objective = SurpriseDistance(surprise=LSA(min_std=0.1, by_class=True, max_units=5), target=target, images=images)
    objective.prepare(sut, data, 256)
    seen = from_uint8(data["train"].images if images is None else data["train"].spread(images)[0])
    x = from_uint8(data["test"].images[:40]).requires_grad_()
    with torch.no_grad():
        label, predicted = sut.logits(seen).argmax(1), sut.logits(x).argmax(1)
    kdes = [gaussian_kde(seen[label == k].flatten(1)[:, :5].double().T.numpy()) for k in range(2)]
    rows = x.detach().flatten(1)[:, :5].double().numpy()
    wanted = [abs(-kdes[k].logpdf(row)[0] - target) for row, k in zip(rows, predicted, strict=True)]
    values = objective(candidates(sut, x))
    np.testing.assert_allclose(values.detach(), wanted, rtol=1e-4, atol=1e-4)
    (slope,) = torch.autograd.grad(values.sum(), x)
    nearer = objective(candidates(sut, (x - 1e-3 * slope).detach()))
    assert nearer.sum() < values.sum()


def test_surprise_distance_counts_its_pass_and_can_be_hashed_before_and_after(data):
    objective = SurpriseDistance(surprise=DSA(per_class=20), target=1.0)
    assert objective.needs_features
    before = describe(objective)
    assert before == {
        "class": "SurpriseDistance",
        "args": {
            "surprise": {"class": "DSA", "args": {"per_class": 20}},
            "target": 1.0,
            "tolerance": None,
            "images": 10_000,
        },
    }
    objective.prepare(Linear(), data, 256)
    assert describe(objective) == before
    assert set(describe(LSA())["args"]) == {"min_std", "max_units", "per_class", "by_class"}


def test_a_search_for_a_surprise_succeeds_where_it_is_reached_and_asks_once(data):
    sut, x = Linear(), from_uint8(data["test"].images[:40])
    objective = SurpriseDistance(surprise=DSA(per_class=20), target=1.0, tolerance=0.25)
    reached = objective.criterion()
    objective.prepare(sut, data, 32)
    fitted = objective.surprise._measures
    reached.prepare(sut, data, 32)
    assert objective.surprise._measures is fitted  # once
    with torch.no_grad():
        sut.layer.weight[0] += 0.1
    reached.prepare(sut, data, 32)
    assert objective.surprise._measures is not fitted  # to what the SUT is now
    seen, asked = candidates(sut, x), []
    own = sut.features
    sut.features = lambda image: asked.append(len(image)) or own(image)
    distance = objective(seen)
    assert 0 < (distance <= 0.25).sum() < 40
    assert torch.equal(reached(seen), distance <= 0.25)
    assert asked == [40]
    objective.tolerance = None  # a hundredth of the target
    assert torch.equal(reached(seen), distance <= 0.01)


def test_a_surprise_that_two_share_is_that_of_whoever_asked_for_it_last(data):
    shared, suts = DSA(per_class=20), (Linear(), Linear(seed=1))
    one, two = (SurpriseDistance(surprise=shared, target=1.0) for _ in suts)
    x = from_uint8(data["test"].images[:20])
    one.prepare(suts[0], data, 32)
    alone = one(candidates(suts[0], x))
    two.prepare(suts[1], data, 32)
    one.prepare(suts[0], data, 32)
    torch.testing.assert_close(one(candidates(suts[0], x)), alone, rtol=0, atol=0)


@pytest.mark.parametrize("size", [32, 64])
def test_training_images_are_shown_in_batches_of_the_size_that_is_asked_for(data, size):
    sut, shown = Linear(), []
    own = sut.features
    sut.features = lambda image: shown.append(len(image)) or own(image)
    SurpriseDistance(surprise=DSA(), target=1.0).prepare(sut, data, size)
    assert set(shown) == {size}
    assert len(shown) == -(-len(data["train"]) // size)


# --- wrong input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LSA(min_std=0), "min_std must be above 0 and finite, got 0"),
        (lambda: LSA(max_units=0), "max_units must be at least 1, got 0"),
        (lambda: DSA(per_class=1), "per_class must be at least 2, got 1"),
        (lambda: SurpriseDistance(surprise=DSA(), target=math.nan), "target must be finite, got nan"),
        (lambda: SurpriseDistance(surprise=DSA(), target=1, images=0), "images must be at least 2, got 0"),
        (lambda: SurpriseDistance(surprise=DSA(), target=1, tolerance=-1), "tolerance must be finite and not negative"),
        (lambda: SurpriseDistance(surprise=LSA(), target=0), "target is 0: set tolerance"),
        (lambda: LSA()(torch.zeros(1, 2), torch.zeros(1)), "LSA must be fitted"),
        (lambda: SurpriseDistance(surprise=DSA(), target=1)(None), "must be prepared"),
        (lambda: fitted(LSA(min_std=50)), "no unit has a standard deviation of at least min_std 50 over the training"),
        (lambda: fitted(LSA(min_std=50, by_class=True)), "in every class; the largest is [0-9.]+: lower min_std"),
    ],
)
def test_wrong_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("kind", "rare", "message"),
    [
        (
            LSA(min_std=0.1, by_class=True),
            6,
            "class 1 has 6 training activations, a density over 6 units needs at least 7",
        ),
        (
            LSA(min_std=0.1, by_class=True),
            1,
            "class 1 has 1 training activations, a density over 1 unit needs at least 2",
        ),
        (LSA(min_std=0.1, per_class=3), 3, "there are 6 training activations, a density over 6 units needs at least 7"),
        (DSA(), 0, "the SUT predicts class 0 for all training images"),
    ],
)
def test_too_few_activations_are_refused(kind, rare, message):
    train, _ = training()
    with pytest.raises(InputError, match=message):
        kind.fit(train, (torch.arange(len(train)) < rare).long())


def test_activations_that_are_no_numbers_are_refused():
    train, predicted = training()
    train[3, 2] = torch.nan
    with pytest.raises(InputError, match="NaN or infinite activations"):
        DSA().fit(train, predicted)
