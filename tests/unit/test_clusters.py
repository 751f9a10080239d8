"""Failure regions: planted groups are found, the mathematics agrees with references, and every oddity is said."""

import json
import os
import sys
import types
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file, save_file
from scipy import integrate, stats
from scipy.spatial.distance import cdist
from sklearn.metrics import adjusted_rand_score

from lsgen.analysis import clusters, region_pictures, region_words, regions
from lsgen.analysis.clusters import cluster, find
from lsgen.analysis.regions import (
    Region,
    centroid_distance,
    chance,
    control_persistence,
    default_size,
    distances,
    find_regions,
    group,
    jensen_shannon,
    medoid,
    reference_cluster,
)
from lsgen.cli import main
from lsgen.errors import InputError
from lsgen.search.cases import Cases
from lsgen.suite import Suite, load_suite
from tests.toys import Pixels
from tests.unit.test_suite import REQUIRED

SIDE = 8
CONFIG = """\
model:
  class_path: lsgen.search.SearchTask
  init_args:
    generator: {class_path: tests.toys.Pixels, init_args: {side: 8, num_classes: 3}}
"""


def blobs(sizes: list[int], *, noise: int = 0, dims: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Tight groups at random places, and their numbers; noise is -1."""
    rng = np.random.default_rng(seed)
    centres = 10 * rng.normal(size=(len(sizes), dims))
    points = [c + 0.1 * rng.normal(size=(n, dims)) for c, n in zip(centres, sizes, strict=True)]
    points.append(rng.uniform(-60, 60, size=(noise, dims)))
    return np.concatenate(points).astype(np.float32), np.repeat([*range(len(sizes)), -1], [*sizes, noise])


# --- clustering -----------------------------------------------------------------------------------------------------


def test_planted_groups_are_found_large_ones_first_and_noise_is_kept_apart():
    latents, truth = blobs([20, 60, 40], noise=10)
    found = group(latents, 10)
    assert found.labels.tolist() == np.select([truth == 1, truth == 2, truth == 0], [0, 1, 2], -1).tolist()
    assert found.seen == 130
    assert ((found.persistence > 0.3) & (found.persistence <= 1)).all()


def test_the_metric_is_l1():
    from hdbscan import HDBSCAN

    rng = np.random.default_rng(2)
    latents = np.concatenate([rng.normal(2 * rng.normal(size=6), 1, size=(60, 6)) for _ in range(6)])
    settings = {"min_cluster_size": 8, "min_samples": regions.MIN_SAMPLES, "algorithm": "generic"}
    found = group(latents, 8).labels
    assert found.max() > 2
    assert adjusted_rand_score(found, HDBSCAN(metric="manhattan", **settings).fit_predict(latents)) == 1
    assert adjusted_rand_score(found, HDBSCAN(metric="euclidean", **settings).fit_predict(latents)) < 0.9


def test_too_much_work_is_done_on_a_subset_and_the_rest_is_assigned(monkeypatch):
    monkeypatch.setattr(regions, "WORK", 3000 * 1200 * 4)
    latents, truth = blobs([1500, 900, 500], noise=100)
    found = group(latents, 100)
    assert found.seen == 1200
    assert (found.labels[truth >= 0] == truth[truth >= 0]).mean() > 0.99
    assert (found.labels[truth < 0] == -1).mean() > 0.9


@pytest.mark.parametrize("n", [0, 1, 4])
def test_fewer_cases_than_a_group_has_are_noise(n):
    found = group(np.zeros((n, 2)), 5)
    assert found.labels.tolist() == [-1] * n
    assert len(found.persistence) == 0


def test_equal_latents_do_no_harm():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = group(np.repeat([[0.0, 0.0], [9.0, 9.0]], 10, axis=0), 5)
    assert np.isfinite(found.persistence).all()


def test_the_default_size_grows_with_the_cases():
    assert [default_size(n) for n in (3, 500, 600, 100_000)] == [5, 5, 6, 1000]


def test_regions_carry_class_centroid_and_medoid():
    latents, truth = blobs([30, 20], noise=5)
    labels = np.where(np.arange(55) % 5 == 0, 1, 2)
    found, groups = find_regions(latents.reshape(55, 2, 2), labels, np.arange(55), "all", min_cluster_size=8)
    assert [len(r.members) for r in found] == [30, 20]
    assert [(r.scope, r.label, r.number, r.chance) for r in found] == [("all", 2, 0, None), ("all", 2, 1, None)]
    for number, region in enumerate(found):
        own = np.flatnonzero(truth == number)
        assert region.members.tolist() == own.tolist()
        assert region.centroid == pytest.approx(latents[own].mean(0).reshape(2, 2), abs=1e-5)
        assert region.medoid == own[cdist(latents[own], latents[own], "cityblock").sum(1).argmin()]
        assert region.persistence == pytest.approx(groups.persistence[number])


def test_a_medoid_of_many_is_looked_for_near_the_centre(monkeypatch):
    latents = np.random.default_rng(0).normal(size=(400, 3))
    exact = cdist(latents, latents, "cityblock").sum(1)
    monkeypatch.setattr(regions, "SEEN", 100)
    assert exact[medoid(latents)] < np.quantile(exact, 0.02)


# --- chance ---------------------------------------------------------------------------------------------------------


def test_groups_among_random_seeds_say_what_chance_gives():
    rng = np.random.default_rng(0)
    seeds = {0: rng.uniform(-1, 1, (500, 16)), 1: rng.uniform(-1, 1, (300, 16))}
    labels = np.repeat([0, 1], [60, 40])
    controls = control_persistence(labels, seeds, 5)
    assert len(controls) == regions.CONTROLS
    assert max(controls) > 0  # HDBSCAN finds groups in nothing but chance
    latents, _ = blobs([60, 40], dims=16)
    planted, _ = find_regions(latents, labels, np.arange(100), "all", seeds=seeds)
    assert [r.chance for r in planted] == [0.05, 0.05]


def test_what_seeds_show_by_themselves_is_no_failure_region():
    latents, _ = blobs([200, 200], dims=16)  # two groups among the seeds, whatever fails
    picked = np.random.default_rng(1).permutation(400)[:80]
    found, _ = find_regions(latents[picked], np.zeros(80, int), np.arange(80), "class", seeds={0: latents})
    assert len(found) == 2
    assert all(r.chance > 0.05 for r in found)


def test_chance_is_not_measured_where_it_cannot_be(monkeypatch):
    labels, seeds = np.zeros(50, int), {0: np.random.default_rng(0).normal(size=(40, 2))}
    assert control_persistence(labels, seeds, 5) == []  # fewer seeds than cases
    assert control_persistence(labels, {}, 5) == []
    monkeypatch.setattr(regions, "CONTROL_CASES", 49)
    assert control_persistence(labels, {0: np.zeros((99, 2))}, 5) == []  # would take too long
    assert chance(0.5, []) is None


# --- distances ------------------------------------------------------------------------------------------------------


def js_by_integration(a: np.ndarray, b: np.ndarray) -> float:
    p, q = stats.norm(a.mean(), a.std()).pdf, stats.norm(b.mean(), b.std()).pdf
    span = (min(a.mean() - 9 * a.std(), b.mean() - 9 * b.std()), max(a.mean() + 9 * a.std(), b.mean() + 9 * b.std()))
    grid = np.linspace(*span, 200_001)

    def half(f, g):
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.nan_to_num(0.5 * f(grid) * np.log2(2 * f(grid) / (f(grid) + g(grid))))

    return float(np.sqrt(integrate.trapezoid(half(p, q) + half(q, p), grid)))


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.5, 1.0), (2.0, 0.5), (0.3, 4.0), (30.0, 1.0)])
def test_jensen_shannon_is_that_of_the_normals(shift, scale):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(40, 1)), shift + scale * rng.normal(size=(25, 1))
    assert jensen_shannon(a, b) == pytest.approx(js_by_integration(a, b), abs=3e-4)
    assert jensen_shannon(a, b) == pytest.approx(jensen_shannon(b, a))


def test_jensen_shannon_takes_the_coordinate_that_differs_most():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(30, 2, 2)), rng.normal([[0, 0], [3, 0]], size=(30, 2, 2))
    assert jensen_shannon(a, b) == pytest.approx(js_by_integration(a[:, 1, 0], b[:, 1, 0]), abs=3e-4)
    assert jensen_shannon(np.zeros((5, 3)), np.ones((5, 3))) == pytest.approx(1, abs=1e-3)  # no spread at all


def test_distances_are_symmetric_matrices_in_the_order_of_the_regions():
    latents, truth = blobs([20, 30, 25])
    found, _ = find_regions(latents, truth, np.arange(75), "all")
    matrices = distances(found, latents)
    for matrix in map(np.array, matrices.values()):
        assert matrix.shape == (3, 3)
        assert (matrix == matrix.T).all()
        assert (np.diag(matrix) == 0).all()
    expected = np.abs(found[0].centroid - found[2].centroid).max()
    assert matrices["centroid"][0][2] == pytest.approx(expected, abs=1e-3)
    assert distances([], latents) == {"centroid": [], "jensen_shannon": []}


# --- reference cluster ----------------------------------------------------------------------------------------------


def bright_corner(images: torch.Tensor) -> torch.Tensor:
    return images[:, 0, 0, 0] > 0.5


@pytest.mark.parametrize(
    ("distribution", "expected"), [("uniform", 0.75), ("prior", stats.norm.expect(lb=0.5, conditional=True))]
)
def test_the_reference_is_the_mean_of_what_matches(distribution, expected):
    reference = reference_cluster(Pixels(), bright_corner, per_class=2000, distribution=distribution)
    assert reference.sampled == 4000
    assert (reference.latent[:, 0] > 0.5).all()
    assert reference.centroid == pytest.approx([expected] + [0] * 15, abs=0.1)


def test_the_closest_region_by_equation_2():
    reference = reference_cluster(Pixels(), bright_corner, per_class=50, classes=[1])
    assert reference.sampled == 50
    near, far = reference.centroid + 0.1, reference.centroid - np.eye(16)[3]
    made = [Region("class", 1, i, np.arange(3), 0.1, None, c, 0) for i, c in enumerate((far, near))]
    region, distance = reference.closest(made)
    assert region.number == 1
    assert distance == pytest.approx(0.1) == pytest.approx(centroid_distance(near, reference.centroid))
    assert reference.closest([]) is None


@pytest.mark.parametrize(
    ("criterion", "sentence"),
    [
        (lambda x: x[:, 0, 0, 0] > 2, "matches none of 40 samples"),
        (lambda x: x[:, 0, 0, 0] < 2, "matches all of 40 samples"),
        (lambda x: x[:, 0, 0, 0], r"a bool for each of 40 images, and this one gave torch.float32 \[40\]"),
        (lambda x: x[:, 0, 0] > 0, r"this one gave torch.bool \[40, 4\]"),
    ],
)
def test_a_criterion_that_marks_no_region_is_refused(criterion, sentence):
    with pytest.raises(InputError, match=sentence):
        reference_cluster(Pixels(), criterion, per_class=20)


# --- the command ----------------------------------------------------------------------------------------------------


def make_suite(
    path, *, hard: list[int], passing: int = 60, config: str = CONFIG, unfinished: bool = False, per_seed: int = 1
) -> Suite:
    """Three classes of 8×8 pixels; ``hard[k]`` challenging cases of class k, each class's bright in another corner."""
    rng = np.random.default_rng(0)
    n = sum(hard) + passing
    label = np.concatenate([np.repeat([0, 1, 2], hard), np.arange(passing) % 3])
    latent = rng.uniform(0, 0.3, (n, SIDE, SIDE))
    for row in range(sum(hard)):
        corner = [(slice(0, 3), slice(0, 3)), (slice(5, 8), slice(0, 3)), (slice(0, 3), slice(5, 8))][label[row]]
        latent[row][corner] = rng.uniform(0.8, 1, (3, 3))
    order = rng.permutation(n)
    label, latent = label[order], latent[order].reshape(n, -1).astype(np.float32)
    failed = order < sum(hard)
    suite = Suite(path)
    blocks = 3 if unfinished else 2
    manifest = {"identity": "a" * 64, "blocks": blocks, "num_classes": 3, "stopped_by": None}
    os.close(suite.open({**manifest, "data": {"class_names": ["zero", "1", "2"]}}, config))
    for block, rows in enumerate(np.array_split(np.arange(n), 2)):
        columns = {name: torch.from_numpy(label[rows]) for name in REQUIRED}
        columns |= {"id": torch.from_numpy(rows + 1000), "seed_id": torch.from_numpy(rows // per_seed)}
        columns["predicted"] = torch.from_numpy(np.where(failed, (label + 1) % 3, label)[rows])
        columns |= {name: torch.rand(len(rows)) for name in ("seed_p_true", "boundary_gap")}
        columns["p_true"] = torch.from_numpy(np.where(failed, 0.01, 0.9)[rows]).float()
        columns |= {k: torch.ones(len(rows), dtype=torch.bool) for k in ("viable", "success", "retired")}
        columns["failed"] = torch.from_numpy(failed[rows])
        image = torch.from_numpy((latent[rows] * 255).round().astype(np.uint8).reshape(-1, 1, SIDE, SIDE))
        seeds = (torch.rand(n, SIDE * SIDE, generator=torch.Generator().manual_seed(0)) * 0.3)[rows // per_seed]
        arrays = {"seed_latent": seeds, "latent": torch.from_numpy(latent[rows]), "logits": torch.zeros(len(rows), 3)}
        suite.write(Cases(block, columns, arrays | {"seed_image": image, "image": image}))
    suite.finish()
    return load_suite(path)


@pytest.fixture
def suite(tmp_path) -> Suite:
    return make_suite(tmp_path / "s", hard=[30, 20, 0])


def test_seeds_with_several_cases_are_one_point_each_of_the_control(tmp_path):
    """Points in one place would be as persistent a group as there can be, and every region chance."""
    few = find(make_suite(tmp_path / "s", hard=[30, 20, 0], passing=1500, per_seed=50))
    assert [region.chance for region in few.regions if region.scope == "all"] == [None, None]  # 31 seeds cannot tell
    assert any("several challenging cases grew from one seed" in note for note in few.notes)


def read(suite: Suite) -> tuple[dict, pd.DataFrame, dict]:
    folder = suite.path / "clusters"
    content = json.loads((folder / "clusters.json").read_text(encoding="utf-8"))
    return content, pd.read_parquet(folder / "cases.parquet"), load_file(folder / "centroids.safetensors")


def test_planted_regions_are_found_told_and_written(suite, capsys):
    assert main(["cluster", str(suite.path)]) == 0
    printed = capsys.readouterr().out
    content, cases, _ = read(suite)
    assert content["format_version"] == 1
    assert content["challenging"] == len(cases) == 50
    assert content["noise"] == (cases["cluster"] < 0).sum() == 0
    assert list(cases) == ["id", "label", "cluster", "class_cluster", "x", "y"]
    assert set(cases["id"]) == set(suite.table.query("failed")["id"])
    over_all = [c for c in content["clusters"] if c["scope"] == "all"]
    assert [(c["label"], c["number"], c["size"], c["chance"]) for c in over_all] == [(0, 0, 30, 0.05), (1, 1, 20, 0.05)]
    assert (cases["cluster"] == cases["label"]).all()
    assert np.ptp(cases.groupby("cluster")["x"].mean()) > 0.5  # the projection keeps them apart
    first = over_all[0]
    assert first["sentence"].startswith("Class 0 “zero”, read as 1. Compared with passing cases: brighter")
    assert {"name", "delta", "chance", "cluster", "passing"} == set(first["properties"][0])
    assert next(p for p in first["properties"] if p["name"] == "brightness")["delta"] == 1.0
    assert all(d["index"] % SIDE < 3 and d["index"] // SIDE < 3 for d in first["directions"])  # the bright corner
    assert content["settings"]["threshold"] == 0.05
    assert np.array(content["distances"]["centroid"]).shape == (len(content["clusters"]),) * 2
    for text in ("50 challenging cases (p_true < 0.05)", "2 failure regions over all classes", "all 0", "zero"):
        assert text in printed
    assert (suite.path / "clusters" / "clusters.png").stat().st_size > 10_000


def test_a_case_that_is_read_rightly_and_challenging_is_not_compared_with_itself(suite):
    found = find(suite, threshold=0.95)  # every case is below it, also those with 0.9 that passed
    assert len(found.challenging.row) == len(suite.table)
    assert not len(found.passing.row)
    right = int((~suite.table["failed"]).sum())
    assert any(f"{right} of the {len(suite.table)} challenging cases are read rightly" in note for note in found.notes)


def test_centroids_are_means_of_latents_and_their_images_are_decoded(suite):
    found = cluster(suite)
    content, cases, arrays = read(suite)
    table = suite.table
    assert len(arrays["latent"]) == len(arrays["image"]) == len(arrays["medoid_image"]) == len(content["clusters"])
    for entry, region, latent, image, medoid_image in zip(
        content["clusters"], found.regions, arrays["latent"], arrays["image"], arrays["medoid_image"], strict=True
    ):
        ids = cases.loc[cases["cluster"] == entry["number"], "id"] if entry["scope"] == "all" else None
        if ids is not None:
            rows = np.flatnonzero(table["id"].isin(ids))
            assert latent == pytest.approx(suite.latents[rows].mean(0), abs=1e-5)
            assert entry["medoid_id"] in set(ids)
        assert (image.ravel() == (latent * 255).round()).mean() > 0.99  # this generator's images are its latents
        row = np.flatnonzero(table["id"] == entry["medoid_id"])[0]
        assert np.array_equal(medoid_image, suite.images[row])
        assert len(region.members) == entry["size"]


def test_running_again_replaces_the_folder_and_leaves_nothing_else(suite):
    others = {f.name for f in suite.path.iterdir()}
    cluster(suite)
    before = {f.name: f.read_bytes() for f in (suite.path / "clusters").iterdir() if f.suffix != ".png"}
    (suite.path / "clusters" / "stale").touch()
    cluster(suite)
    after = {f.name: f.read_bytes() for f in (suite.path / "clusters").iterdir() if f.suffix != ".png"}
    assert after == before  # the same suite gives the same regions
    assert {f.name for f in suite.path.iterdir()} == others | {"clusters"}


def test_a_failed_run_keeps_the_old_folder(suite, monkeypatch):
    cluster(suite)
    before, others = (suite.path / "clusters" / "clusters.json").read_bytes(), {f.name for f in suite.path.iterdir()}
    monkeypatch.setattr(region_pictures, "draw", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cluster(suite, threshold=0.04)
    assert (suite.path / "clusters" / "clusters.json").read_bytes() == before
    assert {f.name for f in suite.path.iterdir()} == others


# --- results that are none ------------------------------------------------------------------------------------------


def test_no_challenging_case_is_a_result(tmp_path, capsys):
    suite = make_suite(tmp_path / "s", hard=[0, 0, 0])
    assert main(["cluster", str(suite.path)]) == 0
    content, cases, arrays = read(suite)
    assert (content["challenging"], content["noise"], content["clusters"], content["overall"]) == (0, 0, [], None)
    assert len(cases) == 0
    assert list(cases) == ["id", "label", "cluster", "class_cluster", "x", "y"]
    assert arrays["latent"].shape == (0, 64)
    assert arrays["image"].shape == arrays["medoid_image"].shape == (0, 1, 8, 8)
    assert "no challenging case: none gives its true class less than 0.05" in capsys.readouterr().out


def test_fewer_challenging_cases_than_a_region_has(tmp_path, capsys):
    suite = make_suite(tmp_path / "s", hard=[3, 1, 0])
    assert main(["cluster", str(suite.path)]) == 0
    content, cases, _ = read(suite)
    assert content["noise"] == len(cases) == 4
    printed = capsys.readouterr().out
    assert "4 challenging cases are fewer than a region must have, 5: all are noise" in printed
    assert "classes with too few challenging cases for a region of their own: 0 (3), 1 (1)" in printed
    assert "As a whole: Classes 0 “zero” (75 %), 1 (25 %)" in printed


def test_all_noise_is_said(tmp_path, capsys):
    suite = make_suite(tmp_path / "s", hard=[20, 0, 0])  # one group has no second one to be told apart from
    assert main(["cluster", str(suite.path)]) == 0
    content, cases, _ = read(suite)
    assert (cases["cluster"] == -1).all()
    assert content["noise"] == 20
    printed = capsys.readouterr().out
    assert "all challenging cases are noise" in printed
    assert "classes without a challenging case: 1, 2" in printed
    assert "As a whole: Class 0 “zero”, read as 1. Compared with passing cases: brighter" in printed


def test_without_passing_cases_nothing_is_compared(tmp_path):
    content = region_words.describe(suite := make_suite(tmp_path / "s", hard=[30, 20, 0], passing=0), find(suite))
    assert "the suite has no passing case, so nothing says what sets a region apart" in content["notes"]
    assert all("too few passing cases" in c["sentence"] and c["properties"] == [] for c in content["clusters"])


def test_an_unfinished_suite_is_clustered_as_far_as_it_goes(tmp_path):
    found = find(make_suite(tmp_path / "s", hard=[30, 20, 0], unfinished=True))
    assert len(found.challenging) == 50
    assert "the suite is unfinished: 2 of 3 blocks are there" in found.notes


def test_a_generator_that_has_gone_leaves_the_images_out_and_says_so(tmp_path, capsys):
    gone = "model: {init_args: {generator: {class_path: lsgen.generators.pretrained, init_args: {path: gone.ckpt}}}}"
    suite = make_suite(tmp_path / "s", hard=[30, 20, 0], config=gone)
    assert main(["cluster", str(suite.path)]) == 0
    content, _, arrays = read(suite)
    assert arrays["image"].shape == (0, 1, 8, 8)
    assert len(arrays["latent"]) == len(arrays["medoid_image"]) == len(content["clusters"]) > 0
    assert "centroids are not decoded" in capsys.readouterr().out
    assert "gone.ckpt" in content["notes"][-1]


def test_a_subset_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(regions, "WORK", 50 * 40 * 64)
    monkeypatch.setattr(regions, "SEEN", 10)
    found = find(make_suite(tmp_path / "s", hard=[30, 20, 0]))
    assert any("all classes: HDBSCAN saw 40 random cases of 50" in note for note in found.notes)


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--threshold", "0"], "--threshold must be a probability above 0, got 0.0"),
        (["--threshold", "1.5"], "--threshold must be a probability above 0, got 1.5"),
        (["--min-cluster-size", "1"], "--min-cluster-size must be at least 2, got 1"),
        (["--projection", "umap"], "--projection umap needs the package umap-learn: pip install 'lsgen[umap]'"),
    ],
)
def test_wrong_settings_are_refused(suite, capsys, monkeypatch, args, sentence):
    monkeypatch.setitem(sys.modules, "umap", None)
    assert main(["cluster", str(suite.path), *args]) == 2
    assert sentence in capsys.readouterr().err


def test_a_suite_without_a_block_and_no_suite_are_refused(tmp_path, capsys):
    suite = Suite(tmp_path / "s")
    os.close(suite.open({"identity": "a" * 64, "blocks": 1, "num_classes": 3, "stopped_by": None}, CONFIG))
    assert main(["cluster", str(suite.path)]) == 2
    assert "has no finished block yet" in capsys.readouterr().err
    assert main(["cluster", str(tmp_path / "none")]) == 2
    assert "there is no suite at" in capsys.readouterr().err


def test_a_suite_whose_latents_have_gone_is_refused(suite, capsys):
    file = suite.path / "arrays" / "block-00001.safetensors"
    save_file({name: array for name, array in load_file(file).items() if name != "latent"}, file)
    assert main(["cluster", str(suite.path)]) == 2
    assert "block 1 is missing or damaged; the same `lsgen search` restores it" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_to_is_named(suite, capsys, monkeypatch):
    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(clusters, "_write_files", refuse)
    assert main(["cluster", str(suite.path)]) == 2
    assert f"cannot write to {suite.path} (Permission denied)" in capsys.readouterr().err


# --- projections ----------------------------------------------------------------------------------------------------


def test_pca_keeps_what_varies_most():
    from sklearn.decomposition import PCA

    latents = np.random.default_rng(0).normal(size=(50, 6)) * [5, 1, 3, 1, 1, 1]
    points, axes = region_pictures.pca(latents)
    reference = PCA(2).fit(latents)
    assert np.abs(points) == pytest.approx(np.abs(reference.transform(latents)), abs=1e-6)
    assert axes[0] == f"principal component 1 ({reference.explained_variance_ratio_[0]:.0%})"


@pytest.mark.parametrize("shape", [(0, 4), (1, 4), (5, 1), (2, 4)])
def test_pca_of_next_to_nothing(shape):
    points, _ = region_pictures.pca(np.random.default_rng(0).normal(size=shape))
    assert points.shape == (shape[0], 2)
    assert np.isfinite(points).all()


def test_umap_is_used_where_it_is_installed(suite, monkeypatch):
    class UMAP:
        def __init__(self, **settings):
            self.settings = settings

        def fit_transform(self, latents):
            assert self.settings["metric"] == "manhattan"
            return latents[:, :2]

    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=UMAP))
    found = cluster(suite, projection="umap")
    content, cases, _ = read(suite)
    assert content["settings"]["projection"] == {"kind": "umap", "axes": ["UMAP 1", "UMAP 2"]}
    assert cases["x"].to_numpy() == pytest.approx(found.challenging.flat[:, 0])
