"""What callbacks hand to loggers, and that looking costs little."""

import math
import re
import subprocess
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import DummyLogger
from PIL import Image

from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.search import DataSeeds, LatentPGD, PriorSeeds, RandomSampling, SearchTask
from lsgen.search.callbacks import BLINK, SearchProgress, StepInfo
from lsgen.search.cases import Outcome
from lsgen.search.tracking import (
    SHOWN,
    SearchGallery,
    candidate_grid,
    case_table,
    diversity,
    git_commit,
    live_numbers,
    suite_artifact,
)
from lsgen.trainer import Trainer
from lsgen.types import Evaluation, Seeds
from tests.conftest import ROOT
from tests.toys import Linear, Pixels, write_npz

CLASSES, SIDE = 3, 12


class FakeWriter:
    """Notes what TensorBoard's writer is given; tensorboard itself is no dependency."""

    def __init__(self):
        self.taken: dict[str, list[str]] = {"image": [], "figure": [], "text": []}
        self.text = ""

    def add_image(self, name, image, step):
        assert image.ndim == 3
        self.taken["image"].append(name)

    def add_figure(self, name, figure, step, close):
        assert figure.axes
        self.taken["figure"].append(name)

    def add_text(self, name, text, step):
        self.taken["text"].append(name)
        self.text += text


class FakeTensorBoard(TensorBoardLogger):
    """Lightning's logger around the writer above."""

    def __init__(self):
        self.writer, self.numbers, self.settings = FakeWriter(), {}, {}

    experiment = property(lambda self: self.writer)
    name = version = save_dir = log_dir = property(lambda self: "")

    def log_metrics(self, metrics, step=None):
        self.numbers |= metrics

    def log_hyperparams(self, params, *args, **kwargs):
        self.settings |= params

    def log_graph(self, model, input_array=None):
        pass

    def save(self):
        pass

    def finalize(self, status):
        pass


def toy_task(**more):
    parts = {"searcher": LatentPGD(steps=12, radius=0.3), "seeds": DataSeeds(per_class=6), "block_size": 6, **more}
    return SearchTask(
        generator=Pixels(side=SIDE, num_classes=CLASSES),
        sut=Linear(side=SIDE, num_classes=CLASSES),
        eval_batch_size=32,
        **parts,
    )


def run(folder, data, task, **trainer):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the SUT reads only")
        made = Trainer(default_root_dir=folder, **{"enable_progress_bar": False, **trainer})
        return made.search(task, datamodule=data, out=str(folder / "suite"))


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """One search with two loggers, and its data."""
    folder = tmp_path_factory.mktemp("searched")
    data = ImageData(name="npz", path=str(write_npz(folder / "data", n=60, side=SIDE, classes=CLASSES)))
    board, csv = FakeTensorBoard(), CSVLogger(folder, name="logs")
    suite = run(folder, data, toy_task(), logger=[csv, board])
    return suite, data, folder / "logs/version_0", board


# --- the same for every logger ----------------------------------------------------------------------------------------


def test_live_reports_have_the_five_numbers_and_the_end_has_the_whole_summary(searched):
    suite, _, logs, board = searched
    rows = pd.read_csv(logs / "metrics.csv")
    live = rows.dropna(subset=["active_seeds"])
    assert live["step"].tolist() == [1, 11, 14, 24, 27, 37]  # rounds 1 and 11 of three blocks, each one step more
    later = live[live["step"] > 13]  # once a block is done
    names = [
        "failure_rate",
        "mean_p_true",
        "best_fitness",
        "active_seeds",
        "queries_per_second",
        "hits",
        "succeeded",
        "misread",
    ]
    assert later[names].notna().all().all()
    scalars = {k: v for k, v in suite.summary.items() if isinstance(v, (int, float))}
    last = rows.iloc[-1]
    assert {k: last[k] for k in scalars} == pytest.approx(scalars)
    assert {"feature_distance", "feature_coverage"} <= set(rows.columns)
    assert rows["eval_batch_size"].dropna().tolist() == [32]
    said = last.fillna(live.iloc[-1]).fillna(rows.iloc[0])
    assert board.numbers == pytest.approx(said[list(board.numbers)].to_dict())


def test_every_logger_gets_the_same_figures_and_tables(searched):
    suite, _, logs, board = searched
    pictures = {file.name.rsplit("_", 1)[0] for file in (logs / "images").iterdir()}
    tables = {file.stem for file in (logs / "tables").iterdir()}
    assert pictures == {"per_class", "escape_rate", "gallery"} == {*board.writer.taken["figure"], "gallery"}
    assert tables == {"per_class_table", "escape_rate_table", "cases"} == set(board.writer.taken["text"])
    matrix = pd.read_csv(logs / "tables/escape_rate_table.csv").set_index("class")
    np.testing.assert_allclose(matrix, np.array(suite.summary["escape_rate"], dtype=float))
    classes = pd.read_csv(logs / "tables/per_class_table.csv")
    assert classes["failure_rate"].tolist() == [v["failure_rate"] for v in suite.summary["per_class"].values()]
    for file in (logs / "images").iterdir():
        assert min(Image.open(file).size) > SIDE


