"""ExternalSUT: anybody's module, its weights, its preprocessing, and what is said when they do not fit."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lsgen import checkpoints
from lsgen.errors import InputError
from lsgen.search import Differential
from lsgen.search.task import _decisive
from lsgen.suts import ExternalSUT, pretrained
from lsgen.types import describe

MODEL = """\
from collections import namedtuple
from dataclasses import dataclass

import torch
from torch import nn

from helper import double


@dataclass
class Settings:
    width: int = 5


class Net(nn.Module):
    def __init__(self, width: int = 5, classes: int = 4, channels: int = 3):
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        return self.fc(self.drop(double(self.conv(x).relu().mean((2, 3)))))


class Wrapped(Net):
    def forward(self, x):
        return self.kinds(super().forward(x))


class Tuple(Wrapped):
    kinds = staticmethod(lambda y: (y, y + 1))


Output = namedtuple("Output", ["aux", "logits"])


class Named(Wrapped):
    kinds = staticmethod(lambda y: Output(y + 1, y))


class Dict(Wrapped):
    kinds = staticmethod(lambda y: {"scores": y})


class Flat(Wrapped):
    kinds = staticmethod(lambda y: y.flatten())


class Squeezed(Wrapped):
    kinds = staticmethod(lambda y: y.squeeze())


class Hard(Wrapped):
    kinds = staticmethod(lambda y: y.detach())


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3))


class Broken(nn.Module):
    def __init__(self, size: int = 3):
        super().__init__()
        raise RuntimeError(f"cannot do size {size}")


def make(width: int = 5):
    return Net(width)


def number():
    return 3


