import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax
from sklearn.metrics import accuracy_score, confusion_matrix

from lsgen.metrics import FailureRate, MeanTrueProbability, summarise
from lsgen.metrics import functional as F

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(200, 5)).astype("float32")
LABELS = RNG.integers(0, 5, 200)
PREDICTED = LOGITS.argmax(1)


def test_failure_rate_is_one_minus_accuracy():
    expected = 1 - accuracy_score(LABELS, PREDICTED)
    assert float(F.failure_rate(torch.tensor(PREDICTED), torch.tensor(LABELS))) == pytest.approx(expected)


def test_true_probability_matches_scipy():
    expected = softmax(LOGITS, axis=1)[np.arange(200), LABELS]
    np.testing.assert_allclose(F.true_probability(torch.tensor(LOGITS), torch.tensor(LABELS)), expected, rtol=1e-5)


def test_boundary_gap_is_the_difference_of_the_two_largest_probabilities():
    ordered = np.sort(softmax(LOGITS, axis=1), axis=1)
    np.testing.assert_allclose(
        F.boundary_gap(torch.tensor(LOGITS)), ordered[:, -1] - ordered[:, -2], rtol=1e-4, atol=1e-6
    )


def test_escape_rate_is_the_row_normalised_confusion_matrix():
    expected = confusion_matrix(LABELS, PREDICTED, normalize="true")
    np.testing.assert_allclose(F.escape_rate(torch.tensor(PREDICTED), torch.tensor(LABELS), 5), expected)


def test_metric_classes_in_batches_equal_their_functional_twins():
    rate, mean = FailureRate(), MeanTrueProbability()
    for logits, labels in zip(torch.tensor(LOGITS).split(64), torch.tensor(LABELS).split(64), strict=True):
        rate.update(logits, labels)
        mean.update(logits, labels)
    assert float(rate.compute()) == pytest.approx(float(F.failure_rate(torch.tensor(PREDICTED), torch.tensor(LABELS))))
    assert float(mean.compute()) == pytest.approx(
        float(F.true_probability(torch.tensor(LOGITS), torch.tensor(LABELS)).mean()), rel=1e-6
    )


def table(**columns) -> pd.DataFrame:
    n = len(columns["label"])
    base = {
        "seed_id": range(n),
        "seed_predicted": columns["label"],
        "viable": [True] * n,
        "success": [False] * n,
        "p_true": [0.5] * n,
        "mse": [math.nan] * n,
        "ssim": [math.nan] * n,
        "boundary_gap": [0.1] * n,
        "iterations": [1] * n,
        "queries": [2] * n,
        "backward_queries": [1] * n,
        "retired": [False] * n,
        "target": pd.array([None] * n, dtype="Int64"),
    }
    frame = pd.DataFrame({**base, **columns})
    return frame.assign(failed=frame["predicted"] != frame["label"])


def test_summary_by_hand():
    s = summarise(table(label=[0, 0, 1, 1], predicted=[1, 2, 1, 0], p_true=[0.1, 0.2, 0.9, 0.4]), 3, seconds=2.0)
    assert (s["n_cases"], s["failed"], s["failure_rate"], s["error_rate"]) == (4, 3, 0.75, 0.75)
    assert s["mean_p_true"] == pytest.approx(0.4)
    assert s["label_diversity"] == 1.5  # one case a seed: per label; class 0 has two wrong classes, class 1 one
    assert s["escape_rate"] == [[0.0, 0.5, 0.5], [0.5, 0.5, 0.0], [None, None, None]]
    assert s["mse"] is None
    assert (s["queries"], s["backward_queries"], s["queries_per_second"]) == (8, 4, 4.0)
    assert s["per_class"]["1"]["failure_rate"] == 0.5


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
    assert summarise(table(label=[0], predicted=[0]), 2, 1.0)["label_diversity"] is None
    s = summarise(table(label=[0], predicted=[1], viable=[False]), 2, 1.0)
    assert s["failure_rate"] is None
    assert s["n_cases"] == 0
