"""`python -m ci signing`: what people type and get."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ci.signing import keys, verb
from provisioning.base.command_line import guarded
from tests.support.chains import everything_written, secrets_of
from tests.support.skels import Skel

PASSPHRASE = "staple-battery-horse"


@pytest.fixture(autouse=True)
def reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("QNN_CI_REPORTS", str(tmp_path / "reports"))
    monkeypatch.delenv(keys.PASSPHRASE_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "reports"


def signing(*argv: object) -> int:
    parser = argparse.ArgumentParser()
    verb.configure(parser)
    args = parser.parse_args([str(word) for word in argv])
    return guarded(lambda: verb.run(args), debug=False)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return Skel().write(tmp_path / "libmine_skel.so")


@pytest.fixture
def signed(library: Path) -> Path:
    assert signing("sign", library, "-o", "signed") == 0
    return Path("signed") / library.name


ROOT = Path("signed/development-root.pem")


def test_sign_then_verify_against_its_root(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert signing("verify", signed, "--root", ROOT, "--sw-id", "adsp") == 0
    assert "VERIFIED" in capsys.readouterr().out


def test_verify_without_a_root_is_not_a_pass(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert signing("verify", signed) == 1
    assert "NOT PROVEN" in capsys.readouterr().out


def test_verify_can_be_content_without_a_root(signed: Path) -> None:
    assert signing("verify", signed, "--allow-unchecked", "root") == 0


def test_verify_lists_what_no_hash_covers(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signing("verify", signed, "--root", ROOT)
    assert "covered by no hash" in capsys.readouterr().out


def test_verify_writes_findings(signed: Path, reports: Path) -> None:
    damaged = bytearray(signed.read_bytes())
    damaged[0x2200] ^= 1
    signed.write_bytes(damaged)
    assert signing("verify", signed, "--root", ROOT) == 1
    report = json.loads((reports / "signing_verify.json").read_text(encoding="utf-8"))
    assert (report["outcome"], report["findings"][0]["rule"]) == ("fail", "signing.segments")


def test_verify_has_json(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    signing("verify", signed, "--root", ROOT, "--json")
    (one,) = json.loads(capsys.readouterr().out)["files"]
    assert (one["verdict"], one["development"]) == ("verified", True)


def test_inspect_has_json(signed: Path, library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert signing("inspect", signed, library, "--json") == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [one["kind"] for one in files] == ["development signature", "unsigned"]
    assert [len(one["certificates"]) for one in files] == [3, 0]


def test_inspect_shows_a_table(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signing("inspect", signed)
    out = capsys.readouterr().out
    assert all(word in out for word in ("MBN v6", "SHA384", "secp384r1", "DEVELOPMENT ONLY", "software id"))


def test_inspect_of_a_damaged_file_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "x.so").write_bytes(b"\x7fELF")
    assert signing("inspect", path) == 1
    assert "damaged" in capsys.readouterr().out


@pytest.mark.parametrize("action", ["inspect", "verify"])
def test_what_is_not_there_is_wrong_use(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert signing(action, "gone.so") == 2
    assert "gone.so" in capsys.readouterr().err


def test_what_stopped_a_run_is_in_its_report(reports: Path) -> None:
    signing("verify", "gone.so")
    report = json.loads((reports / "signing_verify.json").read_text(encoding="utf-8"))
    assert (report["outcome"], report["findings"][0]["rule"]) == ("error", "signing.stopped")


def test_a_named_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.so")
    assert signing("verify", tmp_path / "pipe.so") == 2


def test_a_directory_is_wrong_use(tmp_path: Path) -> None:
    assert signing("inspect", tmp_path) == 2


def test_signing_over_the_library_itself_is_refused(library: Path) -> None:
    before = library.read_bytes()
    assert signing("sign", library, "-o", library.parent) == 2
    assert library.read_bytes() == before


def test_signing_twice_is_refused_or_replaces(signed: Path) -> None:
    assert signing("sign", signed, "-o", "again") == 2
    assert signing("sign", signed, "-o", "again", "--replace") == 0


def test_serials_bind(library: Path) -> None:
    signing("sign", library, "-o", "signed", "--serial", "0xa", "--serial", "0xb")
    bound = Path("signed") / library.name
    assert signing("verify", bound, "--root", ROOT, "--serial", "0xb") == 0
    assert signing("verify", bound, "--root", ROOT, "--serial", "0xc") == 1


@pytest.mark.parametrize(
    "flags",
    [
        ("--key", "k"),
        ("--chain", "c"),
        ("--key", "k", "--pkcs12", "p", "--chain", "c"),
        ("--sign-command", "x"),
        ("--sw-id", "cpu"),
        ("--anti-rollback", "-1"),
        ("--serial", "5"),
    ],
)
def test_flags_that_do_not_go_together_are_wrong_use(library: Path, flags: tuple[str, ...]) -> None:
    assert signing("sign", library, "-o", "signed", *flags) == 2


@pytest.mark.parametrize("algorithm", ["ec", "rsa"])
def test_keygen_then_sign_with_it(
    library: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, tmp_path: Path
) -> None:
    monkeypatch.setenv(keys.PASSPHRASE_VARIABLE, PASSPHRASE)
    assert signing("keygen", "keys", "--algorithm", algorithm) == 0
    chain = ("--key", "keys/attestation.key.pem", "--chain", "keys/chain.pem")
    assert signing("sign", library, "-o", "signed", *chain) == 0
    assert signing("verify", Path("signed") / library.name, "--root", "keys/root.pem") == 0


def test_a_chain_does_not_pass_for_a_root(
    library: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first certificate is the attestation's; to trust that one is not what anybody asked for."""
    assert signing("keygen", "keys", "--no-passphrase") == 0
    chain = ("--key", "keys/attestation.key.pem", "--chain", "keys/chain.pem")
    signing("sign", library, "-o", "signed", *chain)
    assert signing("verify", Path("signed") / library.name, "--root", "keys/chain.pem") == 2
    assert "expected the root certificate alone, found 3 certificates" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["a file", "a file/below", "/proc/nothing"])
