"""The report: what its page, its figures and its numbers say, without a browser."""

import base64
import io
import json
import os
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file
from scipy.stats import binomtest, hypergeom

from lsgen.cli import main
from lsgen.errors import InputError
from lsgen.report import gallery, html
from lsgen.report.compare import fisher, interval, mark, times_as_often
from lsgen.report.content import component, headline, metric_rows, unjudged
from lsgen.report.entry import open_entries
from lsgen.report.figures import (
    STYLE,
    THEME,
    Drawing,
    escapes,
    failure_gallery,
    magnitude,
    steps,
    true_probability,
)
from lsgen.report.html import write_report
from lsgen.report.sprites import make_sprites, picture
from lsgen.report.tables import not_counted, suites_table
from lsgen.search.cases import Cases
from lsgen.suite import Suite

CONFIG = """\
model:
  class_path: lsgen.search.SearchTask
  init_args:
    generator: {class_path: lsgen.generators.pretrained, init_args: {path: cvae/best.ckpt}}
    searcher: {class_path: lsgen.search.LatentPGD, init_args: {steps: 20, radius: 0.5}}
    seeds: {class_path: lsgen.search.PriorSeeds, init_args: {per_class: 5, classes: null}}
"""
NASTY = ["<script>alert(1)</script>", "停止 & go", "$x$ </script>", "\"quoted\" 'name'"]


def make_suite(
    folder,
    *,
    n=60,
    side=12,
    channels=1,
    classes=4,
    blocks=3,
    written=None,
    failing=0.5,
    names=None,
    searcher="LatentPGD",
    config=CONFIG,
    change=None,
    seed=0,
):
    """A suite of smooth random images; ``change`` may edit the tensors of a block before it is written."""
    rng, each = torch.Generator().manual_seed(seed), n // blocks
    data = {"name": "toy", "fingerprint": "f" * 64, "class_names": names}
    manifest = {"identity": "a" * 64, "blocks": blocks, "num_classes": classes, "stopped_by": None, "data": data}
    manifest |= {"searcher": searcher, "sut": {"class": "Linear", "sha256": "5" * 64}, "versions": {"lsgen": "0"}}
    suite = Suite(folder)
    os.close(suite.open(manifest, config))
    for block in range(blocks if written is None else written):
        cases = _block(block, each, side, channels, classes, failing, searcher != "RandomSampling", rng)
        if change is not None:
            change(cases)
        suite.write(cases)
    suite.finish()
    return suite


def _block(number, n, side, channels, classes, failing, has_seed, rng):
    ids = torch.arange(n) + number * n
    label = ids % classes
    wrong = (label + 1 + torch.randint(classes - 1, (n,), generator=rng)) % classes
    failed = torch.rand(n, generator=rng) < failing
    predicted = wrong.where(failed, label)
    coarse = torch.rand(2, n, channels, 3, 3, generator=rng).flatten(0, 1)
    seed_image, image = torch.nn.functional.interpolate(coarse, side, mode="bilinear").mul(255).byte().chunk(2)
    zero, yes = torch.zeros_like(ids), torch.ones(n, dtype=torch.bool)
    columns = {"id": ids, "seed_id": ids, "label": label, "seed_predicted": label, "predicted": predicted}
    columns |= {"iterations": torch.randint(1, 20, (n,), generator=rng).where(failed, zero + 20)}
    columns |= {"queries": torch.randint(20, 40, (n,), generator=rng), "backward_queries": zero}
    columns |= {"viable": yes, "failed": failed, "success": failed, "retired": ~yes}
    floats = ["p_true", "seed_p_true", "boundary_gap"]
    floats += ["latent_l1", "latent_l2", "latent_linf", "pixel_l2", "pixel_linf", "mse", "ssim"] if has_seed else []
    columns |= {name: torch.rand(n, generator=rng) for name in floats}
    latent = torch.randn(n, 3, generator=rng)
    logits = torch.randn(n, classes, generator=rng)
    columns["p_predicted"] = logits.softmax(1).amax(1)
    arrays = {"seed_latent": latent, "latent": latent, "seed_image": seed_image, "image": image, "logits": logits}
    return Cases(number, columns, {k: v.contiguous() for k, v in arrays.items()}, seconds=0.5)


