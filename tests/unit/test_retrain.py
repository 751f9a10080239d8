from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from lsgen import checkpoints
from lsgen.analysis import parts, retrain
from lsgen.analysis.repair import FAILURES, draw, prepare, sample, spread
from lsgen.analysis.retrain import compare, markdown, mean
from lsgen.cli import main
from lsgen.errors import InputError
from lsgen.suite import Suite, load_suite
from tests.toys import Linear, Pixels
from tests.unit.test_parts import CLASSES, change, config, copied, save, searched

pytestmark = pytest.mark.filterwarnings("ignore:the SUT reads only")
NEAR = {"class_path": "LatentPGD", "init_args": {"steps": 2, "step_size": 0.1}}


class Learner(Linear):
    """A linear SUT that can be trained."""

    lr = 0.3

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.logits(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def write_rows(folder: Path, n: int = 240) -> None:
    """Images of 4×4 whose row k is bright where the class is k: easy to learn."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        labels = np.arange(n) % CLASSES
        images = rng.integers(0, 160, (n, 4, 4), dtype=np.uint8)
        images[np.arange(n), labels] = rng.integers(120, 256, (n, 4), dtype=np.uint8)
        np.savez(folder / f"{part}.npz", images=images, labels=labels)


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("repaired")
    write_rows(folder / "data")
    searched(folder, config(searcher=NEAR), Learner(num_classes=CLASSES))
    return folder


@pytest.fixture
def suite(original, tmp_path, monkeypatch) -> Suite:
    copied(original, tmp_path)
    monkeypatch.chdir(tmp_path)
    return load_suite("runs/s")


def rows_of(images) -> set[bytes]:
    return {np.asarray(image).tobytes() for image in images}


def test_every_variant_adds_as_many_images_of_each_class(suite):
    repair = prepare(suite)
    assert repair.counts.tolist() == [8, 8, 8]
    for variant in ("real", "random", FAILURES):
        extra = repair.extra(variant, 0)
        assert torch.bincount(extra.labels).tolist() == [8, 8, 8]
        assert extra.images.dtype == torch.uint8
    assert len(repair.extra("none", 0)) == 0


def test_real_images_were_never_trained_on_and_are_no_test_images(suite):
    repair = prepare(suite, failures=6)
    for repeat in range(3):
        extra = rows_of(repair.extra("real", repeat).images)
        assert len(extra) == 6
        assert extra <= rows_of(repair.data["val"].images)
        assert not extra & rows_of(repair.data["train"].images)
        assert not extra & rows_of(repair.test.images)


def test_failures_come_with_their_intended_labels(suite):
    repair = prepare(suite, failures=12)
    extra, rows = repair.extra(FAILURES, 1), repair.chosen(1)
    table = suite.table.iloc[rows]
    assert table["failed"].all()
    assert extra.labels.tolist() == table["label"].tolist() != table["predicted"].tolist()
    assert np.array_equal(extra.images, suite.images[rows])
    assert len(set(rows)) == 12
    assert set(rows) != set(repair.chosen(0))


def test_equal_images_count_once(suite, monkeypatch):
    images = suite.images
    images[1] = images[0]
    monkeypatch.setattr(Suite, "take", lambda self, name, rows: images[rows])
    assert 1 not in prepare(suite).rows


def test_random_samples_are_decoded_draws_of_the_prior():
    y = torch.tensor([0, 2, 1])
    latent = torch.randn(3, 16, generator=torch.Generator().manual_seed(4))
    expected = (latent.clamp(0, 1) * 255).round().byte().view(3, 1, 4, 4)
    assert torch.equal(sample(Pixels(num_classes=CLASSES), y, seed=4), expected)


def test_test_images_that_cases_were_made_from_are_left_out(suite):
    repair, test = prepare(suite), prepare(suite).data["test"]
    seeds = set(suite.table["source_index"])
    assert len(seeds) == 24
    assert len(repair.test) == len(test) - 24
    assert not rows_of(repair.test.images) & rows_of(test.images[sorted(seeds)])
    assert any("24 test images" in note for note in repair.notes)


def test_seeds_of_other_splits_leave_the_test_set_whole(suite):
    change(suite, lambda c: c["model"]["init_args"]["seeds"]["init_args"].update(split="val"))
    assert len(prepare(suite).test) == 240


def test_a_fresh_search_begins_at_other_images(suite, tmp_path):
    repair = prepare(suite, epochs=1)
    retrain._fit(repair, "none", 0, tmp_path)
    found = retrain._search(repair, "none", 0, tmp_path)
    fresh = load_suite(found["suite"])
    assert len(fresh.table) == len(suite.table)
    assert not set(fresh.table["source_index"]) & set(suite.table["source_index"])
    assert parts.read_config(fresh)["model"]["init_args"]["seeds"]["init_args"]["skip"] == 8
    assert not any("own seeds" in note for note in repair.notes)


def test_where_there_are_no_other_images_the_results_say_so(suite):
    change(suite, lambda c: c["model"]["init_args"]["seeds"]["init_args"].update(per_class=50))
    assert any("begin at the suite's own seeds" in note for note in prepare(suite).notes)


def test_a_generator_without_labels_has_no_random_control(suite):
    pixels = {"class_path": "lsgen.generators.PixelSpace", "init_args": {"image_shape": [1, 4, 4], "num_classes": 3}}
    change(suite, lambda c: c["model"]["init_args"].update(generator=pixels))
    manifest = suite.manifest
    suite.update_manifest(generator={**manifest["generator"], "sha256": None})
    repair = prepare(suite)
    assert repair.variants == ("none", "real", FAILURES)
    assert any("no control with random samples" in note for note in repair.notes)


def test_a_faulty_sut_is_healed_by_true_labels_and_no_longer_called_faulty(suite, monkeypatch, tmp_path):
    fault = {"class": "MixedPair", "args": {"pair": [0, 1], "alpha": 0.5}, "found": {}}
    monkeypatch.setattr(Learner, "fault", fault)
    repair = prepare(suite, epochs=1)
    assert any("a fault in its data (MixedPair)" in note and "heals" in note for note in repair.notes)
    assert parts.load_sut(suite).fault == fault
    retrain._fit(repair, "none", 0, tmp_path)
    kept = torch.load(tmp_path / "best.ckpt", weights_only=True)
    assert kept[checkpoints.KEY]["fault"] is None


def test_a_searched_sut_is_measured_before_anything_is_trained(suite):
    repair = prepare(suite)
    with torch.no_grad():
        right = Learner(num_classes=CLASSES).logits(repair.test.images / 255).argmax(1) == repair.test.labels
    assert repair.accuracy == pytest.approx(right.double().mean().item())


@pytest.mark.parametrize(("most", "n"), [([3, 0, 9, 1], 8), ([5, 5], 10), ([2, 7], 1), ([1, 1, 1], 2)])
def test_spread_is_as_even_as_can_be(most, n):
    counts = spread(np.array(most), n)
    assert counts.sum() == n
    assert (counts <= most).all()
    full = counts == most
    assert not (~full).any() or counts.max() - counts[~full].min() <= 1


def test_drawing_depends_on_the_seed_and_on_nothing_else():
    labels, counts = np.arange(90) % 3, np.array([5, 0, 7])
    assert np.array_equal(draw(labels, counts, 1), draw(labels, counts, 1))
    assert not np.array_equal(draw(labels, counts, 1), draw(labels, counts, 2))


def test_the_interval_is_students():
    values = np.random.default_rng(0).normal(size=7)
    low, high = stats.t.interval(0.95, 6, loc=values.mean(), scale=stats.sem(values))
    got = mean([*values, None])
    assert got["mean"] == pytest.approx((low + high) / 2)
    assert got["half"] == pytest.approx((high - low) / 2)
    assert mean([0.5]) == {"mean": 0.5, "half": None}
    assert mean([None]) == {"mean": None, "half": None}


def runs(**ica):
    return {v: [{"ica": x, "accuracy": 0.9 + x} for x in values] for v, values in ica.items()}


def test_failures_are_compared_with_each_control():
    groups = {"none": [0.0, 0.01, 0.02], "real": [0.05, 0.04, 0.06], FAILURES: [0.10, 0.12, 0.11]}
    rows = {row["control"]: row for row in compare(runs(**groups)) if row["measure"] == "ica"}
    p = {v: stats.ttest_ind(groups[FAILURES], groups[v], equal_var=False).pvalue for v in ("none", "real")}
    assert rows["none"]["p_value"] == pytest.approx(p["none"])
    assert rows["none"]["difference"]["estimate"] == pytest.approx(0.10)
    assert sorted(r["p_holm"] for r in rows.values()) == pytest.approx(
        sorted([min(p.values()) * 2, max(max(p.values()), min(p.values()) * 2)])
    )
    assert rows["real"]["a12"] == 1.0
    assert all(row["p_value"] is None for row in compare(runs(**groups)) if row["measure"] == "fresh_failure_rate")


def test_one_repeat_has_no_interval_and_no_p_value():
    text = markdown(
        {
            "suite": "s",
            "settings": {"per_class": [1, 2], "epochs": 1},
            "test_images": 10,
            "before": {"accuracy": 0.5, "failure_rate": 0.25},
            "runs": runs(none=[0.0], failures=[0.125]),
            "mean": {v: {m: mean([r.get(m) for r in each]) for m in MEASURED} for v, each in BOTH.items()},
            "comparisons": compare(BOTH),
            "notes": ["a note"],
        }
    )
    assert "±" not in text.split("Mean ±")[1]
    assert "| +12.50 |" in text
    assert "nan" not in text
    assert "- a note" in text


BOTH = runs(none=[0.0], failures=[0.125])
MEASURED = ("accuracy", "ica", "used_failing", "others_failing", "fresh_failure_rate", "new_confusions")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["runs/s"], "--out"),
        (["runs/nothing", "--out", "o"], "no suite"),
        (["runs/s", "--out", "o", "--epochs", "0"], "--epochs must be at least 1"),
        (["runs/s", "--out", "o", "--repeats", "0"], "--repeats must be at least 1"),
        (["runs/s", "--out", "o", "--failures", "-3"], "--failures must be at least 1"),
        (["runs/s", "--out", "o", "--failures", "1000"], "only 24 can be matched"),
        (["runs/s", "--out", "o", "--lr", "nan"], "--lr must be above 0"),
        (["runs/s", "--out", "runs"], "is not a repair"),
        (["runs/s", "--out", "sut.ckpt"], "is not a repair"),
        (["runs/s", "--out", "sut.ckpt/o"], "cannot write"),
    ],
)
def test_bad_input(suite, args, words, capsys):
    assert main(["retrain", *args]) == 2
    assert words in capsys.readouterr().err


def test_suites_that_cannot_be_repaired(suite, monkeypatch):
    save(Linear(num_classes=CLASSES), Path("sut.ckpt"))
    with pytest.raises(InputError, match="Linear, which cannot be trained"):
        prepare(suite)
    monkeypatch.setitem(vars(suite), "table", suite.table.assign(failed=False))
    with pytest.raises(InputError, match="no failures to learn from"):
        prepare(suite)
