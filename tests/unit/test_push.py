"""`cache push` uploads what runs packed; every verb that may run other people's code starts with no key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ci.__main__ import VERBS as CI
from ci.engine.memo import CachedResult, Miss
from ci.sharing.packed import ENTRY, MARK
from provisioning.__main__ import VERBS as PROVISIONING
from provisioning.base import secrets
from provisioning.base.command_line import main
from provisioning.base.settings import ROOT
from tests.support.cache_machines import OURS, Machine, pems
from tests.support.cache_server import CacheServer, serving

VERBS = {**PROVISIONING, **CI}
WITHOUT_FOREIGN_CODE = {
    "chips",
    *("cache", "diagnose", "env", "github", "inspect", "matrix", "provision", "report", "signing", "store"),
    "validate",
}
SECRET = "hush-4711"


@pytest.fixture
def server() -> Iterator[CacheServer]:
    with serving() as server:
        yield server


@pytest.fixture
def run(tmp_path: Path, server: CacheServer, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that packed a result, and the variables of the job that pushes."""
    monkeypatch.setenv(secrets.URL, server.url)
    public, private = pems(OURS)
    monkeypatch.setenv(secrets.PUBLIC_KEYS, public)
    monkeypatch.setenv(secrets.SIGNING_KEY, private)
    run = Machine(tmp_path / "run", server.url, writes=True, pushes=False)
    run.work()
    return run


def push(*arguments: object) -> int:
    return main("qnn-ci", "", VERBS, ["cache", "push", *map(str, arguments)])


def other(run: Machine, server: CacheServer) -> CachedResult | Miss:
    """What a machine finds that was not there before."""
    number = len(list(run.folder.parent.parent.iterdir()))
    return Machine(run.folder.parent.parent / f"reader{number}", server.url).find()


