"""A small trained SUT and CVAE for the whole session, made by the command line itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lsgen.cli import main
from lsgen.studies import find
from lsgen.studies.base import Lab, write

ROOT = Path(__file__).parent.parent
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
os.environ["WANDB_MODE"] = "offline"


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sut/best.ckpt and cvae/best.ckpt, barely trained."""
    folder = tmp_path_factory.mktemp("trained")
    sut = [f"--config={ROOT}/configs/mnist5k/sut.yaml", f"--trainer.default_root_dir={folder}/sut"]
    assert main(["fit", *sut, "--trainer.max_epochs=2", *QUIET]) == 0
    quality = f"""[{{class_path: GeneratorQuality, init_args: {{samples: 50, judge: {{class_path: lsgen.suts.pretrained,
        init_args: {{path: {folder}/sut/best.ckpt}}}}}}}}]"""
    cvae = [f"--config={ROOT}/configs/mnist5k/cvae.yaml", f"--trainer.default_root_dir={folder}/cvae"]
    cvae += [f"--trainer.callbacks={quality}", "--trainer.max_epochs=3"]
    assert main(["fit", *cvae, *QUIET]) == 0
    return folder


@pytest.fixture
def search_args(trained: Path):
    """Arguments of a small PGD search; more can be added."""

    def build(*more: str, method: str = "pgd") -> list[str]:
        return [
            "search",
            f"--config={ROOT}/configs/mnist5k/search/{method}.yaml",
            f"--model.generator.path={trained}/cvae/best.ckpt",
            f"--model.sut.path={trained}/sut/best.ckpt",
            f"--trainer.default_root_dir={trained}/search",
            "--model.seeds.per_class=10",
            "--model.block_size=20",
            "--model.eval_batch_size=32",
            *QUIET,
            *more,
        ]

    return build


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory):
    """Runs a study once at the smallest scale; models are shared between studies."""
    root, done = tmp_path_factory.mktemp("studies"), {}

    def run(name: str):
        if name not in done:
            lab = Lab(out=root / name, scale="smoke", models=root / "models")
            lab.out.mkdir()
            done[name] = find(name).run(lab), lab
            write(find(name), lab, done[name][0])
        return done[name]

    return run
