"""Searches of every kind through the task, on networks whose answers can be worked out by hand."""

import math
import re
import warnings
from functools import partial
from inspect import isfunction
from shutil import which
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torchmetrics.functional.image import structural_similarity_index_measure

from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.generators import Diffusion, PixelSpace
from lsgen.objectives import (
    Confident,
    ConfidentTarget,
    Criterion,
    CrossEntropy,
    DifferentialDistance,
    Disagree,
    IsTarget,
    LatentDistance,
    LogitMargin,
    Misclassified,
    Objective,
    TopConfidence,
    Within,
)
from lsgen.search import (
    ActivationPerturbation,
    BoundaryGA,
    DataSeeds,
    Differential,
    HillClimb,
    Interpolation,
    LatentPGD,
    MarginGA,
    PairSeeds,
    PriorSeeds,
    RandomSampling,
    SearchTask,
    preflight,
)
from lsgen.search.art import ArtAttack
from lsgen.search.base import Searcher, SeedRandom
from lsgen.search.seeds import first_of_each
from lsgen.surprise import DSA, LSA, Surprised, SurpriseDistance
from lsgen.trainer import Trainer
from lsgen.types import Candidates
from tests.toys import Asked, Linear, Pixels, write_npz
from tests.unit.test_searchers import SEARCHERS

CLASSES = 3


@pytest.fixture
def data(tmp_path) -> ImageData:
    return ImageData(name="npz", path=str(write_npz(tmp_path / "data", n=60, classes=CLASSES)))


def search(data, searcher, seeds, folder, *, sut=None, **more):
    sut = sut or Linear(num_classes=CLASSES)
    task = SearchTask(
        generator=Pixels(num_classes=CLASSES),
        sut=sut,
        searcher=searcher,
        seeds=seeds,
        **{"eval_batch_size": 32, **more},
    )
    trainer = Trainer(default_root_dir=folder, enable_progress_bar=False, logger=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the SUT reads only")
        return trainer.search(task, datamodule=data, out=str(folder / "suite")), task


@pytest.mark.parametrize("name", SEARCHERS)
def test_every_searcher_makes_a_suite_and_counts_its_queries(name, data, tmp_path):
    searcher = SEARCHERS[name]()
    if isinstance(searcher, Differential):
        searcher = Differential(other=Asked(num_classes=CLASSES, seed=1), population=8, elites=3, generations=6)
    seeds = PairSeeds(others_per_class=2) if searcher.needs_other else DataSeeds(per_class=5)
    sut = Asked(num_classes=CLASSES)
    suite, task = search(data, searcher, seeds, tmp_path, sut=sut, block_size=7)
    table = suite.table
    assert suite.finished
    assert len(table) == (12 if searcher.needs_other else 15)
    assert table["id"].tolist() == list(range(len(table)))
    assert not table["retired"].any()
    assert table["queries"].max() <= task.most_queries
    if not searcher.stops_at_success and type(searcher).bar is Searcher.bar:  # nothing ends early, all are looked at
        assert table["queries"].max() == task.most_queries
    suts = [sut, *{id(other): other for part in (task.objective, task.criterion) for other in part.others}.values()]
    assert task.suts == suts
    for asked in suts:
        asked.count = 0
    total = 0
    for number in range(task.num_blocks):
        cases = task.search_block(number)
        total += int(cases.columns["queries"].sum())
    assert total == sum(asked.count for asked in suts)
    assert len(suts) == (2 if isinstance(searcher, Differential) else 1)
    assert suite.summary["queries"] == total


def test_every_case_that_asks_a_second_sut_about_its_seed_pays_for_it(data, tmp_path):
    """Cases of one seed share the SUT's look at it; the criterion is put to each of them."""
    sut, other = Asked(num_classes=CLASSES), Asked(num_classes=CLASSES, seed=1)
    goal = IsTarget() & Disagree(other=other)
    seeds = DataSeeds(per_class=4, target="each")
    _, task = search(data, LatentPGD(steps=3, early_stop=True), seeds, tmp_path, sut=sut, criterion=goal)
    sut.count = other.count = 0
    queries = task.search_block(0).columns["queries"]
    assert other.count > sut.count
    assert int(queries.sum()) == sut.count + other.count


@pytest.mark.parametrize("criterion", ["its own", "another surprise", "a failure"])
def test_searches_for_a_surprise_pay_for_activations_once(criterion, data, tmp_path):
    goal = SurpriseDistance(surprise=DSA(), target=1.0, tolerance=0.1)
    other = Surprised(distance=SurpriseDistance(surprise=LSA(min_std=0.01), target=9.0))
    chosen = {"its own": None, "another surprise": goal.criterion() & other, "a failure": Misclassified()}[criterion]
    sut, seeds = Asked(num_classes=CLASSES), DataSeeds(per_class=4)
    searcher = HillClimb(passes=1)
    suite, task = search(data, searcher, seeds, tmp_path, sut=sut, objective=goal, criterion=chosen, block_size=7)
    sut.count = 0
    assert sum(int(task.search_block(n).columns["queries"].sum()) for n in range(task.num_blocks)) == sut.count
    assert set(suite.table["queries"]) <= {task.most_queries, task.most_queries - 1, task.most_queries - 2}
    if criterion == "its own":
        features = Linear(num_classes=CLASSES).features(torch.from_numpy(suite.images).float() / 255)
        reached = goal.surprise(features, torch.from_numpy(suite.array("logits")).argmax(1)).sub(1.0).abs() <= 0.1
        assert suite.table["success"].tolist() == reached.tolist()
        assert reached.sum() > 0


def test_a_search_that_goes_on_in_the_same_process_is_the_same_search(data, tmp_path):
    goal = SurpriseDistance(surprise=DSA(), target=1.0)
    parts = {"generator": Pixels(num_classes=CLASSES), "sut": Linear(num_classes=CLASSES), "seeds": DataSeeds()}
    task = SearchTask(
        **parts, searcher=HillClimb(passes=0), objective=goal, block_size=70, eval_batch_size=32, max_failures=1
    )
    task.seeds.per_class = 20
    for _ in range(2):  # what the first has fitted is no setting of the second
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the SUT reads only")
            trainer = Trainer(default_root_dir=tmp_path, enable_progress_bar=False, logger=False)
            trainer.search(task, datamodule=data, out=str(tmp_path / "s"))


def test_suites_of_an_earlier_order_of_pairs_are_other_suites(data, tmp_path, monkeypatch):
    seeds = PairSeeds(others_per_class=2)
    suite, _ = search(data, Interpolation(), seeds, tmp_path)
    monkeypatch.setattr(PairSeeds, "revision", 0)
    with pytest.raises(InputError, match="another"):
        search(data, Interpolation(), seeds, tmp_path)
    assert suite.finished


@pytest.mark.parametrize(
    "searcher", [LatentPGD(steps=2, restarts=3), MarginGA(generations=3), BoundaryGA(generations=3)]
)
def test_every_pass_of_a_search_has_one_shape(searcher, data, tmp_path, monkeypatch):
    _, task = search(data, searcher, DataSeeds(per_class=1), tmp_path, eval_batch_size="auto")
    shown = []
    for owner, name in ((task.generator, "encode"), (task.evaluator, "decode"), (task.evaluator, "logits")):
        own = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, own=own: (shown.append(len(args[0])), own(*args))[1])
    task.search_block(0)
    assert len(shown) > 6
    assert set(shown) == {task.evaluator.chunk}
    assert task.evaluator.chunk % 32 == 0