def test_keygen_says_where_it_cannot_write(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a file").touch()
    assert signing("keygen", place, "--no-passphrase") == 2
    assert capsys.readouterr().err.startswith(f"error: {place}: ")


def test_keygen_wants_a_passphrase_or_to_be_told_not_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert signing("keygen", "keys") == 3
    assert "--no-passphrase" in capsys.readouterr().err
    assert signing("keygen", "keys", "--no-passphrase") == 0


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every key that is made from now on."""
    collected: list[Any] = []
    new = keys._new_key

    def spy(algorithm: str) -> Any:
        collected.append(new(algorithm))
        return collected[-1]

    monkeypatch.setattr(keys, "_new_key", spy)
    return collected


def test_a_key_made_for_a_run_is_in_nothing_that_the_run_leaves(
    library: Path, made: list[Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    signing("sign", library, "-o", "signed", "--replace")
    signing("sign", Path("signed") / library.name, "-o", "again")
    said = capfd.readouterr()
    everything = everything_written(tmp_path) + said.out.encode() + said.err.encode()
    assert len(made) == 6
    assert [secret for secret in secrets_of(made) if secret in everything] == []


def test_a_key_that_is_taken_is_in_nothing_that_the_run_writes(
    library: Path,
    made: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(keys.PASSPHRASE_VARIABLE, PASSPHRASE)
    signing("keygen", "keys")
    chain = ("--key", "keys/attestation.key.pem", "--chain", "keys/chain.pem")
    assert signing("sign", library, "-o", "signed", *chain) == 0
    monkeypatch.setenv(keys.PASSPHRASE_VARIABLE, "wrong" + PASSPHRASE[:3])
    assert signing("sign", library, "-o", "other", *chain) == 2
    said = capfd.readouterr()
    everything = everything_written(tmp_path / "signed", tmp_path / "reports")
    everything += said.out.encode() + said.err.encode()
    secrets = [*secrets_of(made), PASSPHRASE.encode()]
    assert [secret for secret in secrets if secret in everything] == []


def test_an_interrupted_run_leaves_no_file_half_written(
    library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    assert signing("sign", library, "-o", "signed") == 130
    assert list((tmp_path / "signed").iterdir()) == []
