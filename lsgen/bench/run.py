"""Trains what is missing and runs the cells, in one process or several, on one machine or several."""

from __future__ import annotations

import errno
import functools
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lsgen.bench.check import Facts, Inspector, Outlook, reason_of
from lsgen.bench.claims import claim
from lsgen.bench.folder import failure, is_finished, load_facts, note_failure, save_facts
from lsgen.bench.grid import Cell, Grid, Model, counted
from lsgen.bench.sheets import Tables, collect
from lsgen.bench.write import show, write_all
from lsgen.messages import chain, explain
from lsgen.runs import fit_once, lsgen
from lsgen.search.preflight import duration
from lsgen.suite import load_suite

FULL = (errno.ENOSPC, errno.EDQUOT)  # nothing else can be written either
POLL = 2.0  # seconds between two looks at what other processes train
GRACE = 30.0  # seconds that processes have to end after Ctrl-C


@dataclass(frozen=True)
class Job:
    """What every process of a run knows.

    Attributes:
        grid: The bench.
        outlooks: Of all its cells, by name.
        run: Which run of the command it is: what failed in it is not tried again in it.
        processes: How many there are.
    """

    grid: Grid
    outlooks: dict[str, Outlook]
    run: str
    processes: int = 1

    @property
    def cells(self) -> list[Cell]:
        """Those that can run."""
        return [cell for cell in self.grid.cells if self.outlooks[cell.name].refused is None]


def run(grid: Grid, outlooks: dict[str, Outlook], facts: dict[str, Facts], jobs: int, command: str) -> Tables:
    """Trains, searches, and writes the tables of whatever is there in the end, also after Ctrl-C.

    Args:
        grid: The bench.
        outlooks: Of all its cells, by name.
        facts: Of its generators, by label.
        jobs: Processes that search.
        command: What the user typed.
    """
    token = f"{os.uname().nodename}-{os.getpid()}-{time.time_ns()}"
    try:
        before = _stamps(grid)
        minutes = train(Job(grid, outlooks, token))
        if _stamps(grid) != before:  # now with the weights that are searched
            inspector = Inspector(known={**load_facts(grid.out), **facts}, minutes=minutes)
            outlooks, facts = inspector.look(grid), inspector.facts
        save_facts(grid.out, facts)
        run_cells(Job(grid, outlooks, token, jobs))
        for cell in grid.cells:
            if not cell.report.is_file() and is_finished(cell, outlooks[cell.name]):
                make_report(cell)
    finally:
        tables = collect(grid, outlooks, facts)
        show(tables)  # before it is written: the disk may be full
        page = write_all(tables, command)
        print(f"{page}, and table.md, table.tex, table.csv beside it", flush=True)
    return tables


def _stamps(grid: Grid) -> list[int | None]:
    """When checkpoints were last written."""
    files = [model.checkpoint for model in grid.models]
    return [file.stat().st_mtime_ns if file is not None and file.is_file() else None for file in files]


def train(job: Job) -> dict[str, float]:
    """Trains models that come as configurations, unless that was done; gives the minutes that it took, by label.

    Each is trained by one process only; what another one is at is waited for. One that fails does not keep the others.
    """
    minutes: dict[str, float] = {}
    needed = [model for cell in job.cells for model in (cell.sut, cell.generator)]
    for role in ("sut", "generator"):  # SUTs may judge generators while they train
        waiting = [m for m in job.grid.models if m.role == role and m.config is not None and m in needed]
        said = None
        while waiting:
            busy = [model for model in waiting if not _train(model, job, minutes)]
            if busy and busy == waiting:
                if busy != said:
                    print(f"waiting for another process, which trains {busy[0].label}", flush=True)
                said = busy
                time.sleep(POLL)
            waiting = busy
    return minutes


def _train(model: Model, job: Job, minutes: dict[str, float]) -> bool:
    """Whether a model's turn is over: it is trained, or cannot be; False where another process is at it."""
    assert model.config is not None
    assert model.checkpoint is not None
    with claim(model.checkpoint.parent / ".claim") as mine:  # another bench may want the same model
        if not mine:
            return False
        started = time.monotonic()
        with _failures(job.grid.out, model.label, job.run):
            command = fit_once(model.config, model.checkpoint.parent, *model.fit_args)
            if command and "--ckpt_path" not in command:  # from the start
                minutes[model.label] = (time.monotonic() - started) / 60
    return True


def run_cells(job: Job) -> None:
    """Runs all cells that nobody has done and nobody is at.

    Raises:
        KeyboardInterrupt: The user has stopped it; all processes have ended.
    """
    if job.processes == 1:
        return work(job, functools.partial(print, flush=True))
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_worker, args=(job,)) for _ in range(job.processes)]
    with _stoppable():
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        except KeyboardInterrupt:
            _stop(workers)
            raise
    if ended := [w.exitcode for w in workers if w.exitcode]:
        print(f"{len(ended)} of {len(workers)} processes ended early (status {ended[0]}); what they finished is kept")
    return None


def work(job: Job, say: Callable[[str], None], log: bool = False) -> None:
    """Runs cell after cell until none is left that this process may do.

    Args:
        job: The cells.
        say: Prints a line.
        log: Whether the output of each search goes to a file in ``logs`` instead of the terminal.
    """
    parent = os.getppid()
    while any(_attempt(job, cell, say, log) for cell in job.cells if os.getppid() == parent):
        pass  # from the top again: in the meantime, a process may have died and left its cell


