"""Data by name: where it is found, how it is split and changed, and what is said about wrong input."""

import csv
import os
import pickle
import shutil
import urllib.error
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from lsgen.data import ImageData
from lsgen.data.arrays import Arrays, split
from lsgen.data.published import CLASS_NAMES, PUBLISHED
from lsgen.errors import InputError
from lsgen.types import describe

RNG = np.random.default_rng(0)


def arrays(n=40, classes=4, shape=(6, 5)):
    labels = np.arange(n) % classes
    images = RNG.integers(0, 256, (n, *shape), dtype=np.uint8)
    images.reshape(n, -1)[:, 0] = np.arange(n)  # the first pixel says which row it was
    return {"images": images, "labels": labels}


def write_npz(folder: Path, train=None, test=None):
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "train.npz", **(train or arrays()))
    np.savez(folder / "test.npz", **(test or arrays(n=12)))
    return folder


def write_images(folder: Path, counts, size=(6, 6), mode="RGB"):
    for name, n in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for k in range(n):
            pixels = RNG.integers(0, 256, (*size, 3), dtype=np.uint8)
            Image.fromarray(pixels).convert(mode).save(folder / name / f"{k:02d}.png")
    return folder


def write_idx(file: Path, values):
    file.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, values.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in values.shape)
    file.write_bytes(header + values.astype(np.uint8).tobytes())


def write_mnist(root: Path, folder="MNIST", classes=10):
    for part, n in (("train", 4 * classes), ("t10k", classes)):
        write_idx(root / folder / f"raw/{part}-images-idx3-ubyte", arrays(n, classes, (28, 28))["images"])
        write_idx(root / folder / f"raw/{part}-labels-idx1-ubyte", np.arange(n) % classes)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LSGEN_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


def load(**options):
    data = ImageData(**options)
    data.setup("fit")
    return data


# ---- where data is found


def test_a_name_is_a_folder_with_arrays_and_is_announced_once(cache, capsys):
    write_npz(cache / "my_data")
    data = load(name="my_data")
    data["val"]
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    for part in ("my_data", str(cache), "36 train, 4 val, 12 test", "1×6×5", "4 classes", data.fingerprint[:8]):
        assert part in line
    assert data["train"].images.dtype == torch.uint8
    assert data["train"].labels.dtype == torch.int64
    assert data.image_shape == (1, 6, 5)
    assert data.num_classes == 4
    assert data.class_names == ["0", "1", "2", "3"]


def test_only_rank_zero_announces(cache, capsys, monkeypatch):
    from lightning.pytorch.utilities import rank_zero_only

    monkeypatch.setattr(rank_zero_only, "rank", 1)
    write_npz(cache / "my_data")
    load(name="my_data")
    assert capsys.readouterr().out == ""


