"""Attacks of the adversarial-robustness-toolbox through the same task as every searcher."""

import numpy as np
import pytest
import torch

from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.generators import PixelSpace
from lsgen.objectives import CrossEntropy, IsTarget, Misclassified
from lsgen.search import DataSeeds, LatentPGD, SearchTask, SeedRandom, art
from lsgen.search.art import ArtAttack
from lsgen.search.evaluator import Evaluator
from lsgen.trainer import Trainer
from lsgen.types import Seeds
from tests.toys import Asked, Linear, Pixels

pytest.importorskip("art")


@pytest.fixture
def data(tmp_path) -> ImageData:
    """Images with the labels that the linear SUT gives them."""
    images = np.random.default_rng(0).integers(0, 256, (120, 4, 4), dtype=np.uint8)
    labels = Linear(num_classes=3).logits(torch.from_numpy(images).float()[:, None] / 255).argmax(1).numpy()
    (tmp_path / "data").mkdir()
    for part in ("train", "test"):
        np.savez(tmp_path / f"data/{part}.npz", images=images, labels=labels)
    return ImageData(name="npz", path=str(tmp_path / "data"))


def search(data, searcher, folder, *, target=None, sut=None, seeds=None, eval_batch_size=32):
    task = SearchTask(
        generator=PixelSpace(image_shape=(1, 4, 4), num_classes=3),
        sut=sut or Linear(num_classes=3),
        searcher=searcher,
        seeds=seeds or DataSeeds(per_class=4, target=target),
        block_size=5,
        eval_batch_size=eval_batch_size,
    )
    trainer = Trainer(default_root_dir=folder, enable_progress_bar=False, logger=False)
    return trainer.search(task, datamodule=data, out=str(folder / "suite"))


def test_fgsm_is_that_of_lsgen(data, tmp_path):
    theirs = search(data, ArtAttack(attack="FastGradientMethod", settings={"eps": 0.1}), tmp_path / "a")
    ours = search(data, LatentPGD(steps=1, step_size=0.1, radius=0.1), tmp_path / "b")
    np.testing.assert_allclose(theirs.array("image"), ours.array("image"), atol=1)  # they do not round before
    assert theirs.summary["backward_queries"] == 12


def test_carlini_wagner_finds_smaller_changes_than_fgsm(data, tmp_path):
    settings = {
        "max_iter": 30,
        "binary_search_steps": 3,
        "initial_const": 10.0,
        "learning_rate": 0.1,
        "confidence": 0.3,
    }
    settings["verbose"] = False
    suite = search(data, ArtAttack(attack="CarliniL2Method", settings=settings), tmp_path / "cw")
    table = suite.table
    assert table["failed"].mean() > 0.8
    signs = search(data, LatentPGD(steps=1, step_size=0.4, radius=0.4), tmp_path / "b").table
    both = table["failed"] & signs["failed"]
    assert both.sum() > 5
    assert (table["pixel_l2"][both] < signs["pixel_l2"][both]).all()
    assert suite.summary["queries"] > 40 * len(table)
    assert suite.summary["backward_queries"] > 0


def test_a_black_box_attack_needs_no_gradient(data, tmp_path):
    settings = {"max_iter": 2, "max_eval": 30, "init_eval": 5, "verbose": False}
    attack = ArtAttack(attack="HopSkipJump", settings=settings)
    assert not attack.needs_grad
    sut = Linear(num_classes=3, differentiable=False)
    suite = search(data, attack, tmp_path / "a", sut=sut)
    assert suite.summary["backward_queries"] == 0
    assert suite.summary["queries"] > 30 * 12
    with pytest.raises(InputError, match="black box"):
        search(data, ArtAttack(attack="DeepFool"), tmp_path / "c", sut=sut)


def test_streams_that_an_attack_opens_for_itself_begin_where_the_search_says(data, tmp_path):
    settings = {"max_iter": 2, "max_eval": 30, "init_eval": 5, "verbose": False}
    found = [search(data, ArtAttack(attack="HopSkipJump", settings=settings), tmp_path / name) for name in ("a", "b")]
    assert np.array_equal(*(suite.array("latent") for suite in found))
    assert np.array_equal(*(suite.table["queries"] for suite in found))
    assert np.random.RandomState.__name__ == "RandomState"
    assert type(np.random.RandomState()) is not art._Stream  # only while an attack runs


@pytest.mark.parametrize(("given", "shown"), [(3, 3), (12, 12), (50, 32)])
def test_an_attacks_batches_go_through_the_sut_in_passes_of_one_shape(data, given, shown):
    sizes, settings = [], {"max_iter": 2, "batch_size": given, "verbose": False}
    searcher = ArtAttack(attack="ProjectedGradientDescent", settings=settings)
    space = searcher.bind(PixelSpace(image_shape=(1, 4, 4), num_classes=3))
    sut = Linear(num_classes=3)
    own = sut.logits
    sut.logits = lambda x: sizes.append((len(x), int((x.flatten(1).sum(1) > 0).sum()))) or own(x)
    images, labels = data["test"].spread(12 if given < 50 else 50)
    evaluator = Evaluator(space, sut, CrossEntropy(), Misclassified(), 32)
    searcher.solve(Seeds(images / 255, labels), evaluator, SeedRandom(0, 0, len(labels)))
    assert {size for size, _ in sizes} == {32}
    assert max(filled for _, filled in sizes) == shown


