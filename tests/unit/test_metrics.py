"""Metrics against scipy, sklearn and hand calculations; classes against their twins, in one process and two."""

import json
import math
import socket

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import ndimage
from scipy.spatial.distance import pdist
from scipy.special import softmax
from sklearn.metrics import accuracy_score, confusion_matrix
from sklearn.neighbors import NearestNeighbors

from lsgen import metrics
from lsgen.errors import InputError
from lsgen.metrics import functional as F
from lsgen.metrics import summarise
from lsgen.metrics.images import lpips, lpips_network
from lsgen.metrics.summary import COUNTS
from lsgen.metrics.table import OUTSIDE, all_metrics, markdown
from tests.conftest import ROOT

K = 5
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(200, K)).astype("float32")
LABELS = RNG.integers(0, K, 200)
PREDICTED = LOGITS.argmax(1)
P = softmax(LOGITS, axis=1)
P_TRUE = P[np.arange(200), LABELS]
SEEDS = RNG.integers(0, 40, 200)
IMAGES, REFERENCES = (RNG.random((200, 1, 12, 14)).astype("float32") for _ in range(2))
t = torch.as_tensor


# --- functional twins against references ------------------------------------------------------------------------------


def test_failure_rate_is_one_minus_accuracy_overall_and_per_class():
    assert float(F.failure_rate(t(PREDICTED), t(LABELS))) == pytest.approx(1 - accuracy_score(LABELS, PREDICTED))
    recall = confusion_matrix(LABELS, PREDICTED, normalize="true").diagonal()
    np.testing.assert_allclose(F.failure_rate(t(PREDICTED), t(LABELS), K), 1 - recall)
    assert F.failure_rate(t([0]), t([0]), 2).isnan().tolist() == [False, True]  # no case of class 1


def test_true_probability_matches_scipy():
    np.testing.assert_allclose(F.true_probability(t(LOGITS), t(LABELS)), P_TRUE, rtol=1e-5)
    expected = pd.Series(P_TRUE).groupby(LABELS).mean()
    np.testing.assert_allclose(F.mean_true_probability(t(LOGITS), t(LABELS), K), expected, rtol=1e-5)


def test_boundary_gap_is_the_difference_of_the_two_largest_probabilities():
    ordered = np.sort(P, axis=1)
    np.testing.assert_allclose(F.boundary_gap(t(LOGITS)), ordered[:, -1] - ordered[:, -2], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("margin", [0.0, 0.3, 0.9])
def test_confident_failures_lead_the_label_not_the_runner_up(margin):
    expected = (P.max(1) - P_TRUE > margin).mean()
    assert float(F.confident_failure_rate(t(LOGITS), t(LABELS), margin)) == pytest.approx(expected)
    if margin == 0:
        assert expected == pytest.approx(float(F.failure_rate(t(PREDICTED), t(LABELS))))


def test_escape_rate_is_the_row_normalised_confusion_matrix():
    expected = confusion_matrix(LABELS, PREDICTED, normalize="true")
    np.testing.assert_allclose(F.escape_rate(t(PREDICTED), t(LABELS), K), expected)


def test_rates_by_seed_match_pandas():
    frame = pd.DataFrame({"seed": SEEDS, "label": LABELS % 2, "predicted": PREDICTED % 2, "first": LABELS % 2})
    frame["label"] = frame["seed"] % 2  # a seed has one label and one prediction of its own
    frame["first"] = np.where(frame["seed"] % 5 == 0, 1 - frame["label"], frame["label"])
    failed = frame["predicted"] != frame["label"]
    columns = [t(frame[name].to_numpy(copy=True)) for name in ("predicted", "first", "label", "seed")]
    assert (
        float(F.success_rate(t(failed.to_numpy(copy=True)), columns[3])) == failed.groupby(frame["seed"]).any().mean()
    )
    first_of_each = frame.drop_duplicates("seed")
    viable = first_of_each["first"] == first_of_each["label"]
    assert float(F.seed_viability(*columns[1:])) == pytest.approx(viable.mean())
    right = frame[frame["first"] == frame["label"]]
    expected = (right["predicted"] != right["label"]).groupby(right["seed"]).any().mean()
    assert float(F.misclassification_rate(*columns)) == pytest.approx(expected)
    wrong = frame[failed]
    assert int(F.distinct_pairs(columns[0], columns[2])) == len(wrong[["label", "predicted"]].drop_duplicates())
    diversity = wrong.groupby("seed")["predicted"].nunique().mean()
    assert float(F.label_diversity(columns[0], columns[2], columns[3])) == pytest.approx(diversity)


def test_nothing_failed_has_no_diversity_and_no_cost_per_failure():
    zero, one = t([0]), t([1])
    assert F.label_diversity(zero, zero, zero).isnan()
    assert F.cost_per_failure(one, t([False])).isnan()
    assert F.mean_pairwise_distance(torch.zeros(1, 3)).isnan()
    assert F.success_rate(t([], dtype=torch.bool), t([], dtype=torch.long)).isnan()


def reference_ssim(x, y):
    """SSIM around each pixel of two images [H, W], by scipy's filters; its mirror is torch's reflect."""

    def blur(a):
        return ndimage.gaussian_filter(a.astype("float64"), 1.5, truncate=3.5, mode="mirror")

    mx, my = blur(x), blur(y)
    vx, vy, cov = blur(x * x) - mx**2, blur(y * y) - my**2, blur(x * y) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    return (2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))


