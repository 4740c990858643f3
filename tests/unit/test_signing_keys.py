"""Where keys come from, and that they go nowhere else."""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs12

from ci.signing import development, keys, process, scheme, verification
from ci.signing.keys import Identity, Passphrase
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from tests.support import chains
from tests.support.skels import Skel

SECRET = b"correct horse battery"
LIBRARY = Skel().encode()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("chain")
    keys.write_chain(directory, "ec", days=30, passphrase=None)
    return directory


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("locked")
    keys.write_chain(directory, "ec", days=30, passphrase=SECRET)
    return directory


def secret_file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def works(identity: Identity) -> bool:
    data = development.sign(LIBRARY, identity, development.Binding())
    return verification.verify(data, verification.Expected(root=identity.root)).verdict() == "verified"


def test_a_pem_key_signs(made: Path) -> None:
    assert works(keys.from_pem(made / "attestation.key.pem", made / "chain.pem", Passphrase()))


def test_written_keys_are_for_their_owner_alone(made: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made.glob("*.key.pem")}
    assert modes == dict.fromkeys(("attestation.key.pem", "ca.key.pem", "root.key.pem"), 0o600)


def test_written_keys_are_encrypted_when_a_passphrase_is_given(locked: Path) -> None:
    assert all(b"BEGIN ENCRYPTED PRIVATE KEY" in path.read_bytes() for path in locked.glob("*.key.pem"))


def test_keys_are_never_written_over(made: Path) -> None:
    with pytest.raises(UsageError, match="already has"):
        keys.write_chain(made, "ec", days=30, passphrase=None)


def test_half_a_chain_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def interrupted(path: Any, *rest: Any, **more: Any) -> int:
        if str(path).endswith("root.key.pem"):
            raise KeyboardInterrupt
        return opened(path, *rest, **more)

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        keys.write_chain(tmp_path / "new", "ec", days=30, passphrase=None)
    assert list((tmp_path / "new").iterdir()) == []


