"""Quality of trained generators side by side, on test data, as one table and a picture each.

    LSGEN_DATA=... python scripts/generator_table.py --data mnist --judge runs/mnist/sut_cnn/best.ckpt \\
        runs/mnist/{vae,cvae,vqvae,gan,gan_resnet,diffusion}

Each folder is what `lsgen fit` left (its best.ckpt is measured); the table and the pictures, one for each family and
one with all, go to runs/generators.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from torchvision.utils import save_image

from lsgen import generators, suts
from lsgen.data import ImageData
from lsgen.generators.quality import GeneratorQuality, reconstruction_grid, sample_grid
from lsgen.trainer import Trainer

# key, heading, how to write it
COLUMNS = [
    ("latent_size", "latent", "{:.0f}"),
    ("parameters", "weights", "{:,.0f}"),
    ("minutes", "training min", "{:.0f}"),
    ("sample_ms", "ms/image", "{:.2f}"),
    ("reconstruction_mse", "rec. MSE", "{:.4f}"),
    ("reconstruction_ssim", "rec. SSIM", "{:.3f}"),
    ("reconstruction_accuracy", "rec. read rightly", "{:.1%}"),
    ("sample_accuracy", "samples read as intended", "{:.1%}"),
    ("frechet_distance", "Fréchet", "{:.2f}"),
    ("density", "density", "{:.2f}"),
    ("coverage", "coverage", "{:.2f}"),
    ("perplexity", "perplexity", "{:.0f}"),
    ("interpolation_ssim", "SSIM at λ", "{:.3f}"),
]


def row(folder: Path, data: ImageData, judge: suts.SUT, samples: int, out: Path) -> str:
    """One family, measured; leaves its picture."""
    generator = generators.pretrained(folder / "best.ckpt")
    quality = GeneratorQuality(judge=judge, samples=samples)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(callbacks=[quality], enable_checkpointing=False, default_root_dir=out, **quiet)
    found = trainer.test(generator, datamodule=data, ckpt_path=folder / "best.ckpt", verbose=False, weights_only=True)[
        0
    ]
    grid = sample_grid(generator) if generator.has_prior else reconstruction_grid(generator, data, "test")
    save_image(grid, out / f"{data.name}_{folder.name}.png")
    cells = [form.format(found[f"test/{key}"]) if f"test/{key}" in found else "" for key, _, form in COLUMNS]
    return f"| {folder.name} | " + " | ".join(cells) + " |\n"


def together(folders: list[Path], data: str, out: Path) -> None:
    """All families in one picture."""
    across = min(3, len(folders))
    figure = Figure(figsize=(4 * across, 4.2 * -(-len(folders) // across)), layout="constrained")
    for place, folder in enumerate(folders, start=1):
        axes = figure.add_subplot(-(-len(folders) // across), across, place, title=folder.name)
        axes.imshow(imread(out / f"{data}_{folder.name}.png"))
        axes.axis("off")
    figure.savefig(out / f"{data}.png", dpi=90)


def run() -> None:
    """Makes the table of one data set."""
    parser = argparse.ArgumentParser(description="Quality of trained generators side by side.")
    parser.add_argument("folders", nargs="+", type=Path, help="what `lsgen fit` left, one folder a family")
    parser.add_argument("--data", required=True, help="name of the data set")
    parser.add_argument("--judge", required=True, help="checkpoint of the SUT that reads the images")
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args()
    torch.manual_seed(0)
    out = Path("runs/generators")
    out.mkdir(parents=True, exist_ok=True)
    data, judge = ImageData(name=options.data), suts.pretrained(options.judge)
    titles = [title for _, title, _ in COLUMNS]
    text = "| family | " + " | ".join(titles) + " |\n" + "|---" * (len(titles) + 1) + "|\n"
    for folder in options.folders:
        text += row(folder, data, judge, options.samples, out)
        (out / f"{options.data}.md").write_text(text, encoding="utf-8")
    together(options.folders, options.data, out)
    print(text)


if __name__ == "__main__":
    run()