def test_ssim_is_the_mean_over_all_pixels_of_the_mirrored_images():
    found = F.ssim(t(IMAGES[:9]), t(REFERENCES[:9]))
    maps = [reference_ssim(x[0], y[0]) for x, y in zip(IMAGES[:9], REFERENCES[:9], strict=True)]
    np.testing.assert_allclose(found, [m.mean() for m in maps], atol=1e-5)
    cut = [m[5:-5, 5:-5].mean() for m in maps]  # what scikit-image reports
    assert np.abs(np.array(cut) - found.numpy()).max() > 0.01
    np.testing.assert_allclose(F.ssim_map(t(IMAGES[:9]), t(REFERENCES[:9]))[:, 0], maps, atol=1e-4)


def test_ssim_of_colours_is_the_mean_over_channels_and_small_images_have_none():
    x, y = (RNG.random((3, 3, 16, 16)).astype("float32") for _ in range(2))
    expected = [np.mean([reference_ssim(a[c], b[c]).mean() for c in range(3)]) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(F.ssim(t(x), t(y)), expected, atol=1e-5)
    assert F.ssim(torch.zeros(2, 1, 10, 16), torch.zeros(2, 1, 10, 16)).isnan().all()


def test_image_distances_match_numpy():
    change = (IMAGES - REFERENCES).reshape(200, -1)
    np.testing.assert_allclose(F.mse(t(IMAGES), t(REFERENCES)), (change**2).mean(1), rtol=1e-5)
    np.testing.assert_allclose(F.pixel_norm(t(IMAGES), t(REFERENCES)), np.linalg.norm(change, axis=1), rtol=1e-5)
    np.testing.assert_allclose(F.pixel_norm(t(IMAGES), t(REFERENCES), math.inf), np.abs(change).max(1), rtol=1e-6)


def test_diversity_matches_scipy_and_sklearn():
    real, found = LOGITS[:120], LOGITS[120:] * 0.5
    assert float(F.mean_pairwise_distance(t(found))) == pytest.approx(pdist(found).mean(), rel=1e-6)
    radius = NearestNeighbors(n_neighbors=6).fit(real).kneighbors(real)[0][:, -1]
    nearest = NearestNeighbors(n_neighbors=1).fit(found).kneighbors(real)[0][:, 0]
    assert float(F.density_coverage(t(real), t(found), 5)[1]) == pytest.approx((nearest <= radius).mean())


def test_comparisons_are_differences_of_accuracies():
    other = np.roll(PREDICTED, 1)
    gained = accuracy_score(LABELS, other) - accuracy_score(LABELS, PREDICTED)
    assert float(F.improved_accuracy(t(PREDICTED), t(other), t(LABELS))) == pytest.approx(gained)
    assert float(F.robustness(t(PREDICTED), t(other), t(LABELS))) == pytest.approx(-gained)
    assert float(F.detection_rate(t(PREDICTED == 1), t(other == 2))) == pytest.approx(
        (PREDICTED == 1).mean() - (other == 2).mean()
    )


def test_mean_iterations_of_icst25_count_the_budget_where_nothing_failed():
    # Tab. III, MNIST, VAE, low: 4 of 99 seeds fail; the mean of 245.41 leaves 136.4 iterations for those four
    iterations, success = torch.full((99,), 137), torch.arange(99) < 4
    assert float(F.mean_iterations(iterations, success, 250)) == pytest.approx((4 * 137 + 95 * 250) / 99)


# --- LPIPS with a local file ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alexnet(tmp_path_factory):
    """The part of an untrained AlexNet that LPIPS uses, and its file."""
    from torchvision.models import alexnet

    torch.manual_seed(0)
    model = alexnet(weights=None)
    file = tmp_path_factory.mktemp("weights") / "alexnet.pth"
    torch.save({f"features.{k}": v for k, v in model.features.state_dict().items()}, file)
    return model.features.eval(), file


def test_lpips_is_that_of_the_weights_given(alexnet):
    features, file = alexnet
    network = lpips_network(file)
    torch.manual_seed(1)
    x, y = torch.rand(3, 3, 64, 64), torch.rand(3, 3, 64, 64)
    shift, scale = (torch.tensor(v).view(1, 3, 1, 1) for v in ((-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)))
    a, b = ((2 * v - 1 - shift) / scale for v in (x, y))
    expected = torch.zeros(3)
    for number, layer in enumerate(features):
        a, b = layer(a), layer(b)
        if number in (1, 4, 7, 9, 11):  # after each of the five convolutions
            lin = network.lins[(1, 4, 7, 9, 11).index(number)].model[-1].weight.view(-1)
            unit = [v / (v.square().sum(1, keepdim=True).sqrt() + 1e-8) for v in (a, b)]
            expected += ((unit[0] - unit[1]).square() * lin.view(1, -1, 1, 1)).sum(1).mean((1, 2))
    torch.testing.assert_close(lpips(x, y, network), expected.detach(), rtol=1e-4, atol=1e-5)
    metric = metrics.LPIPS(weights=file)
    metric.update(x, y)
    assert float(metric.compute()) == pytest.approx(float(expected.detach().mean()), rel=1e-4)
    assert lpips(torch.rand(2, 1, 28, 28), torch.rand(2, 1, 28, 28), network).shape == (2,)


def test_lpips_refuses_to_download(tmp_path, alexnet, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("went to the network"))
    (tmp_path / "text.pth").write_text("no weights")
    torch.save({"features.0.weight": torch.zeros(1)}, tmp_path / "other.pth")
    cases = {None: "needs weights", "missing.pth": "no file", "text.pth": "does not hold", "other.pth": "does not hold"}
    for file, says in cases.items():
        with pytest.raises(InputError, match=says):
            metrics.LPIPS(weights=file and tmp_path / file)


# --- classes against their twins --------------------------------------------------------------------------------------

CUT = 150  # the images of the second process


def examples() -> dict:
    """Of every metric without files: how it is made, its columns, and what its twin says of all of them."""
    failed, target = PREDICTED != LABELS, np.roll(LABELS, 3)
    first, budget = np.roll(PREDICTED, 1), 250
    onehot, after = np.eye(K)[first].astype("float32"), np.roll(LOGITS, 2, axis=0)
    yes = RNG.random((2, 200)) < 0.7
    table = {
        metrics.FailureRate(): ((LOGITS, LABELS), F.failure_rate(t(PREDICTED), t(LABELS))),
        metrics.FailureRate(num_classes=K): ((LOGITS, LABELS), F.failure_rate(t(PREDICTED), t(LABELS), K)),
        metrics.MeanTrueProbability(): ((LOGITS, LABELS), F.mean_true_probability(t(LOGITS), t(LABELS))),
        metrics.MeanTrueProbability(num_classes=K): (
            (LOGITS, LABELS),
            F.mean_true_probability(t(LOGITS), t(LABELS), K),
        ),
        metrics.ConfidentFailureRate(margin=0.2): (
            (LOGITS, LABELS),
            F.confident_failure_rate(t(LOGITS), t(LABELS), 0.2),
        ),
        metrics.BoundaryGap(): ((LOGITS,), F.boundary_gap(t(LOGITS)).double().mean()),
        metrics.SuccessRate(): ((failed, SEEDS), F.success_rate(t(failed), t(SEEDS))),
        metrics.MisclassificationRate(): (
            (PREDICTED, first, LABELS, SEEDS),
            F.misclassification_rate(t(PREDICTED), t(first), t(LABELS), t(SEEDS)),
        ),
        metrics.SeedViability(): ((first, LABELS, SEEDS), F.seed_viability(t(first), t(LABELS), t(SEEDS))),
        metrics.LabelDiversity(): ((PREDICTED, LABELS, SEEDS), F.label_diversity(t(PREDICTED), t(LABELS), t(SEEDS))),
        metrics.EscapeRate(num_classes=K): ((PREDICTED, LABELS), F.escape_rate(t(PREDICTED), t(LABELS), K)),
        metrics.EscapeRate(num_classes=K + 0): (
            (PREDICTED, LABELS, target),
            F.escape_rate(t(PREDICTED), t(LABELS), K, t(target)),
        ),
        metrics.DistinctPairs(num_classes=K): ((PREDICTED, LABELS), F.distinct_pairs(t(PREDICTED), t(LABELS))),
        metrics.Effectiveness(): ((failed, *yes), F.effectiveness(t(failed), t(yes[0]), t(yes[1]))),
        metrics.MeanIterations(budget=budget): ((SEEDS, failed), F.mean_iterations(t(SEEDS), t(failed), budget)),
        metrics.QueriesPerFailure(): ((SEEDS, failed), F.cost_per_failure(t(SEEDS), t(failed))),
        metrics.ImageMSE(): ((IMAGES, REFERENCES), F.mse(t(IMAGES), t(REFERENCES)).double().mean()),
        metrics.ImageSSIM(): ((IMAGES, REFERENCES), F.ssim(t(IMAGES), t(REFERENCES)).double().mean()),
        metrics.PixelL2(): ((IMAGES, REFERENCES), F.pixel_norm(t(IMAGES), t(REFERENCES)).double().mean()),
        metrics.PixelLinf(): ((IMAGES, REFERENCES), F.pixel_norm(t(IMAGES), t(REFERENCES), math.inf).double().mean()),
        metrics.FeatureDistance(): ((LOGITS,), F.mean_pairwise_distance(t(LOGITS))),
        metrics.FeatureCoverage(k=3): ((LOGITS, after), F.density_coverage(t(LOGITS), t(after), 3)[1]),
        metrics.Robustness(): ((onehot, LOGITS, LABELS), F.robustness(t(first), t(PREDICTED), t(LABELS))),
        metrics.ImprovedAccuracy(): ((onehot, LOGITS, LABELS), F.improved_accuracy(t(first), t(PREDICTED), t(LABELS))),
        metrics.DetectionRate(): ((failed, yes[0]), F.detection_rate(t(failed), t(yes[0]))),
    }
    return {
        f"{number} {type(metric).__name__}": (metric, columns, twin)
        for number, (metric, (columns, twin)) in enumerate(table.items())
    }


def check(examples_, parts, compare):
    for name, (metric, columns, twin) in examples_.items():
        for part in parts:
            metric.update(*(t(column[part]) for column in columns))
        compare(name, metric.compute(), twin)


def assert_same(name, found, wanted):
    torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-5, atol=1e-6, equal_nan=True, msg=name)


