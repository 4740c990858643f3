"""`reduce` of one program: what the search needs of a lane, and what is written of the result."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from ci.engine.jobs import default_slots
from ci.engine.watch import Touched
from ci.engine.workers.parent import Refused, WorkerDied
from ci.pipeline.models.arrays import Sample, save_one
from ci.pipeline.models.pieces import NotAPiece, Pieces
from ci.pipeline.output import keep_origins, require_own
from ci.pipeline.reduce import REPEATS, Condition, PieceSearch, Reduced, Subgraph
from ci.pipeline.reproducer import Reproducer, issue_text, said
from ci.pipeline.stage import AnyPlan
from ci.pipeline.steps import Ask
from ci.pipeline.suite import NO_SUITE, AnyCase, AnyProgram
from ci.pipeline.trial import Outcome
from provisioning.base.commands import captured
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import empty_folder
from provisioning.base.mutex import mutex
from provisioning.base.rendering.text import plural

G = TypeVar("G")
N = TypeVar("N")
PIECE, SAMPLES = "piece", "samples"
SCRIPT_SECONDS = 600.0
NAME = re.compile(r"[^a-z0-9]+")


def outcome_facts(
    work: Callable[[], Mapping[str, Any]], ask: Ask, said_of: Callable[[WorkerDied], str]
) -> Mapping[str, Any]:
    """What a piece's work gives. That it is refused, or that a worker dies of it, is a result too."""
    try:
        return work()
    except Refused as refused:
        if refused.exit_code != CheckFailed.exit_code:
            raise
        # A result that says nothing of what it rests on would be taken for every other piece.
        ask.touched |= ask.worker.seen
        unusable = refused.details.get("unusable", "")
        return {"failed": refused.kind, "message": refused.message, "unusable": unusable}
    except WorkerDied as gone:
        if not gone.is_own_crash or gone.trouble(ask.log):
            raise
        ask.touched |= ask.worker.seen | Touched.of(gone.touched or {})
        return {"failed": gone.kind, "message": said_of(gone)}