instance = Net()
constant = 3
"""
SHAPE = (3, 8, 8)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def external(model="net.py:Net", **changes):
    return ExternalSUT(**{"model": model, "num_classes": 4, "image_shape": SHAPE, **changes})


# --- building ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Net", "make", "Tuple", "Named", "Convolutional"])
def test_gives_logits(folder, name):
    sut = external(f"net.py:{name}")
    x = torch.rand(3, *SHAPE, requires_grad=True)
    logits = sut.logits(x)
    assert logits.shape == (3, 4)
    assert torch.autograd.grad(logits.sum(), x)[0].abs().sum() > 0


@pytest.mark.parametrize("name", ["Tuple", "Named"])
def test_takes_the_logits_out_of_what_is_returned(folder, name):
    sut = external(f"net.py:{name}")
    x = torch.rand(3, *SHAPE)
    expected = sut.net.fc(2 * sut.net.conv(x).relu().mean((2, 3)))
    torch.testing.assert_close(sut.logits(x), expected)


def test_an_image_alone_gets_an_answer_of_its_own(folder):
    sut, plain = external("net.py:Squeezed"), external()
    plain.net.load_state_dict(sut.net.state_dict())
    x = torch.rand(3, *SHAPE)
    for n in (1, 2, 3):
        torch.testing.assert_close(sut.logits(x[:n]), plain.logits(x[:n]))
        torch.testing.assert_close(sut.features(x[:n]), plain.features(x[:n]))
    one = x[:1].clone().requires_grad_()
    (grad,) = torch.autograd.grad(sut.logits(one)[0, 0], one)
    torch.testing.assert_close(grad, torch.autograd.grad(plain.logits(one)[0, 0], one)[0])


def test_by_import_path_with_arguments():
    sut = external("torchvision.models.resnet18", model_args={"num_classes": 4}, image_shape=(3, 32, 32))
    x = torch.rand(2, 3, 32, 32)
    assert sut.logits(x).shape == (2, 4)
    assert sut.features(x).shape == (2, 512)


def test_stays_in_eval_mode_and_gives_the_same_each_time(folder):
    sut = external().train()
    assert not any(m.training for m in sut.modules())
    x = torch.rand(2, *SHAPE)
    assert torch.equal(sut(x), sut(x))
    assert not any(p.requires_grad for p in sut.parameters())


def test_black_box_keeps_no_graph(folder):
    sut = external("net.py:Hard", differentiable=False)
    x = torch.rand(2, *SHAPE, requires_grad=True)
    assert not sut.logits(x).requires_grad
    assert not external(differentiable=False).logits(x).requires_grad


def test_no_checkpoint_brings_about_that_code_is_run(tmp_path):
    args = {"model": "os.system", "model_args": {"command": f"touch {tmp_path / 'ran'}"}, "weights": "none"}
    about = {"role": "SUT", "class": "ExternalSUT", "args": args | {"num_classes": 2, "image_shape": [1, 4, 4]}}
    torch.save({"lsgen": about, "state_dict": {}}, tmp_path / "evil.ckpt")
    with pytest.raises(InputError, match="names a ExternalSUT, which runs code"):
        pretrained(tmp_path / "evil.ckpt")
    assert not (tmp_path / "ran").exists()


def test_hash_sees_weights_settings_and_code(folder):
    def sha(**changes):
        torch.manual_seed(changes.pop("seed", 0))
        return checkpoints.weights_sha256(external(**changes))

    first = sha()
    assert first == sha()
    others = [sha(seed=1), sha(mean=[0.1]), sha(input_size=6), sha(model="net.py:Tuple"), sha(feature_layer="conv")]
    (folder / "net.py").write_text(MODEL.replace("relu", "tanh"))
    others.append(sha())
    assert len({first, *others}) == 7


def test_where_a_second_suts_files_lie_decides_nothing(folder):
    torch.save(external().net.state_dict(), "w.pt")
    here, there = (Differential(other=external(weights=weights)) for weights in ("w.pt", str(folder / "w.pt")))
    assert describe(here) != describe(there)
    assert _decisive(here) == _decisive(there) != _decisive(Differential(other=external(weights="w.pt"), start=1.0))


# --- preprocessing ---------------------------------------------------------------------------------------------------


@pytest.fixture
def seen(tmp_path):
    (tmp_path / "seen.py").write_text(
        "from torch import nn\n\n\nclass Seen(nn.Module):\n    def forward(self, x):\n        self.x = x\n"
        "        return x.mean((2, 3))[:, :1].expand(-1, 4)\n"
    )
    return f"{tmp_path}/seen.py:Seen"


@pytest.mark.parametrize(
    ("data", "settings", "given"),
    [
        ((3, 8, 8), {}, (3, 8, 8)),
        ((3, 8, 8), {"input_size": 5}, (3, 5, 5)),
        ((3, 8, 8), {"input_size": [12, 6]}, (3, 12, 6)),
        ((3, 8, 8), {"input_channels": 1}, (1, 8, 8)),
        (
            (1, 8, 8),
            {"input_channels": 3, "input_size": 10, "mean": [0.1, 0.2, 0.3], "std": [1.0, 2.0, 4.0]},
            (3, 10, 10),
        ),
    ],
)
def test_brings_images_to_what_the_model_takes(seen, data, settings, given):
    sut = external(seen, image_shape=data, **settings)
    x = torch.full((2, *data), 0.5, requires_grad=True)
    sut.logits(x).sum().backward()
    assert x.grad.abs().sum() > 0
    assert sut.net.x.shape == (2, *given)
    mean, std = (torch.tensor(settings.get(k, d)).view(-1, 1, 1) for k, d in (("mean", [0.0]), ("std", [1.0])))
    torch.testing.assert_close(sut.net.x.detach(), ((0.5 - mean) / std).expand(2, *given))


def test_gray_is_the_luminance(seen):
    sut = external(seen, input_channels=1)
    x = torch.zeros(2, *SHAPE)
    x[:, 1] = 1  # green
    torch.testing.assert_close(sut.logits(x), torch.full((2, 4), 0.587))


# --- features --------------------------------------------------------------------------------------------------------


def test_features_default_to_the_input_of_the_last_linear_layer(folder):
    sut = external()
    x = torch.rand(3, *SHAPE)
    features = sut.features(x)
    assert features.shape == (3, 5)
    torch.testing.assert_close(sut.net.fc(features), sut.logits(x))
    assert not sut.net.fc._forward_hooks


def test_features_of_a_named_layer(folder):
    x = torch.rand(3, *SHAPE)
    assert external(feature_layer="conv").features(x).shape == (3, 5 * 8 * 8)


def test_no_linear_layer_is_told_when_features_are_wanted(folder):
    with pytest.raises(InputError, match="no linear layer: name its feature_layer, one of conv"):
        external("net.py:Convolutional").features(torch.rand(2, *SHAPE))


# --- weights ---------------------------------------------------------------------------------------------------------


def prefixed(prefix):
    return lambda state: {prefix + k: v for k, v in state.items()}


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("w.safetensors", dict),
        ("w.pt", dict),
        ("w.pth", lambda state: {"epoch": 3, "state_dict": state}),
        ("w.pt", prefixed("module.")),
        ("w.safetensors", prefixed("model.")),
        ("w.ckpt", lambda state: {"state_dict": prefixed("module.model.")(state)}),
        ("w.pt", prefixed("_orig_mod.")),
    ],
)
def test_weights_are_loaded(folder, file, change):
    state = external().net.state_dict()
    (save_file if file.endswith("safetensors") else torch.save)(change(state), file)
    loaded = external(weights=file).net.state_dict()
    assert all(torch.equal(loaded[k], v) for k, v in state.items())


def test_a_prefix_of_the_models_own_stays(folder):
    (folder / "own.py").write_text(
        "from torch import nn\n\n\ndef make():\n    net = nn.Module()\n    net.model = nn.Linear(192, 4)\n"
        "    net.forward = lambda x: net.model(x.flatten(1))\n    return net\n"
    )
    state = external("own.py:make").net.state_dict()
    torch.save(state, "w.pt")
    loaded = external("own.py:make", weights="w.pt").net.state_dict()
    assert torch.equal(loaded["model.weight"], state["model.weight"])


class Dangerous:
    def __reduce__(self):
        return (exec, ("open('ran', 'w').close()",))


@pytest.mark.parametrize(
    ("file", "write", "message"),
    [
        ("w.pt", None, "weights: there is no file w.pt"),
        ("w.pt", lambda s: torch.save({**s, "extra.a": s["fc.bias"]}, "w.pt"), "the model does not have extra.a"),
        (
            "w.pt",
            lambda s: torch.save({k: v for k, v in s.items() if "conv" not in k}, "w.pt"),
            "w.pt does not fit net.py:Net: the file lacks conv.weight, conv.bias",
        ),
        (
            "w.pt",
            lambda s: torch.save({**s, "fc.weight": torch.zeros(9, 5)}, "w.pt"),
            r"fc.weight is \[9, 5\] in the file and \[4, 5\] in the model",
        ),
        ("w.pt", lambda s: torch.save({f"a{i}": s["fc.bias"] for i in range(9)}, "w.pt"), "a0, a1, a2 and 6 more"),
        ("w.pt", lambda s: torch.save([1, 2], "w.pt"), "holds no state dict .* but a list"),
        ("w.pt", lambda s: torch.save({"epoch": 3}, "w.pt"), "holds no state dict .* but a dict with 'epoch'"),
        ("w.pt", lambda s: torch.save({}, "w.pt"), "an empty dict"),
        ("w.pt", lambda s: Path("w.pt").write_text("no"), "cannot be read as a state dict"),
        ("w.pt", lambda s: torch.save(Dangerous(), "w.pt"), "cannot be read as a state dict"),
        ("w.safetensors", lambda s: Path("w.safetensors").write_text("no"), "cannot be read as safetensors"),
    ],
)
def test_weights_that_do_not_fit(folder, file, write, message):
    if write is not None:
        write(external().net.state_dict())
    with pytest.raises(InputError, match=message):
        external(weights=file)
    assert not (folder / "ran").exists()


def test_a_module_in_the_current_folder_is_found_and_what_is_installed_goes_first(folder):
    (folder / "beside_the_user.py").write_text((folder / "net.py").read_text())
    before = list(sys.path)
    assert external("beside_the_user.Net").logits(torch.zeros(1, 3, 8, 8)).shape == (1, 4)
    assert sys.path == before
    (folder / "torchvision.py").write_text("raise RuntimeError('the wrong one')")
    assert external("torchvision.models.resnet18", model_args={"num_classes": 4}).net is not None


# --- neighbours of the model file ------------------------------------------------------------------------------------

SMALL = """\
from torch import nn

