"""The frame of both command lines: help, faults and exit codes, as users meet them."""

from __future__ import annotations

import argparse
import importlib
import os
import py_compile
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.__main__ import VERBS as CI
from lab.__main__ import VERBS as LAB
from provisioning.__main__ import VERBS as PROVISIONING
from provisioning.base.command_line import STARTED_IN, Verb, main
from provisioning.base.commands import capture
from provisioning.base.commands import session as session_of
from provisioning.base.flags import count, duration
from provisioning.base.guard import guard
from provisioning.base.settings import ROOT

HEAVY = ("subprocess", "tempfile", "concurrent", "asyncio", "logging", "statistics", "importlib.metadata")

VERB = """
import os
import provisioning.base.errors as errors
EXAMPLES = "  nox -s verb"
def configure(parser):
    parser.add_argument("what")
def run(args):
    if args.what == "interrupt":
        raise KeyboardInterrupt
    if args.what.isupper():
        print(os.environ[args.what])
        return 0
    if args.what == "bug":
        raise RuntimeError("not foreseen")
    if hasattr(errors, args.what):
        raise getattr(errors, args.what)("it is so", fix="do that")
    return int(args.what)
"""


@pytest.fixture
def verbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Verb]:
    (tmp_path / "verb_of_this_test.py").write_text(VERB)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "verb_of_this_test", raising=False)
    return {"verb": Verb("verb_of_this_test", "a verb"), "other": Verb("no.such.module", "another")}


def _main(verbs: dict[str, Verb], *argv: str) -> int:
    return main("python -m x", "What it is for.", verbs, argv)


@pytest.mark.parametrize("variable", ["QNN_CI_STORE", "QNN_CI_REQUIREMENTS"])
def test_a_path_in_a_variable_begins_where_the_user_was(
    variable: str,
    verbs: dict[str, Verb],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(STARTED_IN, str(tmp_path))
    monkeypatch.setenv(variable, "mine")
    assert _main(verbs, "verb", variable) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'mine'}\n"


def test_a_flag_that_is_meant_for_the_command_in_a_shell_comes_behind_two_dashes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main("qnn-ci", "", PROVISIONING, ["shell", "-c", "echo hi"])
    assert ended.value.code == 2
    assert "-- sh -c 'echo hi'" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["test", "build"])
