"""Statistics against scipy, hand calculations and brute force."""

import warnings
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from lsgen.analysis import statistics
from lsgen.analysis.statistics import a12, bootstrap, cliffs_delta, holm, magnitude, mann_whitney, welch
from lsgen.errors import InputError


@pytest.fixture(autouse=True)
def _no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def groups(seed: int, n: int, m: int, decimals: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(0.3, 1, n).round(decimals), rng.normal(0, 2, m).round(decimals)


# --- Welch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 8), (50, 5)])
def test_welch_is_scipys_and_the_textbooks(n, m):
    a, b = groups(n, n, m)
    test, reference = welch(a, b), stats.ttest_ind(a, b, equal_var=False)
    va, vb = a.var(ddof=1) / n, b.var(ddof=1) / m
    df = (va + vb) ** 2 / (va**2 / (n - 1) + vb**2 / (m - 1))
    t = (a.mean() - b.mean()) / np.sqrt(va + vb)
    half = stats.t.ppf(0.975, df) * np.sqrt(va + vb)
    assert (test.n_a, test.n_b, test.reason) == (n, m, None)
    assert test.t == pytest.approx(t)
    assert test.df == pytest.approx(df)
    assert test.p_value == pytest.approx(reference.pvalue)
    assert test.p_value == pytest.approx(2 * stats.t.sf(abs(t), df))
    assert test.difference.estimate == pytest.approx(a.mean() - b.mean())
    assert (test.difference.low, test.difference.high) == pytest.approx(
        (a.mean() - b.mean() - half, a.mean() - b.mean() + half)
    )


def test_welch_with_one_constant_group_is_the_test_against_a_number():
    a = [1.0, 2.0, 4.0]
    test, reference = welch(a, [1.0, 1.0, 1.0]), stats.ttest_1samp(a, 1.0)
    assert (test.t, test.df, test.p_value) == pytest.approx((reference.statistic, 2, reference.pvalue))


@pytest.mark.parametrize(
    ("a", "b", "difference", "reason"),
    [
        ([0.5], [0.1, 0.2], 0.35, "needs at least two values in each group"),
        ([], [0.1, 0.2], None, "needs at least two values in each group"),
        ([0.5, None], [0.1, 0.3], 0.3, "needs at least two values in each group"),
        ([0.7, 0.7], [0.5, 0.5], 0.2, "neither group varies"),
        ([0.1 + 0.2, 0.3], [0.1, 0.1], 0.2, "neither group varies"),  # but for rounding
    ],
)
def test_welch_says_why_it_is_undefined(a, b, difference, reason):
    test = welch(a, b)
    assert (test.t, test.df, test.p_value, test.reason) == (None, None, None, reason)
    assert (test.difference.low, test.difference.high, test.difference.reason) == (None, None, reason)
    assert test.difference.estimate == (difference if difference is None else pytest.approx(difference))


# --- Mann-Whitney, A12, Cliff's delta -------------------------------------------------------------------------------


def brute_a12(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.mean([(x > y) + 0.5 * (x == y) for x in a for y in b]))


@pytest.mark.parametrize("decimals", [6, 0])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 9), (40, 30)])
def test_effects_are_those_of_all_pairs(n, m, decimals):
    a, b = groups(1, n, m, decimals)
    larger, smaller = np.mean(a[:, None] > b), np.mean(a[:, None] < b)
    assert a12(a, b) == pytest.approx(brute_a12(a, b))
    assert cliffs_delta(a, b) == pytest.approx(larger - smaller)
    assert cliffs_delta(b, a) == pytest.approx(smaller - larger)
    assert mann_whitney(a, b).u == pytest.approx(stats.mannwhitneyu(a, b, method="asymptotic").statistic)


@pytest.mark.parametrize(("n", "m"), [(3, 3), (5, 5), (2, 8)])
def test_without_ties_small_groups_have_scipys_exact_p(n, m):
    a, b = groups(2, n, m)
    test = mann_whitney(a, b)
    assert test.method == "exact"
    assert test.p_value == pytest.approx(stats.mannwhitneyu(a, b, method="exact").pvalue)


@pytest.mark.parametrize("seed", range(3))
def test_with_ties_small_groups_are_split_in_all_ways(seed):
    a, b = groups(seed, 4, 5, decimals=0)
    values = np.concatenate([a, b])
    centre = 4 * 5 / 2
    distances = []
    for chosen in combinations(range(9), 4):
        rest = [i for i in range(9) if i not in chosen]
        distances.append(abs(brute_a12(values[list(chosen)], values[rest]) * 20 - centre))
    test = mann_whitney(a, b)
    assert test.p_value == pytest.approx(np.mean(np.array(distances) >= abs(test.u - centre) - 1e-9))


def test_large_groups_have_scipys_approximate_p():
    a, b = groups(3, 60, 80, decimals=1)
    test = mann_whitney(a, b)
    assert test.method == "normal"
    assert test.p_value == pytest.approx(stats.mannwhitneyu(a, b, method="asymptotic").pvalue)


@pytest.mark.parametrize("n", [3, 200])
def test_equal_values_are_no_evidence(n):
    test = mann_whitney([0.0] * n, [0.0] * n)
    assert (test.a12, test.p_value) == (0.5, 1.0)


def test_smallest_p_values_of_few_repeats():
    assert mann_whitney([4, 5, 6], [1, 2, 3]).p_value == pytest.approx(0.1)
    assert mann_whitney([5, 6, 7, 8], [1, 2, 3, 4]).p_value == pytest.approx(2 / 70)