def _attempt(job: Job, cell: Cell, say: Callable[[str], None], log: bool) -> bool:
    """Runs a cell if it is to be run and nobody is at it; says whether it did."""
    outlook, out = job.outlooks[cell.name], job.grid.out
    with claim(cell.claim) as mine:
        before = failure(out, cell.name)
        if not mine or is_finished(cell, outlook) or (before and before["run"] == job.run):
            return False
        say(f"\n{_position(job, cell)}  {cell.title}: {left(job)}")
        with _output(out / "logs" / f"{cell.name}.txt" if log else None), _failures(out, cell.name, job.run):
            _check_models(job, cell)
            lsgen(*cell.args)
            _check_finished(cell, outlook)
            make_report(cell)
        say(f"{_position(job, cell)}  {cell.title}: {_outcome(job, cell)}")
    return True


def make_report(cell: Cell) -> None:
    """Writes the report of a cell's suite; a report that cannot be made is no reason to lose the suite."""
    from lsgen.report.entry import open_entries
    from lsgen.report.html import write_report

    try:
        write_report(open_entries([cell.folder]), cell.report)
    except Exception as error:
        if _is_full(error):
            raise
        print(f"no report of {cell.folder}: {reason_of(error)}", file=sys.stderr, flush=True)


def left(job: Job) -> str:
    """How many cells are still to be done and about how long they take, at the pace of those that are done."""
    done = [cell for cell in job.cells if is_finished(cell, job.outlooks[cell.name])]
    todo = [job.outlooks[cell.name] for cell in job.cells if cell not in done]
    if not todo:
        return "no cell left"
    planned = sum(job.outlooks[cell.name].seconds or 0.0 for cell in done)
    spent = sum(float(load_suite(cell.folder).summary["seconds"]) for cell in done)
    pace = spent / planned if planned else 1.0
    each = [(outlook.seconds or 0.0) * pace + outlook.overhead for outlook in todo]
    seconds = max(sum(each) / job.processes, max(each))
    return f"{counted(len(todo))} left, about {duration(seconds)}"


def _position(job: Job, cell: Cell) -> str:
    return f"[{job.cells.index(cell) + 1}/{len(job.cells)}]"


def _outcome(job: Job, cell: Cell) -> str:
    if failed := failure(job.grid.out, cell.name):
        return f"failed: {failed['reason']}"
    summary = load_suite(cell.folder).summary
    rate = "no viable seed" if summary["failure_rate"] is None else f"FR {summary['failure_rate']:.1%}"
    return f"{rate}, {duration(summary['seconds'])}; {left(job)}"


def _check_models(job: Job, cell: Cell) -> None:
    for model in (cell.sut, cell.generator):
        if model.config is not None and (failed := failure(job.grid.out, model.label)):
            raise RuntimeError(f"{model.label} could not be trained: {failed['reason']}")


def _check_finished(cell: Cell, outlook: Outlook) -> None:
    suite = load_suite(cell.folder)
    if not suite.finished:
        raise RuntimeError(f"unfinished, stopped by {suite.manifest['stopped_by']}: running the bench again goes on")
    if not is_finished(cell, outlook):
        raise RuntimeError("weights, data or settings changed while the bench ran: run it again")


@contextmanager
def _failures(out: Path, name: str, run: str) -> Iterator[None]:
    """Keeps what goes wrong inside as a reason; Ctrl-C and a full disk pass."""
    try:
        yield
    except SystemExit as error:  # what Lightning turns Ctrl-C into; it also turns a second one off
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise KeyboardInterrupt from error
    except Exception as error:  # one failure must not end the rest
        if _is_full(error):
            raise
        if explain(error)[1] is None:  # nothing that a sentence could tell
            traceback.print_exc()
        note_failure(out, name, reason_of(error), run)
    else:
        note_failure(out, name, None, run)


def _is_full(error: BaseException) -> bool:
    return any(isinstance(cause, OSError) and cause.errno in FULL for cause in chain(error))


# --- several processes -----------------------------------------------------------------------------------------------


def _worker(job: Job) -> None:
    """One of several processes: bench's lines go to the terminal, the searches' own to files."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:  # more threads than cores would get in each other's way
        torch.set_num_threads(max(1, torch.get_num_threads() // job.processes))
    terminal = os.fdopen(os.dup(1), "w", encoding="utf-8")

    def say(line: str) -> None:
        print(line.strip(), file=terminal, flush=True)

    try:
        work(job, say, log=True)
    except KeyboardInterrupt:
        sys.exit(1)
    except OSError as error:
        say(f"lsgen: {reason_of(error)}")
        sys.exit(1)


@contextmanager
def _output(file: Path | None) -> Iterator[None]:
    """Everything that is printed, also by libraries, goes to a file."""
    if file is None:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    saved = [os.dup(1), os.dup(2)]
    with file.open("a", encoding="utf-8") as log:
        _redirect([log.fileno(), log.fileno()])
    try:
        yield
    finally:
        _redirect(saved)
        for descriptor in saved:
            os.close(descriptor)


def _redirect(descriptors: list[int]) -> None:
    """Standard output and standard error go there from now on."""
    for stream, number, descriptor in zip((sys.stdout, sys.stderr), (1, 2), descriptors, strict=True):
        stream.flush()
        os.dup2(descriptor, number)


@contextmanager
def _stoppable() -> Iterator[None]:
    """A polite end (SIGTERM) is Ctrl-C: otherwise the processes would go on without the one that started them."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(workers: list) -> None:
    """Ends processes that this one has started."""
    alive = [w for w in workers if w.is_alive()]
    for worker in alive:
        os.kill(worker.pid, signal.SIGINT)
    deadline = time.monotonic() + GRACE
    for worker in alive:
        worker.join(max(0.0, deadline - time.monotonic()))
        if worker.is_alive():
            worker.kill()
            worker.join()
