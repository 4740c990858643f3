"""Windows on Snapdragon with Qualcomm's real files of three QNN builds, and their real signatures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ci.signing import inspection
from provisioning import catalogue as catalogues
from provisioning.base.files import hash_file
from provisioning.base.settings import ROOT, Selection, reports_path, store_path
from provisioning.environment import resolve
from tests.support import chains, windows
from tests.support.builds import run_stage
from tests.support.onnx_models import context_model
from tests.support.typed import typed

pytestmark = pytest.mark.heavy

WINDOWS = "aarch64-windows"
PROFILES = {"wheels-2.37": "SC8380XP", "wheels": "SC8380XP", "wheels-2.51": "SC8480XP"}


@pytest.fixture(scope="module")
def sdks() -> dict[str, Path]:
    """The provisioned tree of each build."""
    trees = {}
    for profile in PROFILES:
        command = [sys.executable, "-m", "provisioning", "provision", "--profile", profile]
        subprocess.run([*command, "--target", WINDOWS], cwd=ROOT, check=True, timeout=1800)
        selection = Selection(profile, WINDOWS, "SC8380XP", store_path(), reports_path())
        trees[profile] = resolve(selection, {}).root("qnn-sdk").path
    return trees


def skel_of(sdk: Path, arch: int = 73) -> Path:
    return sdk / "lib" / f"hexagon-v{arch}" / "unsigned" / f"libQnnHtpV{arch}Skel.so"


@pytest.fixture
def pair(sdks: dict[str, Path], tmp_path: Path) -> Path:
    """A folder with the skel and the catalogue of QNN 2.37.1."""
    folder = tmp_path / "pair"
    folder.mkdir()
    for path in (skel_of(sdks["wheels-2.37"]), skel_of(sdks["wheels-2.37"]).with_name("libqnnhtpv73.cat")):
        shutil.copyfile(path, folder / path.name)
    return folder


def verify(path: Path, reports: Path, *flags: str | Path) -> tuple[int, str, dict[str, str]]:
    """(exit code, who signed, the failed or unchecked parts and what they say)."""
    words = [str(word) for word in ("verify", path, "--json", "--reports", reports, *flags)]
    done = typed("signing", *words)
    (file,) = json.loads(done.stdout)["files"]
    bad = {check["part"]: check["message"] for check in file["checks"] if check["status"] == "failed"}
    return done.returncode, file["signer"], bad


@pytest.mark.parametrize(("profile", "arch"), [("wheels-2.37", 73), ("wheels", 81)])
def test_a_catalogue_signs_the_skel_of_its_build(
    sdks: dict[str, Path], tmp_path: Path, profile: str, arch: int
) -> None:
    skel = skel_of(sdks[profile], arch)
    assert verify(skel, tmp_path) == (0, "known", {})
    assert verify(skel.with_name(f"libqnnhtpv{arch}.cat"), tmp_path) == (0, "known", {})


def test_every_other_skel_beside_a_catalogue_is_told_apart(
    sdks: dict[str, Path], pair: Path, tmp_path: Path
) -> None:
    catalogue, skel = pair / "libqnnhtpv73.cat", pair / "libQnnHtpV73Skel.so"
    content = bytearray(skel.read_bytes())
    content[len(content) // 2] ^= 1
    skel.write_bytes(content)
    code, signer, bad = verify(catalogue, tmp_path)
    assert (code, signer, list(bad)) == (1, "damaged", ["files"]) and "it was changed" in bad["files"]
    shutil.copyfile(skel_of(sdks["wheels-2.51"]), skel)
    code, signer, bad = verify(catalogue, tmp_path)
    assert (code, signer) == (1, "damaged") and "another build, v2.51.0" in bad["files"]
    shutil.copyfile(skel_of(sdks["wheels-2.37"]), skel)
    skel.rename(pair / "libSkel.so")
    assert verify(catalogue, tmp_path)[2].keys() == {"name"}
    (pair / "libSkel.so").unlink()
    assert verify(catalogue, tmp_path)[0] == 1
    assert verify(catalogue, tmp_path, "--allow-unchecked", "files")[:2] == (0, "known")


def test_the_catalogue_of_another_skel_under_this_ones_name_is_named_with_what_it_signs(
    sdks: dict[str, Path], pair: Path, tmp_path: Path
) -> None:
    shutil.copyfile(skel_of(sdks["wheels"], 81).with_name("libqnnhtpv81.cat"), pair / "libqnnhtpv73.cat")
    code, signer, bad = verify(pair / "libQnnHtpV73Skel.so", tmp_path)
    assert (code, signer, list(bad)) == (1, "damaged", ["files"])
    assert "libqnnhtpv73.cat" in bad["files"] and "libqnnhtpv81skel.so" in bad["files"]


def test_a_chain_under_another_root_is_an_unknown_signer(pair: Path, tmp_path: Path) -> None:
    root = tmp_path / "root.pem"
    root.write_bytes(chains.signer().root_pem)
    code, signer, bad = verify(pair / "libqnnhtpv73.cat", tmp_path, "--root", root)
    assert (code, signer, set(bad)) == (1, "unknown", {"root"})


CODE, DRIVERS, SERVERS = ("1.3.6.1.5.5.7.3.3", "1.3.6.1.4.1.311.10.3.5", "1.3.6.1.5.5.7.3.1")


@pytest.mark.parametrize(
    ("uses", "days", "parts"),
    [((DRIVERS,), 30, set()), ((SERVERS,), 30, {"usage"}), ((), 30, {"usage"}), ((CODE,), 0.5, {"validity"})],
)
def test_a_certificate_for_something_else_or_expired_signs_nothing(
    pair: Path, uses: tuple[str, ...], days: float, parts: set[str]
) -> None:
    key, root = chains.legacy()[0], chains.legacy()[1][1]
    leaf = chains.certificate(
        *(chains.name("signer"), key, root.subject, key),
        ca=False,
        days=days,
        extension=x509.ExtendedKeyUsage([x509.ObjectIdentifier(use) for use in uses]) if uses else None,
    )
    other = catalogues.parse(windows.signed_by((pair / "libqnnhtpv73.cat").read_bytes(), leaf, key))
    assert {part for part, _ in catalogues.problems(other, [root])} == parts


def test_the_time_stamp_of_another_catalogue_proves_nothing(
    sdks: dict[str, Path], pair: Path, tmp_path: Path
) -> None:
    catalogue, other = pair / "libqnnhtpv73.cat", skel_of(sdks["wheels"]).with_name("libqnnhtpv73.cat")
    catalogue.write_bytes(windows.time_stamped_as(catalogue.read_bytes(), other.read_bytes()))
    code, signer, bad = verify(catalogue, tmp_path)
    assert (code, signer) == (1, "damaged") and "of another signature" in bad["time stamp"]


def test_a_skel_whose_catalogue_is_cut_short_is_damaged_and_not_unsigned(pair: Path, tmp_path: Path) -> None:
    catalogue = pair / "libqnnhtpv73.cat"
    catalogue.write_bytes(catalogue.read_bytes()[:-100])
    code, signer, bad = verify(pair / "libQnnHtpV73Skel.so", tmp_path)
    assert (code, signer, set(bad)) == (1, "damaged", {"structure"})


@pytest.mark.whole
def test_no_flipped_bit_of_a_catalogue_changes_what_it_says(pair: Path) -> None:
    whole = (pair / "libqnnhtpv73.cat").read_bytes()
    good = catalogues.parse(whole)
    for at in range(7, len(whole), 61):
        content = bytearray(whole)
        content[at] ^= 1 << at % 8
        try:
            other = catalogues.parse(bytes(content))
        except catalogues.Damaged:
            continue
        if not list(catalogues.problems(other, catalogues.pinned_roots())):
            assert other.members == good.members and other.time_stamp is not None, at


def test_a_catalogue_with_a_damaged_key_is_damaged(pair: Path) -> None:
    path = pair / "libqnnhtpv73.cat"
    whole, good = path.read_bytes(), catalogues.read(path)
    assert good.time_stamp is not None
    for certificate in (*good.chain, *good.time_stamp.chain):
        key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.PKCS1)
        path.write_bytes(whole.replace(key, key[:1] + b"\x83" + key[2:]))
        assert inspection.inspect(path).kind == inspection.DAMAGED


def validate(reports: Path, *flags: str, **environ: str) -> tuple[int, set[tuple[str, str]]]:
    """(exit code, the rule and file of each error)."""
    done = typed(
        "validate", "--reports", reports, *flags, package="provisioning", env={**os.environ, **environ}
    )
    report = json.loads((reports / "validate.json").read_text(encoding="utf-8"))
    findings = [finding for finding in report["findings"] if finding["severity"] == "error"]
    return done.returncode, {(finding["rule"], Path(finding["subject"]).name) for finding in findings}


@pytest.mark.whole
@pytest.mark.parametrize("profile", PROFILES)
def test_each_build_is_valid(sdks: dict[str, Path], tmp_path: Path, profile: str) -> None:
    flags = ("--profile", profile, "--target", WINDOWS, "--soc", PROFILES[profile])
    assert validate(tmp_path, *flags) == (0, set())


SKEL, CATALOGUE = (f"lib/hexagon-v73/unsigned/{name}" for name in ("libQnnHtpV73Skel.so", "libqnnhtpv73.cat"))


@pytest.mark.parametrize(
    ("place", "rule", "bundle_rule"),
    [(SKEL, "qnn-build-id", "bundle-build-id"), (CATALOGUE, "skel-catalogue", "signing-files")],
)
def test_a_file_of_an_older_build_is_named_and_makes_no_bundle(
    sdks: dict[str, Path], tmp_path: Path, place: str, rule: str, bundle_rule: str
) -> None:
    mixed = tmp_path / "sdk"
    shutil.copytree(sdks["wheels"], mixed, copy_function=os.link)
    (mixed / place).parent.chmod(0o755)
    (mixed / place).unlink()
    (mixed / place).write_bytes((sdks["wheels-2.37"] / place).read_bytes())
    chosen = ("--target", WINDOWS, "--soc", "SC8380XP")
    environ = {"QNN_SDK_ROOT": str(mixed), "QNN_CI_PROFILE": "wheels"}
    code, errors = validate(tmp_path, *chosen, **environ)
    assert (code, errors) == (1, {(rule, Path(SKEL).name)})

    bundle = tmp_path / "bundle"
    done = run_stage("bundle", *chosen, "-o", bundle, "--reports", tmp_path, environ=environ)
    report = json.loads((tmp_path / "bundle.json").read_text(encoding="utf-8"))
    found = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert bundle_rule in {finding["rule"] for finding in found}
    # sign_lpai signs for the audio DSP: it makes no catalogue.
    fixes = [finding["fix"] for finding in found if finding["rule"] == "signing-files"]
    assert fixes and all("repair" in fix and "sign_lpai" not in fix for fix in fixes)
    assert (done.returncode, bundle.exists()) == (1, False)


def test_a_bundle_is_the_folder_that_an_application_ships(sdks: dict[str, Path], tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    model = context_model(
        tmp_path / "out", build_id="v2.49.40.260810104044", soc=60, arch=73, location="model_qnn.bin"
    )
    flags = ("--target", WINDOWS, "--soc", "SC8380XP", "-o", bundle, "--reports", tmp_path)

    def rules(*more: str | Path) -> tuple[int, set[str]]:
        done = run_stage("bundle", *flags, *more, model, environ={})
        report = json.loads((tmp_path / "bundle.json").read_text(encoding="utf-8"))
        return done.returncode, {f"{finding['rule']} {finding['severity']}" for finding in report["findings"]}

    assert rules() == (0, {"bundle-skel-path note", "signing-signer-known note"})
    names = {path.name for path in bundle.iterdir()}
    assert names >= {"QnnHtp.dll", "QnnHtpV73Stub.dll", "libQnnHtpV73Skel.so", "libqnnhtpv73.cat"}
    assert names >= {"model_ctx.onnx", "model_qnn.bin", "manifest.json", "onnxruntime_providers_qnn.dll"}
    assert "bundle-model-sdk error" in rules("--profile", "wheels-2.37")[1]
    context = model.with_name("model_qnn.bin")
    record = {"model": model.name, "files": {file.name: hash_file(file) for file in (model, context)}}
    model.with_suffix(".json").write_text(json.dumps(record))
    assert rules()[0] == 0
    whole = context.read_bytes()
    for content in (whole[:-10], whole[:10], whole + b"\0"):
        context.write_bytes(content)
        assert rules() == (1, {"bundle error"})
    model.with_suffix(".json").unlink()
    context.write_bytes(b"<html>")
    assert rules() == (1, {"bundle error"})