def test_classes_in_batches_equal_their_functional_twins():
    check(examples(), [slice(0, 64), slice(64, 128), slice(128, 200)], assert_same)


def test_every_metric_has_an_example_here():
    tested = {type(metric) for metric, *_ in examples().values()}
    assert set(all_metrics()) - tested == {metrics.LPIPS, metrics.SecondsPerFailure}  # one needs a file, one a clock


def _one_of_two(rank: int, file: str) -> None:
    torch.set_num_threads(1)  # as workers of a DataLoader do: threads do not survive a fork
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    try:
        check(examples(), [slice(0, CUT) if rank == 0 else slice(CUT, 200)], assert_same)
    finally:
        torch.distributed.destroy_process_group()


def test_two_processes_give_what_one_gives(tmp_path):
    args = (str(tmp_path / "meeting"),)
    torch.multiprocessing.start_processes(_one_of_two, args=args, nprocs=2, start_method="fork")  # imports are slow


def test_seconds_per_failure_adds_up_blocks():
    metric = metrics.SecondsPerFailure()
    metric.update(4.0, t([True, False]))
    metric.update(2.0, t([True, True]))
    assert float(metric.compute()) == 2.0


# --- the table in the docs --------------------------------------------------------------------------------------------


def test_the_page_of_metrics_is_current():
    assert (ROOT / "docs/metrics.md").read_text(encoding="utf-8") == markdown(), "run python scripts/metric_table.py"