@pytest.mark.parametrize(
    ("searcher", "per_class", "size", "hint"),
    [
        (LatentPGD(steps=2), 1, "auto", "a step has 3 candidates, the rest of each batch is padding: .* 4$"),
        (LatentPGD(steps=2, restarts=2), 2, "auto", "a step has 12 candidates, .* --model.eval_batch_size 16$"),
        (LatentPGD(steps=2), 6, "auto", None),  # no smaller size holds 18
        (LatentPGD(steps=2), 1, 32, None),
        (LatentPGD(steps=2), 1, 4, None),
        (RandomSampling(), 1, "auto", None),
    ],
)
def test_few_seeds_are_told_of_a_batch_with_less_padding(searcher, per_class, size, hint, data, tmp_path, capsys):
    search(data, searcher, DataSeeds(per_class=per_class), tmp_path, eval_batch_size=size)
    said = capsys.readouterr().out
    assert re.search(hint, said, re.MULTILINE) if hint else "padding" not in said


class Largest(Linear):
    """Knows the largest batch that it was shown."""

    batch = 0

    def logits(self, x):
        self.batch = max(self.batch, len(x))
        return super().logits(x)


@pytest.mark.parametrize("size", [4, 32, 64])
def test_no_batch_is_larger_than_it_may_be(size, tmp_path):
    data = ImageData(name="npz", path=str(write_npz(tmp_path / "data", n=600, classes=CLASSES)))
    sut = Largest(num_classes=CLASSES)
    search(data, LatentPGD(steps=2), DataSeeds(per_class=60), tmp_path, sut=sut, eval_batch_size=size)
    assert sut.batch == size


def test_of_a_slow_generator_fewer_seeds_are_looked_at_first(data, tmp_path, monkeypatch, capsys):
    search(data, RandomSampling(), PriorSeeds(per_class=50), tmp_path / "a")
    assert "of the first 150" in capsys.readouterr().out
    monkeypatch.setattr(preflight, "seconds_per_image", lambda *_args, **_more: 0.2)
    search(data, RandomSampling(), PriorSeeds(per_class=50), tmp_path / "b")
    assert "of the first 50" in capsys.readouterr().out
    monkeypatch.setattr(preflight, "seconds_per_image", lambda *_args, **_more: 3.0)
    search(data, RandomSampling(), PriorSeeds(per_class=50), tmp_path / "c")
    said = capsys.readouterr().out
    assert "a first look at 32 images of the generator and at 32 seeds takes 3 min" in said
    assert "of the first 32" in said


