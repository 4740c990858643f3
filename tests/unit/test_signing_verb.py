"""`python -m ci signing`: what people type and get."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from ci.signing import certificates, mbn, signed_writer, verb
from provisioning.base.findings import Outcome, Report
from provisioning.base.guard import guard
from tests.support import chains
from tests.support.mbn import signed_file
from tests.support.skels import Skel
from tests.support.typed import parsed


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QNN_CI_REPORTS", str(tmp_path / "reports"))
    monkeypatch.chdir(tmp_path)


def signing(*argv: object) -> int:
    args = parsed(verb, *argv)
    return guard(lambda: verb.run(args), debug=False)


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    path = tmp_path / "libmine_skel.so"
    path.write_bytes(signed_writer.sign_library(Skel().encode(), chains.signer(), (0xA, 0xB)))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root.pem"
    path.write_bytes(chains.root_pem(chains.signer()))
    return path


TESTED = ("--for", "development", "--serial", "0xb")


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ((*TESTED, "--root", "root.pem", "--sw-id", "adsp"), 0, "VERIFIED, development rehearsal"),
        (("--for", "development", "--root", "root.pem"), 1, "NOT PROVEN, development rehearsal"),
        (("--for", "development", "--root", "root.pem", "--serial", "0xc"), 1, "FAILED"),
        *((("--root", "root.pem", "--serial", text), 2, "") for text in ("12", "0x0", "0x100000000", "0xg")),
        ((*TESTED, "--root", "root.pem", "--sw-id", "cdsp"), 1, "FAILED"),
        (TESTED, 1, "NOT PROVEN, development rehearsal"),
        ((*TESTED, "--allow-unchecked", "root"), 0, "VERIFIED, development rehearsal"),
        ((*TESTED, "--root", "root.pem"), 0, "not verified"),
        (("--root", "root.pem", "--serial", "0xb"), 1, "FAILED, development rehearsal"),
        (("--allow-unchecked", "root"), 2, ""),
    ],
)
def test_verifying(
    signed: Path,
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    assert signing("verify", signed, *flags) == code
    printed = capsys.readouterr().out
    assert words in printed
    # A verdict says what it is made of.
    assert code == 2 or {"structure", "signature", "root"} <= {*printed.split()}
    outcome = Report.read(tmp_path / "reports" / "signing_verify.json").outcome
    assert outcome is (Outcome.PASS, Outcome.FAIL, Outcome.ERROR)[code]


@pytest.mark.parametrize(
    ("typed", "code", "words"),
    [
        ((), 1, "NOT PROVEN"),
        (("--allow-flags", "0x2"), 0, "--allow-flags 0x2"),
        (("--allow-flags", "2"), 2, ""),
    ],
)
def test_flags_of_the_metadata_are_taken_by_name_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], typed: tuple[str, ...], code: int, words: str
) -> None:
    chain = chains.bent().chain
    (tmp_path / "root.pem").write_bytes(chain[-1].public_bytes(Encoding.PEM))
    library = tmp_path / "libmine_skel.so"
    metadata = mbn.Metadata(software_id=4, flags=2).pack()
    library.write_bytes(
        signed_file(
            Skel(sections=False).encode(),
            6,
            digest="sha384",
            metadata=metadata,
            certificates=certificates.join(chain),
            signature=b"\x01" * 104,
        )
    )
    command = ("verify", library, "--root", "root.pem", "--allow-unchecked", "signature", *typed)
    if code == 2:
        with pytest.raises(SystemExit) as ended:
            signing(*command)
        assert ended.value.code == 2
        return
    assert signing(*command) == code
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_what_is_no_library_is_refused(verb: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert signing(verb, root) == 2
    assert "expected a Hexagon library" in capsys.readouterr().err


def test_a_file_of_several_certificates_does_not_say_which_to_trust(
    signed: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root.write_bytes(root.read_bytes() + chains.root_pem(chains.other_signer()))
    assert signing("verify", signed, "--root", root) == 2
    assert "found 2 certificates" in capsys.readouterr().err
