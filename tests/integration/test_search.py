"""Whole runs of the command line in this process: train, measure, search, read what was written."""

import json

import numpy as np
import pytest
import torch
import yaml

from lsgen import Trainer, generators, load_suite, suts
from lsgen.cli import main
from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.generators import PixelSpace
from lsgen.metrics.functional import true_probability
from lsgen.search import DataSeeds, LatentPGD, PriorSeeds, RandomSampling, SearchCallback, SearchTask
from lsgen.types import from_uint8
from tests.conftest import QUIET, ROOT
from tests.toys import Linear, Pixels, write_npz


@pytest.fixture(scope="module")
def pgd(trained, tmp_path_factory):
    """A finished PGD suite."""
    out = tmp_path_factory.mktemp("suites") / "pgd"
    args = ["search", f"--config={ROOT}/configs/mnist5k/search/pgd.yaml", f"--out={out}", *QUIET]
    args += [f"--model.generator.path={trained}/cvae/best.ckpt", f"--model.sut.path={trained}/sut/best.ckpt"]
    args += ["--model.seeds.per_class=10", "--model.block_size=20", "--model.eval_batch_size=32"]
    args += [f"--trainer.default_root_dir={trained}/search"]
    assert main(args) == 0
    return load_suite(out)


EVOLVE = ["--model.searcher.population=8", "--model.searcher.elites=3", "--model.searcher.generations=3"]
SHORT = {  # what makes each shipped search a matter of seconds
    "boundary_ga": EVOLVE,
    "carlini_wagner": ["--model.searcher.settings.max_iter=2", "--model.searcher.settings.binary_search_steps=1"],
    "differential": EVOLVE,
    "escape": EVOLVE,
    "hill_climb": [
        "--model.searcher.passes=1",
        "--model.objective.surprise.min_std=0.01", "--model.objective.surprise.max_units=9",
    ],
    "interpolation": ["--model.seeds.others_per_class=2"],
    "margin_ga": EVOLVE,
    "perturbation": ["--model.searcher.steps=3"],
    "pgd": ["--model.searcher.steps=3"],
    "pixel_pgd": ["--model.searcher.steps=3"],
    "random": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def second_sut(trained):
    """Another SUT, beside the first."""
    folder = trained / "sut_lenet5"
    args = [f"--config={ROOT}/configs/mnist5k/sut_lenet5.yaml", f"--trainer.default_root_dir={folder}"]
    assert main(["fit", *args, "--trainer.max_epochs=1", *QUIET]) == 0


@pytest.mark.parametrize("config", sorted((ROOT / "configs/mnist5k/search").iterdir()), ids=lambda file: file.stem)
def test_every_shipped_search_runs(config, trained, second_sut, tmp_path):
    if config.stem == "carlini_wagner":
        pytest.importorskip("art")
    moved = tmp_path / config.name
    moved.write_text(config.read_text().replace("runs/mnist5k/", f"{trained}/"))
    args = ["search", f"--config={moved}", f"--out={tmp_path}/suite", "--model.seeds.per_class=1", *SHORT[config.stem]]
    assert main([*args, "--model.eval_batch_size=32", *QUIET]) == 0
    suite = load_suite(tmp_path / "suite")
    assert suite.finished
    assert suite.summary["n_cases"] > 0
    assert suite.manifest["searcher"] == yaml.safe_load(config.read_text())["model"]["init_args"]["searcher"][
        "class_path"
    ].removeprefix("lsgen.search.")


def test_fit_leaves_checkpoints_config_numbers_and_pictures(trained):
    for model in ("sut", "cvae"):
        names = {p.name for p in (trained / model).iterdir()}
        assert {"best.ckpt", "last.ckpt", "config.yaml"} <= names
    log = (trained / "cvae/logs/version_0/metrics.csv").read_text()
    for key in ("val/loss", "val/kl", "val/reconstruction", "val/sample_accuracy", "val/reconstruction_accuracy"):
        assert key in log
    assert len(list((trained / "cvae/logs/version_0/images").glob("val_samples_*.png"))) == 3
    low, high = generators.pretrained(trained / "cvae/best.ckpt").latent.bounds
    assert low < 0 < high


@pytest.mark.parametrize("command", ["validate", "test"])
@pytest.mark.parametrize(("model", "key"), [("sut", "accuracy_class_3"), ("cvae", "kl")])
def test_validate_and_test_measure_a_checkpoint(trained, capsys, command, model, key):
    args = [command, f"--config={trained}/{model}/config.yaml", f"--ckpt_path={trained}/{model}/best.ckpt", *QUIET]
    assert main(args) == 0
    stage = "val" if command == "validate" else "test"
    assert f"{stage}/{key}" in capsys.readouterr().out


def test_a_suite_has_every_file_and_says_what_made_it(pgd):
    names = {p.name for p in pgd.path.iterdir()}
    assert names == {"config.yaml", "manifest.json", "cases.parquet", "summary.json", "parts", "arrays", ".lock"}
    manifest = pgd.manifest
    assert manifest["finished"]
    assert manifest["eval_batch_size"] == 32
    assert len(manifest["generator"]["sha256"]) == len(manifest["sut"]["sha256"]) == 64
    assert manifest["versions"]["torch"] == torch.__version__.split("+")[0]
    config = yaml.safe_load((pgd.path / "config.yaml").read_text())
    assert config["model"]["init_args"]["searcher"]["init_args"]["steps"] == 20
    assert json.loads((pgd.path / "summary.json").read_text()) == pgd.summary


def test_what_is_reported_is_what_the_sut_says_of_the_stored_images(pgd, trained):
    """Read back with nothing but the SUT: labels, probabilities and rates must come out the same."""
    sut = suts.pretrained(trained / "sut/best.ckpt")
    table = pgd.table
    with torch.no_grad():
        logits = sut.logits(from_uint8(torch.from_numpy(pgd.images)))
    label = torch.tensor(table["label"].to_numpy())
    np.testing.assert_allclose(logits, pgd.array("logits"), rtol=1e-4, atol=1e-4)
    assert (logits.argmax(1).numpy() == table["predicted"]).all()
    np.testing.assert_allclose(true_probability(logits, label), table["p_true"], atol=1e-5)
    assert pgd.summary["failure_rate"] == pytest.approx(float((logits.argmax(1) != label).double().mean()))
    assert pgd.summary["failure_rate"] == table["failed"].mean()


def test_images_are_what_the_generator_makes_of_the_latents(pgd, trained):
    generator = generators.pretrained(trained / "cvae/best.ckpt")
    label = torch.tensor(pgd.table["label"].to_numpy())
    with torch.no_grad():
        images = generator.decode(torch.from_numpy(pgd.latents), label)
    assert np.abs(images.numpy() * 255 - pgd.images).max() <= 0.51


def test_pgd_stays_in_its_ball_and_its_cost_is_counted(pgd):
    table = pgd.table
    moved = np.abs(pgd.latents - pgd.array("seed_latent")).max(1)
    assert moved.max() <= 0.5 + 1e-6
    assert moved.max() > 0.49
    np.testing.assert_allclose(table["latent_linf"], moved, rtol=1e-6)
    assert (table["queries"] == 22).all()  # the seed, 20 steps, the result
    assert (table["backward_queries"] == 20).all()
    assert pgd.summary["queries"] == 2200
    assert table["iterations"].between(0, 20).all()
    assert table["label"].value_counts().tolist() == [10] * 10
    assert pgd.summary["mean_p_true"] < table["seed_p_true"].mean()  # it does make the SUT less sure


def test_random_sampling_starts_where_pgd_starts_and_moves_nothing(pgd, search_args, tmp_path):
    assert main(search_args(f"--out={tmp_path}/r", method="random")) == 0
    random = load_suite(tmp_path / "r")
    assert np.array_equal(random.latents, pgd.array("seed_latent"))
    assert np.array_equal(random.images, pgd.array("seed_image"))
    assert random.summary["mse"] is None
    assert (random.table["queries"] == 1).all()
    assert main(search_args(f"--out={tmp_path}/e", "--model.searcher.radius=0")) == 0
    still = load_suite(tmp_path / "e")
    assert np.array_equal(still.images, random.images)
    assert still.summary["failure_rate"] == random.summary["failure_rate"]
    assert still.summary["mse"] == 0


def test_early_stop_spends_less_and_fails_at_least_as_often(pgd, search_args, tmp_path):
    assert main(search_args(f"--out={tmp_path}/s", "--model.searcher.early_stop=true")) == 0
    early = load_suite(tmp_path / "s")
    assert early.summary["queries"] < pgd.summary["queries"]
    assert early.summary["failed"] >= pgd.summary["failed"]
    assert (early.table["iterations"] == pgd.table["iterations"]).all()
    assert early.table.loc[early.table["iterations"] < 20, "failed"].all()


def test_running_again_has_nothing_to_do_and_a_retrained_model_is_another_suite(pgd, search_args, capsys):
    before = (pgd.path / "cases.parquet").stat().st_mtime_ns
    assert main(search_args(f"--out={pgd.path}")) == 0
    said = capsys.readouterr().out
    assert "already finished" in said
    assert f"to see its failures: lsgen report {pgd.path} --out {pgd.path}.html\n" in said
    assert (pgd.path / "cases.parquet").stat().st_mtime_ns == before
    assert main(search_args(f"--out={pgd.path}", "--seed_everything=1")) == 2
    assert "another configuration" in capsys.readouterr().err


def test_the_default_folder_is_named_after_config_and_identity(pgd, search_args, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(search_args()) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == f"pgd-{pgd.manifest['identity'][:8]}"


def test_the_search_says_what_to_expect(search_args, tmp_path, capsys):
    assert main(search_args(f"--out={tmp_path}/s", method="random")) == 0
    said = capsys.readouterr().out
    for words in ("SUT accuracy on 1,000 test images", "failure rate of the seeds", "SUT queries", "reads as intended"):
        assert words in said
    look = load_suite(tmp_path / "s").manifest["preflight"]  # what was said of SUT and generator, the suite remembers
    assert look["test_images"] == 1000
    assert look["readable_of"] == "plain samples"
    assert f"1,000 test images: {look['accuracy']:.2%}\n" in said
    assert f"reads as intended: {look['readable']:.1%}\n" in said


def test_the_estimate_keeps_to_the_queries_of_a_seed(search_args, tmp_path, capsys):
    assert main(search_args(f"--out={tmp_path}/s", "--model.max_queries=7")) == 0
    assert "at most 700 SUT queries" in capsys.readouterr().out  # 100 seeds, two looks and 5 of the 20 steps


class Counting(SearchCallback):
    """Notes which hooks were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_search_start(self, trainer, task):
        self.calls.append("start")

    def on_search_step_end(self, trainer, task, info):
        self.calls.append("step")

    def on_search_batch_end(self, trainer, task, cases):
        self.calls.append("batch")

    def on_search_end(self, trainer, task):
        self.calls.append("end")


def toy_search(tmp_path, searcher, seeds, **task):
    data = ImageData(name="npz", path=str(write_npz(tmp_path / "data")))
    task = SearchTask(generator=Pixels(), sut=Linear(), searcher=searcher, seeds=seeds, eval_batch_size=32, **task)
    counting = Counting()
    trainer = Trainer(
        default_root_dir=tmp_path, callbacks=[counting], enable_progress_bar=False, enable_checkpointing=False
    )
    with pytest.warns(UserWarning, match="52.5% of 40 real test images"):  # labels of noise are as good as drawn by lot
        suite = trainer.search(task, datamodule=data, out=str(tmp_path / "suite"))
    return suite, counting, data


def test_from_python_with_seeds_from_the_test_split(tmp_path):
    suite, counting, data = toy_search(tmp_path, LatentPGD(steps=3, radius=0.1), DataSeeds(per_class=5), block_size=4)
    assert counting.calls == ["start", *(["step"] * 3 + ["batch"]) * 3, "end"]
    table = suite.table
    assert table["label"].tolist() == [0, 1] * 5
    source = data["test"].images[table["source_index"].to_numpy("int64")].numpy()
    assert np.array_equal(suite.array("seed_image"), source)  # the identity generator reconstructs exactly
    assert yaml.safe_load((suite.path / "config.yaml").read_text())["model"]["searcher"]["class"] == "LatentPGD"


def test_pgd_in_pixel_space_and_a_generator_that_takes_no_label(trained, tmp_path):
    sut, data = suts.pretrained(trained / "sut/best.ckpt"), ImageData(name="mnist5k")
    pixels = PixelSpace()
    task = SearchTask(
        generator=pixels, sut=sut, searcher=LatentPGD(steps=3), seeds=DataSeeds(per_class=2), eval_batch_size=32
    )
    suite = Trainer(default_root_dir=tmp_path, enable_progress_bar=False).search(
        task, datamodule=data, out=str(tmp_path / "suite")
    )
    assert np.array_equal(suite.array("seed_image"), data["test"].images[suite.table["source_index"].tolist()].numpy())
    assert suite.summary["mean_p_true"] < suite.table["seed_p_true"].mean()
    with pytest.raises(InputError, match="takes no label"):
        SearchTask(generator=pixels, sut=sut, searcher=LatentPGD(), seeds=PriorSeeds())


def test_one_trainer_can_search_again_and_other_settings_of_the_sut_are_another_suite(trained, tmp_path):
    data, trainer = ImageData(name="mnist5k"), Trainer(default_root_dir=tmp_path, enable_progress_bar=False)
    before = list(trainer.callbacks)
    identities = []
    for number in range(3):
        sut = suts.pretrained(trained / "sut/best.ckpt")
        if number == 2:
            sut.mean = [0.5]  # the weights are the same, the answers are not
        task = SearchTask(
            generator=PixelSpace(),
            sut=sut,
            searcher=LatentPGD(steps=1),
            seeds=DataSeeds(per_class=1),
            eval_batch_size=32,
        )
        suite = trainer.search(task, datamodule=data, out=str(tmp_path / f"suite{number}"))
        assert suite.finished
        identities.append(suite.manifest["identity"])
    assert identities[0] == identities[1] != identities[2]
    assert trainer.callbacks == before


def test_a_batch_size_that_was_settled_on_is_kept_when_a_search_goes_on(search_args, tmp_path):
    args = search_args(f"--out={tmp_path}/s", "--model.eval_batch_size=auto", method="random")
    assert main(args) == 0
    suite = load_suite(tmp_path / "s")
    settled = suite.manifest["eval_batch_size"]
    other = 96 if settled != 96 else 160
    suite.update_manifest(eval_batch_size=other)
    (suite.path / "parts/block-00001.parquet").unlink()
    assert main(args) == 0
    assert load_suite(suite.path).finished
    assert load_suite(suite.path).manifest["eval_batch_size"] == other


class Broken(Linear):
    """Knows nothing."""

    def logits(self, x):
        return super().logits(x) * float("nan")


def test_a_sut_that_answers_nan_is_refused(tmp_path):
    data = ImageData(name="npz", path=str(write_npz(tmp_path / "data")))
    task = SearchTask(
        generator=Pixels(), sut=Broken(), searcher=RandomSampling(), seeds=PriorSeeds(), eval_batch_size=32
    )
    with pytest.raises(InputError, match="NaN"):
        Trainer(default_root_dir=tmp_path, enable_progress_bar=False).search(
            task, datamodule=data, out=str(tmp_path / "s")
        )


class OnlyViable(RandomSampling):
    """Random sampling that leaves out what fails anyway."""

    viable_seeds_only = True
    steps = 1


def test_seeds_that_fail_already_are_rows_but_no_cases(tmp_path):
    suite, _, _ = toy_search(tmp_path, OnlyViable(), PriorSeeds(per_class=20), block_size=40)
    table = suite.table
    assert (table["viable"] == (table["seed_predicted"] == table["label"])).all()
    assert 0 < table["viable"].sum() < 40
    assert suite.summary["n_cases"] == table["viable"].sum()
    assert suite.summary["seed_viability"] == table["viable"].mean()
    assert suite.summary["failure_rate"] == 0