def test_every_logger_learns_configuration_code_data_and_hardware(searched):
    suite, data, logs, board = searched
    import yaml

    settings = yaml.safe_load((logs / "hparams.yaml").read_text())
    assert settings == board.settings
    assert settings["model"]["searcher"] == {"class": "LatentPGD", "args": settings["model"]["searcher"]["args"]}
    run_ = settings["run"]
    assert run_["data_fingerprint"] == data.fingerprint == suite.manifest["data"]["fingerprint"]
    assert (run_["command"], run_["data"], run_["model"], run_["method"]) == ("search", "npz", "Pixels", "LatentPGD")
    assert run_["git_commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", run_["git_commit"])
    assert run_["hardware"]["cores"] >= 1
    assert run_["hardware"]["precision"] == "32-true"


def test_the_commit_is_that_of_the_work_tree_and_a_folder_outside_has_none(tmp_path):
    if (ROOT / ".git").exists():
        head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        assert git_commit(ROOT).removesuffix("-dirty") == head
    assert git_commit(tmp_path) is None
    assert git_commit(tmp_path / "missing") is None


def test_a_logger_that_takes_numbers_only_is_given_numbers_only(searched, tmp_path):
    _, data, *_ = searched
    suite = run(tmp_path, data, toy_task(searcher=RandomSampling()), logger=DummyLogger())
    assert suite.finished


def test_a_search_that_stopped_early_reports_what_there_is(searched, tmp_path):
    _, data, *_ = searched
    suite = run(tmp_path, data, toy_task(max_failures=1), logger=CSVLogger(tmp_path, name="logs"))
    assert not suite.finished
    last = pd.read_csv(tmp_path / "logs/version_0/metrics.csv").iloc[-1]
    assert last["n_cases"] == 6
    assert (tmp_path / "logs/version_0/tables/cases.csv").is_file()


def test_live_numbers_leave_out_what_is_not_finite():
    fitness = torch.tensor([[torch.inf], [torch.nan], [4.0]])
    success = torch.tensor([[True], [False], [False]])
    evaluation = Evaluation(torch.zeros(3, 1, 1), torch.zeros(3, 1, 2), fitness, success, None)
    assert live_numbers(evaluation) == {"active_seeds": 3, "hits": 1, "best_fitness": 4.0}
    none = Evaluation(torch.zeros(1, 1, 1), torch.zeros(1, 1, 2), torch.tensor([[torch.inf]]), success[:1], None)
    assert live_numbers(none) == {"active_seeds": 1, "hits": 1}


# --- what was found ---------------------------------------------------------------------------------------------------


def test_the_table_of_cases_takes_classes_in_turn_and_is_limited(searched):
    suite, *_ = searched
    table = case_table(suite, limit=7)
    assert len(table.frame) == 7 < SHOWN
    assert table.frame["label"].tolist()[:3] != [table.frame["label"][0]] * 3
    rows = table.frame["id"].to_numpy()
    assert np.array_equal(table.images["found"], suite.images[rows])
    assert np.array_equal(table.images["seed"], suite.array("seed_image")[rows])
    change = suite.images[rows].astype(int) - suite.array("seed_image")[rows]
    assert np.abs((table.images["difference"].astype(int) - 128) * 2 - change).max() <= 1


def test_diversity_of_failures_is_that_of_their_features(searched, monkeypatch):
    suite, data, *_ = searched
    task = toy_task()
    monkeypatch.setattr(SearchTask, "data", data)
    failed = suite.images[suite.table["failed"].to_numpy()].reshape(-1, SIDE * SIDE) / 255.0
    apart = [np.linalg.norm(a - b) for i, a in enumerate(failed) for b in failed[:i]]
    numbers = diversity(task, suite)
    assert numbers["feature_distance"] == pytest.approx(np.mean(apart), rel=1e-5)
    assert 0 <= numbers["feature_coverage"] <= 1


def test_a_suite_with_many_images_goes_without_them(searched, monkeypatch):
    suite, *_ = searched
    assert any(name.startswith("arrays/") for name in suite_artifact(suite).files)
    monkeypatch.setattr("lsgen.search.tracking.MOST_BYTES", 1)
    artifact = suite_artifact(suite)
    assert set(artifact.files) == {"manifest.json", "config.yaml", "summary.json", "cases.parquet"}
    assert artifact.about["arrays"] is False
    assert artifact.name == "npz-Pixels-LatentPGD"


# --- while it runs ----------------------------------------------------------------------------------------------------


def evaluation_of(seeds: Seeds) -> Evaluation:
    """Two candidates a seed; the second, all white, is the better one."""
    latent = torch.stack([seeds.latent, torch.ones_like(seeds.latent)], dim=1)
    fitness = torch.tensor([1.0, 0.0]).expand(len(latent), 2)
    return Evaluation(latent, torch.zeros(len(latent), 2, CLASSES), fitness, fitness > 9, None)