def test_the_smallest_multiple_is_taken_where_an_attack_asks_by_itself(data, tmp_path):
    attack = ArtAttack(attack="FastGradientMethod", settings={"eps": 0.1})
    assert search(data, attack, tmp_path, eval_batch_size="auto").manifest["eval_batch_size"] == 32


@pytest.mark.parametrize("attack", ["ProjectedGradientDescent", "CarliniL2Method", "HopSkipJump"])
def test_every_image_that_an_attack_shows_the_sut_is_counted(data, attack):
    settings = {"max_iter": 2, "verbose": False} | ({"max_eval": 20, "init_eval": 5} if attack == "HopSkipJump" else {})
    searcher, sut = ArtAttack(attack=attack, settings=settings), Asked(num_classes=3)
    space = searcher.bind(PixelSpace(image_shape=(1, 4, 4), num_classes=3))
    images, labels = data["test"].spread(5)
    evaluator = Evaluator(space, sut, CrossEntropy(), Misclassified(), 8)
    found = searcher.solve(Seeds(images / 255, labels), evaluator, SeedRandom(0, 0, 5))
    assert int(found.forward.sum()) == sut.count > 0
    assert int(found.forward.max() - found.forward.min()) <= 1  # equal shares


@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        ("FastGradientMethod", {"minimal": True, "eps": 1.0, "eps_step": 0.01}),
        ("CarliniL2Method", {"max_iter": 50, "binary_search_steps": 8, "learning_rate": 0.05, "confidence": 0.05}),
    ],
)
def test_pixel_attacks_on_a_pair_of_classes_end_at_its_boundary(data, tmp_path, attack, settings):
    """SINVAD's comparison: boundary images between two given classes, by FGSM and by Carlini and Wagner."""
    quiet = {"verbose": False} if attack.startswith("C") else {}
    seeds = DataSeeds(per_class=8, classes=[0], target=2)
    suite = search(data, ArtAttack(attack=attack, settings=settings | quiet), tmp_path / "edge", seeds=seeds)
    far = search(data, LatentPGD(steps=20, step_size=0.1, radius=1.0), tmp_path / "far", seeds=seeds)
    reached = suite.table[suite.table["success"]]
    assert (reached["label"] == 0).all()
    assert (reached["predicted"] == 2).all()
    assert len(reached) >= 6
    assert reached["boundary_gap"].mean() < 0.1 < far.table["boundary_gap"].mean()


def test_the_same_seed_gives_the_same_attack_whatever_was_drawn_before(data, tmp_path):
    settings = {"eps": 0.2, "max_iter": 3, "num_random_init": 1, "verbose": False}
    latents = []
    for name in ("a", "b"):
        np.random.seed(len(latents))
        torch.manual_seed(len(latents))
        before = np.random.get_state()[1].copy()
        attack = ArtAttack(attack="ProjectedGradientDescent", settings=settings)
        latents.append(search(data, attack, tmp_path / name).array("latent"))
        assert np.array_equal(np.random.get_state()[1], before)
    assert np.array_equal(*latents)


def test_targets_are_aimed_at(data, tmp_path):
    attack = ArtAttack(attack="ProjectedGradientDescent", settings={"eps": 1.0, "max_iter": 30, "verbose": False})
    suite = search(data, attack, tmp_path, target="each")
    assert (suite.table["predicted"] == suite.table["target"]).mean() > 0.8


