"""What sign_lpai refuses before anything starts, and what it does with the development signer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ci.signing import device, keys, lpai, plan, verification
from ci.signing.keys import read_root
from provisioning.base.command_line import guarded
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.environment import Environment, Root
from tests.support import chains, hexagon_sdk
from tests.support.skels import Skel

CHIP = plan.Chip("SM8850", 6, 81)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("QNN_SDK_ROOT", "HEXAGON_SDK_ROOT", "EXECUTORCH_ROOT", "QNN_CI_SOC", "QNN_CI_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("QNN_CI_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("QNN_CI_REPORTS", str(tmp_path / "reports"))
    monkeypatch.chdir(tmp_path)


def sign_lpai(*argv: object) -> int:
    parser = argparse.ArgumentParser()
    lpai.configure(parser)
    args = parser.parse_args([str(word) for word in argv])
    return guarded(lambda: lpai.run(args), debug=False)


def report(tmp_path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((tmp_path / "reports" / "sign_lpai.json").read_text(encoding="utf-8"))
    return loaded


def environment(**roots: Root) -> Environment:
    named = {name.replace("_", "-"): root for name, root in roots.items()}
    return Environment(
        profile="wheels",
        target="aarch64-linux",
        soc="SM8850",
        roots=named,
        variables={},
        path_entries=(),
        notes=(),
        provision_flags=(),
    )


def own(path: Path, variable: str = "QNN_SDK_ROOT") -> Root:
    return Root(path, "directory", variable)


def test_a_chip_without_lpai_is_refused() -> None:
    with pytest.raises(UsageError, match="SM8650 has no LPAI") as caught:
        plan.chips(["SM8650"], None)
    assert "SM8850" in caught.value.remedy


@pytest.mark.parametrize("arch", ["v81", "81", "v6", "6"])
def test_an_arch_stands_for_the_chips_that_have_it(arch: str) -> None:
    assert [(chip.lpai, chip.arch) for chip in plan.chips([], arch)] == [(6, 81)]


@pytest.mark.parametrize("arch", ["v75", "x", "v600", "-1"])
def test_an_arch_that_no_chip_with_lpai_has_is_refused(arch: str) -> None:
    with pytest.raises(UsageError, match="no chip with LPAI has arch"):
        plan.chips([], arch)


def test_chips_that_need_the_same_libraries_are_signed_once() -> None:
    assert len(plan.chips(["SM8850", "SAR2230P"], None)) == 1


@pytest.mark.parametrize("version", ["2.37.0.250724", "2.38.9", "2.9.0"])
def test_lpai_v6_with_an_older_qnn_is_refused(tmp_path: Path, version: str) -> None:
    sdk = hexagon_sdk.qnn_sdk(tmp_path, version)
    with pytest.raises(EnvironmentLacking, match=f"needs QNN 2.39 or later, found {version}") as caught:
        plan.check_qnn(CHIP, own(sdk), [])
    assert "--profile" in caught.value.remedy


@pytest.mark.parametrize("version", ["2.39.0", "2.48.0.260626", "2.100.0"])
def test_lpai_v6_takes_a_later_qnn(tmp_path: Path, version: str) -> None:
    assert plan.check_qnn(CHIP, own(hexagon_sdk.qnn_sdk(tmp_path, version)), []) == version


def test_without_an_sdk_yaml_the_libraries_say_their_version(tmp_path: Path) -> None:
    library = Skel(content=b"v2.37.0.250724175447_124859 ").write(tmp_path / "libQnnLpaiSkel.so")
    with pytest.raises(EnvironmentLacking, match=r"found 2\.37\.0"):
        plan.check_qnn(CHIP, None, [library])


@pytest.mark.parametrize(
    ("version", "arch", "good"),
    [
        ("5.5.5.0", 75, True),
        ("5.5.4.0", 73, False),
        ("5.5.6.0", 79, False),
        ("6.0.0.0", 79, True),
        ("6.3.0.0", 81, False),
        ("6.4.0.0", 81, True),
        ("6.4.9.0", 85, False),
        ("6.5.0.0", 89, True),
    ],
)
def test_the_hexagon_sdk_must_know_the_arch(tmp_path: Path, version: str, arch: int, good: bool) -> None:
    sdk = own(hexagon_sdk.hexagon_sdk(tmp_path, version), "HEXAGON_SDK_ROOT")
    chip = plan.Chip("X", 6, arch)
    if good:
        assert plan.elfsigner(environment(hexagon_sdk=sdk), [], chip).is_file()
    else:
        with pytest.raises(EnvironmentLacking, match=f"v{arch} needs Hexagon SDK .* found {version}"):
            plan.elfsigner(environment(hexagon_sdk=sdk), [], chip)


def test_the_arch_of_a_library_counts_too(tmp_path: Path) -> None:
    sdk = own(hexagon_sdk.hexagon_sdk(tmp_path, "6.4.0.0"), "HEXAGON_SDK_ROOT")
    library = Skel(arch=89).write(tmp_path / "lib.so")
    with pytest.raises(EnvironmentLacking, match="v89 needs"):
        plan.elfsigner(environment(hexagon_sdk=sdk), [library], CHIP)


def test_without_a_hexagon_sdk_the_ways_out_are_named() -> None:
    with pytest.raises(EnvironmentLacking, match="there is no Hexagon SDK") as caught:
        plan.elfsigner(environment(), [], CHIP)
    assert all(word in caught.value.remedy for word in ("--component hexagon-sdk", "HEXAGON_SDK_ROOT", "dev"))


def test_without_the_libraries_an_sdk_that_has_them_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking, match=r"libQnnLpaiSkel\.so") as caught:
        plan.libraries(CHIP, environment(qnn_sdk=own(tmp_path)), [], direct=False)
    assert "--profile qnn-2.48" in caught.value.remedy


def test_the_skel_is_what_must_be_signed(tmp_path: Path) -> None:
    found = plan.libraries(CHIP, environment(qnn_sdk=own(hexagon_sdk.qnn_sdk(tmp_path))), [], direct=False)
    assert [path.name for path in found] == ["libQnnLpaiSkel.so"]


def direct_world(tmp_path: Path) -> Environment:
    hexagon = hexagon_sdk.hexagon_sdk(tmp_path)
    for tools in ("8.9.0", "19.0.07"):
        pic = hexagon / "tools" / "HEXAGON_Tools" / tools / "Tools/target/hexagon/lib/v81/G0/pic"
        for name in ("libc++.so.1", "libc++abi.so.1"):
            Skel(arch=81, content=f"{name} {tools} ".encode()).write(pic / name)
    build = tmp_path / "executorch" / "build-direct" / "backends" / "qualcomm"
    Skel(arch=81).write(build / "libqnn_executorch_backend.so")
    Skel(arch=81).write(build / "qnn_executorch" / "direct_mode" / "libqnn_executorch_skel.so")
    return environment(
        qnn_sdk=own(hexagon_sdk.qnn_sdk(tmp_path)),
        hexagon_sdk=own(hexagon, "HEXAGON_SDK_ROOT"),
        executorch_source=own(tmp_path / "executorch", "EXECUTORCH_ROOT"),
    )


def test_direct_mode_signs_all_that_the_dsp_loads(tmp_path: Path) -> None:
    found = plan.libraries(CHIP, direct_world(tmp_path), [], direct=True)
    assert sorted(path.name for path in found) == [
        "libQnnLpai.so",
        "libQnnLpaiSkel.so",
        "libQnnSystem.so",
        "libc++.so.1",
        "libc++abi.so.1",
        "libqnn_executorch_backend.so",
        "libqnn_executorch_skel.so",
    ]


def test_the_highest_hexagon_tools_are_taken(tmp_path: Path) -> None:
    found = plan.libraries(CHIP, direct_world(tmp_path), [], direct=True)
    assert {path.parts[-9] for path in found if path.name == "libc++.so.1"} == {"19.0.07"}


def test_a_given_library_takes_the_place_of_the_one_of_its_name(tmp_path: Path) -> None:
    mine = Skel(arch=81).write(tmp_path / "mine" / "libqnn_executorch_skel.so")
    found = plan.libraries(CHIP, direct_world(tmp_path), [mine], direct=True)
    assert [path for path in found if path.name == mine.name] == [mine]


def test_what_is_not_there_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    world = environment(qnn_sdk=own(hexagon_sdk.qnn_sdk(tmp_path)))
    with pytest.raises(EnvironmentLacking) as caught:
        plan.libraries(CHIP, world, [], direct=True)
    assert "libc++.so.1 (no hexagon-sdk)" in caught.value.message
    assert "--library" in caught.value.remedy


def test_two_libraries_of_one_name_are_refused(tmp_path: Path) -> None:
    paths = [Skel().write(tmp_path / place / "lib.so") for place in ("a", "b")]
    with pytest.raises(UsageError, match="would both become"):
        plan.libraries(CHIP, None, paths, direct=False)


def test_the_development_signer_fills_the_overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_SDK_ROOT", str(hexagon_sdk.qnn_sdk(tmp_path)))
    assert sign_lpai("--soc", "SM8850", "--signer", "dev", "-o", tmp_path / "overlay") == 0
    made = tmp_path / "overlay" / "lib" / "lpai-v6" / "signed" / "libQnnLpaiSkel.so"
    root = read_root(tmp_path / "overlay" / lpai.ROOT_NAME)
    assert verification.verify_file(made, verification.Expected(root=root)).verdict() == "verified"
    assert [path.name for path in (tmp_path / "overlay").iterdir()] == ["lib", lpai.ROOT_NAME]


def test_the_report_says_that_retail_devices_refuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QNN_SDK_ROOT", str(hexagon_sdk.qnn_sdk(tmp_path)))
    sign_lpai("--soc", "SM8850", "--signer", "dev")
    written = report(tmp_path)
    messages = [f["message"] for f in written["findings"] if f["rule"] == "signing.development-only"]
    assert len(messages) == 1 and "retail devices never accept it" in messages[0]
    assert "retail devices never accept it" in capsys.readouterr().out
    assert (written["outcome"], written["artifacts"][0]["kind"]) == ("pass", "signed-library")


def test_the_sdk_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = hexagon_sdk.qnn_sdk(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in sdk.rglob("*")}
    monkeypatch.setenv("QNN_SDK_ROOT", str(sdk))
    sign_lpai("--soc", "SM8850", "--signer", "dev")
    assert {path: path.stat().st_mtime_ns for path in sdk.rglob("*")} == before


@pytest.mark.parametrize("inside", ["sdk", "store"])
def test_an_overlay_inside_an_sdk_or_the_store_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], inside: str
) -> None:
    sdk = hexagon_sdk.qnn_sdk(tmp_path)
    monkeypatch.setenv("QNN_SDK_ROOT", str(sdk))
    place = sdk / "lib" if inside == "sdk" else tmp_path / "store" / "x"
    assert sign_lpai("--soc", "SM8850", "--signer", "dev", "-o", place) == 2
    assert "nothing may write to" in capsys.readouterr().err


def test_a_test_signature_is_made_for_a_serial(tmp_path: Path) -> None:
    assert (
        sign_lpai("--soc", "SM8850", "--signer", "dev", "--serial", "0x1A2B3C4D", "-o", tmp_path / "o") == 0
    )
    made = tmp_path / "o" / "lib" / "lpai-v6" / "signed" / "testsig-0x1a2b3c4d.so"
    expected = verification.Expected(root=read_root(tmp_path / "o" / lpai.ROOT_NAME), serial=0x1A2B3C4D)
    assert verification.verify_file(made, expected).verdict() == "verified"


def test_a_signed_library_is_refused_unless_it_is_to_be_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = Skel(arch=81).write(tmp_path / "lib.so")
    base: Sequence[object] = ("--soc", "SM8850", "--signer", "dev", "--library")
    sign_lpai(*base, library, "-o", tmp_path / "one")
    once = tmp_path / "one" / "lib" / "lpai-v6" / "signed" / "lib.so"
    assert sign_lpai(*base, once, "-o", tmp_path / "two") == 2
    assert "--replace" in capsys.readouterr().err
    assert sign_lpai(*base, once, "-o", tmp_path / "two", "--replace") == 0


def test_a_library_that_is_none_fails_and_the_others_are_signed(tmp_path: Path) -> None:
    good = Skel(arch=81).write(tmp_path / "good.so")
    (bad := tmp_path / "bad.so").write_bytes(b"\x7fELF not really")
    assert sign_lpai("--soc", "SM8850", "--signer", "dev", "--library", bad, good) == 1
    written = report(tmp_path)
    assert [Path(a["path"]).name for a in written["artifacts"]] == ["good.so"]
    assert [(f["rule"], f["subject"]) for f in written["findings"] if f["severity"] == "error"] == [
        ("signing.failed", "bad.so")
    ]


def test_what_is_refused_is_in_the_report_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sign_lpai("--soc", "SM8650") == 2
    written = report(tmp_path)
    assert (written["outcome"], written["findings"][0]["rule"]) == ("error", "signing.stopped")
    assert "SM8650 has no LPAI" in capsys.readouterr().err


def test_the_arguments_of_a_signing_command_are_not_in_the_report() -> None:
    shown = lpai.command_of(
        "nox -s sign_lpai --", ["--sign-command", "pkcs11-tool --pin 1234", "--arch", "v6"]
    )
    assert "1234" not in shown and "pkcs11-tool" in shown
    assert "1234" not in lpai.command_of("x", ["--sign-command=pkcs11-tool --pin 1234"])


@pytest.mark.parametrize(("text", "serial"), [("0x1", 1), ("0xFFFFFFFF", 0xFFFFFFFF)])
def test_serials_are_hex(text: str, serial: int) -> None:
    assert device.parse_serial(text) == serial


@pytest.mark.parametrize("text", ["1", "0x", "0x0", "0x100000000", "0xg", "-0x1", "0x1 ", ""])
def test_what_is_no_serial_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--serial"):
        device.parse_serial(text)


def fake_adb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (tools := tmp_path / "tools").mkdir()
    adb = tools / "adb"
    adb.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    adb.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")


def test_the_serial_is_read_from_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_adb(
        tmp_path, monkeypatch, '[ "$*" = "-s abc shell cat /sys/devices/soc0/serial_number" ] && echo 4660'
    )
    assert device.read_serial("abc") == 0x1234


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'error: no devices/emulators found' >&2; exit 1", "no devices/emulators"),
        ("echo 'Permission denied'; exit 1", "Permission denied"),
        ("echo 0", "expected 32 bits"),
        ("echo 99999999999", "expected 32 bits"),
        ("exit 0", "nothing"),
    ],
)
def test_a_device_that_does_not_tell_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    fake_adb(tmp_path, monkeypatch, script)
    with pytest.raises(EnvironmentLacking, match=words):
        device.read_serial()


def test_without_adb_the_flag_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentLacking, match="no adb") as caught:
        device.read_serial()
    assert "--serial" in caught.value.remedy


def test_a_binding_that_is_none_is_refused_before_anything_is_signed(tmp_path: Path) -> None:
    library = Skel(arch=81).write(tmp_path / "lib.so")
    flags = ("--soc", "SM8850", "--signer", "dev", "--library", library, "--sw-id", "cpu")
    assert sign_lpai(*flags, "-o", tmp_path / "overlay") == 2
    assert not (tmp_path / "overlay").exists()


@pytest.mark.parametrize("ending", ["signed", "failed", "interrupted"])
def test_no_secret_is_in_anything_that_a_run_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ending: str
) -> None:
    made = [keys._new_key("ec") for _ in range(3)]
    unused = list(made)
    monkeypatch.setattr(keys, "_new_key", lambda algorithm: unused.pop())
    keys.write_chain(tmp_path / "keys", "ec", days=9, passphrase=b"staple-battery-horse")
    (secret := tmp_path / "keys" / "passphrase").write_bytes(b"staple-battery-horse")
    secret.chmod(0o600)
    if ending == "interrupted":
        monkeypatch.setattr(Path, "chmod", lambda *_: _interrupt())
    library = tmp_path / "in" / "lib.so"
    Skel(arch=81).write(library)
    if ending == "failed":
        library.write_bytes(b"no library")
    flags = ("--key", tmp_path / "keys/attestation.key.pem", "--chain", tmp_path / "keys/chain.pem")
    code = sign_lpai(
        *("--soc", "SM8850", "--signer", "dev", "--library", library, "-o", tmp_path / "o"),
        *(*flags, "--passphrase-file", secret),
    )
    assert code == {"signed": 0, "failed": 1, "interrupted": 130}[ending]
    said = capfd.readouterr()
    everything = chains.everything_written(tmp_path / "o", tmp_path / "reports")
    everything += said.out.encode() + said.err.encode()
    assert [s for s in [*chains.secrets_of(made), b"staple-battery-horse"] if s in everything] == []
    assert list((tmp_path / "o").glob(".*")) == []


def _interrupt() -> None:
    raise KeyboardInterrupt
