"""Run each test file alone, as on a machine where no other has run: `nox -s tests -- --alone`.

Each file gets a copy of this tree without build/ and dist/, and a cache folder with an empty store. Kept are
the locked environments, what the store has downloaded, and the caches of other programs, such as uv's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ci.dev.lint import tracked_files
from ci.engine.jobs import parse_shard
from provisioning.base.errors import ToolkitError
from provisioning.base.settings import store_path
from tests.support import order, whole

FLAG, RESUME = "--alone", "--resume"
DEFAULT = "tests/integration"
OF_THE_USER = ("QNN_CI_STORE", "QNN_CI_REPORTS", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
PASSED, LEFT_OUT, FAILED = "passed", "left out", "failed"
VERDICTS = {int(pytest.ExitCode.OK): PASSED, int(pytest.ExitCode.NO_TESTS_COLLECTED): LEFT_OUT}
_LEFT_OUT_LINE = re.compile(r"^(\d+) checks? ((?:did not run|marked|of whole suites) .*)$", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    file: str
    verdict: str
    seconds: float
    summary: str
    """The last line of pytest's."""
    tree: str
    """What was tested, and with which flags."""


def add_flags(group: pytest.OptionGroup) -> None:
    group.addoption(
        FLAG,
        action="store_true",
        help=f"run each file alone, with trees and caches empty and downloads kept [{DEFAULT}]",
    )
    group.addoption(
        RESUME, action="store_true", help=f"with {FLAG}: leave out files that passed so on this very tree"
    )


def run(config: pytest.Config) -> int:
    """The exit code of the whole call."""
    root = config.rootpath
    flags = _passed_on(config)
    try:
        files = _files(config)
        digest = _digest(root, flags)
        folder = Path(os.environ.get("QNN_CI_REPORTS") or root / "reports") / "alone"
        folder.mkdir(parents=True, exist_ok=True)
        earlier = _earlier(folder, digest) if config.getoption(RESUME) else {}
        slots = config.getoption("numprocesses", None) or 1
        kept = [name for name in files if name in earlier]
        waiting = [name for name in files if name not in earlier]
        print(f"{len(waiting)} files, each alone, {slots} at a time; {len(kept)} passed before", flush=True)
        results = [earlier[name] for name in kept]
        for result in Alone(root, folder, flags, digest).run(waiting, slots):
            results.append(result)
            (folder / f"{_slug(result.file)}.json").write_text(json.dumps(asdict(result)), encoding="utf-8")
            line = f"{result.verdict:8} {result.seconds:6.0f} s  {result.file}  ({result.summary})"
            print(f"[{len(results)}/{len(files)}] {line}", flush=True)
    except ToolkitError as error:
        raise pytest.UsageError(f"{error.message}: {error.fix}") from None
    return _report(folder, results)


def _files(config: pytest.Config) -> list[str]:
    """Those of this shard, by their paths below the root."""
    named = config.args_source == pytest.Config.ArgsSource.ARGS
    places = [Path(place).resolve() for place in (config.args if named else [config.rootpath / DEFAULT])]
    for place in places:
        if not (place.exists() and place.is_relative_to(config.rootpath)):
            raise pytest.UsageError(f"{FLAG}: expected files and folders of {config.rootpath}, found {place}")
    found = {
        path.relative_to(config.rootpath).as_posix()
        for place in places
        for path in (place.rglob("test_*.py") if place.is_dir() else [place])
    }
    index, count = parse_shard(config.getoption(order.SHARD) or "1/1")
    mine = sorted(found)[index - 1 :: count]
    if not mine:
        raise pytest.UsageError(f"{FLAG}: of {len(found)} files, none is left to run")
    return mine


def _passed_on(config: pytest.Config) -> tuple[str, ...]:
    flags = [whole.FLAG] if config.getoption(whole.FLAG) else []
    if (seed := config.getoption(order.RANDOM)) is not None:
        flags += [order.RANDOM, str(seed)]
    for name, value in (("-k", config.option.keyword), ("-m", config.option.markexpr)):
        flags += [name, value] if value else []
    return tuple(flags)