def test_padding_counts_in_what_a_search_is_said_to_take(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(preflight, "seconds_per_image", lambda *_args, **_more: 0.5)
    search(data, LatentPGD(steps=2), DataSeeds(per_class=1), tmp_path)
    assert "at most 12 SUT queries, 64 s" in capsys.readouterr().out  # of 3 seeds; 2 looks and 2 steps of 32 images


def test_a_suite_that_takes_room_says_so(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(preflight, "LARGE", 100)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.warns(UserWarning, match=r"the suite may take 0.0 GB, and the disk of .* has 0.0 left"):
        search(data, RandomSampling(), PriorSeeds(per_class=1), tmp_path)
    assert "GB on disk" in capsys.readouterr().out


def test_a_block_that_no_machine_can_hold_is_refused_before_it_begins(data, tmp_path, monkeypatch):
    monkeypatch.setattr("lsgen.search.check.total_memory", lambda: 100_000)  # a seed takes 9,600
    with pytest.raises(InputError, match=r"keeps 50 candidates of 16 numbers each .* set block_size to at most 5$"):
        search(data, BoundaryGA(generations=2), DataSeeds(per_class=4), tmp_path)
    with pytest.raises(InputError, match="even one seed needs fewer candidates"):
        search(data, BoundaryGA(generations=2, population=500), DataSeeds(per_class=1), tmp_path)
    assert search(data, BoundaryGA(generations=2), DataSeeds(per_class=4), tmp_path, block_size=5)[0].finished


def test_noise_that_is_no_diffusion_models_own_is_warned_of():
    generator = Diffusion(image_shape=(1, 4, 4), num_classes=2, channels=[8], blocks=1, patch=1)
    for seeds in (PriorSeeds(), PriorSeeds(distribution="prior", scale=0.5)):
        with pytest.warns(UserWarning, match="set distribution to prior and scale to 1"):
            seeds.check(generator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PriorSeeds(distribution="prior").check(generator)
        PriorSeeds().check(Pixels())


class Solid(Linear):
    """Has a buffer of five dimensions beside a convolution."""

    def __init__(self, *, num_classes: int) -> None:
        super().__init__(num_classes=num_classes)
        self.conv = torch.nn.Conv2d(1, 1, 3)
        self.register_buffer("solid", torch.zeros(1, 1, 1, 1, 1))


def test_a_sut_that_cannot_be_laid_out_by_channels_is_left_as_it_is(data, tmp_path):
    suite, _ = search(data, LatentPGD(steps=2), DataSeeds(per_class=2), tmp_path, sut=Solid(num_classes=CLASSES))
    assert suite.finished


def test_targets_each_other_class_once_and_the_escape_matrix(data, tmp_path):
    suite, _ = search(data, LatentPGD(steps=40, radius=1.0), DataSeeds(per_class=4, target="each"), tmp_path)
    table = suite.table
    assert len(table) == 4 * CLASSES * (CLASSES - 1)
    assert (table["label"] != table["target"]).all()
    pairs = table.groupby(["label", "target"]).size()
    assert set(pairs) == {4}
    assert len(pairs) == CLASSES * (CLASSES - 1)
    assert table["seed_id"].nunique() == 12
    reached = (table["predicted"] == table["target"]).groupby([table["label"], table["target"]]).mean()
    matrix = suite.summary["escape_rate"]
    assert all(matrix[k][k] is None for k in range(CLASSES))
    assert all(matrix[a][b] == pytest.approx(share) for (a, b), share in reached.items())
    assert (table["success"] == (table["predicted"] == table["target"])).all()
    assert table["success"].mean() > 0.8


def test_one_target_for_all_must_not_be_the_label_of_any(data, tmp_path):
    suite, _ = search(data, LatentPGD(steps=2), PriorSeeds(per_class=2, classes=[0, 1], target=2), tmp_path)
    assert suite.table["target"].tolist() == [2] * 4
    for wrong, says in ((0, "target 0 is the label"), (7, "no class 7")):
        with pytest.raises(InputError, match=says):
            search(data, LatentPGD(), PriorSeeds(per_class=2, classes=[0, 1], target=wrong), tmp_path / "x")


def test_pairs_are_every_original_with_others_of_every_other_class(data, tmp_path):
    seeds = PairSeeds(per_class=2, others_per_class=3)
    suite, _ = search(data, Interpolation(share=0.4), seeds, tmp_path, block_size=10)
    table = suite.table
    assert len(table) == 2 * CLASSES * 3 * (CLASSES - 1)
    assert (table["label"] != table["other_label"]).all()
    assert set(table.groupby(["seed_id", "other_label"]).size()) == {3}
    own = data["test"].images[table["source_index"].to_numpy("int64")].float().flatten(1) / 255
    other = data["train"].images[table["other_index"].to_numpy("int64")].float().flatten(1) / 255
    assert (data["train"].labels[table["other_index"].to_numpy("int64")].numpy() == table["other_label"]).all()
    np.testing.assert_allclose(suite.latents, 0.6 * own + 0.4 * other, atol=1e-6)
    # an original is judged once in each block that holds some of its cases, a mixture always
    blocks = table.assign(block=table["id"] // 10).groupby(["block", "seed_id"]).ngroups
    assert suite.summary["queries"] == len(table) + blocks
    assert suite.summary["label_diversity"] is None or suite.summary["label_diversity"] <= CLASSES - 1


class Told(Pixels):
    """Its latents depend on the label that it is told."""

    def encode(self, x, y):
        return x.flatten(1) + 10.0 * y[:, None]


def test_each_image_of_a_pair_is_encoded_with_its_own_label(data):
    parts = {"searcher": Interpolation(), "seeds": PairSeeds(per_class=2, others_per_class=1)}
    task = SearchTask(generator=Told(num_classes=CLASSES), sut=Linear(num_classes=CLASSES), **parts)
    plan = task.seeds.plan(data)
    block = task.seeds.block(0, torch.arange(len(plan)), plan, data)
    seeds = task.start(block, SeedRandom(0, 0, len(plan)))
    assert torch.equal((seeds.latent / 10).floor()[:, 0].long(), plan.label)
    assert torch.equal((seeds.other / 10).floor()[:, 0].long(), plan.other_label)


@pytest.mark.parametrize("kind", [DataSeeds, partial(PairSeeds, others_per_class=2)])
def test_other_seeds_are_images_that_no_earlier_search_began_at(data, kind):
    first = kind(per_class=8, split="test")
    second = first.others(data)
    plans = [source.plan(data) for source in (first, second)]
    assert torch.equal(plans[0].label, plans[1].label)
    assert not set(plans[0].source_index.tolist()) & set(plans[1].source_index.tolist())
    assert (data["test"].labels[plans[1].source_index] == plans[1].label).all()
    assert first.skip == 0
    assert second.others(data) is None  # 20 images of a class are not 24
    with pytest.raises(InputError, match=r"per_class with skip is 24, but class 0 has only 20 images"):
        kind(per_class=8, split="test", skip=16).plan(data)
    with pytest.raises(InputError, match="skip not negative"):
        kind(skip=-1)


def test_random_seeds_are_others_by_another_number(data):
    seeds = PriorSeeds()
    assert seeds.others(data) is seeds


class NaNFor(Objective):
    """No number for seeds of one label once they have moved."""

    def __init__(self, *, label: int) -> None:
        self.label = label

    def __call__(self, candidates):
        moved = (candidates.latent != candidates.origin).flatten(1).any(1)
        value = CrossEntropy()(candidates)
        return value.where(~(moved & (candidates.label == self.label)), math.nan)


def test_a_fitness_that_is_no_number_retires_its_seed_only(data, tmp_path):
    searcher, seeds = LatentPGD(steps=5), DataSeeds(per_class=4)
    suite, _ = search(data, searcher, seeds, tmp_path / "a", objective=NaNFor(label=1))
    whole, _ = search(data, searcher, seeds, tmp_path / "b")
    broken = suite.table["label"] == 1
    assert (suite.table["retired"] == broken).all()
    assert suite.summary["retired"] == 4
    assert (suite.table["queries"] == [3 if b else 7 for b in broken]).all()
    assert np.array_equal(suite.array("latent")[broken], suite.array("seed_latent")[broken])
    assert np.array_equal(suite.array("latent")[~broken], whole.array("latent")[~broken])


def test_a_seed_that_is_done_costs_nothing_more(data, tmp_path):
    searcher = BoundaryGA(population=8, elites=3, generations=200, smallest=0.05)
    suite, _ = search(data, searcher, DataSeeds(per_class=4), tmp_path)
    assert (suite.table["queries"] < 2 + 8 + 199 * 5).all()
    early, _ = search(data, LatentPGD(steps=50, radius=1.0, early_stop=True), DataSeeds(per_class=4), tmp_path / "e")
    table = early.table
    hit = table["success"] & (table["iterations"] > 0)
    assert hit.any()
    assert (table["queries"][hit] == table["iterations"][hit] + 3).all()  # the seed, every look up to success, the end


class AsksForAll(BoundaryGA):
    """Shows every child to the SUT, whatever can come of it."""

    def bar(self, state):
        return None


class Far(Criterion):
    """Holds far from the seed, where the fitness of a boundary search is bad."""

    def __call__(self, candidates):
        return (candidates.latent - candidates.origin).abs().sum(dim=1) > 6


@pytest.mark.parametrize("criterion", [Misclassified(), Far()], ids=lambda c: type(c).__name__)
def test_children_that_cannot_live_are_not_asked_about_and_nothing_changes(data, tmp_path, criterion):
    settings = {"population": 8, "elites": 3, "generations": 40, "smallest": 0.0, "start": 0.2, "mutation": 1.0}
    seeds = DataSeeds(per_class=8)
    quick, _ = search(data, BoundaryGA(**settings), seeds, tmp_path / "a", criterion=criterion)
    slow, _ = search(data, AsksForAll(**settings), seeds, tmp_path / "b", criterion=criterion)
    viable = slow.table["viable"]
    assert (quick.table["queries"] < slow.table["queries"])[viable].mean() > 0.5
    assert slow.table["iterations"][viable].between(1, 39).any()  # some succeed, and not at once
    for name in ("latent", "image", "logits"):
        assert np.array_equal(quick.array(name), slow.array(name))
    others = quick.table.drop(columns="queries")
    assert others.equals(slow.table.drop(columns="queries"))


def test_a_seed_at_the_boundary_needs_one_step(tmp_path):
    sut = Linear()
    sut.layer.weight.data.copy_(torch.stack([torch.ones(16), -torch.ones(16)]))
    sut.layer.bias.data.copy_(torch.tensor([-8.0, 8.0]))
    folder = tmp_path / "data"
    folder.mkdir()
    images = np.full((8, 4, 4), 128, np.uint8)  # just on the bright side of the boundary at 127.5
    for part in ("train", "test"):
        np.savez(folder / f"{part}.npz", images=images, labels=np.array([0, 1] * 4))
    task = SearchTask(
        generator=Pixels(), sut=sut, searcher=LatentPGD(early_stop=True), eval_batch_size=32,
        seeds=DataSeeds(per_class=2, classes=[0]),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the SUT reads only")
        suite = Trainer(default_root_dir=tmp_path, enable_progress_bar=False, logger=False).search(
            task, datamodule=ImageData(name="npz", path=str(folder)), out=str(tmp_path / "s")
        )
    assert suite.table["iterations"].tolist() == [1, 1]
    assert suite.table["failed"].all()


def test_budgets_end_a_search_between_blocks_and_it_goes_on_later(data, tmp_path):
    args = {"block_size": 3, "searcher": LatentPGD(steps=30, radius=1.0), "seeds": DataSeeds(per_class=5)}
    suite, _ = search(data, folder=tmp_path, max_failures=4, **args)
    assert suite.manifest["stopped_by"] == "max_failures"
    assert not suite.manifest["finished"]
    assert 4 <= suite.count_failures() < 4 + 3
    more, _ = search(data, folder=tmp_path, max_failures=4, **args)
    assert len(more.table) == len(suite.table) + 3  # who runs it again wants to get on
    with pytest.warns(UserWarning, match="max_seconds ends a search between blocks, and one may take 1 s"):
        slow, _ = search(data, folder=tmp_path, max_seconds=1e-9, **args)
    assert slow.manifest["stopped_by"] == "max_seconds"
    assert len(slow.table) == len(more.table) + 3  # one block, however little time there is
    whole, _ = search(data, folder=tmp_path, **args)
    assert whole.finished
    assert whole.manifest["stopped_by"] is None
    straight, _ = search(data, folder=tmp_path / "straight", **args)
    assert (whole.path / "cases.parquet").read_bytes() == (straight.path / "cases.parquet").read_bytes()


def test_another_second_sut_is_another_suite(data, tmp_path):
    suites = [
        search(
            data,
            Differential(other=Linear(num_classes=CLASSES, seed=seed), population=8, elites=3, generations=2),
            DataSeeds(per_class=1),
            tmp_path / str(seed),
        )[0]
        for seed in (1, 2)
    ]
    assert suites[0].manifest["identity"] != suites[1].manifest["identity"]
    assert "Differential.other" in suites[0].manifest


def test_loggers_follow_a_search_round_by_round(data, tmp_path):
    logger = CSVLogger(tmp_path / "logs")
    task = SearchTask(
        generator=Pixels(num_classes=CLASSES), sut=Linear(num_classes=CLASSES), searcher=LatentPGD(steps=12),
        seeds=DataSeeds(per_class=4), block_size=6, eval_batch_size=32,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the SUT reads only")
        trainer = Trainer(default_root_dir=tmp_path, enable_progress_bar=False, logger=logger)
        suite = trainer.search(task, datamodule=data, out=str(tmp_path / "s"))
    rows = pd.read_csv(tmp_path / "logs/lightning_logs/version_0/metrics.csv")
    live = rows.dropna(subset=["active_seeds"])
    assert live["step"].tolist() == [1, 11, 14, 24]  # rounds 1 and 11 of two blocks, each of which counts one more
    assert live["active_seeds"].tolist() == [6] * 4
    assert live["best_fitness"].iloc[0] > live["best_fitness"].iloc[1]  # the search goes down
    assert rows["step"].is_monotonic_increasing
    assert rows["failure_rate"].iloc[-1] == pytest.approx(suite.summary["failure_rate"])


class NaNAt(Linear):
    """No number for dark images."""

    def logits(self, x):
        return super().logits(x).where(x.flatten(1).mean(1, keepdim=True) > 0.45, math.nan)


def test_a_seed_is_given_up_when_a_candidate_has_no_answer(data, tmp_path):
    searcher = BoundaryGA(population=8, elites=3, generations=6, start=0.2)
    seeds, sut = DataSeeds(per_class=20), NaNAt(num_classes=CLASSES)
    suite, _ = search(data, searcher, seeds, tmp_path, sut=sut)
    table = suite.table[suite.table["viable"]]
    assert table["retired"].any()
    assert not table["success"][table["retired"]].any()
    assert (table["iterations"][table["retired"]] == 6).all()
    assert (table["queries"][table["retired"]] < 1 + 8 + 5 * 5).all()  # they were not searched to the end
    assert np.isfinite(suite.array("logits")[suite.table["viable"]]).all()


def test_a_seed_without_an_answer_is_retired_and_no_case(data, tmp_path):
    suite, _ = search(data, LatentPGD(steps=3), DataSeeds(per_class=6), tmp_path, sut=NaNAt(num_classes=CLASSES))
    table = suite.table
    dark = suite.array("seed_image").reshape(len(table), -1).mean(1) / 255 <= 0.45
    assert 0 < dark.sum() < len(table)
    assert (table["retired"] == (dark | table["retired"])).all()
    assert not table["viable"][dark].any()
    assert (table["iterations"][table["retired"]] == 3).all()
    assert table["seed_p_true"].isna().tolist() == dark.tolist()
    parts = [pq.read_table(file) for file in (suite.path / "parts").iterdir()]
    assert sum(part["seed_p_true"].null_count for part in parts) == dark.sum()  # null, and not a number that is none
    read = (table["seed_predicted"] == table["label"]) & ~dark
    assert suite.summary["seed_viability"] == pytest.approx(read.mean())


@pytest.mark.parametrize("searcher", [RandomSampling(), LatentPGD(steps=8, early_stop=True)])
def test_each_case_of_a_seed_is_judged_by_its_own_target(searcher, data, tmp_path):
    """The SUT reads many of these seeds as one of the classes that a case aims at."""
    seeds = PriorSeeds(per_class=6, target="each", distribution="uniform")
    suite, task = search(data, searcher, seeds, tmp_path)  # their criterion for targets is IsTarget
    table = suite.table
    assert (table["success"] == (table["predicted"] == table["target"])).all()
    at_once = table["seed_predicted"] == table["target"]
    assert 0 < at_once.sum() < len(table)
    assert ((table["iterations"] == 0) == at_once).all() or task.searcher.steps == 0


def test_a_search_without_steps_ends_when_told(data, tmp_path, monkeypatch):
    _, task = search(data, RandomSampling(), DataSeeds(per_class=1), tmp_path)
    monkeypatch.setattr(type(task.trainer), "received_sigterm", True, raising=False)
    with pytest.raises(KeyboardInterrupt):
        task.predict_step(0, 0)


@pytest.mark.parametrize("per_class", [1, 2, 5])
def test_a_small_search_has_the_same_batches_whenever_it_is_run(per_class, data, tmp_path):
    suites = [
        search(data, LatentPGD(steps=3), DataSeeds(per_class=per_class), tmp_path / name, eval_batch_size="auto")[0]
        for name in ("a", "b")
    ]
    assert [suite.manifest["eval_batch_size"] for suite in suites] == [32, 32]
    files = ("cases.parquet", "arrays/block-00000.safetensors")
    assert all((suites[0].path / file).read_bytes() == (suites[1].path / file).read_bytes() for file in files)


def test_a_sut_of_one_class_is_refused():
    with pytest.raises(InputError, match="a SUT of one class is never wrong"):
        SearchTask(generator=Pixels(num_classes=1), sut=Linear(num_classes=1), searcher=LatentPGD(), seeds=DataSeeds())


def test_a_block_of_which_no_seed_has_an_answer_does_not_end_the_run(data, tmp_path):
    searcher, seeds, sut = LatentPGD(steps=3), DataSeeds(per_class=6), NaNAt(num_classes=CLASSES)
    one, _ = search(data, searcher, seeds, tmp_path / "a", sut=sut, block_size=1)
    all_at_once, _ = search(data, searcher, seeds, tmp_path / "b", sut=sut)
    assert one.summary["retired"] == all_at_once.summary["retired"] > 0
    assert one.finished


class NaNImage(Pixels):
    """Decodes to no image at all beyond a point."""

    def decode(self, z, y):
        return super().decode(z, y).where((z.amax(1) <= 1.0).view(-1, 1, 1, 1), math.nan)


def test_an_image_that_is_no_number_is_never_a_failure(data, tmp_path):
    task = SearchTask(
        generator=NaNImage(num_classes=CLASSES), sut=Linear(num_classes=CLASSES), eval_batch_size=32,
        searcher=LatentPGD(steps=9, step_size=0.2, radius=2.0), seeds=DataSeeds(per_class=4),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the SUT reads only")
        trainer = Trainer(default_root_dir=tmp_path, enable_progress_bar=False, logger=False)
        suite = trainer.search(task, datamodule=data, out=str(tmp_path / "s"))
    assert suite.table["retired"].all()  # every walk leaves the cube sooner or later
    assert np.array_equal(suite.latents, suite.array("seed_latent"))


class ViewingGenerator(Pixels):
    """Foreign code that takes its rows to lie one after the other."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.conv = torch.nn.Sequential(torch.nn.Conv2d(1, 3, 1), torch.nn.Conv2d(3, 2, 3, padding=1))

    def decode(self, z, y):
        maps = self.conv(super().decode(z, y))
        return maps.view(len(z), -1).view(len(z), 2, self.side, self.side).mean(1, keepdim=True).sigmoid()


def test_a_generator_that_cannot_take_channels_last_is_left_as_it_is(data, tmp_path):
    task = SearchTask(
        generator=ViewingGenerator(num_classes=CLASSES), sut=Linear(num_classes=CLASSES), eval_batch_size=32,
        searcher=LatentPGD(steps=1), seeds=DataSeeds(per_class=1),
    )  # fmt: skip
    task.lay_out()
    assert task.generator.conv[1].weight.is_contiguous()
    task.generator.decode(torch.zeros(3, 16), torch.zeros(3).long())


def test_differential_testing_begins_where_the_suts_agree_and_asks_the_second_once(data, tmp_path):
    other = Linear(num_classes=CLASSES, seed=1)
    searcher = Differential(other=other, population=8, elites=3, generations=4)
    suite, task = search(data, searcher, DataSeeds(per_class=6), tmp_path)
    images = torch.from_numpy(suite.array("seed_image")).float() / 255
    agree = other.logits(images).argmax(1) == task.sut.logits(images).argmax(1)
    right = torch.from_numpy((suite.table["seed_predicted"] == suite.table["label"]).to_numpy(bool))
    assert (right & ~agree).any()
    assert (torch.from_numpy(suite.table["viable"].to_numpy(bool)) == (right & agree)).all()
    assert task.passes(score=True) == task.passes(score=False) == 2


def test_differential_testing_ends_where_the_suts_disagree(data, tmp_path):
    """With three classes, a SUT may give the label less than half of its belief and still more than any other."""
    settings = {"population": 12, "elites": 4, "generations": 60, "smallest": 0.0}
    ends = {}
    for as_published in (False, True):
        searcher = Differential(other=Linear(num_classes=CLASSES, seed=1), as_published=as_published, **settings)
        suite, _ = search(data, searcher, DataSeeds(per_class=15), tmp_path / str(as_published))
        table = suite.table
        ends[as_published] = table[table["viable"] & (table["iterations"] < 60)]
    assert len(ends[False]) > 1
    assert ends[False]["success"].all()
    assert ends[False]["failed"].all()
    assert not ends[True]["failed"].all()


def test_one_task_can_search_other_data_and_one_searcher_serves_two_tasks(data, tmp_path):
    _, task = search(data, LatentPGD(steps=1), DataSeeds(per_class=2), tmp_path / "a")
    other = ImageData(name="npz", path=data.path, classes=[2, 1, 0])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the SUT reads only")
        trainer = Trainer(default_root_dir=tmp_path, enable_progress_bar=False, logger=False)
        suite = trainer.search(task, datamodule=other, out=str(tmp_path / "b"))
    rows = suite.table["source_index"].to_numpy("int64")
    assert (other["test"].labels[rows].numpy() == suite.table["label"]).all()

    searcher, wide = MarginGA(), Pixels(num_classes=CLASSES)
    wide.latent_bounds.copy_(torch.tensor([-9.0, 9.0]))
    sut = Linear(num_classes=CLASSES)
    first, second = (
        SearchTask(generator=g, sut=sut, searcher=searcher, seeds=DataSeeds()) for g in (Pixels(num_classes=3), wide)
    )
    assert first.searcher.first_size < second.searcher.first_size


def test_a_second_sut_is_found_wherever_it_is_nested(data):
    other = Linear(num_classes=CLASSES, seed=1)
    criterion = Misclassified() & Disagree(other=other)
    parts = {"generator": Pixels(num_classes=CLASSES), "sut": Linear(num_classes=CLASSES), "seeds": DataSeeds()}
    task = SearchTask(**parts, searcher=RandomSampling(), criterion=criterion)
    assert set(task.weights()) == {"generator", "sut", "Both.second.Disagree.other"}


def test_a_confident_target_must_lead_by_its_margin(data, tmp_path):
    seeds, objective = DataSeeds(per_class=5, target="each"), ConfidentTarget(margin=0.9)
    suite, _ = search(data, LatentPGD(steps=30, radius=1.0, early_stop=True), seeds, tmp_path, objective=objective)
    p = torch.from_numpy(suite.array("logits")).softmax(1)
    lead = -ConfidentTarget()(Candidates(p, p, p.log(), p, torch.tensor(suite.table["target"].to_numpy("int64")), p))
    assert (suite.table["success"] == (lead.numpy() > 0.9)).all()
    assert suite.table["success"].any()


@pytest.mark.filterwarnings("ignore:the SUT reads only")  # toys are no classifiers
def test_ssim_is_that_of_the_stored_images_also_in_half_precision(tmp_path):
    folder = write_npz(tmp_path / "data", n=12, side=16)
    task = SearchTask(
        generator=PixelSpace(image_shape=(1, 16, 16), num_classes=2), sut=Linear(side=16), eval_batch_size=32,
        searcher=LatentPGD(steps=2, step_size=0.02), seeds=DataSeeds(per_class=3),
    )  # fmt: skip
    quiet = {"enable_progress_bar": False, "logger": False, "precision": "bf16-mixed"}
    suite = Trainer(default_root_dir=tmp_path, **quiet).search(
        task, datamodule=ImageData(name="npz", path=str(folder)), out=str(tmp_path / "s")
    )
    pairs = [torch.from_numpy(suite.array(k)).float() / 255 for k in ("image", "seed_image")]
    wanted = structural_similarity_index_measure(*pairs, data_range=1.0, reduction="none")
    np.testing.assert_allclose(suite.table["ssim"], wanted, atol=1e-4)


def test_a_search_that_something_else_cut_short_names_no_budget(data, tmp_path):
    parts = {"generator": Pixels(num_classes=CLASSES), "sut": Linear(num_classes=CLASSES), "eval_batch_size": 32}
    task = SearchTask(**parts, searcher=RandomSampling(), seeds=DataSeeds(per_class=4), block_size=3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the SUT reads only")
        trainer = Trainer(default_root_dir=tmp_path, enable_progress_bar=False, logger=False, limit_predict_batches=1)
        suite = trainer.search(task, datamodule=data, out=str(tmp_path / "s"))
    assert not suite.finished
    assert suite.manifest["stopped_by"] is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: PriorSeeds(distribution="gauss"),
        lambda: DataSeeds(split="train"),
        lambda: DataSeeds(target="every"),
        lambda: PairSeeds(others_per_class=0),
        lambda: PairSeeds(other_split="all"),
    ],
)
def test_seeds_refuse_what_they_do_not_know(make):
    with pytest.raises(InputError):
        make()


class Viewing(Linear):
    """Foreign code that cannot take another memory layout."""

    def __init__(self, *, side: int = 4, num_classes: int = 3) -> None:
        super().__init__(side=side, num_classes=num_classes)
        self.conv = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3, padding=1), torch.nn.Conv2d(2, 2, 3, padding=1))
        self.last = torch.nn.Linear(2 * side * side, num_classes)

    def logits(self, x):
        hidden = self.conv(x)
        return self.last(hidden.view(len(x), -1))


class Flattening(Viewing):
    """The same written so that it can."""

    def logits(self, x):
        return self.last(self.conv(x).flatten(1))


def test_convolutions_are_laid_out_for_speed_where_the_sut_can_take_it():
    for sut, wanted in ((Flattening(), True), (Viewing(), False)):
        before = sut.logits(torch.ones(2, 1, 4, 4))
        SearchTask(generator=Pixels(num_classes=3), sut=sut, searcher=RandomSampling(), seeds=PriorSeeds()).lay_out()
        assert sut.conv[1].weight.is_contiguous(memory_format=torch.channels_last) == wanted
        torch.testing.assert_close(sut.logits(torch.ones(2, 1, 4, 4)), before)


def test_compiling_reaches_decoder_and_sut_for_the_one_shape_there_is(data, tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda f, dynamic: compiled.append((f.__name__, dynamic)) or f)
    search(data, RandomSampling(), DataSeeds(per_class=1), tmp_path, compile=True)
    assert compiled == [("decode", False), ("logits", False)]


@pytest.mark.skipif(not (which("g++") or which("clang++")), reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("searcher", [LatentPGD(steps=4), ActivationPerturbation(steps=6, step_size=0.3)])
def test_compiled_networks_search_as_they_do_without(searcher, data, tmp_path):
    """Really compiled: gradients, and changes of activations that are others in every pass."""
    parts = {"seeds": DataSeeds(per_class=14), "criterion": Never(), "block_size": 50}
    found = [
        search(data, searcher, folder=tmp_path / str(compiled), compile=compiled, **parts)[0]
        for compiled in (False, True)
    ]
    assert len(found[0].table) > 32  # more than one pass
    assert not np.array_equal(found[0].latents, found[0].array("seed_latent"))
    np.testing.assert_allclose(found[0].latents, found[1].latents, atol=1e-5)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"searcher": LatentPGD(), "sut": Linear(num_classes=CLASSES, differentiable=False)}, "black box"),
        ({"searcher": LatentPGD(), "objective": LatentDistance()}, "LatentDistance has none to follow"),
        ({"searcher": Differential(other=Linear(num_classes=CLASSES))}, "the second SUT is the first"),
        ({"searcher": LatentPGD(), "max_seconds": math.nan}, "max_seconds"),
        ({"searcher": LatentPGD(), "objective": ConfidentTarget()}, "set seeds.target"),
        (
            {
                "searcher": LatentPGD(),
                "seeds": DataSeeds(target="each"),
                "objective": CrossEntropy(),
                "criterion": Misclassified(),
            },
            "set targeted: true",
        ),
        (
            {"searcher": LatentPGD(), "seeds": DataSeeds(target="each"), "objective": CrossEntropy()},
            "minimise CrossEntropy, which does not aim at the seeds' targets",
        ),
        (
            {"searcher": ActivationPerturbation(), "seeds": DataSeeds(target="each"), "objective": TopConfidence()},
            "minimise TopConfidence, which does not aim",
        ),
        (
            {"searcher": ActivationPerturbation(), "criterion": Confident(margin=0.5)},
            "TopConfidence is lowest at the decision boundary, where no class leads by 0.5: minimise LogitMargin",
        ),
        (
            {"searcher": BoundaryGA(), "criterion": Misclassified() & Confident(margin=0.4)},
            "LatentDistance is lowest at the decision boundary, where no class leads by 0.4",
        ),
        ({"searcher": LatentPGD(), "criterion": Within(radius=1.0)}, "Within holds for every seed as it is"),
        (
            {"searcher": LatentPGD(), "criterion": Within(radius=1.0) & Within(radius=2.0, norm="linf")},
            "Both holds for every seed",
        ),
        (
            {"searcher": RandomSampling(), "seeds": DataSeeds(target="each"), "criterion": Misclassified()},
            "the seeds have targets, and neither objective nor criterion aims at them",
        ),
        (
            {"searcher": LatentPGD(), "objective": DifferentialDistance(other=Linear(num_classes=CLASSES, seed=1))},
            "follows gradients, and DifferentialDistance has none",
        ),
        (
            {
                "searcher": lambda: Differential(other=Linear(num_classes=CLASSES, seed=1)),
                "criterion": Confident(margin=0.5),
            },
            "DifferentialDistance is lowest at the decision boundary",
        ),
        ({"searcher": Interpolation()}, "use PairSeeds"),
        ({"searcher": RandomSampling(), "seeds": PairSeeds()}, "use DataSeeds"),
        ({"searcher": MarginGA(), "max_failures": 0}, "max_failures"),
        ({"searcher": lambda: BoundaryGA(mutation=5e-4)}, "mutation, 0.0005, is so from the start"),
        ({"searcher": RandomSampling(), "objective": CrossEntropy()}, "objective: CrossEntropy would change nothing"),
        (
            {"searcher": Interpolation(), "seeds": PairSeeds(), "objective": LogitMargin()},
            "Interpolation minimises nothing",
        ),
    ],
)
def test_parts_that_cannot_work_together_are_refused_at_once(parts, says):
    usual = {"generator": Pixels(num_classes=CLASSES), "sut": Linear(num_classes=CLASSES), "seeds": DataSeeds()}
    with pytest.raises(InputError, match=says):
        SearchTask(**{k: v() if isfunction(v) else v for k, v in (usual | parts).items()})


@pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS)
def test_what_a_searcher_minimises_by_default_aims_where_its_seeds_have_targets(make):
    searcher = make()
    aims = searcher.objective(targeted=True).needs_target
    assert aims or isinstance(searcher, (Differential, HillClimb))  # whose objectives know no classes to aim at
    assert not searcher.objective(targeted=False).needs_target


def test_confident_tests_without_a_target_are_found_by_the_margin(data, tmp_path):
    """Dunn's Def. 3.4: any wrong class must lead by more than c."""
    parts = {"objective": LogitMargin(), "criterion": Confident(margin=0.5)}
    suite, _ = search(data, ActivationPerturbation(steps=60, step_size=0.1), DataSeeds(per_class=10), tmp_path, **parts)
    table = suite.table[suite.table["viable"]]
    assert table["success"].mean() > 0.9
    lead = (table["p_predicted"] - table["p_true"])[table["success"]]
    assert (lead > 0.5).all()
    assert lead.mean() < 0.8  # it ends there


def test_a_second_sut_without_an_answer_disagrees_with_nobody(data, tmp_path):
    other = NaNAt(num_classes=CLASSES, seed=1)
    suite, _ = search(data, RandomSampling(), DataSeeds(per_class=6), tmp_path / "a", criterion=Disagree(other=other))
    dark = suite.images.reshape(len(suite.table), -1).mean(1) / 255 <= 0.45
    assert 0 < dark.sum() < len(dark)
    assert not suite.table["success"][dark].any()
    assert suite.table["success"][~dark].any()
    searcher = Differential(other=other, population=8, elites=3, generations=4)
    suite, _ = search(data, searcher, DataSeeds(per_class=20), tmp_path / "b")
    assert suite.table["retired"].any()
    assert not suite.table["success"][suite.table["retired"]].any()
    with pytest.raises(InputError, match="NaN or infinite logits"):
        search(data, Differential(other=Mute(num_classes=CLASSES)), DataSeeds(per_class=1), tmp_path / "c")


def test_a_second_sut_is_laid_out_for_speed_too():
    class Small(Flattening):
        def __init__(self, weight):
            super().__init__()
            self.last.weight.data.fill_(weight)

    parts = {"generator": Pixels(num_classes=3), "seeds": DataSeeds()}
    task = SearchTask(**parts, sut=Small(1.0), searcher=Differential(other=Small(2.0)))
    task.lay_out()
    (other,) = task.criterion.others
    assert other.conv[1].weight.is_contiguous(memory_format=torch.channels_last)
    assert task.objective.others == (other,)


def test_any_part_of_a_search_of_pairs_covers_all_originals_and_encodes_nothing_twice(data, tmp_path, monkeypatch):
    seeds = PairSeeds(per_class=2, others_per_class=4)
    suite, task = search(data, Interpolation(share=0.4), seeds, tmp_path, block_size=12)
    originals = 2 * CLASSES
    firsts = suite.table.iloc[:originals]
    assert firsts["seed_id"].tolist() == 2 * list(range(CLASSES))  # the first original of each class, in turn
    assert firsts["label"].tolist() == 2 * list(range(CLASSES))
    half = suite.table.iloc[: len(suite.table) // 2]
    assert half["seed_id"].nunique() == CLASSES  # few originals at a time: each is looked at once in a block
    pairs = half.iloc[: CLASSES * (CLASSES - 1)].groupby(["seed_id", "other_label"]).size()
    assert len(pairs) == CLASSES * (CLASSES - 1)
    encoded, own = [], task.generator.encode
    monkeypatch.setattr(task.generator, "encode", lambda x, y: encoded.append(x) or own(x, y))
    task.search_block(0)
    rows = torch.cat(encoded).flatten(1)
    rows = rows[rows.sum(1) > 0]  # without padding
    table = suite.table.iloc[:12]
    assert len(rows) == table["source_index"].nunique() + table["other_index"].nunique()


class Guided(Diffusion):
    """An image as bright as its guidance, whatever the latent."""

    def decode(self, z, y):
        return torch.full((len(z), *self.image_shape), self.guidance / 10)


def test_as_published_judges_diffusion_seeds_at_their_guidance_and_the_population_at_its_own(data, tmp_path):
    generator = Guided(image_shape=(1, 4, 4), num_classes=CLASSES, channels=(8,), guidance=3.5)
    generator.latent_bounds.copy_(torch.tensor([-4.0, 4.0]))
    task = SearchTask(
        generator=generator, sut=Linear(num_classes=CLASSES), eval_batch_size=32,
        searcher=MarginGA(population=4, elites=2, generations=2, as_published=True),
        seeds=PriorSeeds(per_class=4, distribution="prior"),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the SUT reads only")
        trainer = Trainer(default_root_dir=tmp_path, enable_progress_bar=False, logger=False)
        suite = trainer.search(task, datamodule=data, out=str(tmp_path / "s"))
    assert set(suite.array("seed_image").flatten()) == {round(0.35 * 255)}
    moved = suite.table["viable"].to_numpy(bool)
    assert moved.any()
    assert set(suite.images[moved].flatten()) == {round(0.14 * 255)}


def test_random_seeds_are_spread_as_they_are_said_to_be(data):
    generator, rng = Pixels(side=8, num_classes=CLASSES), SeedRandom(0, 0, 900)
    for distribution, spread in (("uniform", 2 / math.sqrt(12)), ("normal", 1.0), ("prior", 1.0)):
        source = PriorSeeds(per_class=300, distribution=distribution, scale=0.5)
        block = source.block(0, torch.arange(900), source.plan(data), data)
        z = source.latents(block, generator, lambda *_: None, rng)
        assert z.shape == (900, 64)
        assert float(z.mean()) == pytest.approx(0, abs=0.01)
        assert float(z.std()) == pytest.approx(0.5 * spread, rel=0.02)
    assert (source.latents(block, generator, lambda *_: None, rng).abs() > 0.5).any()


def test_first_of_each_keeps_the_earliest():
    key = torch.tensor([5, 3, 5, 3, 9])
    first, again = first_of_each(key)
    assert torch.equal(key[first][again], key)
    assert first.tolist() == [1, 0, 4]


class Never(Criterion):
    def __call__(self, candidates):
        return torch.zeros_like(candidates.label, dtype=torch.bool)


def test_a_query_budget_ends_a_seeds_search_before_the_round_that_would_exceed_it(data, tmp_path):
    searcher = MarginGA(population=7, elites=3, generations=50)
    suite, _ = search(data, searcher, DataSeeds(per_class=2), tmp_path, criterion=Never(), max_queries=24)
    counted = suite.table[suite.table["viable"]]
    assert len(counted)
    assert set(counted["queries"]) == {
        2 + 7 + 3 * 4
    }  # two looks, a population, three rounds of children; 25 is too many
    assert set(counted["iterations"]) == {4}


def test_what_a_seed_took_does_not_depend_on_who_else_is_in_its_block(data, tmp_path):
    """Some seeds end on their own before the query budget does, without success."""
    searcher = BoundaryGA(population=6, elites=3, generations=50, start=0.01, mutation=0.01, as_published=True)
    found = [
        search(data, searcher, DataSeeds(per_class=18), tmp_path / str(size), block_size=size, max_queries=60)[0]
        for size in (4, 54)
    ]
    for suite in found:
        missed = suite.table[suite.table["viable"] & ~suite.table["success"]]
        assert (missed["queries"] < 60 - 3).any()
        assert set(missed["iterations"]) == {(60 - 2 - 3) // 3}


def test_the_last_look_at_several_tries_is_counted_and_within_the_budget(data, tmp_path):
    searcher = LatentPGD(steps=3, restarts=4)
    suite, task = search(data, searcher, DataSeeds(per_class=4), tmp_path / "free")
    assert set(suite.table["queries"]) == {1 + 3 * 4 + 4 + 1} == {task.most_queries}
    assert set(suite.table["backward_queries"]) == {3 * 4}
    suite, task = search(data, searcher, DataSeeds(per_class=4), tmp_path / "tight", max_queries=17)
    assert set(suite.table["queries"]) == {1 + 2 * 4 + 4 + 1} == {task.most_queries}


def test_query_budgets_that_cannot_be_kept_are_refused(data, tmp_path):
    with pytest.raises(InputError, match="max_queries must be at least 10"):
        search(data, LatentPGD(restarts=4), DataSeeds(per_class=1), tmp_path, max_queries=9)
    with pytest.raises(InputError, match="max_queries must be at least 3"):
        search(data, LatentPGD(), DataSeeds(per_class=1), tmp_path, max_queries=2)
    with pytest.raises(InputError, match=r"max_queries must be at least 27, .* and for one round of candidates"):
        search(data, MarginGA(), DataSeeds(per_class=1), tmp_path, max_queries=26)
    with pytest.raises(InputError, match="ArtAttack asks the SUT by itself"):
        search(data, ArtAttack(attack="FastGradientMethod"), DataSeeds(per_class=1), tmp_path, max_queries=10)


def test_a_perturbation_begins_at_images_that_are_read_rightly(data, tmp_path):
    suite, _ = search(data, ActivationPerturbation(steps=2, step_size=1e-6), DataSeeds(per_class=10), tmp_path)
    table = suite.table
    assert (table["viable"] == (table["seed_predicted"] == table["label"])).all()
    assert 0 < table["viable"].sum() < len(table)
    assert suite.summary["failure_rate"] == 0  # such steps change nothing


def test_it_is_said_when_a_time_limit_cannot_act(data, tmp_path):
    with pytest.warns(UserWarning, match="max_seconds ends a search between blocks, and there is one left"):
        suite, _ = search(data, LatentPGD(steps=2), DataSeeds(per_class=2), tmp_path, max_seconds=1e-9)
    assert suite.finished


class Always(Criterion):
    """Is content with anything."""

    def __call__(self, candidates):
        return torch.ones_like(candidates.label, dtype=torch.bool)


def test_it_is_said_when_nothing_is_left_to_search(data, tmp_path):
    parts = {"searcher": MarginGA(), "seeds": DataSeeds(per_class=2), "folder": tmp_path}
    with pytest.warns(UserWarning, match=r"Always, the criterion, holds for all of the first 6 seeds"):
        suite, _ = search(data, **parts, criterion=Always())
    assert suite.summary["n_cases"] == 0
    assert suite.summary["failure_rate"] is None


class Mute(Linear):
    """Has no answer."""

    def logits(self, x):
        return super().logits(x) * math.nan


def test_a_sut_without_answers_leaves_no_folder_behind(data, tmp_path):
    with pytest.raises(InputError, match="NaN or infinite logits"):
        search(data, RandomSampling(), DataSeeds(per_class=1), tmp_path, sut=Mute(num_classes=CLASSES))
    assert not (tmp_path / "suite").exists()


class Trips(RandomSampling):
    """Goes wrong before anything is found."""

    def init(self, seeds, rng):
        raise InputError("no way")


def test_what_an_interrupted_start_left_is_taken_away_by_an_error_too(data, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    seeds = DataSeeds(per_class=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trips, "init", interrupt)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            search(data, Trips(), seeds, tmp_path)
    assert (tmp_path / "suite/manifest.json").exists()
    with pytest.raises(InputError, match="no way"):
        search(data, Trips(), seeds, tmp_path)
    assert not (tmp_path / "suite").exists()


def test_mixtures_may_be_asked_whether_they_are_near(data, tmp_path):
    parts = {"seeds": PairSeeds(others_per_class=2), "criterion": Within(radius=0.16)}
    suite, _ = search(data, Interpolation(share=0.1), folder=tmp_path, **parts)
    near = suite.table["latent_l2"] <= 0.16
    assert 0 < near.sum() < len(near)
    assert (suite.table["success"] == near).all()


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "16-true"])
def test_latents_stay_in_full_precision(precision, data, tmp_path):
    parts = {"generator": Pixels(num_classes=CLASSES), "sut": Linear(num_classes=CLASSES), "seeds": DataSeeds()}
    trainer = Trainer(default_root_dir=tmp_path, enable_progress_bar=False, logger=False, precision=precision)
    with pytest.raises(InputError, match=f"trainer.precision: .*32-true or bf16-mixed or 16-mixed, got {precision}"):
        trainer.search(SearchTask(**parts, searcher=LatentPGD()), datamodule=data, out=str(tmp_path / "s"))