class Reduction(ABC, Generic[G]):
    suffix: ClassVar[str]
    program: AnyProgram[Any, Any]
    plan: AnyPlan[Any]

    def __init__(self, name: str, pieces: Pieces[G], place: Path, jobs: int | None) -> None:
        self.name, self.pieces, self.place = name, pieces, place
        self.at_once = jobs or default_slots()
        self.programs = 0
        self.seen: dict[Subgraph, Outcome | None] = {}

    @abstractmethod
    def save(self, model: G, sample: Sample, path: Path) -> None: ...

    def write(self, model: G, inputs: Sequence[Sample], folder: Path) -> None:
        """A program's files, for `tried`. The same are written each time, so that its result is cached."""
        self.save(model, inputs[0], folder / f"{PIECE}{self.suffix}")
        (folder / SAMPLES).mkdir()
        # One is compared, and others are calibrated by.
        for number, sample in enumerate([*inputs, *inputs[: len(inputs) == 1]]):
            save_one(folder / SAMPLES / f"{number}.npz", sample)

    def keep(self, piece: Subgraph, folder: Path, name: str) -> list[Path]:
        model, inputs = self.pieces.built(piece)
        files = [folder / f"{name}{self.suffix}", folder / f"{name}.npz"]
        self.save(model, inputs[0], files[0])
        save_one(files[1], inputs[0])
        return files

    def tried(self, folders: Sequence[Path], *, fresh: bool) -> list[Outcome | None]:
        """What became of each; None for what is no program."""
        case = self.case
        programs = [
            replace(self.program, suite=folder / NO_SUITE, case_name=folder.name, case=case, run=case.runs[0])
            for folder in folders
        ]
        baseline = next(iter(self.plan.baselines.values()))
        plan = replace(
            self.plan,
            programs=tuple(programs),
            work=replace(self.plan.work, cache=self.plan.work.cache and not fresh),
            baselines=dict.fromkeys((program.suite for program in programs), baseline),
        )
        return self.outcomes_in(plan)

    @property
    @abstractmethod
    def case(self) -> AnyCase:
        """Of a piece in its folder, with the run, and nothing that names a part of the whole model."""

    @abstractmethod
    def outcomes_in(self, plan: Any) -> list[Outcome | None]: ...

    @abstractmethod
    def reproducer(self, name: str, title: str, piece: Subgraph, condition: Condition) -> Reproducer: ...

    @abstractmethod
    def operators_of(self, piece: Subgraph) -> list[str]:
        """Their kinds."""

    @property
    @abstractmethod
    def versions(self) -> Mapping[str, str]: ...

    @property
    def facts(self) -> Mapping[str, str]:
        """For an issue."""
        return {**self.versions, "chip": self.program.soc, "precision": self.program.run.kind}

    @property
    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Of a reproducer."""

    def outcomes(self, pieces: Sequence[Subgraph], *, fresh: bool = False) -> list[Outcome | None]:
        folders: dict[Subgraph, Path] = {}
        for piece in pieces:
            folder = empty_folder(self.place / hashlib.sha256(repr(piece).encode()).hexdigest()[:16])
            try:
                self.write(*self.pieces.built(piece), folder)
            except NotAPiece:
                shutil.rmtree(folder)
            else:
                folders[piece] = folder
        if folders:
            # The search has progress lines of its own.
            with contextlib.redirect_stderr(io.StringIO()):
                found = dict(zip(folders, self.tried([*folders.values()], fresh=fresh), strict=True))
        else:
            found = {}
        for folder in folders.values():
            shutil.rmtree(folder)
        self.programs += len(found)
        self.seen.update(found)
        return [found.get(piece) for piece in pieces]


def reduced(
    work: Reduction[Any], condition: Condition, seconds: float, say: Callable[[str], None]
) -> Reduced:
    pieces, began = work.pieces, time.monotonic()
    say(f"the whole model: {plural(len(pieces.operators), 'operator')}")
    (whole,) = work.outcomes([pieces.whole])
    if whole is None or not condition.shown_by(whole, whole):
        found = whole.in_words(condition.figure) if whole else "its operators cannot be compiled alone"
        raise CheckFailed(
            f"the whole model does not show it ({condition.text}); it has: {found}",
            fix="another --when, --precision or --soc, or the samples that show it: --calibrate DIR",
        )
    say(f"  {whole.in_words(condition.figure)}")

    def shown(outcome: Outcome | None) -> bool:
        return outcome is not None and condition.shown_by(outcome, whole)

    def repeats(piece: Subgraph) -> int:
        return sum(shown(*work.outcomes([piece], fresh=True)) for _ in range(REPEATS))

    at_first = repeats(pieces.whole)
    # What runs when the time is over, and the last repeat, take no longer than these two did.
    spent = time.monotonic() - began
    search = PieceSearch(
        lambda asked: [shown(outcome) for outcome in work.outcomes(asked)],
        work.at_once,
        began + seconds - spent,
        say,
    )
    of_one = (replace(pieces.whole, sample=number) for number in range(len(pieces.samples)))
    alone = search.first(of_one) if condition.text == "wrong" else None
    piece = search.fewest_operators(alone or pieces.whole)
    tried = set[tuple[int, int]]()
    piece = search.simplest(piece, lambda piece: pieces.smaller(piece, tried), "smaller sizes")
    piece = search.simplest(piece, pieces.simpler, "simpler values")
    piece = search.fewest_operators(piece)
    outcome = work.seen[piece]
    assert outcome is not None
    return Reduced(
        piece, outcome, whole, len(pieces.operators), work.programs, (at_first, repeats(piece)), search.late
    )


def written(
    work: Reduction[Any], condition: Condition, found: Reduced, folder: Path, name: str | None, typed: str
) -> tuple[list[Path], str]:
    """The files of the smallest program of what was typed, and what its reproducer says."""
    every = dict.fromkeys(work.operators_of(found.piece))
    kinds, name = ", ".join(every), name or NAME.sub("-", "-".join(every).lower())[:60]
    require_own([folder / f"{name}.md"], typed)
    files = work.keep(found.piece, folder, name)
    title = f"{kinds} at {work.facts['precision']}: {found.outcome.in_words(condition.figure)}"[:150]
    script = verdict = ""
    if condition.figure != "ms":
        # Its time is forecast by what only this project has fitted.
        script = work.reproducer(name, title, found.piece, condition).text(condition, found.outcome)
        files.append(folder / f"{name}.py")
        files[-1].write_text(script, encoding="utf-8")
        verdict = _ran(files[-1], work.environment)
    files.append(folder / f"{name}.md")
    text = issue_text(name, title, condition, found, work.facts, script, verdict)
    files[-1].write_text(text, encoding="utf-8")
    keep_origins(files, typed)
    return files, verdict


def _ran(script: Path, environ: Mapping[str, str]) -> str:
    """The last line of a reproducer, or why it has none."""
    try:
        done = captured(
            [sys.executable, script.name], cwd=script.parent, env={**environ}, timeout=SCRIPT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no word: not done after {SCRIPT_SECONDS:g} s"
    return said(done.stdout) or f"no word: {done.stderr[-300:]}"


def only(programs: Sequence[N]) -> N:
    if len(programs) != 1:
        names = ", ".join(str(getattr(program, "name", "")) for program in programs[:5])
        raise UsageError(
            f"expected a MODEL or one program of a suite, found {len(programs)} ({names} …)",
            fix="name the program: --suite FILE -k CASE/RUN/SOC",
        )
    return programs[0]


@contextlib.contextmanager
def place_in(output: Path, about: Sequence[str]) -> Iterator[Path]:
    """A folder for the pieces. It has the same name each time that the same is asked for, so that their
    results are found again."""
    place = output / f".reduce-{hashlib.sha256(repr(about).encode()).hexdigest()[:12]}"
    place.mkdir(parents=True, exist_ok=True)
    with mutex(place / "lock"):
        yield place
        shutil.rmtree(place, ignore_errors=True)
