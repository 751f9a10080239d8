"""The command line: one table of commands, each imported only when it is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module

from lsgen import __version__
from lsgen.errors import InputError

LIGHTNING = ("fit", "validate", "test", "search")
OTHERS = {  # each has a main(args)
    "quickstart": "lsgen.quickstart",
    "export": "lsgen.analysis.export",
    "cluster": "lsgen.analysis.clusters",
    "replay": "lsgen.analysis.replay",
    "retrain": "lsgen.analysis.retrain",
    "report": "lsgen.report.html",
    "bench": "lsgen.bench",
    "study": "lsgen.studies",
}
HELP = """\
usage: lsgen <command> [options]

lsgen tests image classifiers: it trains a generative model of the data and searches
its latent space for realistic inputs on which the classifier fails.

commands
  quickstart   train a small classifier and a CVAE on embedded data, search, compare
  fit          train a generator or a classifier       lsgen fit --config configs/mnist5k/sut.yaml
  validate     measure a trained model on validation data
  test         measure a trained model on test data
  search       search for failures, write a suite      lsgen search --config configs/mnist5k/search/pgd.yaml
  export       a suite's failures as PNG and npz       lsgen export SUITE --out DIR
  cluster      failure regions of a suite              lsgen cluster SUITE
  replay       a suite's cases on another classifier   lsgen replay SUITE --sut CHECKPOINT
  retrain      repair the classifier with failures     lsgen retrain SUITE --out DIR
  report       one page about one or more suites       lsgen report SUITE --out report.html
  bench        generators × searches × classifiers     lsgen bench --config configs/bench/smoke.yaml
  study        a published table, measured             lsgen study --list

options
  -h, --help   this text; `lsgen <command> --help` for each command
  --version    the version

Exit status: 0 done, 2 the input is wrong (the message says what), 1 anything else.
"""


def main(args: list[str] | None = None) -> int:
    """Runs one command and gives its exit status; ``args`` default to those of the process."""
    args = sys.argv[1:] if args is None else list(args)
    if not args or args[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    if args[0] == "--version":
        print(f"lsgen {__version__}")
        return 0
    return _guarded(lambda: _run(args[0], args[1:]))


def _run(command: str, args: list[str]) -> None:
    os.environ.setdefault("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")  # no checkpoint may run code, Lightning's neither
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # they are about Lightning's own calls
    if command in LIGHTNING:
        from lsgen.lightning_cli import LsgenCLI

        given = [command, *args]
        LsgenCLI(None if given == sys.argv[1:] else given)  # Lightning warns of arguments given twice
    elif command in OTHERS:
        import_module(OTHERS[command]).main(args)
    else:
        commands = [*OTHERS, *LIGHTNING]
        near = [f"did you mean {name}? " for name in get_close_matches(command, commands, n=1)]
        known = f"commands: {', '.join(commands)} (see `lsgen --help`)"
        raise InputError(f"there is no command {command!r}; {''.join(near)}{known}")


def _guarded(action: Callable[[], None]) -> int:
    """Turns what went wrong into an exit status and, where the cause is known, one sentence."""
    try:
        action()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        print("lsgen: stopped; what was finished is kept", file=sys.stderr)
        return 1
    except Exception as error:
        from lsgen.messages import explain

        status, sentence = explain(error)
        if sentence is None:
            raise
        first = os.environ.get("LOCAL_RANK", "0") == "0"
        if first or status != 2:  # of several processes, all are told the same of wrong input
            print(f"lsgen: {sentence}", file=sys.stderr)
        return status
    return 0