def test_the_page_names_all_that_a_summary_has_and_marks_what_it_has_not():
    documented = {metric.key for metric in all_metrics()}
    summary = summarise(table(label=[0], predicted=[1]), 2, seconds=1.0)
    assert set(summary) - {"per_class", "error_rate"} == documented - set(OUTSIDE) | set(COUNTS)


def test_values_lie_in_the_documented_range():
    for metric, columns, _ in examples().values():
        metric.update(*map(t, columns))
        value = metric.compute().double()
        value = value[~value.isnan()]
        assert (value >= metric.plot_lower_bound).all(), metric
        assert metric.plot_upper_bound is None or (value <= metric.plot_upper_bound).all(), metric


# --- the summary of a suite -------------------------------------------------------------------------------------------


def table(**columns) -> pd.DataFrame:
    n = len(columns["label"])
    base = {
        "seed_id": range(n),
        "seed_predicted": columns["label"],
        "viable": [True] * n,
        "success": [False] * n,
        "p_true": [0.5] * n,
        "seed_p_true": [0.9] * n,
        **{name: [math.nan] * n for name in ("mse", "ssim", "pixel_l2", "pixel_linf")},
        "boundary_gap": [0.1] * n,
        "iterations": [1] * n,
        "queries": [2] * n,
        "backward_queries": [1] * n,
        "retired": [False] * n,
        "target": pd.array([None] * n, dtype="Int64"),
        **{name: pd.array([None] * n, dtype="boolean") for name in ("valid", "preserved")},
    }
    frame = pd.DataFrame({**base, **columns})
    return frame.assign(failed=frame["predicted"] != frame["label"])


