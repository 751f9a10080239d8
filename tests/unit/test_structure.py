"""Promises about the package as a whole."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "lsgen"
# each layer may import from those before it; one way only
LAYERS = [
    {"arguments", "epochs", "errors", "files", "memory", "own_code", "shipped"},
    {"analysis.statistics"},  # arithmetic, apart from the rest of its folder
    {"types", "loggers"},
    {"checkpoints", "data", "metrics"},
    {"suite"},
    {"suts"},
    {"objectives", "surprise"},
    {"generators"},
    {"search"},
    {"report"},
    {"trainer"},
    {"lightning_cli", "messages"},
    {"analysis"},
    {"runs"},
    {"quickstart", "studies", "bench"},
    {"cli", "__main__"},
]


def layer_of(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if name in names)


def part_of(module: str) -> str:
    """The entry of LAYERS that a module below lsgen, e.g. ``search.pgd``, belongs to."""
    folder, _, rest = module.partition(".")
    inner = f"{folder}.{rest.partition('.')[0]}"
    return inner if any(inner in names for names in LAYERS) else folder


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "lsgen":
            names = [part_of(f"{node.module}.{a.name}".removeprefix("lsgen.")) for a in node.names]
        elif isinstance(node, ast.Import):
            names = [part_of(a.name.removeprefix("lsgen.")) for a in node.names if a.name.startswith("lsgen.")]
        paths = {n: PACKAGE / n.replace(".", "/") for n in names}
        found |= {n for n, path in paths.items() if path.is_dir() or path.with_suffix(".py").is_file()}
    return found


def type_checking_only(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for sub in ast.walk(node):
                if isinstance(sub, ast.ImportFrom) and sub.module and sub.module.startswith("lsgen."):
                    found.add(part_of(sub.module.removeprefix("lsgen.")))
    return found


FILES = [f for f in sorted(PACKAGE.rglob("*.py")) if f != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("file", FILES, ids=[str(f.relative_to(PACKAGE)) for f in FILES])
def test_imports_point_one_way(file):
    own = part_of(".".join(file.relative_to(PACKAGE).with_suffix("").parts))
    for name in imports(file) - type_checking_only(file) - {own}:
        assert layer_of(name) <= layer_of(own), f"{own} must not import {name}"
        assert layer_of(name) < layer_of(own) or name in LAYERS[layer_of(own)]


def test_importing_lsgen_and_its_help_loads_nothing_heavy():
    code = (
        "import sys, lsgen, lsgen.cli; assert lsgen.cli.main(['--help']) == 0; "
        "heavy = {'torch', 'lightning', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "quickstart" in done.stdout
