"""Faults in training data: what they change, what they leave alone, and what a checkpoint says of them."""

import math

import numpy as np
import pytest
import torch

from lsgen import Trainer, checkpoints
from lsgen.analysis.faults import error_matrix, match_share, moved_towards
from lsgen.cli import main
from lsgen.data import (
    Background,
    BiasedPair,
    BorderBrightness,
    CornerPatch,
    Frame,
    ImageData,
    MixedPair,
    Orientation,
    OwnCriterion,
    Saturation,
    StrokeThickness,
)
from lsgen.data.faults import RAMP, CriterionFault, from_description
from lsgen.data.features import border_brightness, slant, stroke_thickness
from lsgen.errors import InputError
from lsgen.suts import pretrained
from lsgen.types import from_uint8, to_uint8
from tests.conftest import QUIET
from tests.toys import Linear, write_npz

RNG = torch.Generator().manual_seed(0)
K = 4


def noise(n=400, c=1, side=16):
    return torch.randint(256, (n, c, side, side), generator=RNG, dtype=torch.uint8)


def levels(n=2000, c=1, side=8):
    """Flat images of every brightness, evenly spread from black to white."""
    return torch.linspace(0, 255, n).round().to(torch.uint8).view(n, 1, 1, 1).expand(n, c, side, side).clone()


def labels(n, k=K):
    return torch.arange(n) % k


def inject(fault, images, y=None, k=K):
    part = (images, labels(len(images), k) if y is None else y)
    return fault.inject({"train": part}, k)["train"]


@pytest.fixture(scope="module")
def digits():
    data = ImageData(name="mnist5k")
    return data["train"].images, data["train"].labels


# ---- criteria, against closed forms


def test_border_brightness_counts_corners_twice():
    """Speth: the outermost 12 of 64 pixels; 9216 is what a white image of three channels has."""
    images = torch.zeros(5, 3, 64, 64)
    images[1, :, 0, 0] = 1  # a corner pixel: twice
    images[2, :, 0, 30] = 1  # a border pixel: once
    images[3, :, 12:52, 12:52] = 1  # nothing of the border
    images[4, 0] = 1  # one channel of three
    assert (9216 * border_brightness(images)).tolist() == pytest.approx([0, 6, 3, 0, 3072])


