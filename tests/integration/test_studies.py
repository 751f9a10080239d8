"""Every study at the smallest scale, on embedded digits: what must hold by construction, and what is written."""

import csv
import json
import subprocess
from dataclasses import replace
from itertools import product

import pytest

import lsgen
from lsgen import generators, suts
from lsgen.analysis import retrain
from lsgen.cli import main
from lsgen.data import ImageData
from lsgen.errors import InputError
from lsgen.studies import STUDIES, argus_retrain, find
from lsgen.studies.base import Claim, Findings, Lab, Row, Study, number, write
from lsgen.studies.sinvad_boundary import gaps
from lsgen.studies.sinvad_interpolation import TARGET, surprise_of

pytestmark = pytest.mark.filterwarnings("ignore:the SUT reads only")  # models of this scale are hardly trained


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_and_writes_its_page(name, study):
    found, lab = study(name)
    page = (lab.out / "README.md").read_text()
    assert find(name).source in page
    assert "smaller than published" in page
    with (lab.out / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [r["metric"] for r in rows] == [r.metric for r in found.rows]
    assert any(r["published"] for r in rows)
    assert all((lab.out / figure).exists() for figure, _ in found.figures)
    assert set(find(name).cost) == {"smoke", "laptop", "paper"}
    script = (lab.out / "commands.sh").read_text()
    assert "lsgen" in script
    assert subprocess.run(["bash", "-n", str(lab.out / "commands.sh")], check=False).returncode == 0


def test_no_strength_or_no_iteration_is_random_sampling_and_unreachable_strengths_are_equal(study):
    found, lab = study("speth-parameters")
    assert found.claims[0].holds
    assert found.claims[2].holds
    one, two = (lsgen.load_suite(lab.out / "suites" / f"e{e}-n10-s1.0") for e in ("0.5", "1.0"))
    assert (one.images == two.images).all()
    none, zero = (lsgen.load_suite(lab.out / "suites" / name) for name in ("e0.0-n10-s1.0", "e1.0-n0-s1.0"))
    assert (none.images == zero.images).all()
    assert not (one.latents == zero.latents).all()


def test_a_boundary_image_is_no_further_from_the_boundary_than_its_seed(study):
    _, lab = study("sinvad-boundary")
    suite = lsgen.load_suite(lab.out / "suites/mnist-boundary")
    found = (suite.table["viable"] & suite.table["failed"]).to_numpy(bool)
    sut = suts.pretrained(lab.models / "mnist-sut_lenet5/best.ckpt")
    end, start = (gaps(sut, images[found]) for images in (suite.images, suite.array("seed_image")))
    assert len(end) > 5
    assert (end <= start).all()
    assert end == pytest.approx(suite.table["boundary_gap"].to_numpy(float)[found], abs=1e-5)


def test_each_architecture_has_a_vae_of_each_size_and_small_latents_are_small(study):
    found, lab = study("sinvad-architecture")
    for kind, size in product(("linear", "conv"), (2, 16)):
        vae = generators.pretrained(lab.models / f"mnist-vae-{kind}-{size}/best.ckpt")
        assert (vae.architecture, vae.latent_shape) == (kind, (size,))
    shares = [row.measured for row in found.rows]
    assert shares[-1] == pytest.approx(abs(shares[2] - shares[4]))  # the two latents of ten or more
    assert all(0 <= share <= 1 for share in shares)


def test_hill_climbing_never_ends_further_from_the_wanted_surprise_than_it_began(study):
    _, lab = study("sinvad-interpolation")
    for space in ("pixels", "latent"):
        suite = lsgen.load_suite(lab.out / f"suites/climb-{space}")
        surprise = surprise_of(suite)
        end, start = (abs(surprise(images) - TARGET) for images in (suite.images, suite.array("seed_image")))
        assert (end <= start + 1e-3).all()
        assert end.mean() < start.mean()


def test_mixed_pixels_are_the_mean_of_two_images(study):
    _, lab = study("sinvad-interpolation")
    suite, data = lsgen.load_suite(lab.out / "suites/mix-pixels-0.5"), ImageData(name="mnist5k")
    row = suite.table.iloc[7]
    one, other = data["test"].images[row["source_index"]], data["train"].images[row["other_index"]]
    assert abs(suite.images[7].astype(float) - (one.float() + other.float()).numpy() / 2).max() <= 0.5


def test_no_share_of_another_image_is_the_reconstruction(study):
    _, lab = study("argus-similarity")
    none, some = (lsgen.load_suite(lab.out / f"suites/lenet5-{share}") for share in (0.0, 0.3))
    assert (none.images == none.array("seed_image")).all()
    assert (none.latents == none.array("seed_latent")).all()
    assert not (some.images == some.array("seed_image")).all()
    for share in (0.1, 0.3):
        assert generators.pretrained(lab.models / f"mnist-vqvae-{share}/best.ckpt").interpolation == share


def test_the_ablation_changes_the_model_and_nothing_else(study):
    _, lab = study("argus-ablation")
    models = [
        generators.pretrained(lab.models / f"mnist-vqvae-0.2{name}/best.ckpt") for name in ("", "-plain", "-alone")
    ]
    assert [(m.quantiser, m.discriminators) for m in models] == [
        ("codebook", True),
        ("none", True),
        ("codebook", False),
    ]
    tables = [lsgen.load_suite(folder).table for folder in sorted((lab.out / "suites").iterdir())]
    assert len(tables) == 3
    for column in ("source_index", "other_index"):
        assert all((t[column] == tables[0][column]).all() for t in tables)


def test_a_repair_gains_what_accuracy_rises_by_on_images_that_no_mixture_came_from(study):
    found, lab = study("argus-retrain")
    repair = json.loads((lab.out / "repairs/lenet5-0.3/retrain.json").read_text())
    assert repair["test_images"] == 400  # all: originals are validation images
    gain = repair["mean"]["failures"]["ica"]["mean"]
    after = next(row.measured for row in found.rows if "failures added" in row.case)
    assert after == pytest.approx(repair["before"]["accuracy"] + gain)
    assert any(line.startswith("lsgen retrain") for line in lab.commands)


@pytest.mark.parametrize(
    ("failures", "control", "smallest", "verdicts"),
    [
        ([0.010, 0.011, 0.012], [0.001, 0.002, 0.003], [0.004, 0.005, 0.006], [True, True, True]),
        ([0.001, 0.002, 0.003], [0.010, 0.011, 0.012], [0.004, 0.005, 0.006], [False, False, False]),
        ([0.010, 0.011, 0.012], [0.002, 0.011, 0.020], [0.002, 0.011, 0.020], [None, None, None]),
        ([0.010], [0.001], [0.004], [None, None, None]),  # one repeat
    ],
)
def test_gains_of_a_repair_are_told_apart_only_beyond_chance(failures, control, smallest, verdicts):
    def repair(own):
        runs = {name: [{"ica": v} for v in (own if name == "failures" else control)] for name in retrain.VARIANTS}
        return {"runs": runs, "comparisons": retrain.compare(runs)}

    claims = argus_retrain._claims("toy", {0.1: repair(smallest), 0.3: repair(failures)})
    assert [claim.holds for claim in claims[2:]] == verdicts


def test_what_a_repair_closes_is_told_with_its_chance():
    rates = {"failures": [0.020, 0.021, 0.022], "none": [0.030, 0.031, 0.032], "real": [0.030, 0.031, 0.032]}
    runs = {name: [{"fresh_failure_rate": rate} for rate in each] for name, each in rates.items()}
    nothing, real = argus_retrain._closed("toy", {0.3: {"runs": runs, "comparisons": retrain.compare(runs)}})
    assert nothing.startswith("toy, λ = 0.3: ")  # t = 12.25 with 4 degrees of freedom, twice
    assert "-1.00 points from that with nothing added (p = 0.001)" in nothing
    assert "real images" in real
    once = {name: each[:1] for name, each in runs.items()}
    assert not list(argus_retrain._closed("toy", {0.3: {"runs": once, "comparisons": retrain.compare(once)}}))


def test_extents_share_their_seeds_and_iterations_stay_within_the_budget(study):
    _, lab = study("icst25-families")
    low, high = (lsgen.load_suite(lab.out / f"suites/vae-{extent}") for extent in ("low", "high"))
    assert (low.array("seed_image") == high.array("seed_image")).all()
    assert not (low.images == high.images).all()
    assert low.table["iterations"].max() == 5
    diffusion = lsgen.load_suite(lab.out / "suites/diffusion-high")
    assert diffusion.table["label"].tolist() == list(range(10))


TOY = Study("toy", "a toy", "nowhere", {"smoke": "1 s", "laptop": "1 s", "paper": "1 s"}, lambda lab: Findings(rows=[]))


def test_a_page_says_what_holds_and_what_does_not(tmp_path):
    rows = [Row("a", "rate", 0.5, 0.25, 0.01, "%"), Row("b", "size", None)]
    claims = [Claim("up", True), Claim("down", False)]
    page = write(TOY, Lab(out=tmp_path, scale="laptop"), Findings(rows, claims, reduced=["2 of 9"])).read_text()
    assert "| a | rate | 50.00 % ± 1.00 % | 25.00 % | 2.00 |" in page
    assert "| b | size |  |  |  |" in page
    assert "- holds: up" in page
    assert "- **does not hold**: down" in page
    assert "smaller than published: 2 of 9." in page


def test_numbers_are_readable():
    assert [number(v) for v in (12345.6, 0.00012, -3.14159)] == ["12,346", "0.00012", "-3.14"]


def test_unknown_and_missing_names_are_refused(capsys):
    assert main(["study", "speth"]) == 2
    assert "there is no study 'speth'; studies: speth-baseline" in capsys.readouterr().err
    assert main(["study"]) == 2
    assert "which study?" in capsys.readouterr().err
    with pytest.raises(InputError):
        find("nothing")


def test_the_list_names_every_study_and_its_costs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["study", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in STUDIES)
    assert "…" not in shown  # no word is cut


def test_the_command_runs_a_study_and_prints_where_it_is(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("lsgen.studies.find", lambda name: replace(TOY, name=name))
    assert main(["study", "toy", "--scale", "smoke", "--out", str(tmp_path / "toy")]) == 0
    assert str(tmp_path / "toy" / "README.md") in capsys.readouterr().out.replace("\n", "")


def test_a_folder_that_is_not_the_studys_is_left_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("lsgen.studies.find", lambda name: replace(TOY, name=name))
    mine = tmp_path / "README.md"
    mine.write_text("my thesis")
    assert main(["study", "toy", "--scale", "smoke", "--out", str(tmp_path)]) == 2
    assert "is not the folder of a study" in capsys.readouterr().err
    assert mine.read_text() == "my thesis"
    out = str(tmp_path / "toy")
    assert main(["study", "toy", "--scale", "smoke", "--out", out]) == 0
    assert main(["study", "toy", "--scale", "smoke", "--out", out]) == 0  # again
    assert main(["study", "other", "--scale", "smoke", "--out", out]) == 2
    assert "holds another study" in capsys.readouterr().err