@pytest.mark.parametrize("attack", ["CarliniL2Method", "DeepFool", "ProjectedGradientDescent"])
def test_half_precision_does_not_reach_the_toolbox(data, attack):
    searcher = ArtAttack(attack=attack, settings={"max_iter": 2, "verbose": False})
    space = searcher.bind(PixelSpace(image_shape=(1, 4, 4), num_classes=3))
    images, labels = data["test"].spread(6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        evaluator = Evaluator(space, Linear(num_classes=3), CrossEntropy(), Misclassified(), 32)
        found = searcher.solve(Seeds(images / 255, labels), evaluator, SeedRandom(0, 0, 6))
    assert found.latent.dtype == torch.float32


def test_without_targets_an_attack_that_aims_by_default_does_not(data, tmp_path):
    settings = {"max_iter": 20, "num_trial": 5, "sample_size": 5, "init_size": 50, "verbose": False}
    suite = search(data, ArtAttack(attack="BoundaryAttack", settings=settings), tmp_path)
    assert suite.table["failed"].mean() > 0.3


def test_an_attack_that_cannot_aim_is_refused_with_targets(data, tmp_path):
    with pytest.raises(InputError, match=r"DeepFool cannot aim at a class: leave seeds\.target out"):
        search(data, ArtAttack(attack="DeepFool"), tmp_path, target="each")


def test_the_criterion_does_not_make_an_attack_aim(data):
    parts = {"generator": PixelSpace(image_shape=(1, 4, 4), num_classes=3), "sut": Linear(num_classes=3)}
    with pytest.raises(InputError, match="DeepFool cannot aim"):
        SearchTask(**parts, searcher=ArtAttack(attack="DeepFool"), seeds=DataSeeds(target="each"), criterion=IsTarget())


def test_an_attack_that_always_aims_is_given_the_target(data, tmp_path):
    attack = ArtAttack(attack="SaliencyMapMethod", settings={"theta": 0.5, "gamma": 1.0, "verbose": False})
    table = search(data, attack, tmp_path / "aimed", target="each").table
    assert not (table["seed_predicted"] == table["target"]).any()
    assert (table["predicted"] == table["target"]).mean() > 0.5
    with pytest.raises(InputError, match=r"SaliencyMapMethod aims at a class: set seeds\.target"):
        search(data, attack, tmp_path / "free")


def test_the_one_attack_that_takes_no_numbers_of_classes_is_aimed_too(data, tmp_path):
    settings = {"attacker": "fgsm", "attacker_params": {"targeted": True, "eps": 0.5}, "max_iter": 10, "eps": 1.0}
    attack = ArtAttack(attack="TargetedUniversalPerturbation", settings=settings)
    table = search(data, attack, tmp_path, seeds=DataSeeds(per_class=4, classes=[0, 1], target=2)).table
    assert not (table["seed_predicted"] == 2).any()
    assert (table["predicted"] == 2).mean() >= 0.5


def test_an_attack_sees_the_sut_on_8_bit_images(data, tmp_path):
    shown, sut = [], Linear(num_classes=3)
    own = sut.logits
    sut.logits = lambda x: shown.append(x.detach() * 255) or own(x)
    settings = {"eps": 0.1, "eps_step": 0.013, "max_iter": 3, "verbose": False}
    search(data, ArtAttack(attack="ProjectedGradientDescent", settings=settings), tmp_path, sut=sut)
    assert len(shown) > 6
    assert all(torch.allclose(x, x.round(), atol=1e-4) for x in shown)


class Broken(Linear):
    """Trips over whoever wants its gradient."""

    def logits(self, x):
        if torch.is_grad_enabled():
            raise IndexError("index 7 is out of bounds")
        return super().logits(x)


def test_whatever_goes_wrong_in_an_attack_is_said_in_a_sentence(data, tmp_path):
    attack = ArtAttack(attack="FastGradientMethod", settings={"eps": 0.1})
    with pytest.raises(InputError, match="FastGradientMethod ends with an error: index 7 is out of bounds"):
        search(data, attack, tmp_path, sut=Broken(num_classes=3))
    assert not (tmp_path / "suite").exists()


class Full(Linear):
    """Takes more memory than there is for whoever wants its gradient."""

    def logits(self, x):
        if torch.is_grad_enabled():
            torch.empty(2**55)
        return super().logits(x)


def test_too_little_memory_is_not_the_fault_of_an_attack(data, tmp_path):
    attack = ArtAttack(attack="FastGradientMethod", settings={"eps": 0.1})
    with pytest.raises(RuntimeError, match="allocate memory") as error:
        search(data, attack, tmp_path, sut=Full(num_classes=3))
    assert not isinstance(error.value, InputError)


@pytest.mark.parametrize("per_class", [1, 2])
def test_an_attack_without_an_image_for_each_seed_is_refused(data, tmp_path, per_class):
    """AdversarialPatch gives a patch and its mask, which in a block of two seeds would pass for their images."""
    attack = ArtAttack(
        attack="AdversarialPatch",
        settings={"patch_shape": [1, 4, 4], "max_iter": 1, "batch_size": 2, "verbose": False},
    )
    seeds = DataSeeds(per_class=per_class, classes=[0, 1])
    with pytest.raises(InputError, match="AdversarialPatch does not give an image for each seed"):
        search(data, attack, tmp_path, seeds=seeds)


def test_what_an_attack_cannot_do_is_said_in_a_sentence(data, tmp_path):
    attack = ArtAttack(attack="UniversalPerturbation", settings={"attacker": "none", "verbose": False})
    with pytest.raises(InputError, match=r"UniversalPerturbation (ends with an error|does not take its settings): \w"):
        search(data, attack, tmp_path)


def test_wrong_names_settings_and_spaces_are_refused():
    with pytest.raises(InputError, match="the toolbox has no 'carlini'"):  # a module of it
        ArtAttack(attack="carlini")
    with pytest.raises(InputError, match="did you mean 'CarliniL2Method'"):
        ArtAttack(attack="CarliniL2")
    with pytest.raises(InputError, match=r"has no 'epsilon'; it has .*eps"):
        ArtAttack(attack="FastGradientMethod", settings={"epsilon": 0.1})
    with pytest.raises(InputError, match="use PixelSpace"):
        SearchTask(generator=Pixels(), sut=Linear(), searcher=ArtAttack(attack="DeepFool"), seeds=DataSeeds())