def test_what_a_run_packed_is_nowhere_until_it_is_pushed_and_then_gone_from_the_folder(
    run: Machine, server: CacheServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not server.kept and isinstance(other(run, server), Miss)
    assert push(run.results) == 0
    assert "1 of 1 results pushed to http://127.0.0.1" in capsys.readouterr().out
    assert isinstance(other(run, server), CachedResult)
    before = dict(server.kept)
    assert push(run.results) == 0
    assert capsys.readouterr().out == "nothing to push\n" and server.kept == before


def test_the_folder_of_the_variable_is_pushed_and_another_folder_is_a_usage_error(
    run: Machine, server: CacheServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push() == 2 and push(run.folder) == 2 and push(run.folder / "absent") == 2
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv(secrets.RESULTS, str(run.results))
    assert push() == 0 and server.kept


def test_a_push_that_is_pushed_again_changes_nothing(run: Machine, server: CacheServer) -> None:
    assert run.results
    copy = run.results.with_name("copy")
    subprocess.run(["cp", "-r", run.results, copy], check=True)
    assert push(run.results) == 0
    before = dict(server.kept)
    assert push(copy) == 0 and server.kept == before


@pytest.mark.parametrize("after", range(1, 5))
def test_a_push_that_ends_half_way_loses_nothing(after: int, run: Machine, server: CacheServer) -> None:
    server.fault = f"interrupt {after}"
    assert push(run.results) == 130
    assert isinstance(other(run, server), Miss)
    server.fault = ""
    assert push(run.results) == 0
    assert isinstance(other(run, server), CachedResult)


def test_a_kill_after_the_upload_leaves_nothing_to_complain_of(
    run: Machine, server: CacheServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.results
    for entry in run.results.glob(f"*/{ENTRY}"):
        entry.unlink()
    assert push(run.results) == 0 and capsys.readouterr().out == "nothing to push\n"
    assert [path.name for path in run.results.iterdir() if not path.name.startswith(".")] == [MARK]


def test_a_later_failure_is_pushed_after_the_pass_it_takes_back(run: Machine, server: CacheServer) -> None:
    run.fail()
    assert push(run.results) == 0
    assert isinstance(other(run, server), Miss)


@pytest.mark.parametrize("fault", ["full", "error"])
def test_a_servers_trouble_is_exit_code_4_and_the_results_stay(
    fault: str, run: Machine, server: CacheServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.fault = fault
    assert push(run.results) == 4
    assert "then push again" in capsys.readouterr().err
    server.fault = ""
    assert push(run.results) == 0 and isinstance(other(run, server), CachedResult)


@pytest.mark.parametrize(
    "variables",
    [
        {secrets.SIGNING_KEY: ""},
        {secrets.SIGNING_KEY: "nonsense"},
        {secrets.SIGNING_KEY: pems(OURS)[0]},
        {secrets.PUBLIC_KEYS: pems(Ed25519PrivateKey.generate())[0]},
        {secrets.URL: ""},
    ],
)
def test_a_wrong_key_is_one_line_with_what_to_do(
    variables: dict[str, str],
    run: Machine,
    server: CacheServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert push(run.results) == 2 and not server.kept
    message, fix = capsys.readouterr().err.splitlines()
    assert "QNN_CI_REMOTE_CACHE" in message and fix.startswith("  try: ")


def damaged(result: Path) -> None:
    blob = next(path for path in result.iterdir() if path.name != ENTRY)
    blob.unlink()
    blob.write_bytes(b"other")


def linked(result: Path) -> None:
    (result / ENTRY).rename(result / "moved")
    (result / ENTRY).symlink_to("moved")


def linked_whole(result: Path) -> None:
    result.rename(result.with_name("moved"))
    result.symlink_to("moved")


def a_pipe(result: Path) -> None:
    (result / ENTRY).unlink()
    os.mkfifo(result / ENTRY)


def elsewhere(result: Path) -> None:
    entry = json.loads((result / ENTRY).read_text())
    entry["document"]["files"] = {"x": "../../../etc/passwd"}
    (result / ENTRY).write_text(json.dumps(entry))


def nested(result: Path) -> None:
    (result / ENTRY).write_text("[" * 100_000)


@pytest.mark.parametrize("change", [damaged, linked, linked_whole, a_pipe, elsewhere, nested])
def test_what_no_run_packs_is_not_signed_and_hides_no_other(
    change: object, run: Machine, server: CacheServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.results and callable(change)
    run.weights("2")
    run.work(8)
    first, _ = sorted(path for path in run.results.iterdir() if path.is_dir())
    change(first)
    assert push(run.results) == 1
    printed = capsys.readouterr()
    assert "1 of 2 results pushed" in printed.out and len(printed.err.splitlines()) == 1
    assert isinstance(other(run, server), Miss)


def test_a_result_that_cannot_be_packed_changes_no_verdict(
    run: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    run.results = Path("/proc/none")
    run.weights("3")
    run.work(9)
    assert isinstance(run.find(), CachedResult)
    assert "will not be pushed" in capsys.readouterr().err


# Who may have a key


def test_only_verbs_that_read_and_write_files_may_find_a_key() -> None:
    assert {name for name, verb in VERBS.items() if not verb.foreign_code} == WITHOUT_FOREIGN_CODE


@pytest.mark.parametrize("name", [secrets.SIGNING_KEY, secrets.TOKEN])
@pytest.mark.parametrize("form", ["", "_FILE"])
@pytest.mark.parametrize("verb", ["test_lowering", "gate"])
def test_a_run_that_finds_a_key_ends_before_it_starts(
    verb: str, name: str, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name + form, SECRET)
    assert main("qnn-ci", "", VERBS, [verb]) == 2
    error = capsys.readouterr().err
    assert f"{name}{form} is set" in error and "cache -- push" in error and SECRET not in error


def test_a_password_in_the_address_is_refused_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(secrets.URL, f"https://ci:{SECRET}@cache.example.com")
    assert main("qnn-ci", "", VERBS, ["gate"]) == 2
    error = capsys.readouterr().err
    assert secrets.READ_TOKEN in error and SECRET not in error


LOOKS = """
import os, subprocess, sys
from pathlib import Path
from provisioning.base.secrets import READ_TOKEN, handed_on, hide
own = Path("/proc/self/environ")
assert SECRET.encode() in own.read_bytes() and b"AFTER=1" in own.read_bytes()
hide()
assert SECRET.encode() not in own.read_bytes() and b"AFTER=1" in own.read_bytes()
assert READ_TOKEN not in os.environ and handed_on({"A": "b"}) == {"A": "b", READ_TOKEN: SECRET}
child = subprocess.run([sys.executable, "-c", "import os; print(os.environ)"], capture_output=True, text=True)
assert SECRET not in child.stdout and "AFTER" in child.stdout
"""


def test_a_hidden_token_is_neither_in_proc_nor_in_a_child() -> None:
    # Ours is not the first variable, nor the last.
    environ = {"BEFORE": "1", secrets.READ_TOKEN: SECRET, "AFTER": "1", "PATH": os.environ["PATH"]}
    code = f"SECRET = {SECRET!r}\n{LOOKS}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
