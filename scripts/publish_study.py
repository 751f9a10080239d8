"""Copies the tables and pictures of finished studies into docs/results; suites and models stay in runs.

python scripts/publish_study.py speth-baseline dunn-faults --commit $(git rev-parse --short HEAD)

They are what `lsgen study NAME --scale laptop` left; name the commit that they were run at.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from PIL import Image

WIDEST = 1200  # pixels


def publish(name: str, scale: str, commit: str, to: Path) -> Path:
    """Writes ``to/NAME.md`` and its pictures beside it."""
    source = Path("runs/study") / f"{name}-{scale}"
    page = (source / "README.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)]+\.png)\)", page):
        target = f"{name}_{Path(link).name}"
        with Image.open(source / link) as picture:
            small = picture.convert("RGB")
            small.thumbnail((WIDEST, 4 * WIDEST))
            small.save(to / target, optimize=True)
        page = page.replace(f"]({link})", f"]({target})")
    out = to / f"{name}.md"
    out.write_text(f"{page}\nRun at commit {commit}, on a CPU.\n", encoding="utf-8")
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Copies finished studies into docs/results.")
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--scale", default="laptop")
    parser.add_argument("--commit", required=True, help="that they were run at")
    options = parser.parse_args()
    for study in options.names:
        print(publish(study, options.scale, options.commit, Path("docs/results")))