def test_empty_groups_have_no_effect_and_missing_values_are_left_out():
    assert a12([], [1.0]) is None
    assert cliffs_delta([1.0], [None]) is None
    test = mann_whitney([None, float("nan")], [1.0])
    assert (test.n_a, test.u, test.p_value, test.reason) == (0, None, None, "a group is empty")
    assert mann_whitney([1.0, None, 3.0], [2.0]).n_a == 2


def test_magnitudes_follow_vargha_and_delaney():
    bounds = {0.119: "negligible", 0.121: "small", 0.279: "small", 0.281: "medium", 0.419: "medium", 0.421: "large"}
    for delta, word in bounds.items():
        assert magnitude(delta) == magnitude(-delta) == word


# --- bootstrap ------------------------------------------------------------------------------------------------------


def test_bootstrap_is_scipys_and_seeded():
    a, _ = groups(4, 30, 2)
    reference = stats.bootstrap((a,), np.mean, method="BCa", random_state=np.random.default_rng(7)).confidence_interval
    interval = bootstrap(a, seed=7)
    assert (interval.low, interval.high) == pytest.approx(tuple(reference))
    assert interval == bootstrap(a, seed=7)
    assert interval != bootstrap(a, seed=8)
    assert interval.estimate == pytest.approx(a.mean())
    assert (interval.n, interval.level) == (30, 0.95)


def test_bootstrap_covers_a_known_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    intervals = [bootstrap(rng.exponential(size=40), level=0.9, resamples=500) for _ in range(200)]
    share = np.mean([i.low <= 1.0 <= i.high for i in intervals])
    assert 0.84 <= share <= 0.94  # three standard errors around 0.9 and a little below: BCa is slightly narrow


def test_bootstrap_of_a_difference_lies_near_welchs_interval():
    a, b = groups(5, 200, 150)
    drawn, reference = bootstrap(a, b), welch(a, b).difference
    assert drawn.estimate == pytest.approx(reference.estimate)
    width = reference.high - reference.low
    assert abs(drawn.low - reference.low) < 0.1 * width
    assert abs(drawn.high - reference.high) < 0.1 * width
    assert drawn.n == 350


@pytest.mark.parametrize(
    ("samples", "kwargs", "estimate", "reason"),
    [
        (([],), {}, None, "there are no values"),
        (([1.0, 2.0], []), {}, None, "a group is empty"),
        (([3.0],), {}, 3.0, "a group has a single value"),
        (([0.0] * 9,), {}, 0.0, "the values do not vary"),
        (([0.0] * 6 + [1.0],), {"statistic": np.median}, 0.0, "no single value changes the statistic"),
    ],
)
def test_bootstrap_says_why_it_is_undefined(samples, kwargs, estimate, reason):
    interval = bootstrap(*samples, **kwargs)
    assert (interval.estimate, interval.low, interval.high, interval.reason) == (estimate, None, None, reason)


def test_intervals_print_what_they_know():
    assert str(bootstrap([])) == "–"
    assert str(bootstrap([3.0])) == "3"
    assert str(bootstrap([1.0, 2.0, 3.0, 4.0])).startswith("2.5 [")


# --- Holm -----------------------------------------------------------------------------------------------------------


def test_holm_by_hand():
    assert holm([0.005, 0.01, 0.03, 0.04]) == pytest.approx([0.02, 0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([None, 0.02]) == [None, 0.02]


def test_holm_rejects_what_the_step_down_procedure_rejects():
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = rng.beta(0.3, 1, 6)
        order = np.argsort(p)
        rejected = np.zeros(6, bool)
        for step, i in enumerate(order):
            if p[i] > 0.05 / (6 - step):
                break
            rejected[i] = True
        assert (np.array(holm(p)) <= 0.05).tolist() == rejected.tolist()


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: holm([0.1, 1.2]), "p-values must lie between 0 and 1, got 1.2"),
        (lambda: holm([float("nan")]), "p-values must lie between 0 and 1, got nan"),
        (lambda: welch([1.0, 2.0], [1.0, 3.0], level=95), "level must lie between 0 and 1, such as 0.95, got 95"),
        (lambda: bootstrap([1.0, 2.0], level=0), "level must lie between 0 and 1"),
        (lambda: a12(np.zeros((2, 2)), [1.0]), r"a list of numbers, got an array of shape \(2, 2\)"),
        (lambda: a12([float("inf")], [1.0]), "a group holds an infinite value"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


def test_values_that_go_together_count_as_fewer():
    rng, seeds, each = np.random.default_rng(0), 40, 25
    p = rng.beta(0.5, 2.0, seeds)  # seeds differ in how often their cases fail
    means, worth = [], []
    for _ in range(400):
        chosen = rng.integers(seeds, size=seeds)
        failed = (rng.random((seeds, each)) < p[chosen][:, None]).astype(float)
        means.append(failed.mean())
        worth.append(statistics.independent(failed.ravel(), np.repeat(np.arange(seeds), each)))
    share = np.mean(means)
    assert np.median(worth) == pytest.approx(share * (1 - share) / np.var(means), rel=0.25)
    assert np.median(worth) < seeds * each / 4


def test_values_that_do_not_vary_count_once_a_group():
    assert statistics.independent(np.zeros(12), np.arange(12) // 4) == 3
    assert statistics.independent(np.zeros(0), np.zeros(0)) == 0
    assert statistics.independent(np.array([1.0, 0, 1, 0]), np.array([0, 0, 1, 1])) == 4  # evener than chance