{imports}


class Net(nn.Module):
    def forward(self, x):
        return {call}(x).mean((2, 3))[:, :1].expand(-1, 4)
"""
IMPORTS = {
    "module": ("helper.py", "from helper import times", "times"),
    "package": ("parts/helper.py", "import parts.helper", "parts.helper.times"),  # without __init__.py
    "package with a file": ("parts/helper.py", "from parts import helper", "helper.times"),
}


def write_net(folder, factor, kind="module"):
    """A network that multiplies, by means of a neighbour."""
    file, imports, call = IMPORTS[kind]
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(f"def times(x):\n    return {factor} * x\n")
    (folder / "net.py").write_text(SMALL.format(imports=imports, call=call))
    if kind == "package with a file":
        (folder / "parts/__init__.py").touch()
    return f"{folder}/net.py:Net"


@pytest.fixture
def plain_names():
    """Forgets modules that a test leaves under names such as helper."""
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        if name.partition(".")[0] in ("helper", "parts", "colours", "theirs"):
            del sys.modules[name]


def factor(sut):
    return sut.logits(torch.ones(1, *SHAPE))[0, 0].item()


def sha(sut):
    return checkpoints.weights_sha256(sut)


@pytest.mark.parametrize("kind", IMPORTS)
def test_each_file_gets_the_neighbours_of_its_own_folder(tmp_path, plain_names, kind):
    models = {k: write_net(tmp_path / f"v{k}", k, kind) for k in (2, 30)}
    suts = {k: external(models[k]) for k in (2, 30, 2, 30)}
    assert {k: factor(sut) for k, sut in suts.items()} == {2: 2, 30: 30}
    assert sha(suts[2]) != sha(suts[30])


@pytest.mark.parametrize("kind", IMPORTS)
def test_hash_and_answers_follow_an_edited_neighbour(tmp_path, plain_names, kind):
    first, again = (external(write_net(tmp_path, 2, kind)) for _ in range(2))
    assert sha(first) == sha(again)
    edited = external(write_net(tmp_path, 30, kind))
    assert factor(edited) == 30
    assert sha(edited) != sha(first)


def test_hash_does_not_see_where_files_lie_or_files_that_are_not_imported(tmp_path, plain_names):
    here, there = (external(write_net(tmp_path / k, 2)) for k in ("here", "further/there"))
    assert sha(here) == sha(there)
    (tmp_path / "here/train.py").write_text("import helper\n")
    assert sha(external(f"{tmp_path}/here/net.py:Net")) == sha(here)


def test_hash_sees_what_a_constructor_imports(tmp_path, plain_names):
    code = "from torch import nn\n\n\ndef make():\n    from helper import times\n\n    net = nn.Flatten()\n"
    code += "    net.forward = lambda x: times(x).mean((2, 3))[:, :1].expand(-1, 4)\n    return net\n"
    suts = []
    for k in (2, 30):
        write_net(tmp_path, k)
        (tmp_path / "net.py").write_text(code)
        suts.append(external(f"{tmp_path}/net.py:make"))
    assert [factor(sut) for sut in suts] == [2, 30]
    assert sha(suts[0]) != sha(suts[1])


def test_modules_of_others_are_left_as_they_are(tmp_path, plain_names, monkeypatch):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/helper.py").write_text("def times(x):\n    return 5 * x\n")
    monkeypatch.syspath_prepend(tmp_path / "theirs")
    theirs = importlib.import_module("helper")
    assert factor(external(write_net(tmp_path / "v2", 2))) == 2
    assert importlib.import_module("helper") is theirs
    broken = write_net(tmp_path / "v3", 2)
    (tmp_path / "v3/helper.py").write_text("raise KeyError('lost')")
    with pytest.raises(InputError, match="lost"):
        external(broken)
    assert importlib.import_module("helper") is theirs


@pytest.mark.parametrize("name", ["random", "types", "torch", "numpy", "lsgen"])
def test_a_neighbour_does_not_replace_what_is_installed(tmp_path, plain_names, name):
    model, module = write_net(tmp_path, 2), sys.modules[name]
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong one')")
    (tmp_path / "helper.py").write_text(f"import {name}\n\n\ndef times(x):\n    return 2 * x\n")
    assert factor(external(model)) == 2
    assert sys.modules[name] is module


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "none.py:Net"}, "there is no file none.py"),
        ({"model": "net.py"}, "say which class of it, e.g. net.py:Net"),
        ({"model": "Net"}, "must be path/to/file.py:Class or package.module.Class, got 'Net'"),
        ({"model": "net.py:Nett"}, "there is no 'Nett' in net.py; it has Settings, Net, Wrapped and"),
        ({"model": "torchvision.models.resnet19"}, "there is no 'resnet19' in torchvision.models"),
        ({"model": "no_such_package.models.Net"}, "no module 'no_such_package'; give path/to/file.py:Class"),
        ({"model": "net.py:constant"}, "net.py:constant is of type int; a class or a function is needed"),
        ({"model": "net.py:instance"}, "net.py:instance is of type Net; a class or a function is needed"),
        ({"model": "net.py:number"}, "gives an object of type int; a torch.nn.Module is needed"),
        ({"model_args": {"widht": 3}}, "unexpected keyword argument 'widht'; it takes width, classes, channels"),
        ({"model": "net.py:Broken"}, r"RuntimeError: cannot do size 3 \(line \d+ of net.py\)"),
        ({"model": "net.py:Dict"}, "must return logits"),
        ({"model": "net.py:Flat"}, r"logits of shape \[N, 4\] \(num_classes\), got \[8\] for 2 images"),
        ({"model": "net.py:Hard"}, "no gradient flows through net.py:Hard: set differentiable: false"),
        ({"num_classes": 5}, r"\[N, 5\] \(num_classes\), got \[2, 4\]"),
        (
            {"model_args": {"channels": 1}},
            r"fails on images of \(3, 8, 8\) .*RuntimeError.*line 23 of net.py.*input_channels",
        ),
        ({"image_shape": (1, 8, 8)}, r"fails on images of \(1, 8, 8\)"),
        ({"image_shape": (2, 8, 8), "input_channels": 3}, "images of 2 channels cannot be given"),
        ({"input_channels": 2}, "only gray"),
        ({"input_size": 0}, "input_size must be one number"),
        ({"input_size": [8]}, "input_size must be one number"),
        ({"mean": [0.1, 0.2]}, "mean must have one number, or one for each of the 3 channels"),
        ({"std": [0.0]}, "std must be above 0"),
        ({"std": [float("nan")]}, "std must have"),
        ({"feature_layer": "head"}, "has no layer 'head'; it has fc, drop, conv"),
    ],
)
def test_bad_input(folder, settings, message):
    with pytest.raises(InputError, match=message):
        external(**settings)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\nraise KeyError('lost')\n", r"bad.py cannot be imported: KeyError: 'lost' \(line 2 of bad.py\)"),
        ("import torch\n\nimport no_such_thing\n", r"ModuleNotFoundError: .*no_such_thing.* \(line 3 of bad.py\)"),
        ("def f(:\n    pass\n", r"SyntaxError: .* \(line 1 of bad.py\)"),
        ("import sys\nsys.exit(3)\n", r"SystemExit: 3 \(line 2 of bad.py\)"),
        ("import json\n\n\njson.loads('{')\n", r"JSONDecodeError: .* \(line 4 of bad.py\)"),
    ],
)
@pytest.mark.parametrize("model", ["bad.py:Net", "bad.Net"])
def test_a_file_that_raises_on_import(folder, monkeypatch, code, message, model):
    (folder / "bad.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    expected = message if model == "bad.py:Net" else message.replace("bad.py cannot", "bad cannot")
    if "json" in code and model == "bad.Net":
        expected = "bad cannot be imported: JSONDecodeError"  # no module to look at: the line is where it was raised
    with pytest.raises(InputError, match=expected):
        external(model)