def test_the_beginning_of_several_verbs_shows_what_each_does(
    word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert _main(CI, word) == 2
    told = capsys.readouterr().err
    begun = [name for name in CI if name.startswith(word)]
    assert len(begun) > 3
    assert all(f"{name} " in told and CI[name].summary in told for name in begun)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("CheckFailed", 1),
        ("UsageError", 2),
        ("EnvironmentLacking", 3),
        ("UpstreamError", 4),
        ("IntegrityError", 4),
        ("ArchiveError", 4),
    ],
)
def test_a_foreseeable_error_is_a_message_a_fix_and_its_code(
    verbs: dict[str, Verb], error: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(verbs, "verb", error) == code
    assert capsys.readouterr().err == "error: it is so\n  try: do that\n"


def test_with_debug_a_foreseeable_error_shows_where_it_was_raised(
    verbs: dict[str, Verb], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(verbs, "verb", "UsageError", "--debug") == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_crash_of_ours_ends_with_70_and_shows_its_traceback(
    verbs: dict[str, Verb], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(verbs, "verb", "bug") == 70
    shown = capsys.readouterr().err
    assert "Traceback" in shown and "RuntimeError: not foreseen" in shown.splitlines()[-2]


def test_an_interrupt_ends_with_130_and_no_traceback(
    verbs: dict[str, Verb], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(verbs, "verb", "interrupt") == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_the_process_ends_with_130_too_wherever_the_interrupt_met_it(tmp_path: Path) -> None:
    """Also in code that is made from text, as a dataclass is when it is imported."""
    script = (
        "import sys; from provisioning.base.guard import guard\n"
        "sys.exit(guard(lambda: exec('raise KeyboardInterrupt'), debug=False))"
    )
    (tmp_path / "interrupted.py").write_text(script)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    assert capture([sys.executable, "-m", "interrupted"], env=environ).returncode == 130


def test_work_that_waits_for_a_lock_for_ever_as_it_is_interrupted_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The laboratory saw urllib3 give back a connection to a queue whose lock nobody held any more."""
    monkeypatch.setattr("provisioning.base.guard.CLEANUP_SECONDS", 0.05)
    taken = threading.Lock()
    taken.acquire()

    def work() -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            taken.acquire()
        return 0

    assert guard(work, debug=False) == 143


def test_sigterm_ends_with_143_too_where_it_meets_a_command_that_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The laboratory saw it come between the handlers of two signals."""
    install = signal.signal

    def install_and_terminate(number: int, handler: signal.Handlers) -> object:
        before = install(number, handler)
        if number == signal.SIGTERM and callable(handler):
            os.kill(os.getpid(), signal.SIGTERM)
        return before

    monkeypatch.setattr(signal, "signal", install_and_terminate)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)]
    assert guard(lambda: 0, debug=False) == 143
    assert handlers == [
        signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    ]


def test_sigterm_ends_with_143() -> None:
    def work() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    assert guard(work, debug=False) == 143


def test_a_reader_that_left_before_the_verdict_is_no_error_and_no_pass() -> None:
    script = (
        "import sys; from provisioning.base.guard import guard\n"
        "def work():\n    [print('x' * 1000, flush=True) for _ in range(1000)]; return 5\n"
        "sys.exit(guard(work, debug=False))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_output_that_nothing_can_take_is_a_clear_error() -> None:
    program = (
        "import sys; from provisioning.base.guard import guard\n"
        "sys.exit(guard(lambda: print('y') or 0, debug=False))"
    )
    with Path("/dev/full").open("wb") as full:
        run = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert run.returncode == 3
    assert run.stderr.startswith(b"error: output: No space left on device\n  try: free some space")
    assert b"Traceback" not in run.stderr


def test_help_of_no_verb_loads_a_package_or_a_heavy_module() -> None:
    """Start-up costs what is imported, and no package may be installed yet (-S: none is seen). Of several
    verbs that load a module the first is named."""
    modules = {verb.module for verbs in (PROVISIONING, CI, LAB) for verb in verbs.values()}
    script = (
        "import argparse, importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    before, (module, _, part) = set(sys.modules), name.partition(':')\n"
        "    verb = importlib.import_module(module)\n"
        "    (getattr(verb, part) if part else verb).configure(argparse.ArgumentParser())\n"
        f"    loaded = sorted(set({HEAVY!r}) & set(sys.modules) - before)\n"
        "    print(name, *loaded) if loaded else None\n"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", script, *sorted(modules)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((count, text) for text in ("0", "-1", "1.5", "")),
        *((duration, text) for text in ("0", "-1", "nan", "inf", "soon")),
    ],
)
def test_what_is_no_count_and_no_duration_is_refused(kind: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(repr(text))):
        kind(text)


def test_a_verb_whose_packages_are_missing_names_the_session_that_installs_them() -> None:
    """`-S` leaves the interpreter without site-packages, as in a fresh clone where only nox is installed."""
    command = [sys.executable, "-S", "-m", "ci", "matrix", "--shards", "4"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 3
    assert "has no package pydantic" in ran.stderr and "Traceback" not in ran.stderr
    assert "  try: nox -s matrix -- --shards 4" in ran.stderr


@pytest.mark.parametrize(
    ("missing", "code"), [("their_package.part", 3), ("ci.no_such_module", 70), ("provisioning.gone", 70)]
)
def test_a_missing_module_of_ours_is_a_crash_and_no_missing_package(
    missing: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise ModuleNotFoundError(f"No module named '{missing}'", name=missing)

    assert guard(work, debug=False, session=session_of("matrix")) == code
    shown = capsys.readouterr().err
    assert missing in shown and ("Traceback" in shown) is (code == 70)


def test_a_captured_program_reads_what_it_is_given_and_nothing_of_ours() -> None:
    command = [sys.executable, "-c", "import sys; print(sys.stdin.read())"]
    assert capture(command, input="given").stdout == "given\n"
    assert capture(command).stdout == "\n"


def test_bytecode_that_a_full_disk_cut_is_removed_and_the_same_command_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cut_by_a_full_disk.py").write_text("CODE = 0\n")
    bytecode = Path(py_compile.compile(str(tmp_path / "cut_by_a_full_disk.py")) or "")
    bytecode.write_bytes(bytecode.read_bytes()[:-5])
    monkeypatch.syspath_prepend(tmp_path)
    codes = [
        guard(lambda: int(importlib.import_module("cut_by_a_full_disk").CODE), debug=False) for _ in "ab"
    ]
    assert codes == [3, 0]


def test_a_file_that_hides_a_module_of_pythons_is_named_and_is_no_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "json.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "provisioning", "store", "list", "--json", "--store", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, f"{tmp_path / 'json.py'}:" in done.stderr) == (3, True)
