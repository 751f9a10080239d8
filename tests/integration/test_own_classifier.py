"""README.md, "Test your own classifier", followed to the letter: its files, its configurations, a finished search."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch.nn import functional as F

import lsgen
from lsgen.cli import main

DOCUMENT = Path(__file__).parents[2] / "README.md"
SIZE = 16
pytestmark = pytest.mark.filterwarnings("ignore:the SUT reads only")  # the generator is hardly trained here


def blocks():
    """Fenced blocks of the README that begin with the name of a file, by that name."""
    return dict(
        re.findall(r"```(?:python|yaml)\n# (\S+\.(?:py|yaml))\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    )


def shapes(count):
    """Circles, squares and triangles, uint8 [3, count, SIZE, SIZE, 3], of different sizes, places and brightness."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    images = np.zeros((3, count, SIZE, SIZE, 3), dtype=np.uint8)
    for kind, number in np.ndindex(3, count):
        radius, (y, x) = rng.uniform(4, 6), rng.uniform(6.5, 8.5, size=2)
        dy, dx = rows - y, abs(columns - x)
        inside = [dy**2 + dx**2 < radius**2, np.maximum(abs(dy), dx) < 0.85 * radius, 2 * dx - radius < dy]
        filled = inside[kind] & (abs(dy) < radius)
        images[kind, number][filled] = rng.integers(160, 256, size=3)
    return images


def train(module, images):
    """A few steps on gray 28×28 images in [-1, 1], as the README says that the model was trained."""
    x = torch.from_numpy(images).flatten(0, 1).permute(0, 3, 1, 2).float().mean(1, keepdim=True) / 255
    x = (F.interpolate(x, 28, mode="bilinear", antialias=True) - 0.5) / 0.5
    y = torch.arange(3).repeat_interleave(images.shape[1])
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
    return (module(x).argmax(1) == y).float().mean().item()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """What a user brings: a folder of images, a model file, a weights file; and a generator trained on them."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        bring(folder)
        # the README's first step, for fewer epochs
        assert main(["fit", "--config", "shapes_cvae.yaml", "--trainer.max_epochs", "2"]) == 0
    assert (folder / "runs/shapes/cvae/best.ckpt").is_file()
    return folder


@pytest.fixture(autouse=True)
def _here(workplace, monkeypatch):
    monkeypatch.chdir(workplace)


def bring(place):
    """Images, the README's files and weights, in ``place``."""
    images = shapes(60)
    for name, group in zip(("circle", "square", "triangle"), images, strict=True):
        folder = place / "shapes" / name
        folder.mkdir(parents=True)
        for number, image in enumerate(group):
            Image.fromarray(image).save(folder / f"{number:04}.png")
    for name, content in blocks().items():
        (place / name).write_text(content)
    namespace = {"__name__": "shape_net"}
    exec((place / "shape_net.py").read_text(), namespace)
    torch.manual_seed(0)
    net = namespace["ShapeNet"]()
    assert train(net, images) > 0.9
    torch.save(net.state_dict(), place / "shape_net.pt")


def search(*changes):
    """The document's second step, for fewer seeds."""
    small = ["--model.init_args.seeds.init_args.per_class", "8", "--model.init_args.eval_batch_size", "32"]
    return main(["search", "--config", "shapes_pgd.yaml", *small, *changes])


def test_the_document_leads_to_a_finished_search():
    assert set(blocks()) == {"shape_net.py", "shapes_cvae.yaml", "shapes_pgd.yaml"}
    fewer = ["--model.init_args.searcher.init_args.steps", "5", "--out", "runs/shapes/pgd"]
    assert search(*fewer) == 0
    suite = lsgen.load_suite("runs/shapes/pgd")
    assert suite.finished
    assert suite.manifest["sut"]["class"] == "ExternalSUT"
    assert len(suite.table) == 3 * 8
    # the same weights read with another mean are another classifier: its cases must not mix with these
    assert search("--model.init_args.sut.init_args.mean", "[0.4]", *fewer) == 2


def test_the_classifier_can_be_measured_like_any_other(capsys):
    sut = yaml.safe_load(Path("shapes_pgd.yaml").read_text())["model"]["init_args"]["sut"]
    data = yaml.safe_load(Path("shapes_pgd.yaml").read_text())["data"]
    Path("shapes_test.yaml").write_text(yaml.safe_dump({"model": sut, "data": data}))
    assert main(["test", "--config", "shapes_test.yaml"]) == 0
    assert "test/accuracy_class_2" in capsys.readouterr().out


def test_a_black_box_is_searched_without_gradients():
    black_box = ["--model.init_args.sut.init_args.differentiable", "false"]
    sampling = ["--model.init_args.searcher", "RandomSampling", "--out", "runs/shapes/random"]
    assert search(*black_box, *sampling) == 0
    assert lsgen.load_suite("runs/shapes/random").finished


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("weights", "other.pt", "weights: there is no file other.pt"),
        ("model", "shape_net.py:Net", "there is no 'Net' in shape_net.py; it has ShapeNet"),
        ("model_args", "{width: 8}", "shape_net.pt does not fit shape_net.py:ShapeNet: other shapes: features.0"),
        ("input_size", "32", "fails on images of (1, 32, 32)"),
        ("differentiable", "false", "LatentPGD follows gradients, and the SUT is a black box"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(capsys, key, value, message):
    assert search(f"--model.init_args.sut.init_args.{key}", value) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("lsgen: ")
    assert message in last