def test_the_passphrase_comes_from_a_variable(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASS", SECRET.decode())
    assert works(keys.from_pem(locked / "attestation.key.pem", locked / "chain.pem", Passphrase("MY_PASS")))


def test_the_passphrase_comes_from_a_file(locked: Path, tmp_path: Path) -> None:
    source = Passphrase(file=secret_file(tmp_path / "pass", SECRET + b"\n"))
    assert works(keys.from_pem(locked / "attestation.key.pem", locked / "chain.pem", source))


def test_the_passphrase_comes_from_a_descriptor(locked: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, SECRET + b"\n")
    os.close(writing)
    source = Passphrase(descriptor=reading)
    assert works(keys.from_pem(locked / "attestation.key.pem", locked / "chain.pem", source))


def test_without_a_passphrase_the_ways_to_give_one_are_named(
    locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(keys.PASSPHRASE_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(EnvironmentLacking, match="no passphrase was given") as caught:
        keys.from_pem(locked / "attestation.key.pem", locked / "chain.pem", Passphrase())
    assert "--passphrase-file" in caught.value.remedy


def test_a_wrong_passphrase_is_told_without_it(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASS", "not the one")
    with pytest.raises(UsageError) as caught:
        keys.from_pem(locked / "attestation.key.pem", locked / "chain.pem", Passphrase("MY_PASS"))
    assert "not the one" not in caught.value.message + caught.value.remedy
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_key_that_others_may_read_is_refused(made: Path, tmp_path: Path, mode: int) -> None:
    key = secret_file(tmp_path / "open.pem", (made / "attestation.key.pem").read_bytes())
    key.chmod(mode)
    with pytest.raises(UsageError, match="others may read it") as caught:
        keys.from_pem(key, made / "chain.pem", Passphrase())
    assert "chmod 600" in caught.value.remedy


def test_a_passphrase_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pass"
    path.write_bytes(SECRET)
    path.chmod(0o644)
    with pytest.raises(UsageError, match="others may read it"):
        Passphrase(file=path).get("the key")


@pytest.mark.parametrize("passphrase", [None, SECRET])
def test_a_pkcs12_file_signs(made: Path, tmp_path: Path, passphrase: bytes | None) -> None:
    plain = keys.from_pem(made / "attestation.key.pem", made / "chain.pem", Passphrase())
    key = serialization.load_pem_private_key((made / "attestation.key.pem").read_bytes(), None)
    encryption: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    )
    bundle = pkcs12.serialize_key_and_certificates(
        b"n",
        key,  # type: ignore[arg-type]
        plain.chain[0],
        # The order in a bundle is nobody's promise.
        list(reversed(plain.chain[1:])),
        encryption,
    )
    source = Passphrase(file=secret_file(tmp_path / "pass", SECRET))
    identity = keys.from_pkcs12(secret_file(tmp_path / "bundle.p12", bundle), source)
    assert (identity.chain, works(identity)) == (plain.chain, True)


def test_a_key_of_another_chain_is_refused(made: Path, locked: Path) -> None:
    with pytest.raises(UsageError, match="not the key of the attestation certificate"):
        keys.from_pem(made / "attestation.key.pem", locked / "chain.pem", Passphrase())


def test_a_chain_that_stops_short_of_its_root_is_refused(made: Path, tmp_path: Path) -> None:
    certificates = (made / "chain.pem").read_bytes().split(b"-----BEGIN")
    (short := tmp_path / "short.pem").write_bytes(b"-----BEGIN" + certificates[1])
    with pytest.raises(UsageError, match="does not reach a root"):
        keys.from_pem(made / "attestation.key.pem", short, Passphrase())


def test_a_small_rsa_key_is_refused() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    with pytest.raises(scheme.UnsupportedKey):
        scheme.scheme_of(key.public_key())


@pytest.mark.parametrize(
    "content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_what_is_no_key_is_refused(made: Path, tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UsageError, match="not a PEM private key"):
        keys.from_pem(secret_file(tmp_path / "k", content), made / "chain.pem", Passphrase())


def command(path: Path, body: str) -> str:
    """A signing command of one line of Python."""
    path.write_text(
        f"import os, sys, json, time\ndigest = sys.stdin.buffer.read()\n{body}\n", encoding="utf-8"
    )
    return shlex.join([sys.executable, str(path)])


def signing_body(key: Path, repository: Path) -> str:
    return (
        f"sys.path.insert(0, {str(repository)!r})\n"
        "from cryptography.hazmat.primitives import hashes, serialization\n"
        "from cryptography.hazmat.primitives.asymmetric import ec, utils\n"
        f"key = serialization.load_pem_private_key(open({str(key)!r}, 'rb').read(), None)\n"
        "sys.stdout.buffer.write(key.sign(digest, ec.ECDSA(utils.Prehashed(hashes.SHA384()))))\n"
    )


def test_an_external_command_signs(made: Path, tmp_path: Path) -> None:
    text = command(tmp_path / "sign.py", signing_body(made / "attestation.key.pem", tmp_path))
    assert works(keys.from_command(text, made / "chain.pem"))


def test_an_external_command_gets_48_bytes_and_none_of_our_passphrases(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(keys.PASSPHRASE_VARIABLE, SECRET.decode())
    monkeypatch.setenv("MY_PASS", SECRET.decode())
    monkeypatch.setenv("HSM_TOKEN", "theirs")
    process.keep_from_children("MY_PASS")
    seen = tmp_path / "seen.json"
    body = f"json.dump([len(digest), dict(os.environ), sys.argv], open({str(seen)!r}, 'w'))"
    with pytest.raises(CheckFailed):
        works(keys.from_command(command(tmp_path / "spy.py", body), made / "chain.pem"))
    size, environ, _ = json.loads(seen.read_text(encoding="utf-8"))
    assert (size, environ["HSM_TOKEN"], SECRET.decode() in seen.read_text(encoding="utf-8")) == (
        48,
        "theirs",
        False,
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sys.exit(3)", "ended with status 3"),
        ("sys.stdout.write('nonsense')", "no DER signature"),
        ("sys.stdout.buffer.write(bytes.fromhex('3006020101020101'))", "does not fit the attestation"),
        ("pass", "no DER signature"),
    ],
)
def test_an_external_command_that_fails_is_named(made: Path, tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(CheckFailed, match=words):
        works(keys.from_command(command(tmp_path / "bad.py", body), made / "chain.pem"))


def test_an_external_command_that_hangs_is_ended(made: Path, tmp_path: Path) -> None:
    text = command(tmp_path / "slow.py", "time.sleep(600)")
    with pytest.raises(CheckFailed, match="did not sign within"):
        works(keys.from_command(text, made / "chain.pem", seconds=0.3))


def test_an_external_command_that_is_not_there_is_named(made: Path) -> None:
    with pytest.raises(EnvironmentLacking, match="no-such-program"):
        works(keys.from_command("no-such-program --pin 1", made / "chain.pem"))


def test_an_identity_does_not_show_its_key() -> None:
    identity = chains.identity()
    assert "sign" not in repr(identity).split("origin")[1].split("scheme")[0]
    assert "PRIVATE" not in repr(identity)


def test_tools_that_sign_with_nothing_of_ours_see_only_what_a_program_needs() -> None:
    environ = {"PATH": "/bin", "LC_ALL": "C", "https_proxy": "p", "GITHUB_TOKEN": "t", "AWS_KEY": "k"}
    environ[keys.PASSPHRASE_VARIABLE] = "s"
    assert process.plain_environment(environ) == {"PATH": "/bin", "LC_ALL": "C", "https_proxy": "p"}
    assert keys.PASSPHRASE_VARIABLE not in process.signer_environment(environ)