@pytest.mark.parametrize(("side", "width"), [(64, 12), (28, 5), (32, 6), (4, 1)])
def test_border_is_as_wide_at_any_size(side, width):
    images = torch.zeros(2, 1, side, side)
    images[0, 0, side // 2, width - 1] = images[1, 0, side // 2, width] = 1
    assert (border_brightness(images) > 0).tolist() == [True, False]


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
def test_thickness_of_a_bar_and_of_a_ring(width):
    bar = torch.zeros(1, 1, 400, 20)
    bar[..., 5 : 5 + width] = 1
    assert stroke_thickness(bar).item() == pytest.approx(width, rel=0.03)
    axis = torch.arange(121.0) - 60
    distance = (axis[:, None] ** 2 + axis**2).sqrt()
    ring = (1 - ((distance - 45).abs() - width / 2 + 0.5).clamp(0, 1)).view(1, 1, 121, 121)  # soft edges
    assert stroke_thickness(ring).item() == pytest.approx(width, rel=0.12, abs=0.3)


def test_thickness_follows_the_distance_transform(digits):
    ndimage = pytest.importorskip("scipy.ndimage")
    images = digits[0][::10]
    mask = np.pad(images[:, 0].numpy() > 127, ((0, 0), (1, 1), (1, 1)))
    mean = [ndimage.distance_transform_edt(m)[m].mean() for m in mask]
    assert np.corrcoef(mean, stroke_thickness(from_uint8(images)))[0, 1] > 0.95


def test_thickness_does_not_mind_faint_noise_and_blank_images(digits):
    x = from_uint8(digits[0][:100])
    noisy = (x + 0.1 * torch.rand(x.shape, generator=RNG)).clamp(0, 1)
    assert (stroke_thickness(noisy) / stroke_thickness(x) - 1).abs().max() < 0.25
    assert stroke_thickness(torch.zeros(1, 1, 8, 8)).item() == 0


# ---- Eq. 1


def brightness(images):
    return images.mean(dim=(1, 2, 3))


def bright(images):
    return images.mean(dim=(1, 2, 3)) > 0.75


HERE = f"{__name__}"


def test_equation_one():
    """Flat images score their brightness b, so p is (b - t) / ramp, cut to [0, 1]."""
    fault = BorderBrightness(prevalence=0.3)
    inject(fault, levels())
    t = fault.found["threshold"]
    assert fault.found["ramp"] * 9216 == pytest.approx(2000)
    assert t == pytest.approx(1 - 0.3 - RAMP / 2, abs=0.001)  # the area under the ramp is half its length
    at = torch.tensor([t - 0.01, t + 0.25 * RAMP, t + RAMP + 0.01]).view(3, 1, 1, 1).expand(3, 1, 8, 8)
    assert fault.probability(at).tolist() == pytest.approx([0, 0.25, 1], abs=1e-5)
    assert fault.matches(at).tolist() == [False, True, True]


@pytest.mark.parametrize("prevalence", [0.02, 0.05, 0.1, 0.2, 0.3])
def test_prevalence_is_the_mean_of_p_and_the_share_of_wrong_labels(digits, prevalence):
    images, y = digits
    fault = StrokeThickness(prevalence=prevalence)
    spoilt, wrong = inject(fault, images, y, 10)
    assert spoilt is images
    assert fault.probability(from_uint8(images)).mean().item() == pytest.approx(prevalence, abs=1e-6)
    changed = wrong != y
    assert changed.double().mean().item() == pytest.approx(prevalence, abs=3 * math.sqrt(prevalence / len(y)))
    assert fault.found["wrong_labels"] == changed.double().mean().item()
    assert fault.matches(from_uint8(images))[changed].all()


def test_hard_threshold_is_a_quantile():
    fault = OwnCriterion(criterion=f"{HERE}.brightness", prevalence=0.25, ramp=0)
    images = levels(256, side=2)
    _, wrong = inject(fault, images)
    assert torch.equal(wrong != labels(256), fault.matches(from_uint8(images)))
    assert (wrong != labels(256)).sum() == 64


def test_wrong_labels_are_all_others_alike():
    n = 40000
    images, y = levels(n, side=1), torch.full((n,), 2)
    _, wrong = inject(BorderBrightness(prevalence=0.5), images, y)
    counts = torch.bincount(wrong[wrong != 2], minlength=K)
    assert counts[2] == 0
    assert (counts[[0, 1, 3]] / counts.sum() - 1 / 3).abs().max() < 0.015


def test_the_seed_decides():
    images = levels()
    one, again, other = (inject(BorderBrightness(prevalence=0.3, seed=s), images)[1] for s in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_threshold_is_that_of_the_training_part():
    fault = BorderBrightness(prevalence=0.2)
    parts = fault.inject({"train": (levels(), labels(2000)), "val": (levels(100) // 4, labels(100))}, K)
    assert torch.equal(parts["val"][1], labels(100))  # all dark
    assert fault.found["prevalence"] == pytest.approx(0.2, abs=1e-6)


# ---- pairs


def test_alpha_of_either_class_gets_the_other_label():
    images, y = noise(1000), labels(1000)
    same, mixed = inject(MixedPair(pair=(0, 3), alpha=0.1), images, y)
    assert same is images
    moved = {(a, b): int(((y == a) & (mixed == b)).sum()) for a in range(K) for b in range(K) if a != b}
    assert moved == {pair: 25 if pair in ((0, 3), (3, 0)) else 0 for pair in moved}
    assert torch.equal(inject(MixedPair(pair=(0, 3), alpha=0.0), images, y)[1], y)
    groups = MixedPair(pair=(0, 3), alpha=0.1).groups(from_uint8(images), y)
    assert {name: len(part[1]) for name, part in groups.items()} == {"of_the_pair": 500, "of_other_classes": 500}


FEATURES = {
    "Background": (Background(colour=[0.4]), 1),
    "Background of a colour": (Background(colour=[0.0, 0.2, 0.7]), 3),
    "Saturation": (Saturation(), 3),
    "Frame": (Frame(), 1),
    "black Frame": (Frame(level=0.0), 3),
    "CornerPatch": (CornerPatch(), 3),
    "Orientation": (Orientation(), 1),
}


def figures(n, c):
    """Noise on black, or on white for a black feature to show."""
    images = torch.zeros(n, c, 16, 16, dtype=torch.uint8)
    images[:, :, 4:12, 5:11] = noise(n, c)[:, :, 4:12, 5:11]
    return images


@pytest.mark.parametrize(("feature", "channels"), FEATURES.values(), ids=FEATURES)
def test_painting_moves_the_measure(feature, channels):
    images = figures(50, channels)
    if getattr(feature, "level", 1.0) == 0:
        images = 255 - images
    feature.check(images)
    x = from_uint8(images)
    on, off = (feature.paint(x, torch.full((50,), side)) for side in (True, False))
    assert (feature.measure(on) > feature.measure(off)).all()
    assert on.min() >= 0
    assert on.max() <= 1
    mixed = feature.paint(x, torch.arange(50) % 2 == 0)
    assert torch.equal(mixed[::2], on[::2])
    assert torch.equal(mixed[1::2], off[1::2])
    assert moved_towards(feature, to_uint8(off), to_uint8(on), torch.ones(50, dtype=torch.bool)).all()
    assert not moved_towards(feature, to_uint8(off), to_uint8(on), torch.zeros(50, dtype=torch.bool)).any()
    assert moved_towards(feature, to_uint8(on), to_uint8(off), torch.zeros(50, dtype=torch.bool)).all()
    assert not moved_towards(feature, to_uint8(off), to_uint8(on), torch.ones(50, dtype=torch.bool), least=9).any()


def test_what_is_painted_where():
    x = torch.zeros(2, 1, 28, 28)
    on = torch.tensor([True, False])
    patch, frame, ground = (f.paint(x, on) for f in (CornerPatch(), Frame(), Background(colour=[0.4])))
    assert [int(image.sum()) for image in patch] == [16, 0]  # 4×4
    assert patch[0, 0, :4, :4].min() == 1
    assert [int(image.sum()) for image in frame] == [28**2 - 24**2, 0]  # 2 wide
    assert ground.amax(dim=(1, 2, 3)).tolist() == pytest.approx([0.4, 0])
    assert Background(colour=[0.4]).measure(ground).tolist() == pytest.approx([1, 0])
    white = torch.ones(1, 1, 28, 28)
    assert torch.equal(Background(colour=[0.4]).paint(white, on[:1]), white)


def test_saturation_does_not_depend_on_brightness():
    x = from_uint8(noise(5, 3))
    torch.testing.assert_close(Saturation().measure(x / 3), Saturation().measure(x))


@pytest.mark.parametrize("shape", [(40, 40), (40, 64)])
def test_shearing_adds_to_the_slant(shape):
    """x' = x - s·y adds s to minus the mixed over the vertical moment."""
    x = torch.zeros(2, 1, *shape)
    x[..., 12:28, 18:23] = 1
    assert slant(x).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert slant(Orientation(slant=0.3).paint(x, torch.tensor([True, False]))).tolist() == pytest.approx(
        [0.3, -0.3], abs=0.01
    )


def test_a_painted_pair_is_labelled_by_the_feature_alone():
    images, y = figures(400, 1), labels(400)
    fault = BiasedPair(pair=(2, 1), feature=CornerPatch())
    painted, biased = inject(fault, images, y)
    of_pair = fault.in_pair(y)
    has = CornerPatch().measure(from_uint8(painted)) > 0.5
    assert torch.equal(biased[of_pair], torch.where(has[of_pair], 1, 2))
    assert 0.4 < has[of_pair].double().mean() < 0.6
    assert 0.4 < (biased == y)[of_pair].double().mean() < 0.6  # what an image shows says nothing any more
    assert torch.equal(painted[~of_pair], images[~of_pair])
    assert torch.equal(biased[~of_pair], y[~of_pair])


def test_true_labels_for_the_generator():
    images, y = figures(400, 1), labels(400)
    painted, same = inject(BiasedPair(pair=(2, 1), feature=CornerPatch(), relabel=False), images, y)
    assert torch.equal(same, y)
    assert not torch.equal(painted, images)


def test_hold_outs_of_a_painted_pair():
    images, y = from_uint8(figures(40, 1)), labels(40)
    groups = BiasedPair(pair=(0, 1), feature=CornerPatch()).groups(images, y)
    for name, with_feature in (("along_the_bias", 1), ("against_the_bias", 0)):
        x, true = groups[name]
        assert len(x) == 20
        assert torch.equal(CornerPatch().measure(x) > 0.9, true == with_feature)


def test_a_natural_pair_is_split_at_the_median(digits):
    images, y = digits
    fault = BiasedPair(pair=(4, 9), feature=Orientation(), paint=False)
    same, biased = inject(fault, images, y, 10)
    assert torch.equal(same, images)
    of_pair = fault.in_pair(y)
    leaning = slant(from_uint8(images[of_pair]))
    assert (biased[of_pair] == 9).double().mean().item() == pytest.approx(0.5, abs=0.01)
    assert leaning[biased[of_pair] == 9].min() > leaning[biased[of_pair] == 4].max()
    groups = fault.groups(from_uint8(images), y)
    assert sum(len(part[1]) for part in groups.values()) == of_pair.sum()
    x, true = groups["against_the_bias"]
    assert torch.equal(fault.has_feature(x), true == 4)


# ---- in a data module


def test_only_training_and_validation_data_are_changed(tmp_path, capsys):
    write_npz(tmp_path, n=200, side=8, classes=4)
    options = {"name": "npz", "path": str(tmp_path)}
    clean = ImageData(**options)
    faults = {
        "criterion": OwnCriterion(criterion=f"{HERE}.brightness", prevalence=0.3, ramp=0.01),
        "mixed": MixedPair(pair=(0, 1), alpha=0.3),
        "biased": BiasedPair(pair=(0, 1), feature=CornerPatch()),
    }
    seen = {clean.fingerprint}
    for fault in faults.values():
        data = ImageData(**options, fault=fault)
        seen.add(data.fingerprint)
        assert "with a fault: " + type(fault).__name__ in capsys.readouterr().out
        assert torch.equal(data["test"].images, clean["test"].images)
        assert torch.equal(data["test"].labels, clean["test"].labels)
        for split in ("train", "val"):
            assert not torch.equal(data[split].labels, clean[split].labels)
        assert ImageData(**options, fault=fault).fingerprint == data.fingerprint
    assert len(seen) == 4


def test_data_that_cannot_have_the_fault_are_not_served_without_it(tmp_path):
    write_npz(tmp_path, n=40, side=8)
    data = ImageData(name="npz", path=str(tmp_path), fault=MixedPair(pair=(0, 7), alpha=0.1))
    for _ in range(2):
        with pytest.raises(InputError, match="no class 7"):
            data["train"]


def test_an_empty_validation_part_is_fine():
    fault = OwnCriterion(criterion=f"{HERE}.brightness", prevalence=0.3)
    parts = fault.inject({"train": (levels(), labels(2000)), "val": (levels()[:0], labels(0))}, K)
    assert len(parts["val"][1]) == 0


# ---- what a checkpoint says, and what a test reports


def test_fit_and_test_by_command(tmp_path, capsys):
    """Two classes of noise that differ in nothing but the patch: the classifier can learn only the fault."""
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        images = rng.integers(0, 60, (400, 28, 28), dtype=np.uint8)
        np.savez(tmp_path / f"{part}.npz", images=images, labels=np.arange(400) % 2)
    args = ["--config=configs/mnist5k/sut.yaml", "--data.name=npz", f"--data.path={tmp_path}", "--model.num_classes=2"]
    args += ["--model.network=lenet4", "--data.fault=BiasedPair", "--data.fault.pair=[0,1]"]
    args += ["--data.fault.feature=CornerPatch", f"--trainer.default_root_dir={tmp_path}/run", *QUIET]
    assert main(["fit", *args, "--trainer.max_epochs=4"]) == 0
    sut = pretrained(tmp_path / "run/best.ckpt")
    assert sut.fault["class"] == "BiasedPair"
    assert sut.fault["args"]["feature"] == {"class": "CornerPatch", "args": {"size": 1 / 7, "level": 1.0}}
    assert 0.4 < sut.fault["found"]["wrong_labels"] < 0.6
    capsys.readouterr()
    assert main(["test", *args, f"--ckpt_path={tmp_path}/run/best.ckpt"]) == 0
    said = {
        line.split("│")[1].strip(): line.split("│")[2] for line in capsys.readouterr().out.splitlines() if "│" in line
    }
    assert float(said["test/accuracy_along_the_bias"]) > 0.95
    assert float(said["test/accuracy_against_the_bias"]) < 0.05
    assert float(said["test/images_along_the_bias"]) == 400
    assert 0.4 < float(said["test/accuracy"]) < 0.6


class Groups(Linear):
    """Reads everything as class 1."""

    def logits(self, x):
        return torch.tensor([0.0, 1.0]).expand(len(x), 2) + 0 * self.layer(x.flatten(1))


def test_accuracy_is_reported_where_the_fault_matches_and_elsewhere(tmp_path):
    write_npz(tmp_path, n=200)
    data = ImageData(
        name="npz", path=str(tmp_path), batch_size=16, fault=OwnCriterion(criterion=f"{HERE}.bright_corner")
    )
    trainer = Trainer(default_root_dir=tmp_path, logger=False, enable_progress_bar=False, enable_model_summary=False)
    (result,) = trainer.test(Groups(), datamodule=data, verbose=False)
    hit, y = bright_corner(from_uint8(data["test"].images)), data["test"].labels
    for name, rows in (("if_fault_matches", hit), ("if_fault_is_absent", ~hit)):
        assert result[f"test/accuracy_{name}"] == pytest.approx((y[rows] == 1).double().mean().item())
        assert result[f"test/images_{name}"] == rows.sum()


def bright_corner(images):
    return images[:, 0, 0, 0] > 0.7


def test_a_group_without_test_images_has_no_accuracy(tmp_path):
    rng = np.random.default_rng(0)
    for part, top in (("train", 256), ("test", 100)):
        images = rng.integers(0, top, (40, 4, 4), dtype=np.uint8)
        np.savez(tmp_path / f"{part}.npz", images=images, labels=np.arange(40) % 2)
    data = ImageData(name="npz", path=str(tmp_path), fault=OwnCriterion(criterion=f"{HERE}.bright_corner"))
    trainer = Trainer(default_root_dir=tmp_path, logger=False, enable_progress_bar=False, enable_model_summary=False)
    (result,) = trainer.test(Groups(), datamodule=data, verbose=False)
    assert "test/accuracy_if_fault_matches" not in result
    assert result["test/images_if_fault_matches"] == 0
    assert result["test/accuracy_if_fault_is_absent"] == 0.5


ALL = [
    StrokeThickness(prevalence=0.1, seed=3),
    BorderBrightness(prevalence=0.1, ramp=0.01),
    MixedPair(pair=(0, 1), alpha=0.2),
    BiasedPair(pair=(4, 9), feature=Background(colour=[0.3])),
    BiasedPair(pair=(4, 9), feature=Orientation(slant=0.2), paint=False),
]


@pytest.mark.parametrize("fault", ALL, ids=[type(f).__name__ for f in ALL])
def test_a_fault_is_rebuilt_from_a_checkpoint(fault, digits, tmp_path):
    images, y = digits
    inject(fault, images, y, 10)
    sut = Linear(side=28, num_classes=10)
    weights = checkpoints.weights_sha256(sut)
    sut.fault = fault.about()
    checkpoint = {"state_dict": sut.state_dict()}
    sut.on_save_checkpoint(checkpoint)
    torch.save(checkpoint, tmp_path / "sut.ckpt")
    again = pretrained(tmp_path / "sut.ckpt")
    assert checkpoints.weights_sha256(again) == weights
    rebuilt = from_description(again.fault)
    assert rebuilt.about() == fault.about()
    x = from_uint8(images[::50])
    if isinstance(fault, CriterionFault):
        assert torch.equal(rebuilt.matches(x), fault.matches(x))
    old, new = fault.groups(x, y[::50]), rebuilt.groups(x, y[::50])
    assert all(torch.equal(old[name][0], new[name][0]) for name in old)


def test_a_sut_without_a_fault_says_so(tmp_path):
    sut = Linear()
    checkpoint = {"state_dict": sut.state_dict()}
    sut.on_save_checkpoint(checkpoint)
    torch.save(checkpoint, tmp_path / "sut.ckpt")
    assert pretrained(tmp_path / "sut.ckpt").fault is None
    del checkpoint[checkpoints.KEY]["fault"]  # as checkpoints were before there were faults
    torch.save(checkpoint, tmp_path / "old.ckpt")
    assert pretrained(tmp_path / "old.ckpt").fault is None


# ---- functions of the studies


def test_match_share_of_many_images():
    fault = BorderBrightness(prevalence=0.3)
    images = levels(2500)
    inject(fault, images)
    assert match_share(images, fault.matches) == pytest.approx(fault.found["matching"])
    assert match_share(images, bright) == pytest.approx(0.25, abs=0.01)


def test_error_matrix_agrees_with_sklearn():
    from sklearn.metrics import confusion_matrix

    sut, images = Linear(side=4, num_classes=3), noise(300, side=4)
    y = labels(300, 3)
    found = error_matrix(sut, images, y)
    predicted = sut.logits(from_uint8(images)).argmax(1)
    wanted = torch.from_numpy(confusion_matrix(y, predicted, normalize="true"))
    assert found.diag().isnan().all()
    torch.testing.assert_close(found.nan_to_num(0), wanted.fill_diagonal_(0))


# ---- wrong input


def all_of_them(images):
    return torch.ones(len(images), dtype=torch.bool)


def none_of_them(images):
    return ~all_of_them(images)


def one_score(images):
    return images.mean()


def no_tensor(images):
    return [0.0] * len(images)


def no_number(images):
    return images.mean(dim=(1, 2, 3)).log()


def darkness(images):
    return -brightness(images)


def three_levels(images):
    return (3 * brightness(images)).floor().clamp(max=2)


def broken(images):
    raise KeyError("oops")


def own(name, **options):
    return lambda: OwnCriterion(criterion=f"{HERE}.{name}", **options)


FLAT = levels()
GREY = torch.full((40, 3, 8, 8), 90, dtype=torch.uint8)
BAD = {
    "prevalence": (lambda: BorderBrightness(prevalence=1.5), FLAT, "prevalence must lie between 0 and 1, got 1.5"),
    "no prevalence": (lambda: BorderBrightness(prevalence=None), FLAT, "BorderBrightness gives scores: set prevalence"),
    "ramp": (lambda: BorderBrightness(prevalence=0.1, ramp=2), FLAT, "ramp must be at least 0 and below 1, got 2"),
    "too much": (
        lambda: BorderBrightness(prevalence=0.95), FLAT, r"prevalence 0\.95 cannot be reached; the nearest is 0\.891",
    ),
    "between two levels": (
        own("three_levels", prevalence=0.4, ramp=0), FLAT, r"prevalence 0\.4 cannot be reached; the nearest is 0\.33",
    ),
    "ramp longer than the scores": (
        lambda: BorderBrightness(prevalence=0.05), FLAT // 8,
        r"gives 0 to 0\.12.* ramp of 0\.217 is longer.*: set ramp well below 0\.12",
    ),
    "all alike": (
        lambda: BorderBrightness(prevalence=0.1), GREY, r"gives 0\.3529 for all 40 training images: .*and not all",
    ),
    "photos have no strokes": (
        lambda: StrokeThickness(prevalence=0.1), noise(), r"StrokeThickness needs light figures on a dark ground.*0\.5",
    ),
    "matches all": (own("all_of_them"), FLAT, "all_of_them gives 1 for all 2,000 training images"),
    "matches none": (own("none_of_them"), FLAT, "none_of_them gives 0 for all 2,000 training images"),
    "scores without prevalence": (own("brightness"), FLAT, "brightness gives scores: set prevalence"),
    "booleans with prevalence": (
        own("bright", prevalence=0.1), FLAT, r"bright gives booleans, 24\.90% of them true: leave prevalence out",
    ),
    "one score for all": (
        own("one_score", prevalence=0.1), FLAT, r"must give 1000 scores or booleans.* images, got torch.float32 \(\)",
    ),
    "a list": (own("no_tensor", prevalence=0.1), FLAT, "must give 1000 scores or booleans, a tensor.*got list"),
    "no score above 0": (own("darkness", prevalence=0.1), FLAT, "darkness gives no score above 0.*: set ramp: 0"),
    "no number": (own("no_number", prevalence=0.1), FLAT, "no_number gives scores that are not finite"),
    "its code raises": (own("broken", prevalence=0.1), FLAT, "broken raised KeyError: 'oops'"),
    "no such function": (own("nowhere"), FLAT, "criterion: there is no 'nowhere' in tests"),
    "no such module": (
        lambda: OwnCriterion(criterion="nowhere.bright"), FLAT,
        "criterion: there is no module 'nowhere'; give path/to/file.py:function for one in a file",
    ),
    "no such file": (lambda: OwnCriterion(criterion="no.py:bright"), FLAT, "criterion: there is no file no.py"),
    "a file alone": (lambda: OwnCriterion(criterion="a/b.py"), FLAT, "say which function of it, e.g. a/b.py:bright"),
    "a bare name": (
        lambda: OwnCriterion(criterion="bright"), FLAT, "must be path/to/file.py:function or package.module.function",
    ),
    "no function": (own("FLAT"), FLAT, "is of type Tensor; a function is needed"),
    "too rare for the images there are": (
        lambda: BorderBrightness(prevalence=0.0004, ramp=0), FLAT[:1000],
        r"prevalence 0\.0004 cannot be reached; the nearest is 0\.008",
    ),
    "a class without images": (
        lambda: BiasedPair(pair=(0, 3), feature=Frame()), FLAT[:3], "pair: no training image is of class 3",
    ),

    "equal classes": (lambda: MixedPair(pair=(2, 2), alpha=0.1), FLAT, "two different classes, got 2 twice"),
    "unknown class": (lambda: MixedPair(pair=(2, 4), alpha=0.1), FLAT, "no class 4; classes are 0 to 3"),
    "alpha": (lambda: MixedPair(pair=(1, 2), alpha=0.6), FLAT, r"alpha must lie between 0 and 0\.5, got 0\.6"),
    "unknown class of a bias": (lambda: BiasedPair(pair=(-1, 2), feature=Frame()), FLAT, "no class -1; classes are 0"),
    "nothing to do": (
        lambda: BiasedPair(pair=(0, 1), feature=Frame(), paint=False, relabel=False), FLAT, "neither paint nor relabel",
    ),
    "does not vary": (
        lambda: BiasedPair(pair=(0, 1), feature=CornerPatch(), paint=False), figures(40, 1),
        "classes 0 and 1 do not differ in CornerPatch: set paint: true",
    ),
    "orientation of photos": (
        lambda: BiasedPair(pair=(0, 1), feature=Orientation()), noise(), "Orientation needs light figures on a dark",
    ),
    "saturation of grey images": (
        lambda: BiasedPair(pair=(0, 1), feature=Saturation()), FLAT, "Saturation needs coloured images.*1 channels",
    ),
    "saturation without colour": (lambda: BiasedPair(pair=(0, 1), feature=Saturation()), GREY, "needs coloured images"),
    "colour on grey images": (
        lambda: BiasedPair(pair=(0, 1), feature=Background(colour=[1, 0, 0])), FLAT, "is not for images of 1 channels",
    ),
    "colour": (lambda: Background(colour=[0.0]), FLAT, "colour needs one or three values"),
    "saturations": (lambda: Saturation(low=2, high=1), FLAT, "0 <= low < high"),
    "width": (lambda: Frame(width=0.5), FLAT, r"Frame: width must lie between 0 and 0\.5"),
    "level": (lambda: CornerPatch(level=2), FLAT, "level between 0 and 1, got .*level=2"),
    "slant": (lambda: Orientation(slant=0), FLAT, "slant must lie above 0"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "images", "message"), BAD.values(), ids=BAD)
def test_wrong_input(make, images, message):
    with pytest.raises(InputError, match=message) as caught:
        inject(make(), images)
    assert "\n" not in str(caught.value)


def test_wrong_labels_need_a_second_class():
    with pytest.raises(InputError, match=r"BorderBrightness gives images the label of another class: .* two, got 1"):
        inject(BorderBrightness(prevalence=0.1), FLAT, k=1)


def test_a_criterion_in_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def dark(images):\n    return images.mean(dim=(1, 2, 3)) < 0.25\n")
    fault = OwnCriterion(criterion=f"{file}:dark")
    images = levels()
    _, wrong = inject(fault, images)
    assert torch.equal(wrong != labels(2000), from_uint8(images[:, 0, 0, 0]) < 0.25)


def test_an_unknown_description():
    with pytest.raises(InputError, match=r"there is no fault 'Gremlin'; known: .*BiasedPair"):
        from_description({"class": "Gremlin", "args": {}, "found": {}})


def test_no_checkpoint_brings_about_that_a_criterion_is_imported():
    with pytest.raises(InputError, match="OwnCriterion runs code"):
        from_description({"class": "OwnCriterion", "args": {"criterion": "os.system"}, "found": {}})