def add_regions(suite, *, version=1, centroids=True):
    """What ``lsgen cluster`` leaves: two regions over all classes, one within class 1."""
    folder, table = suite.path / "clusters", suite.table
    folder.mkdir()
    rows = table[table["failed"]][["id", "label"]].reset_index(drop=True)
    rows["cluster"] = np.arange(len(rows)) % 3 - 1
    rows["class_cluster"] = np.where(rows["label"] == 1, 0, -1)
    rows["x"], rows["y"] = np.linspace(-1, 1, len(rows)), np.linspace(1, -1, len(rows)) ** 2
    rows.to_parquet(folder / "cases.parquet")
    clusters = []
    for scope, label, number in (("all", 0, 0), ("all", 2, 1), ("class", 1, 0)):
        column = "cluster" if scope == "all" else "class_cluster"
        inside = rows[rows[column] == number]
        made = {"scope": scope, "label": label, "number": number, "size": len(inside), "persistence": 0.25}
        clusters.append(
            {**made, "medoid_id": int(inside["id"].iloc[0]), "sentence": f"Thicker <b>{number}</b> strokes."}
        )
    content = {
        "format_version": version,
        "settings": {"threshold": 0.05},
        "challenging": len(rows),
        "clusters": clusters,
    }
    content["noise"] = int((rows["cluster"] < 0).sum())
    (folder / "clusters.json").write_text(json.dumps(content))
    if centroids:
        save_file({"image": np.full((3, 1, 12, 12), 200, np.uint8)}, folder / "centroids.safetensors")


