"""Writes docs/metrics.md from the metric classes: ``python scripts/metric_table.py``."""

from pathlib import Path

from lsgen.metrics.table import markdown

if __name__ == "__main__":
    page = Path(__file__).parent.parent / "docs" / "metrics.md"
    page.write_text(markdown(), encoding="utf-8")
    print(page)