def test_summary_by_hand():
    rows = table(
        label=[0, 0, 1, 1], predicted=[1, 2, 1, 0], seed_predicted=[0, 1, 1, 1], p_true=[0.1, 0.2, 0.9, 0.4],
        p_predicted=[0.8, 0.3, 0.9, 0.6],
    )  # fmt: skip
    s = summarise(rows, 3, seconds=2.0)
    assert (s["n_cases"], s["failed"], s["failure_rate"], s["error_rate"]) == (4, 3, 0.75, 0.75)
    assert s["mean_p_true"] == pytest.approx(0.4)
    assert s["label_diversity"] == 1.5  # one case a seed: per label; class 0 has two wrong classes, class 1 one
    assert s["escape_rate"] == [[0.0, 0.5, 0.5], [0.5, 0.5, 0.0], [None, None, None]]
    assert s["mse"] is None
    assert (s["queries"], s["backward_queries"], s["queries_per_second"]) == (8, 4, 4.0)
    assert s["per_class"]["1"]["failure_rate"] == 0.5
    assert s["confident_failure_rate"] == 0.25  # 0.7 ahead of the label; the others 0.1, 0 and 0.2
    assert s["misclassification_rate"] == pytest.approx(2 / 3)  # the second seed was wrong before
    assert s["robustness"] == pytest.approx(0.75 - 0.25)
    assert s["distinct_pairs"] == 3
    assert s["queries_per_failure"] == pytest.approx(8 / 3)
    assert s["seconds_per_failure"] == pytest.approx(2 / 3)
    json.dumps(s, allow_nan=False)


def test_with_targets_the_escape_rate_is_that_of_attempts():
    s = summarise(table(label=[0, 0, 0, 1], predicted=[1, 2, 2, 1], target=[1, 1, 2, 0]), 3, seconds=1.0)
    assert s["escape_rate"] == [[None, 0.5, 1.0], [0.0, None, None], [None, None, None]]


def test_seeds_that_are_not_viable_count_in_seed_viability_only():
    rows = table(
        label=[0, 0, 0, 0], predicted=[1, 0, 0, 1], seed_predicted=[1, 0, 0, 0], viable=[False, True, True, True]
    )
    s = summarise(rows, 2, seconds=1.0)
    assert s["seed_viability"] == 0.75
    assert (s["n_cases"], s["failed"]) == (3, 1)


def test_several_cases_a_seed():
    rows = table(label=[0, 0, 0, 0], predicted=[1, 2, 0, 0], seed_id=[7, 7, 7, 8])
    s = summarise(rows, 3, seconds=1.0)
    assert s["success_rate"] == 0.5
    assert s["label_diversity"] == 2.0


def test_nothing_failed_and_nothing_viable_are_null_not_zero():
    s = summarise(table(label=[0], predicted=[0]), 2, 1.0)
    assert s["label_diversity"] is s["queries_per_failure"] is s["seconds_per_failure"] is None
    s = summarise(table(label=[0], predicted=[1], viable=[False]), 2, 1.0)
    assert s["failure_rate"] is s["confident_failure_rate"] is s["robustness"] is None
    assert s["n_cases"] == 0


@pytest.mark.parametrize(
    ("valid", "preserved", "expected"),
    [
        ([None] * 4, [None] * 4, None),  # no oracle
        ([True, True, False, True], [True, False, True, True], 0.25),
        ([True, False, None, None], [True, None, None, None], 0.25),  # oracles look only at what still counts
        ([True, True, None, None], [True, None, None, None], None),  # one that counts was not looked at
        ([None, True, None, None], [True, True, None, None], None),
    ],
)
def test_effectiveness_is_failed_and_valid_and_preserved_where_oracles_say(valid, preserved, expected):
    oracles = {"valid": pd.array(valid, dtype="boolean"), "preserved": pd.array(preserved, dtype="boolean")}
    rows = table(label=[0] * 4, predicted=[1, 2, 0, 0], **oracles)
    assert summarise(rows, 3, 1.0)["effectiveness"] == expected
