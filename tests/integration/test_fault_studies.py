"""Studies of injected faults at the smallest scale: what must hold whatever the models have learnt."""

import numpy as np
import pytest
import torch

import lsgen
from lsgen import suts
from lsgen.data.features import stroke_thickness
from lsgen.types import from_uint8

pytestmark = pytest.mark.filterwarnings("ignore:the SUT reads only")  # models of this scale are hardly trained


def measured(found, case, metric):
    (row,) = [r for r in found.rows if r.case == case and r.metric == metric]
    return row.measured


def suites(lab, pattern):
    return [lsgen.load_suite(folder) for folder in sorted((lab.out / "suites").glob(pattern))]


def test_random_samples_do_not_depend_on_the_fault_and_matching_is_the_criterion_above_its_threshold(study):
    found, lab = study("speth-faults")
    sound, faulty = suites(lab, "mnist-random-*")
    assert (sound.images == faulty.images).all()
    fault = suts.pretrained(lab.models / "mnist-fault-0.3" / "best.ckpt").fault
    assert fault["found"]["prevalence"] == pytest.approx(0.3, abs=0.002)
    thick = stroke_thickness(from_uint8(torch.from_numpy(faulty.images))) > fault["found"]["threshold"]
    share = measured(found, "mnist, fault in 30%", "random samples that match the fault")
    assert share == pytest.approx(thick.double().mean().item())
    assert 0 < share < 1


def test_distances_are_measured_for_both_suts_and_pictures_have_the_place_of_the_fault(study):
    found, _ = study("speth-faults")
    for which in ("sound", "faulty"):
        case = f"mnist, place of the fault in 30%, {which} SUT"
        (closest,) = [r for r in found.rows if r.case == case and "closest" in r.metric]
        assert (closest.measured is None) == (measured(found, case, "failure regions") == 0)
    assert [file.name for file, _ in found.figures] == ["curves_mnist.png", "centroids_mnist.png"]


def test_detection_starts_at_nothing_and_is_a_difference_of_escape_rates(study):
    found, lab = study("sinvad-pollution")
    metric = "detection rate of the search, s_α − s_0"
    assert measured(found, "α = 0.0", metric) == 0

    def escaped(alpha):
        tables = [s.table[s.table["viable"]] for s in suites(lab, f"?-?-{alpha}")]
        assert len(tables) == 2
        return np.concatenate([t["predicted"] == t["target"] for t in tables]).mean()

    assert measured(found, "α = 0.5", metric) == pytest.approx(escaped("0.5") - escaped("0.0"))
    assert suts.pretrained(lab.models / "mixed-01-0.5" / "best.ckpt").fault["args"]["alpha"] == 0.5


def test_a_search_without_success_is_over_before_the_last_generation(study):
    _, lab = study("sinvad-pollution")
    (matrix,) = suites(lab, "matrix")
    table = matrix.table[matrix.table["viable"]]
    vain = table[table["predicted"] != table["target"]]
    assert len(vain)
    assert (vain["queries"] < 10 + 14 * 6).all()  # a population of 10, then 6 children in each of 14 generations


def test_the_biased_sut_relies_on_the_patch_and_moves_are_measured_on_it(study):
    found, lab = study("dunn-faults")
    along, against = (measured(found, "corner, hold-out", f"accuracy {w} the bias") for w in ("along", "against"))
    assert along > against
    (suite,) = suites(lab, "corner-biased-49")
    chosen = suite.table[suite.table["success"] & (suite.table["seed_predicted"] == 4)].index
    assert len(chosen)
    brighter = (suite.images[chosen].astype(float) - suite.array("seed_image")[chosen])[:, 0, :4, :4].mean((1, 2)) / 255
    share = measured(found, "corner, 4 → 9, biased SUT", "tests that show the fault")
    assert share == pytest.approx((brighter > 0.1).mean(), abs=1.01 / len(chosen))  # 10 % of about 1


@pytest.mark.parametrize("name", ["dunn-faults", "dunn-transfer"])
def test_every_test_is_confident(name, study):
    _, lab = study(name)
    for suite in suites(lab, "c*"):
        table = suite.table[suite.table["success"]]
        p = np.exp(suite.array("logits")[table.index].astype(float))
        p /= p.sum(1, keepdims=True)
        rows, target = np.arange(len(p)), table["target"].to_numpy(int)
        lead = p[rows, target] - np.where(np.eye(10, dtype=bool)[target], 0, p).max(1)
        assert (lead > 0.5 - 1e-4).all()


def test_tests_fail_the_sut_they_are_for_and_pixel_tests_stay_in_their_box(study):
    found, lab = study("dunn-transfer")
    for kind in ("pixel", "latent"):
        assert measured(found, f"{kind} tests for cnn", "accuracy of the SUT they are for") == 0
    (pixel,) = suites(lab, "cnn-pixel")
    assert pixel.table["pixel_linf"].max() <= 0.3 + 1 / 510 + 1e-6
    for name, kind in (("robust_l2", "l2"), ("robust_linf", "fast_linf")):
        assert suts.pretrained(lab.models / f"mnist-{name}" / "best.ckpt").adversarial == kind
