"""What sign_lpai refuses before anything starts, and what it does with the development signer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from ci.signing import lpai_libraries
from ci.signing.elfsigner import Consent, interpreter
from ci.signing.verb import SIGN_LPAI
from provisioning import qnn_libraries
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.guard import guard
from provisioning.environment import Environment
from provisioning.manifest import load_socs
from provisioning.stage_variables import Root
from tests.support import chains, hexagon_sdk
from tests.support.elves import AARCH64, X86_64, Library
from tests.support.skels import Skel
from tests.support.typed import parsed
from tests.support.wheels import STEERING

CHIP = lpai_libraries.Chip("SM8850", 6, 81)


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_places: None) -> None:
    monkeypatch.chdir(tmp_path)


def sign_lpai(*argv: object) -> int:
    args = parsed(SIGN_LPAI, *argv)
    return guard(lambda: SIGN_LPAI.run(args), debug=False)


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


def test_two_libraries_of_one_name_are_refused(tmp_path: Path) -> None:
    paths = [Skel().write(tmp_path / place / "lib.so") for place in ("a", "b")]
    with pytest.raises(UsageError, match=r"lib\.so"):
        lpai_libraries.to_sign(CHIP, None, paths, direct=False)


def test_lpai_v6_with_an_older_qnn_is_refused(tmp_path: Path) -> None:
    sdk = hexagon_sdk.qnn_sdk(tmp_path, "2.9.0")
    with pytest.raises(EnvironmentLacking, match=r"2\.39.*2\.9\.0"):
        lpai_libraries.check_qnn(CHIP, own(sdk), [])


@pytest.mark.parametrize(
    ("version", "arch", "good"),
    [
        ("6.3.0.0", 81, False),
        ("6.4.0.0", 81, True),
    ],
)
def test_the_hexagon_sdk_must_know_the_arch(tmp_path: Path, version: str, arch: int, good: bool) -> None:
    sdk = own(hexagon_sdk.hexagon_sdk(tmp_path, version), "HEXAGON_SDK_ROOT")
    chip = lpai_libraries.Chip("X", 6, arch)
    if good:
        assert lpai_libraries.elfsigner_script(environment(hexagon_sdk=sdk), [], chip).is_file()
    else:
        with pytest.raises(EnvironmentLacking, match=f"v{arch} .*{version}"):
            lpai_libraries.elfsigner_script(environment(hexagon_sdk=sdk), [], chip)


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
    paths = lpai_libraries.to_sign(CHIP, direct_world(tmp_path), [], direct=True)
    assert {path.parts[-9] for path in paths if path.name == "libc++.so.1"} == {"19.0.07"}
    mine = Skel(arch=81).write(tmp_path / "mine" / "libqnn_executorch_skel.so")
    replaced = lpai_libraries.to_sign(CHIP, direct_world(tmp_path / "again"), [mine], direct=True)
    assert [path for path in replaced if path.name == mine.name] == [mine]
    assert sorted(path.name for path in paths) == [
        "libQnnLpai.so",
        "libQnnLpaiSkel.so",
        "libQnnSystem.so",
        "libc++.so.1",
        "libc++abi.so.1",
        "libqnn_executorch_backend.so",
        "libqnn_executorch_skel.so",
    ]


OURS, OTHER = "v2.49.40.260810104044", "v2.51.0.260901000000"


@pytest.mark.parametrize(
    ("libs", "named"),
    [
        ([(81, OURS)], ""),
        ([(79, "")], ""),
        ([(79, OURS)], "Hexagon v79"),
        ([(85, "")], "Hexagon v85"),
        ([(81, OTHER)], "QNN 2.51.0"),
        ([(81, f"{OURS} {OTHER}")], "QNN 2.51.0"),
    ],
)
def test_a_library_of_another_chip_or_build_is_refused(
    tmp_path: Path, libs: list[tuple[int, str]], named: str
) -> None:
    paths = [
        Skel(arch=arch, content=f"{build} ".encode()).write(tmp_path / f"lib{number}.so")
        for number, (arch, build) in enumerate(libs)
    ]
    sdk = own(hexagon_sdk.qnn_sdk(tmp_path, "2.49.40"))
    if not named:
        lpai_libraries.require_fit(CHIP, sdk, paths)
        return
    with pytest.raises(UsageError, match=named):
        lpai_libraries.require_fit(CHIP, sdk, paths)


@pytest.mark.parametrize("name", ["libQnnHtp.so", "libQnnHtpV81Skel.so"])
@pytest.mark.parametrize("machine", [AARCH64, X86_64])
def test_a_library_of_another_machine_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: int, name: str
) -> None:
    library = Library(machine, soname=name, content=OURS.encode()).write(tmp_path / name)
    code = sign_lpai("--soc", "SM8850", "--signer", "dev", "--library", library, "-o", tmp_path / "o")
    assert code == 2 and not (tmp_path / "o").exists()
    assert name in capsys.readouterr().err


def test_libraries_of_two_builds_are_refused_without_an_sdk(tmp_path: Path) -> None:
    paths = [
        Skel(arch=81, content=f"{build} ".encode()).write(tmp_path / f"lib{number}.so")
        for number, build in enumerate((OURS, OTHER))
    ]
    with pytest.raises(UsageError, match=OTHER):
        lpai_libraries.require_fit(CHIP, None, paths)


@pytest.mark.parametrize("ending", ["signed", "failed", "interrupted"])
def test_the_keys_of_a_rehearsal_are_in_nothing_that_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ending: str
) -> None:
    keys = []
    generate = ec.generate_private_key

    def collect(curve: ec.EllipticCurve) -> ec.EllipticCurvePrivateKey:
        keys.append(generate(curve))
        return keys[-1]

    monkeypatch.setattr(ec, "generate_private_key", collect)
    if ending == "interrupted":
        monkeypatch.setattr(Path, "chmod", lambda *_: _interrupt())
    (library := tmp_path / "lib.so").write_bytes(
        b"no library" if ending == "failed" else Skel(arch=81).encode()
    )
    code = sign_lpai("--soc", "SM8850", "--signer", "dev", "--library", library, "-o", tmp_path / "o")
    assert (code, len(keys)) == ({"signed": 0, "failed": 1, "interrupted": 130}[ending], 3)
    output = capfd.readouterr()
    everything = chains.everything_written(tmp_path / "o", tmp_path / "reports")
    everything += output.out.encode() + output.err.encode()
    assert [secret for secret in chains.secrets_of(keys) if secret in everything] == []
    assert list((tmp_path / "o").glob(".*")) == []


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("inside", ["sdk", "store"])
def test_an_overlay_inside_an_sdk_or_the_store_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], inside: str
) -> None:
    sdk = hexagon_sdk.qnn_sdk(tmp_path)
    monkeypatch.setenv("QNN_SDK_ROOT", str(sdk))
    place = sdk / "lib" if inside == "sdk" else tmp_path / "store" / "x"
    assert sign_lpai("--soc", "SM8850", "--signer", "dev", "-o", place) == 2
    assert "nothing may write to" in capsys.readouterr().err


def test_the_python_for_elfsigner_is_an_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(STEERING)
    monkeypatch.chdir(tmp_path)
    command = [str(interpreter(None, "3.14")), "-c", "import sys; print(sys.version_info < (3, 14))"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    with pytest.raises(EnvironmentLacking, match="uv finds none"):
        interpreter(None, "3.6.1")
    with pytest.raises(UsageError, match="--python"):
        interpreter("no-such-python", "3.12")


def test_every_lpai_has_a_first_qnn() -> None:
    versions = {str(soc.lpai) for soc in load_socs().values() if soc.lpai is not None}
    assert versions <= qnn_libraries.table().lpai.keys()


def test_an_accepted_text_is_no_consent_to_another(tmp_path: Path) -> None:
    consent = Consent(tmp_path, "6.5.0.0", {Consent.name("Do you  accept\nthis?"): "the variable"})
    assert not consent("Do you accept that?")
    assert consent("Do you accept this?")
    again = Consent(tmp_path, "6.5.0.0", {})
    assert again("Do you accept this?") and not again("Do you accept that?")