def test_default_cache_is_in_the_home(tmp_path, monkeypatch):
    monkeypatch.delenv("LSGEN_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_npz(tmp_path / ".cache/lsgen/my_data")
    assert load(name="my_data").num_classes == 4


def test_arrays_win_over_a_torchvision_copy(cache):
    write_mnist(cache)
    assert load(name="mnist").image_shape == (1, 28, 28)
    write_npz(cache / "mnist")
    assert load(name="mnist").image_shape == (1, 6, 5)


@pytest.mark.parametrize("below", ["", "mnist"])
def test_torchvision_copy_of_mnist(cache, below, capsys):
    write_mnist(cache / below)
    data = load(name="mnist", val_share=0.25)
    assert "torchvision" in capsys.readouterr().out
    assert len(data["train"]) == 30
    assert data.class_names == list("0123456789")
    rows = data["train"].images[:, 0, 0, 0]
    assert torch.equal(rows % 10, data["train"].labels)


def test_torchvision_copy_of_fashion_mnist_has_names(cache):
    write_mnist(cache, "FashionMNIST")
    data = load(name="fashion_mnist", classes=["Bag", "Coat"])
    assert data.class_names == ["Bag", "Coat"]
    assert set((data["test"].images[:, 0, 0, 0] % 10).tolist()) == {8, 4}


def test_emnist_letters_are_upright_and_count_from_zero(cache):
    images = np.zeros((52, 28, 28), dtype=np.uint8)
    images[:, 20, 3] = 255  # stored column by column
    for part in ("train", "test"):
        write_idx(cache / f"EMNIST/raw/emnist-letters-{part}-images-idx3-ubyte", images)
        write_idx(cache / f"EMNIST/raw/emnist-letters-{part}-labels-idx1-ubyte", np.arange(52) % 26 + 1)
    data = load(name="emnist_letters")
    assert data.class_names[0] + data.class_names[25] == "az"
    assert data["test"].images[0, 0, 3, 20] == 255


def test_gtsrb_copy_keeps_the_frames_of_a_sign_together(cache):
    root = cache / "gtsrb"
    for label in range(3):
        folder = root / f"GTSRB/Training/{label:05d}"
        folder.mkdir(parents=True)
        for sign in range(4):
            for frame in range(3):
                image = np.full((8, 8, 3), 10 * (4 * label + sign), dtype=np.uint8)
                Image.fromarray(image).save(folder / f"{sign:05d}_{frame:05d}.ppm")
    (root / "GTSRB/Final_Test/Images").mkdir(parents=True)
    with (root / "GT-final_test.csv").open("w") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow(["Filename", "ClassId"])
        for k in range(3):
            Image.fromarray(np.zeros((9, 7, 3), dtype=np.uint8)).save(root / f"GTSRB/Final_Test/Images/{k}.ppm")
            table.writerow([f"{k}.ppm", k])
    data = load(name="gtsrb", image_size=8, val_share=0.25)
    signs = {k: set(data[k].images[:, 0, 0, 0].tolist()) for k in ("train", "val")}
    assert len(signs["train"]) == 9
    assert len(signs["val"]) == 3
    assert not signs["train"] & signs["val"]


def test_imagenet_copy_reads_only_the_wanted_classes(cache):
    root = cache / "imagenet"
    names = {"n01": ("tench", "Tinca tinca"), "n02": ("crane",), "n03": ("crane",)}
    for part, n in (("train", 3), ("val", 2)):
        write_images(root / part, dict.fromkeys(names, n), size=(9, 7))
    torch.save((names, []), root / "meta.bin")
    (root / "train/n02/00.png").write_bytes(b"never opened")
    data = load(name="imagenet", classes=[2, "tench"], image_size=6)
    assert data.class_names == ["crane", "tench"]
    assert len(data["test"]) == 4
    with pytest.raises(InputError, match=r"'crane' is the name of classes \[1, 2\]"):
        load(name="imagenet", classes=["crane"], image_size=6)


class _Evil:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (self.file,)


def test_a_tampered_cifar_copy_is_not_unpickled(cache, tmp_path):
    folder = cache / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_bytes(pickle.dumps(_Evil(str(tmp_path / "ran"))))
    with pytest.raises(InputError, match=r"cifar10.*incomplete or damaged"):
        load(name="cifar10")
    assert not (tmp_path / "ran").exists()


def test_pickled_objects_in_npz_are_refused(cache, tmp_path):
    train = {**arrays(), "labels": np.array([_Evil(str(tmp_path / "ran"))] * 40, dtype=object)}
    write_npz(cache / "evil", train=train)
    with pytest.raises(InputError, match=r"train\.npz cannot be read as arrays"):
        load(name="evil")
    assert not (tmp_path / "ran").exists()


def test_an_intact_copy_is_not_downloaded_again(cache, no_network):
    write_mnist(cache)
    assert load(name="mnist", download=True).num_classes == 10


def test_only_a_download_loads_before_setup(cache):
    ImageData(name="absent").prepare_data()  # loads nothing, so it has nothing to complain about
    with pytest.raises(InputError):
        ImageData(name="absent", download=True).prepare_data()


# ---- splits, classes, limits, pixels


def test_split_without_groups_is_the_one_checkpoints_were_trained_on():
    labels = np.arange(24) % 3
    _, val = split(Arrays(np.arange(24, dtype=np.uint8).reshape(-1, 1, 1, 1), labels), 0.25)
    assert val.images.ravel().tolist() == [2, 10, 14, 18, 21, 22]


def test_embedded_digits_have_not_changed():
    assert load(name="mnist5k").fingerprint.startswith("9089281ccaa71c4b")


@pytest.mark.parametrize("shared", [False, True], ids=["one class a group", "groups across classes"])
def test_groups_stay_together_and_the_share_is_met(shared):
    labels = np.repeat(np.arange(4), 120)
    groups = np.arange(480) % 40 if shared else np.arange(480) // 6
    fit, val = split(Arrays(np.zeros((480, 1, 1, 1), np.uint8), labels, groups), 0.125)
    assert not set(fit.groups) & set(val.groups)
    assert len(fit.labels) + len(val.labels) == 480
    for label in range(4):
        assert (val.labels == label).mean() * len(val.labels) / 120 == pytest.approx(0.125, abs=0.03)


def test_few_large_groups_still_leave_something_on_both_sides():
    labels, groups = np.repeat([0, 1], [20, 10]), np.repeat([0, 1, 2], 10)
    fit, val = split(Arrays(np.zeros((30, 1, 1, 1), np.uint8), labels, groups), 0.125)
    assert set(val.labels) == {0}  # two groups: one goes; class 1 is one group and stays
    assert set(fit.labels) == {0, 1}


def test_a_validation_part_may_lack_a_class_that_is_one_group(cache):
    train = {**arrays(n=40, classes=2), "groups": np.arange(40) % 2}
    write_npz(cache / "grouped", train=train, test=arrays(n=4, classes=2))
    data = load(name="grouped")
    assert len(data["train"]) == 40
    assert len(data["val"]) == 0


def test_no_image_changes_sides_with_classes_or_limit(cache):
    write_npz(cache / "d", train=arrays(n=200))
    all_of_it, some = load(name="d"), load(name="d", classes=[3, 1], limit_per_class=4)
    for k, n in (("train", 8), ("val", 8), ("test", 6)):
        rows, labels = some[k].images[:, 0, 0, 0], some[k].labels
        assert len(rows) == n
        assert set(rows.tolist()) <= set(all_of_it[k].images[:, 0, 0, 0].tolist())
        assert torch.equal(labels, (rows % 4 == 1).long())  # 3 is now 0, and 1 is 1
        whole = all_of_it[k].images[all_of_it[k].labels == 3, 0, 0, 0]
        assert torch.equal(rows[labels == 0], whole[:4])
    assert some.num_classes == 2
    assert some.class_names == ["3", "1"]


def test_class_names_come_with_the_arrays(cache):
    write_npz(cache / "d", train={**arrays(), "class_names": np.array(["a", "b", "c", "d"])})
    assert load(name="d").class_names == ["a", "b", "c", "d"]
    assert load(name="d", classes=["d", "a", 1]).class_names == ["d", "a", "b"]


def test_traffic_signs_have_their_names_at_any_size(cache):
    write_npz(cache / "gtsrb32", train=arrays(n=86, classes=43), test=arrays(n=43, classes=43))
    names = load(name="gtsrb32").class_names
    assert len(set(names)) == 43
    assert (names[14], names[17], names[38]) == ("Stop", "No entry", "Keep right")


def test_size_and_channels(cache):
    write_npz(cache / "grey", train=arrays(), test=arrays(n=12))
    grey, colour = load(name="grey"), load(name="grey", image_size=[9, 8], channels=3)
    assert colour.image_shape == (3, 9, 8)
    assert torch.equal(load(name="grey", channels=3)["test"].images, grey["test"].images.repeat(1, 3, 1, 1))
    red = {**arrays(shape=(8, 8, 3)), "images": np.zeros((40, 8, 8, 3), np.uint8)}
    red["images"][..., 0] = 200
    write_npz(cache / "red", train=red, test=red)
    luma = load(name="red", channels=1, image_size=4)["train"].images
    assert luma.shape[1:] == (1, 4, 4)
    assert (luma.int() - 0.299 * 200).abs().max() <= 1


def test_resizing_averages_and_does_not_drop_pixels(cache):
    stripes = {**arrays(shape=(16, 16)), "images": np.zeros((40, 16, 16), np.uint8)}
    stripes["images"][:, :, ::2] = 200
    write_npz(cache / "stripes", train=stripes, test=stripes)
    small = load(name="stripes", image_size=4)["train"].images[:, :, :, 1:3].float()
    assert (small - 100).abs().max() < 12  # without antialiasing: 0 or 200


def test_batches_are_floats_between_zero_and_one_without_workers(cache):
    write_npz(cache / "d")
    loader = load(name="d", batch_size=10).train_dataloader()
    images, labels = next(iter(loader))
    assert loader.num_workers == 0
    assert images.shape == (10, 1, 6, 5)
    assert images.dtype == torch.float32
    assert images.min() >= 0
    assert 0.5 < images.max() <= 1
    assert torch.equal((images[:, 0, 0, 0] * 255).round().long() % 4, labels)


def test_constructor_arguments_are_kept():
    given = {
        "name": "folder",
        "path": "p",
        "image_size": [8, 9],
        "channels": 3,
        "classes": ["a", 1],
        "limit_per_class": 5,
        "val_share": 0.2,
        "batch_size": 7,
        "balanced": True,
        "download": True,
        "fault": None,
    }
    assert describe(ImageData(**given)) == {"class": "ImageData", "args": given}


# ---- a user's folder of images


def test_folder_with_train_and_test(tmp_path):
    write_images(tmp_path / "train", {"cat": 8, "dog": 8})
    write_images(tmp_path / "test", {"cat": 2, "dog": 3})
    data = load(name="folder", path=str(tmp_path))
    assert [len(data[k]) for k in ("train", "val", "test")] == [14, 2, 5]
    assert data.class_names == ["cat", "dog"]
    stored = np.array(Image.open(tmp_path / "test/dog/00.png"))
    assert np.array_equal(data["test"].images[2].permute(1, 2, 0).numpy(), stored)


def test_folder_of_classes_gives_a_fifth_to_test_the_same_each_time(tmp_path):
    write_images(tmp_path, {"cat": 20, "dog": 10, ".hidden": 1}, mode="L")
    data = load(name="folder", path=str(tmp_path))
    assert torch.bincount(data["test"].labels).tolist() == [4, 2]
    assert data.image_shape == (1, 6, 6)  # all of them grey
    assert load(name="folder", path=str(tmp_path)).fingerprint == data.fingerprint


def test_one_more_file_moves_at_most_one_other_of_its_class(tmp_path):
    def sides(folder):
        """Which part each file is in, for each class."""
        data = load(name="folder", path=str(folder), val_share=0.25)
        names = {Image.open(f).tobytes(): f.name for f in folder.rglob("*.png")}
        found = {name: {} for name in data.class_names}
        for k in ("train", "val", "test"):
            for image, label in zip(data[k].images, data[k].labels, strict=True):
                found[data.class_names[label]][names[image.numpy().tobytes()]] = k
        return found

    write_images(tmp_path / "a", {"cat": 20, "dog": 31}, mode="L")
    before = sides(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert sides(tmp_path / "b") == before  # where the folder lies decides nothing
    for k in range(12):
        write_images(tmp_path / "more", {f"{k}": 1}, mode="L")
        shutil.move(tmp_path / f"more/{k}/00.png", tmp_path / f"b/cat/0{k}_more.png")
        after = sides(tmp_path / "b")
        assert after["dog"] == before["dog"]
        moved = {name for name, k in before["cat"].items() if after["cat"][name] != k}
        for part in ("train", "test"):
            assert sum(part in (before["cat"][name], after["cat"][name]) for name in moved) <= 1
        assert list(after["cat"].values()).count("test") == round(0.2 * len(after["cat"]))
        before = after
    assert {f"0{k}_more.png" for k in range(12)} < set(before["cat"])


@pytest.mark.parametrize("coloured", ["train/cat/00.png", "train/cat/05.png", "test/cat/00.png"])
def test_one_coloured_image_makes_three_channels_everywhere(tmp_path, coloured):
    write_images(tmp_path / "train", {"cat": 8}, mode="L")
    write_images(tmp_path / "test", {"cat": 1}, mode="L")
    Image.new("RGB", (6, 6), (9, 5, 1)).save(tmp_path / coloured)
    data = load(name="folder", path=str(tmp_path))
    assert {tuple(data[k].images.shape[1:]) for k in ("train", "val", "test")} == {(3, 6, 6)}


def test_corrupt_images_are_skipped_and_counted(tmp_path, capsys):
    write_images(tmp_path / "train", {"cat": 12, "dog": 12})
    write_images(tmp_path / "test", {"cat": 3, "dog": 3})
    good = (tmp_path / "test/cat/00.png").read_bytes()
    (tmp_path / "test/cat/01.png").write_bytes(good[: len(good) // 2])
    (tmp_path / "test/dog/02.png").write_bytes(b"")
    data = load(name="folder", path=str(tmp_path))
    assert data["test"].labels.tolist() == [0, 0, 1, 1]
    assert "2 unreadable images skipped" in capsys.readouterr().out


def folder_case(change):
    def make(tmp_path):
        write_images(tmp_path / "train", {"cat": 8, "dog": 8})
        write_images(tmp_path / "test", {"cat": 2, "dog": 2})
        change(tmp_path)

    return make


def spoil(*parts):
    def change(folder):
        for file in folder.joinpath(*parts).iterdir():
            file.write_bytes(b"no image")

    return change


def drop(*parts):
    def change(folder):
        for file in folder.joinpath(*parts).iterdir():
            file.unlink()

    return change


def deep_image(folder):
    Image.fromarray(np.full((6, 6), 40000, dtype=np.uint16)).save(folder / "train/cat/00.png")


FOLDERS = {
    "mixed sizes": (lambda p: write_images(p / "train", {"dog": 1}, size=(9, 6)), r"9×6 pixels.*set image_size"),
    "sizes of train and test": (
        lambda p: write_images(p / "test", {"cat": 2, "dog": 2}, size=(9, 6)),
        r"training images are \(3, 6, 6\), test images \(3, 9, 6\).*image_size",
    ),
    "class without a good image": (spoil("train", "dog"), r"none of the train images of class 'dog' can be read"),
    "class without a good test image": (spoil("test", "cat"), r"none of the test images of class 'cat' can be read"),
    "class without files": (drop("train", "cat"), r"class folder .*cat has no images"),
    "unknown class in test": (lambda p: write_images(p / "test", {"eel": 1}), r"test has a class 'eel'"),
    "16 bits": (deep_image, r"00\.png has more than 8 bits"),
}


@pytest.mark.parametrize(("change", "message"), FOLDERS.values(), ids=FOLDERS)
def test_wrong_folders(tmp_path, change, message):
    folder_case(change)(tmp_path)
    with pytest.raises(InputError, match=message):
        load(name="folder", path=str(tmp_path))


def test_train_without_test_is_not_a_class(tmp_path):
    write_images(tmp_path / "train", {"cat": 8})
    with pytest.raises(InputError, match="has train but no test"):
        load(name="folder", path=str(tmp_path))


def test_mixed_sizes_are_fine_with_image_size(tmp_path):
    write_images(tmp_path, {"cat": 5, "dog": 5})
    write_images(tmp_path, {"dog": 1}, size=(9, 7))
    assert load(name="folder", path=str(tmp_path), image_size=5).image_shape == (3, 5, 5)


# ---- wrong arrays, names and options


def but(part="train", **changes):
    """Good arrays with some of them replaced; None removes one."""
    both = {"train": arrays(), "test": arrays(n=12)}
    both[part] = {k: v for k, v in {**both[part], **changes}.items() if v is not None}
    return both


LABELS = np.arange(40) % 4
ARRAYS = {
    "float images": (but(images=np.zeros((40, 6, 5))), r"train\.npz: images must be uint8.*float64"),
    "four channels": (but(images=np.zeros((40, 6, 5, 4), np.uint8)), r"images must be uint8 of shape.*\(40, 6, 5, 4\)"),
    "flat images": (but(images=np.zeros((40, 30), np.uint8)), r"images must be.*\(40, 30\)"),
    "images without pixels": (but(images=np.zeros((40, 0, 5), np.uint8)), r"images must be.*\(40, 0, 5\)"),
    "other length": (but("test", labels=LABELS), r"test\.npz: 12 images and 40 labels"),
    "nothing": (but(images=np.zeros((0, 6, 5), np.uint8), labels=LABELS[:0]), "0 images and 0 labels"),
    "float labels": (but(labels=LABELS * 1.0), r"labels must be integers of shape \(N,\), got float64"),
    "one-hot labels": (but(labels=np.eye(4, dtype=int)[LABELS]), r"labels must be integers.*\(40, 4\)"),
    "negative label": (but("test", labels=LABELS[:12] - 1), r"test\.npz: labels count from 0, got -1"),
    "label only in test": (but("test", labels=LABELS[:12] + 3), "label 4 occurs in the test part.*0 to 3"),
    "empty class": (but(labels=np.where(LABELS == 2, 5, LABELS)), "class 2 has no training images.*without a gap"),
    "empty class with a name": (but(class_names=np.array(list("abcde"))), r"class 4 \(e\) has no training images"),
    "absurd label": (but(labels=np.where(LABELS == 2, 10**15, LABELS)), "class 2 has no training images"),
    "too few names": (but(class_names=np.array(["a", "b"])), "label 3, but only 2 class names"),
    "names are numbers": (but(class_names=np.arange(4)), "class_names must be strings"),
    "other names in test": (but("test", class_names=np.array(list("abcd"))), "must have the same class_names"),
    "no labels": (but(labels=None), r"train\.npz lacks labels; it has images"),
    "groups of other length": (but(groups=np.arange(3)), r"groups must have one number for each of 40 images"),
    "class of one image": (
        but(labels=np.where(np.arange(40) == 0, 4, LABELS)),
        "class '4' has no training images left when val_share 0.125",
    ),
    "other shape in test": (
        but("test", images=np.zeros((12, 7, 5), np.uint8)),
        r"training images are \(1, 6, 5\), test images \(1, 7, 5\)",
    ),
}


@pytest.mark.parametrize(("content", "message"), ARRAYS.values(), ids=ARRAYS)
def test_wrong_arrays(tmp_path, content, message):
    write_npz(tmp_path, **content)
    with pytest.raises(InputError, match=message):
        load(name="npz", path=str(tmp_path))


@pytest.mark.parametrize("cut", [b"no zip at all", None], ids=["other file", "cut off"])
def test_damaged_npz(tmp_path, cut):
    write_npz(tmp_path)
    file = tmp_path / "train.npz"
    file.write_bytes(cut or file.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"train\.npz cannot be read as arrays"):
        load(name="npz", path=str(tmp_path))


def test_flipped_bits_in_npz(tmp_path):
    write_npz(tmp_path)
    content = bytearray((tmp_path / "train.npz").read_bytes())
    content[300:400] = bytes(100)
    (tmp_path / "train.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"train\.npz cannot be read as arrays"):
        load(name="npz", path=str(tmp_path))


OPTIONS = {
    "batch_size": ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    "val_share": ({"val_share": 1.0}, "val_share must lie between 0 and 1"),
    "channels": ({"channels": 2}, "channels must be 1 or 3, got 2"),
    "image_size": ({"image_size": 0}, "image_size must be a side"),
    "image_size of three": ({"image_size": [1, 2, 3]}, "image_size must be a side"),
    "limit_per_class": ({"limit_per_class": 0}, "limit_per_class must be at least 1"),
    "no path": ({"name": "npz"}, "'npz' needs `path`"),
    "no path for a folder": ({"name": "folder"}, "'folder' needs `path`"),
    "missing path": ({"name": "folder", "path": "not/there"}, "there is no folder not/there"),
    "path beside a name": ({"name": "mnist", "path": "x"}, "path is for data names npz and folder"),
    "path as name": ({"name": "../d"}, "must be a plain name"),
    "class out of range": ({"classes": [0, 4]}, "no class 4; classes are 0 to 3"),
    "unknown class name": ({"classes": ["cat"]}, "no class 'cat'; there are 0, 1, 2, 3"),
    "class twice": ({"classes": [1, "1"]}, "each once"),
    "no class": ({"classes": []}, "at least one class"),
    "only train.npz": ({"name": "half"}, r"there is no .*test\.npz"),
}


@pytest.mark.parametrize(("options", "message"), OPTIONS.values(), ids=OPTIONS)
def test_wrong_options(cache, options, message):
    write_npz(cache / "d")
    write_npz(cache / "half")
    (cache / "half/test.npz").unlink()
    with pytest.raises(InputError, match=message):
        load(**{"name": "d", **options})


def test_test_part_without_the_wanted_classes(cache):
    write_npz(cache / "d", test=arrays(n=12, classes=2))
    with pytest.raises(InputError, match="test part has no images of 3"):
        load(name="d", classes=[3])


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_missing_data_set_is_told_all_three_ways(cache, name):
    with pytest.raises(InputError) as error:
        load(name=name)
    for part in (name, str(cache / name), "train.npz and test.npz", "torchvision's copy", "download: true"):
        assert part in str(error.value)


def test_an_unknown_name_is_told_the_known_ones(cache):
    with pytest.raises(
        InputError, match=r"'nmist' is not there.*known names: mnist5k, mnist, .*folder, and any folder"
    ):
        load(name="nmist", download=True)


@pytest.mark.parametrize("name", [name for name, kind in PUBLISHED.items() if kind.downloads])
def test_no_network(cache, no_network, name):
    with pytest.raises(
        InputError, match=f"{name} could not be downloaded .*Name or service not known.*network"
    ) as error:
        load(name=name, download=True)
    assert "\n" not in str(error.value)


def test_imagenet_cannot_be_downloaded(cache):
    with pytest.raises(InputError, match="download: true cannot fetch it"):
        load(name="imagenet", download=True)


def test_unwritable_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("LSGEN_DATA", str(tmp_path / "file"))
    with pytest.raises(
        InputError, match=r"mnist cannot be downloaded to .*LSGEN_DATA name a folder that you may write"
    ):
        load(name="mnist", download=True)


def test_damaged_copy(cache):
    write_mnist(cache)
    (cache / "MNIST/raw/t10k-images-idx3-ubyte").write_bytes(b"\0\0")
    with pytest.raises(InputError, match=r"mnist: the torchvision copy in .* is incomplete or damaged"):
        load(name="mnist")


def test_tables_of_class_names_are_complete():
    assert {name: len(set(names)) for name, names in CLASS_NAMES.items()} == {
        "fashion_mnist": 10,
        "emnist_letters": 26,
        "cifar10": 10,
        "gtsrb": 43,
    }


def test_balanced_batches_hold_rare_classes_as_often_as_others(tmp_path):
    images, labels = np.zeros((400, 4, 4), np.uint8), np.array([0] * 360 + [1] * 40)
    for part in ("train", "test"):
        np.savez(tmp_path / f"{part}.npz", images=images, labels=labels)
    torch.manual_seed(0)
    data = ImageData(name="npz", path=str(tmp_path), balanced=True)
    drawn = torch.cat([y for _, y in data.train_dataloader()])
    assert len(drawn) == 350  # an epoch keeps its length
    assert float(drawn.float().mean()) == pytest.approx(0.5, abs=0.1)
    assert float(torch.cat([y for _, y in data.val_dataloader()]).float().mean()) == pytest.approx(0.1)


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize(
    ("n", "batch_size", "sizes"),
    [
        (21, 10, [10, 10]),  # one image is left over, and left out
        (22, 10, [10, 10, 2]),
        (20, 10, [10, 10]),
        (1, 10, [1]),  # all there is
        (3, 1, [1, 1, 1]),  # as asked for
    ],
)
def test_no_training_batch_is_a_single_left_over_image(cache, balanced, n, batch_size, sizes):
    write_npz(cache / "d", train=arrays(n=n + 1, classes=1), test=arrays(n=2, classes=1))
    data = load(name="d", batch_size=batch_size, balanced=balanced, val_share=0.01)
    assert [len(y) for _, y in data.train_dataloader()] == sizes
    assert [len(y) for _, y in data.val_dataloader()] == [1]


@pytest.mark.parametrize(("n", "dropped"), [(42, True), (41, True), (21, False)])
def test_a_left_over_image_is_one_of_a_process(cache, n, dropped):
    """Of two processes each gets half of the images, rounded up."""
    write_npz(cache / "d", train=arrays(n=n + 1, classes=1), test=arrays(n=2, classes=1))
    data = load(name="d", batch_size=20, val_share=0.01)
    data.trainer = SimpleNamespace(world_size=2)
    assert data.train_dataloader().drop_last is dropped