def _digest(root: Path, flags: Sequence[str]) -> str:
    state = hashlib.sha256(json.dumps(flags).encode())
    for path in tracked_files(root):
        state.update(f"{path}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    return state.hexdigest()


def _earlier(folder: Path, digest: str) -> dict[str, Result]:
    results = [Result(**json.loads(file.read_text(encoding="utf-8"))) for file in folder.glob("*.json")]
    return {result.file: result for result in results if result.tree == digest and result.verdict != FAILED}


@dataclass(frozen=True)
class Alone:
    """What all files have in common."""

    root: Path
    logs: Path
    flags: tuple[str, ...]
    digest: str

    def run(self, files: Sequence[str], slots: int) -> Iterator[Result]:
        """So many at a time, in the order in which they end."""
        running: set[subprocess.Popen[bytes]] = set()
        with ThreadPoolExecutor(slots) as pool:
            waiting = [pool.submit(self._run_one, file, running) for file in files]
            try:
                for future in as_completed(waiting):
                    yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in tuple(running):
                    process.send_signal(signal.SIGINT)
                raise

    def _run_one(self, file: str, running: set[subprocess.Popen[bytes]]) -> Result:
        log = self.logs / f"{_slug(file)}.log"
        with self._room() as (tree, environ), log.open("wb") as stream:
            begun = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-n0", "-q", *self.flags, file],
                cwd=tree,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
            running.add(process)
            code = process.wait()
            running.discard(process)
            seconds = round(time.monotonic() - begun, 1)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() or ["printed nothing"]
        verdict = VERDICTS.get(code, FAILED)
        return Result(file, verdict, seconds, lines[-1].strip("= "), self.digest)

    @contextmanager
    def _room(self) -> Iterator[tuple[Path, Mapping[str, str]]]:
        """A copy of the tree, and the environment in which our caches are empty."""
        with TemporaryDirectory(prefix="qnn-ci-alone-", ignore_cleanup_errors=True) as place:
            tree, cache = Path(place, "tree"), Path(place, "cache")
            # With its history, which some tests read; changes that are not committed are tested too.
            _git(self.root, "clone", "--quiet", "--shared", "--no-checkout", str(self.root), str(tree))
            for path in tracked_files(self.root):
                copy = tree / path.relative_to(self.root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, copy, follow_symlinks=False)
            _git(tree, "reset", "--quiet")
            if (self.root / ".nox").is_dir():
                (tree / ".nox").symlink_to(self.root / ".nox")
                (tree / ".git" / "info" / "exclude").write_text("/.nox\n", encoding="utf-8")
            kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            store, downloads = cache / "qnn-ci" / "store", store_path() / "downloads"
            for folder in (store, downloads, kept / "pip", kept / "uv"):
                folder.mkdir(parents=True, exist_ok=True)
            (store / "downloads").symlink_to(downloads)
            for entry in kept.iterdir():
                if entry.name != "qnn-ci":
                    (cache / entry.name).symlink_to(entry)
            environ = {name: value for name, value in os.environ.items() if name not in OF_THE_USER}
            yield tree, {**environ, "XDG_CACHE_HOME": str(cache)}


def _git(cwd: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def _slug(file: str) -> str:
    return file.removesuffix(".py").replace("/", "-")


def _report(folder: Path, results: Sequence[Result]) -> int:
    left_out: Counter[str] = Counter()
    for result in results:
        log = folder / f"{_slug(result.file)}.log"
        for count, reason in _LEFT_OUT_LINE.findall(log.read_text(encoding="utf-8", errors="replace")):
            left_out[reason] += int(count)
    for reason, number in sorted(left_out.items()):
        print(f"{number} {'check' if number == 1 else 'checks'} {reason}")
    for result in results:
        if result.verdict == FAILED:
            again = f"nox -s tests -- {FLAG} {result.file}"
            print(f"failed alone: {result.file}: {result.summary}")
            print(f"  log: {folder / _slug(result.file)}.log; again: {again}")
    count = Counter(result.verdict for result in results)
    parts = ", ".join(f"{count[kind]} {kind}" for kind in (FAILED, PASSED, LEFT_OUT) if count[kind])
    print(f"=== files alone: {parts} in {sum(result.seconds for result in results):.0f} s of work ===")
    return int(pytest.ExitCode.TESTS_FAILED if count[FAILED] or not count[PASSED] else pytest.ExitCode.OK)