class Page(HTMLParser):
    """What a browser would see: elements, their attributes, and the text of scripts."""

    def __init__(self, file):
        super().__init__()
        self.source = Path(file).read_text(encoding="utf-8")
        self.tags, self.text, self.scripts, self._inside = [], "", {}, []
        self.feed(self.source)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.text += " "
        if tag in ("script", "style"):
            self._inside = [dict(attributes).get("id", tag)]

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._inside = []

    def handle_data(self, text):
        if self._inside:
            self.scripts[self._inside[0]] = self.scripts.get(self._inside[0], "") + text
        else:
            self.text += text

    @property
    def data(self):
        return json.loads(self.scripts["data"])

    @property
    def words(self):
        return " ".join(self.text.split())


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Writes a report about suites and reads it; figures are drawn, but only rendered where a test wants them."""

    def write(*suites, rendered=False, **options):
        if not rendered:
            monkeypatch.setattr(Drawing, "_render", lambda drawing, kind: b"<svg></svg>")
        out = tmp_path / "report.html"
        more = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        assert main(["report", *(str(suite.path) for suite in suites), "--out", str(out), *more]) == 0
        return Page(out)

    return write


@pytest.fixture
def pgd(tmp_path):
    return make_suite(tmp_path / "pgd")


@pytest.fixture
def random(tmp_path):
    return make_suite(tmp_path / "random", searcher="RandomSampling", failing=0.0, seed=1)


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_has_every_section_and_needs_nothing_else(random, pgd, report):
    add_regions(pgd)
    page = report(random, pgd, rendered=True)
    sections = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert sections == ["rates", "failures", "regions", "confusions", "classes", "search", "numbers", "tested"]
    for tag, attributes in page.tags:
        assert attributes.get("src", "data:").startswith("data:"), tag
        assert attributes.get("href", "#").startswith("#"), tag
        assert tag not in ("link", "iframe", "object")
    policy = next(a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert "@import" not in page.source
    assert "url(http" not in page.source


def test_equal_suites_give_an_equal_page(pgd, report, monkeypatch):
    assert report(pgd).source == report(pgd).source
    drawn = [escapes(open_entries([pgd.path])[0]) for _ in range(2)]
    monkeypatch.undo()
    assert drawn[0].svg() == drawn[1].svg()


def test_the_data_are_those_of_the_suite_failures_first(pgd, report):
    page = report(pgd)
    columns = page.data["suites"][0]["columns"]
    table = pgd.table.set_index("id").loc[columns["id"]]
    for key in ("label", "predicted", "iterations", "queries"):
        assert columns[key] == table[key].tolist()
    assert columns["ssim"] == pytest.approx(table["ssim"].tolist(), rel=1e-3)
    probability = torch.tensor(pgd.array("logits")).softmax(1).amax(1)[torch.tensor(columns["id"])]
    assert columns["p_predicted"] == pytest.approx(probability.tolist(), rel=1e-3)
    failed = int(table["failed"].sum())
    assert columns["outcome"] == [0] * failed + [1] * (60 - failed)
    assert columns["p_true"][:failed] == sorted(columns["p_true"][:failed])


def test_thumbnails_of_small_images_are_the_stored_pixels(pgd, report):
    page = report(pgd)
    suite = page.data["suites"][0]
    how, at = suite["sprites"], 7
    assert (how["width"], how["height"], how["tiles"], how["exact"]) == (12, 12, 2, True)
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(page.scripts["sheet-0-0"]))))
    row = suite["columns"]["id"][at]
    for tile, array in enumerate(("seed_image", "image")):
        y, x = (part * 12 for part in divmod(at * 2 + tile, how["columns"]))
        assert np.array_equal(sheet[y : y + 12, x : x + 12, 0], pgd.array(array)[row, 0])


def test_random_sampling_is_the_baseline_and_has_no_seed_pictures(random, pgd, report):
    page = report(random, pgd)
    assert "RandomSampling, the baseline" in page.words
    assert "Random sampling found none in 60 cases" in page.words
    assert "≥ " in page.words
    assert "***" in page.words
    assert "Fisher's exact test" in page.words
    assert page.data["suites"][0]["sprites"]["tiles"] == 1
    assert "random and pgd 0% and" in page.words


def test_what_was_tested_is_said_and_how_to_do_it_again(pgd, report):
    pgd.update_manifest(eval_batch_size=64)
    page = report(pgd)
    for words in ("Linear", "5" * 64, "LatentPGD", "steps 20, radius 0.5", "per_class 5", "toy", "f" * 64, "a" * 64):
        assert words in page.words
    assert (
        f"lsgen search --config {pgd.path}/config.yaml --model.eval_batch_size 64 --out {pgd.path}-again" in page.words
    )
    assert page.data["suites"][0]["commands"]["export"] == f"lsgen export {pgd.path}"


def test_a_sut_that_cannot_read_real_images_is_doubted_before_its_generator(tmp_path, report):
    suite = make_suite(tmp_path / "s")
    look = {"accuracy": 0.436, "test_images": 1000, "readable": 0.42, "readable_of": "plain samples"}
    suite.update_manifest(preflight=look)
    words = report(suite).words
    assert "Note s: the SUT reads only 43.6% of 1,000 real test images rightly" in words
    assert "generator's plain samples" not in words


@pytest.mark.parametrize(("readable", "doubted"), [(0.42, True), (0.97, False), (None, False)])
def test_a_generator_that_the_sut_cannot_read_is_the_first_thing_that_is_said(readable, doubted, tmp_path, report):
    suite = make_suite(tmp_path / "s")
    look = {"accuracy": 0.981, "test_images": 1000, "readable": readable, "readable_of": "plain samples"}
    suite.update_manifest(preflight=look)
    words = report(suite).words
    assert "reads 98.1% of 1,000 test images rightly" in words
    assert (f"{readable or 0:.1%} of its plain samples are read as intended" in words) == (readable is not None)
    assert ("Note s: the SUT reads only 42.0% of the generator's plain samples" in words) == doubted


@pytest.mark.parametrize(("n", "doubted"), [(32, False), (1000, True)])
def test_few_samples_are_no_reason_for_doubt(n, doubted, tmp_path):
    suite = make_suite(tmp_path / "s")
    look = {"readable": 0.85, "readable_of": "plain samples", "readable_images": n}
    suite.update_manifest(preflight=look)
    assert (suite.doubt is not None) == doubted


def test_a_suite_made_in_python_has_no_command_of_its_own(tmp_path, report):
    page = report(make_suite(tmp_path / "s", config="model: {searcher: {class: LatentPGD, args: {steps: 3}}}\n"))
    assert "steps 3" in page.words
    assert page.data["suites"][0]["commands"]["suite"] is None
    assert "was made by a Python program" in page.words


def test_names_with_markup_and_other_scripts_are_only_text(tmp_path, report):
    folder = tmp_path / '<img src=x onerror="alert(2)">'
    suite = make_suite(folder, names=NASTY, config=CONFIG + "# </pre><script>alert(3)</script>\n")
    add_regions(suite)
    page = report(suite)
    assert page.data["names"] == NASTY
    assert page.data["suites"][0]["name"] == folder.name
    for words in (NASTY[1], NASTY[2], folder.name, "Thicker <b>0</b> strokes.", "</pre><script>alert(3)"):
        assert words in page.text
    plain = [attributes for tag, attributes in page.tags if tag == "script"]
    assert [a.get("id", "") for a in plain] == ["data", "sheet-0-0", ""]
    assert not [t for t, a in page.tags if t in ("img", "b") and not a.get("src", "").startswith("data:image/webp")]
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]


def test_class_names_that_are_no_text_and_too_few(tmp_path, report):
    page = report(make_suite(tmp_path / "half", names=["half \ud83d", "b", "c", "d"]))
    assert page.data["names"][0] == "half ?"
    page = report(make_suite(tmp_path / "few", names=["only one"]))
    assert page.data["classes"] == ["0", "1", "2", "3"]


def test_regions_are_shown_with_centre_typical_case_and_members(pgd, report):
    add_regions(pgd)
    page = report(pgd)
    assert "challenging cases (P_t below 5.0%), 2 regions" in page.words
    assert "Region 0 of 1" in page.words  # within class 1
    assert len([a for t, a in page.tags if t == "img"]) == 3
    columns = page.data["suites"][0]["columns"]
    known = pd.read_parquet(pgd.path / "clusters/cases.parquet").set_index("id")["cluster"]
    assert columns["cluster"] == [int(known.get(i, -1)) for i in columns["id"]]


def test_regions_without_pictures(pgd, report):
    add_regions(pgd, centroids=False)
    assert not [t for t, _ in report(pgd).tags if t == "img"]


def test_a_suite_that_was_clustered_and_has_no_region(random, report):
    folder = random.path / "clusters"
    folder.mkdir()
    columns = {name: pd.Series(dtype="int64") for name in ("id", "label", "cluster", "class_cluster")}
    pd.DataFrame({**columns, "x": pd.Series(dtype=float), "y": pd.Series(dtype=float)}).to_parquet(
        folder / "cases.parquet"
    )
    content = {"format_version": 1, "clusters": [], "challenging": 0, "noise": 0, "notes": ["no challenging case"]}
    (folder / "clusters.json").write_text(json.dumps(content))
    words = report(random).words
    assert "0 challenging cases, 0 regions; 0 cases in none" in words
    assert "No challenging case." in words


# --- suites that are not as one would wish ---------------------------------------------------------------------------


def test_an_unfinished_suite_is_reported_as_far_as_it_goes(tmp_path, report):
    page = report(make_suite(tmp_path / "s", written=2))
    assert "s is unfinished: 2 of 3 blocks are there" in page.words
    assert len(page.data["suites"][0]["columns"]["id"]) == 40


def test_a_suite_without_a_case(tmp_path, report):
    page = report(make_suite(tmp_path / "s", written=0))
    assert "No cases yet" in page.words
    assert page.data["suites"][0]["sprites"] is None


def test_a_suite_without_failures(random, report):
    page = report(random)
    assert "No failures in 60 cases" in page.words
    assert "below 4.9%" in page.words  # 1 - 0.025 ** (1 / 60)
    assert "What is read as what" not in page.words


def test_an_empty_suite_beside_a_full_one(tmp_path, pgd, report):
    page = report(make_suite(tmp_path / "none", written=0), pgd)
    assert "none is unfinished: 0 of 3 blocks" in page.words
    assert "The classifier fails on" in page.words


def test_seeds_that_are_not_viable_do_not_count(tmp_path, report):
    def spoil(cases):
        cases.columns["viable"][:5] = False
        cases.columns["failed"][:5] = True

    suite = make_suite(tmp_path / "s", change=spoil)
    outcome = report(suite).data["suites"][0]["columns"]["outcome"]
    assert outcome.count(2) == 15
    assert outcome.count(0) == suite.summary["failed"]


def test_values_that_are_no_numbers_are_left_out_and_told(tmp_path, report):
    def spoil(cases):
        cases.columns["p_true"][0] = torch.nan
        cases.columns["boundary_gap"][1] = torch.nan
        cases.columns["pixel_l2"][2] = torch.nan
        cases.columns["p_predicted"][3] = torch.nan

    page = report(make_suite(tmp_path / "s", change=spoil))
    assert "6 cases with values that are no finite number" in page.words
    columns = page.data["suites"][0]["columns"]
    assert columns["p_true"].count(None) == columns["pixel_l2"].count(None) == columns["p_predicted"].count(None) == 3
    assert "nan" not in page.words.lower()


def test_more_cases_than_fit_leave_out_those_that_did_not_fail(pgd, report, monkeypatch):
    monkeypatch.setattr(gallery, "LIMIT", 20)
    page = report(pgd)
    assert page.data["suites"][0]["columns"]["outcome"] == [0] * 20
    assert "pgd has 60 cases; 20 have pictures here" in page.words


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["{tmp}/nothing", "--out", "{tmp}/r.html"], "there is no suite at {tmp}/nothing"),
        (["{tmp}/pgd", "{tmp}/pgd/", "--out", "{tmp}/r.html"], "given twice"),
        (["{tmp}/pgd", "{tmp}/three", "--out", "{tmp}/r.html"], "{tmp}/pgd has 4, {tmp}/three 3"),
        (["{tmp}/pgd", "{tmp}/a", "{tmp}/b", "--out", "{tmp}/r.html"], "have other names"),
        (["{tmp}/old", "--out", "{tmp}/r.html"], "a suite of format 0; this lsgen reads format 1"),
        (["{tmp}/regions", "--out", "{tmp}/r.html"], "regions of format 9, this lsgen reads format 1"),
        (["{tmp}/broken", "--out", "{tmp}/r.html"], "cannot be read"),
        (["{tmp}/pgd", "--out", "{tmp}"], "--out: {tmp} is a folder"),
        (
            ["{tmp}/pgd", "--out", "{tmp}/pgd/manifest.json/r.html"],
            "--out: cannot write {tmp}/pgd/manifest.json/r.html",
        ),
        (["{tmp}/pgd", "--out", "{tmp}/r.html", "--figures", "{tmp}/pgd/manifest.json"], "--figures: cannot write"),
        (["{tmp}/pgd"], "--out"),
        (["--out", "{tmp}/r.html"], "SUITE"),
    ],
)
def test_bad_input(misfits, args, words, capsys):
    assert main(["report", *(a.format(tmp=misfits) for a in args)]) == 2
    assert words.format(tmp=misfits) in capsys.readouterr().err


@pytest.fixture(scope="module")
def misfits(tmp_path_factory):
    """A folder of suites that cannot be reported, or not together."""
    folder = tmp_path_factory.mktemp("misfits")
    make_suite(folder / "pgd", n=6)
    make_suite(folder / "three", classes=3, n=6)
    make_suite(folder / "a", names=list("abcd"), n=6)
    make_suite(folder / "b", names=list("abce"), n=6)
    old = make_suite(folder / "old", n=6)
    old.update_manifest(format_version=0)
    add_regions(make_suite(folder / "regions", n=30), version=9)
    add_regions(broken := make_suite(folder / "broken", n=30))
    (broken.path / "clusters/cases.parquet").write_bytes(b"PAR1")
    return folder


# --- figures, pictures, numbers --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_figures_are_written_as_png_and_svg_whatever_classes_are_called(tmp_path, random, report):
    suite = make_suite(tmp_path / "s", names=NASTY)
    add_regions(suite)
    folder = tmp_path / "figures"
    report(suite, rendered=True, figures=folder)
    names = {file.stem for file in folder.iterdir()}
    assert names == {
        "true_probability",
        "steps",
        "queries",
        "per_class",
        "escape_rate-1-s",
        "regions-1-s",
        "failures-1-s",
    } | {f"change_{column}" for column in ("latent_l2", "pixel_l2", "pixel_linf", "ssim")}
    for name in names:
        with Image.open(folder / f"{name}.png") as png:
            assert png.size[0] > 300
        assert ET.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
    assert NASTY[2] in "".join(ET.parse(folder / "per_class.svg").getroot().itertext())


def test_figures_in_the_page_follow_its_colours(random, pgd):
    entries = open_entries([random.path, pgd.path])
    for drawing in (true_probability(entries), escapes(entries[1]), magnitude(entries, "ssim")):
        themed = drawing.svg(themed=True)
        ET.fromstring(themed)
        assert "var(--" in themed
        assert not [color for color in THEME if color in themed], drawing.name
        assert drawing.alt.endswith(".")
    assert 'id="pair-1-' in escapes(entries[1]).svg(themed=True)  # by which the page finds the cells
    assert STYLE["axes.facecolor"] == "none"  # the page shows through


def test_the_curve_of_steps_counts_successes(tmp_path):
    def fix(cases):
        cases.columns["iterations"][:] = 10
        cases.columns["iterations"][:5] = 2
        cases.columns["success"][:] = False
        cases.columns["success"][:6] = True  # one of them at the very last step

    entries = open_entries([make_suite(tmp_path / "s", change=fix).path])
    line = steps(entries).figure.axes[0].lines[0]
    assert dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) == pytest.approx(
        {**dict.fromkeys(range(2), 0), **dict.fromkeys(range(2, 10), 25.0), 10: 30.0}
    )


def test_the_picture_of_the_quickstart(pgd, tmp_path):
    with Image.open(failure_gallery(pgd, tmp_path / "failures.png", classes=2)) as png:
        assert png.size[0] > 300


def test_thumbnails_keep_to_their_budget_and_get_worse_only_as_they_must():
    noise = np.random.default_rng(0).integers(0, 256, (100, 3, 32, 32), dtype=np.uint8)
    made = [make_sprites([noise, noise], budget) for budget in (10**9, 250_000, 90_000)]
    sizes = [sum(map(len, sprites.sheets)) for sprites in made]
    assert sizes[0] > 250_000 >= sizes[1] > 90_000 >= sizes[2]
    assert [sprites.encoding.exact for sprites in made] == [True, False, False]
    assert [sprites.encoding.scaled for sprites in made] == [False, False, True]


def test_large_images_keep_their_proportions():
    made = make_sprites([np.zeros((3, 1, 200, 100), np.uint8)], 10**9).encoding
    assert (made.height, made.width, made.exact) == (96, 48, False)
    header, content = picture(np.full((3, 5, 4), 9, np.uint8)).split(",")
    assert header == "data:image/webp;base64"
    assert np.asarray(Image.open(io.BytesIO(base64.b64decode(content)))).shape == (5, 4, 3)


def test_fisher_is_the_sum_of_all_tables_that_are_no_likelier():
    a, b = {"failed": 3, "n_cases": 20}, {"failed": 11, "n_cases": 25}
    chances = hypergeom(45, 14, 20).pmf(np.arange(15))
    assert fisher(a, b) == pytest.approx(chances[chances <= chances[3] * (1 + 1e-7)].sum())
    assert fisher(a, {"failed": 0, "n_cases": 0}) is None


def test_marks():
    assert [mark(p) for p in (0.0005, 0.005, 0.03, 0.05, None)] == ["***", "**", "*", "", ""]


def test_intervals_and_ratios():
    assert interval(0, 50) == pytest.approx((0, 1 - 0.025 ** (1 / 50)))
    assert interval(0, 0) == (0, 1)
    assert interval(7, 7) == pytest.approx((0.025 ** (1 / 7), 1))
    known = binomtest(12, 90).proportion_ci(0.95)
    assert interval(12, 90) == pytest.approx((known.low, known.high))
    ratio = times_as_often({"failed": 10, "n_cases": 100}, {"failed": 0, "n_cases": 100})
    assert ratio.at_least
    assert ratio.times == pytest.approx(0.1 / (1 - 0.05**0.01))
    assert times_as_often({"failed": 1, "n_cases": 1}, {"failed": 0, "n_cases": 0}) is None


def test_numbers_have_their_units(pgd):
    entries = open_entries([pgd.path])
    rows = {row["title"]: row["values"][0] for row in metric_rows(entries)}
    assert rows["Failures"].endswith(" failures")
    assert rows["Search time"] == "1.50 s"
    assert rows["Cases"] == "60 cases"
    assert rows["Mean P_t"].endswith("%")
    assert rows["Queries for a failure"].endswith(" queries")
    assert headline(entries)[0] == f"The classifier fails on {pgd.summary['failure_rate']:.1%} of 60 cases"


def test_the_headline_names_clean_accuracy_where_the_search_saw_it(pgd):
    assert "test images" not in headline(open_entries([pgd.path]))[1]
    pgd.update_manifest(preflight={"accuracy": 0.977, "test_images": 1000, "readable": 0.98, "readable_of": "samples"})
    assert headline(open_entries([pgd.path]))[1].endswith("The classifier reads 97.7% of 1,000 test images rightly.")


def test_failures_that_nobody_judged_are_to_be_looked_at(tmp_path, pgd, report):
    asked = "No oracle has judged"
    assert asked in report(pgd).words
    assert asked not in report(make_suite(tmp_path / "none", written=0)).words
    entry = open_entries([pgd.path])[0]
    entry.table["valid"] = True
    assert not unjudged([entry])


def test_components_in_words():
    nested = {"class_path": "a.Both", "init_args": {"first": {"class_path": "b.Within", "init_args": {"radius": 1}}}}
    assert component(nested) == ("Both", "first Within(radius 1)")
    assert component(None) == ("", "")


def test_suites_with_the_same_folder_name_are_told_apart(tmp_path, report):
    page = report(make_suite(tmp_path / "one/pgd", n=6), make_suite(tmp_path / "two/pgd", n=6))
    assert [suite["name"] for suite in page.data["suites"]] == ["one/pgd", "two/pgd"]


def test_the_page_needs_every_asset():
    assert sorted(file.name for file in html.ASSETS.iterdir()) == ["report.css", "report.html", "report.js"]


def test_regions_name_the_command_that_mends_them(tmp_path):
    add_regions(suite := make_suite(tmp_path / "s", n=30), version=9)
    with pytest.raises(InputError, match=r"run `lsgen cluster .*s` again"):
        open_entries([suite.path])[0].regions  # noqa: B018


def test_random_sampling_of_another_sut_is_no_baseline_for_times_as_often(random, pgd, report):
    pgd.update_manifest(sut={"class": "Linear", "sha256": "6" * 64})
    words = report(random, pgd).words
    assert "pgd was made with another classifier, generator or data set than random" in words
    assert "times as often" not in words.replace("how many times as often", "")
    assert "× as often" not in words


def test_how_many_times_as_often_has_an_interval():
    ratio = times_as_often({"failed": 220, "n_cases": 1000}, {"failed": 1, "n_cases": 1000})
    assert ratio.times == pytest.approx(220)
    assert ratio.low == pytest.approx(220 / np.exp(1.96 * np.sqrt(1 / 220 + 1 - 2 / 1000)))
    assert ratio.low < 73 < 220 < ratio.high < 1600  # one failure more does not make the claim larger
    assert times_as_often({"failed": 220, "n_cases": 1000}, {"failed": 0, "n_cases": 1000}).low > 73


def test_where_only_the_baseline_has_cases_it_is_reported(tmp_path, random, report):
    words = report(make_suite(tmp_path / "none", written=0), random).words
    assert "No cases yet" not in words
    assert "in 60 cases" in words


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path, pgd, monkeypatch):
    page = tmp_path / "r.html"
    page.write_text("before")

    def full(self, data):
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(page), "write_bytes", full)
    with pytest.raises(InputError, match="No space left"):
        write_report(open_entries([pgd.path]), page)
    assert page.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".tmp"] == []


def test_the_table_of_a_search_has_successes_where_they_are_no_failures(tmp_path):
    def never(cases):
        cases.columns["success"] = torch.zeros_like(cases.columns["failed"])

    def as_failed(cases):
        cases.columns["success"] = cases.columns["failed"].clone()

    other = suites_table({"a": make_suite(tmp_path / "a", change=never)})
    usual = suites_table({"b": make_suite(tmp_path / "b", change=as_failed)})
    columns = {str(column.header): list(column.cells) for column in other.columns}
    assert columns["successes"] == ["0"] != columns["failures"]
    assert "successes" not in [column.header for column in usual.columns]


def test_cases_that_do_not_count_are_told_with_their_reason(tmp_path):
    def change(cases):
        cases.columns["viable"][:5] = False
        cases.columns["retired"][:2] = True

    assert list(not_counted(make_suite(tmp_path / "a", blocks=1))) == []
    given_up, left_out = not_counted(make_suite(tmp_path / "b", blocks=1, change=change))
    assert given_up.startswith("2 of 60 cases are given up")
    assert left_out.startswith("3 of 60 cases are left out")