def test_the_gallery_keeps_to_the_batch_size(monkeypatch):
    task, sizes = toy_task(), []
    task.evaluator.chunk = 4
    decode = task.evaluator.decode
    monkeypatch.setattr(task.evaluator, "decode", lambda z, y: sizes.append(len(z)) or decode(z, y))
    seeds = Seeds(torch.zeros(7, SIDE * SIDE), torch.zeros(7).long())
    candidate_grid(task, evaluation_of(seeds), seeds, 7)
    assert sizes == [4] * 4


def test_the_gallery_shows_seeds_above_their_best_candidates():
    seeds = Seeds(torch.full((5, SIDE * SIDE), 0.25), torch.arange(5) % CLASSES)
    grid = candidate_grid(toy_task(), evaluation_of(seeds), seeds, 4)
    assert grid.shape == (3, 2 * (SIDE + 1) + 1, 4 * (SIDE + 1) + 1)
    assert grid[0, 1 : SIDE + 1, 1 : SIDE + 1].unique().tolist() == [0.25]
    assert grid[0, SIDE + 2 : 2 * SIDE + 2, 1 : SIDE + 1].unique().tolist() == [1.0]


def outcome_of(seeds, succeeded, steps):
    """Where a search of so many steps stands, of which these seeds have had a success and a wrong answer."""
    everyone = torch.ones_like(succeeded)
    outcome = Outcome.at(seeds, succeeded, everyone, steps)
    outcome.misread[:] = torch.tensor([True, False, True, True, False])
    return outcome


def test_a_gallery_is_drawn_every_k_rounds(tmp_path):
    logger = CSVLogger(tmp_path, name="logs")
    trainer = Trainer(default_root_dir=tmp_path, logger=logger, enable_progress_bar=False)
    seeds = Seeds(torch.zeros(5, SIDE * SIDE), torch.arange(5) % CLASSES)
    gallery, task = SearchGallery(every=4, seeds=2), toy_task()
    for _ in range(2):
        for step in range(1, 11):
            outcome = outcome_of(seeds, torch.zeros(5, dtype=torch.bool), 10)
            gallery.on_search_step_end(trainer, task, StepInfo(step, outcome, evaluation_of(seeds), seeds))
        gallery.on_search_batch_end(trainer, task, None)
    drawn = sorted(file.name for file in (tmp_path / "logs/version_0/images").iterdir())
    # of two blocks, each of which counts one more, as for numbers
    assert drawn == [f"candidates_{step:06d}.png" for step in (1, 5, 9, 12, 16, 20)]


@pytest.mark.parametrize("wrong", [{"every": 0}, {"seeds": 0}])
def test_a_gallery_of_nothing_is_refused(wrong):
    with pytest.raises(InputError, match="SearchGallery needs"):
        SearchGallery(**wrong)


class Bar:
    """Notes what the bar shows, and how full it is."""

    def __init__(self):
        self.n, self.shown = 0, []

    def set_postfix(self, values):
        self.shown.append((self.n, dict(values)))


def test_the_bar_shows_blocks_rate_active_hits_and_best_and_does_not_look_at_every_round(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("lsgen.search.callbacks.time.monotonic", lambda: now[0])
    bar, task = SearchProgress(), toy_task(seeds=PriorSeeds(per_class=1))
    bar._predict_progress_bar, bar._blocks = Bar(), 3
    seeds = Seeds(torch.zeros(5, SIDE * SIDE), torch.arange(5) % CLASSES)
    task.live["failure_rate"].update(torch.eye(CLASSES), torch.zeros(CLASSES, dtype=torch.long))
    bar.on_search_batch_end(None, task, None)
    bar._block = 1
    for step in range(1, 41):
        now[0] += 0.3 * BLINK
        succeeded = torch.arange(5) < step // 4  # also those that are done and no longer evaluated
        going = seeds.take((~succeeded).nonzero().squeeze(1)) if step < 20 else seeds
        info = StepInfo(step, outcome_of(seeds, succeeded, 40), evaluation_of(seeds), going)
        bar.on_search_step_end(None, task, info)
    shown = bar._predict_progress_bar.shown
    assert shown[0] == (1, {"block": "1/3", "FR": "66.7%"})
    step = {"active": "4", "hits": "1/5", "misread": "3/5", "best": "0", "step": "4/40"}
    assert shown[1] == (1 + 4 / 40, {"block": "2/3", "FR": "66.7%", **step})  # so that the time left is known
    assert len(shown) == 1 + 40 // 4
    now[0] += BLINK + 1
    some = replace(evaluation_of(seeds), fitness=torch.tensor([[2.0], [math.nan], [1.5], [3.0], [math.inf]]))
    bar.on_search_step_end(None, task, StepInfo(40, outcome_of(seeds, succeeded, 40), some, seeds))
    assert bar._predict_progress_bar.shown[-1][1]["best"] == "1.5"  # a seed without an answer hides no other's
    now[0] += BLINK + 1
    nobody = replace(some, fitness=torch.tensor([[math.inf], [math.nan]]))
    bar.on_search_step_end(None, task, StepInfo(40, outcome_of(seeds, succeeded, 40), nobody, seeds))
    assert bar._predict_progress_bar.shown[-1][1]["best"] == "none"  # as in first rounds of a boundary search
