"""Windows on Snapdragon with Qualcomm's real files of three QNN builds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from provisioning.base.files import hash_file
from provisioning.base.settings import ROOT, Selection, reports_path, store_path
from provisioning.environment import resolve
from tests.support.builds import run_stage
from tests.support.onnx_models import context_model
from tests.support.typed import typed

pytestmark = pytest.mark.heavy

WINDOWS = "aarch64-windows"
PROFILES = {"wheels-2.37": "SC8380XP", "wheels": "SC8380XP", "wheels-2.51": "SC8480XP"}


@cache
def sdk(profile: str) -> Path:
    """The provisioned tree of a build."""
    command = [sys.executable, "-m", "provisioning", "provision", "--profile", profile]
    subprocess.run([*command, "--target", WINDOWS], cwd=ROOT, check=True, timeout=1800)
    selection = Selection(profile, WINDOWS, "SC8380XP", store_path(), reports_path())
    return resolve(selection, {}).root("qnn-sdk").path


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
def test_each_build_is_valid(tmp_path: Path, profile: str) -> None:
    sdk(profile)
    flags = ("--profile", profile, "--target", WINDOWS, "--soc", PROFILES[profile])
    assert validate(tmp_path, *flags) == (0, set())


SKEL = "lib/hexagon-v73/unsigned/libQnnHtpV73Skel.so"


def test_a_skel_of_an_older_build_is_named_and_makes_no_bundle(tmp_path: Path) -> None:
    mixed = tmp_path / "sdk"
    shutil.copytree(sdk("wheels"), mixed, copy_function=os.link)
    (mixed / SKEL).parent.chmod(0o755)
    (mixed / SKEL).unlink()
    (mixed / SKEL).write_bytes((sdk("wheels-2.37") / SKEL).read_bytes())
    chosen = ("--target", WINDOWS, "--soc", "SC8380XP")
    environ = {"QNN_SDK_ROOT": str(mixed), "QNN_CI_PROFILE": "wheels"}
    code, errors = validate(tmp_path, *chosen, **environ)
    # The tree is known by the wheels that it was composed of, so the changed file is named, too.
    differs = ("official-files", "sdk (QNN_SDK_ROOT)")
    assert (code, errors) == (1, {("qnn-build-id", Path(SKEL).name), differs})

    bundle = tmp_path / "bundle"
    done = run_stage("bundle", *chosen, "-o", bundle, "--reports", tmp_path, environ=environ)
    report = json.loads((tmp_path / "bundle.json").read_text(encoding="utf-8"))
    errors_found = {finding["rule"] for finding in report["findings"] if finding["severity"] == "error"}
    assert "bundle-build-id" in errors_found
    assert (done.returncode, bundle.exists()) == (1, False)


def test_a_bundle_is_the_folder_that_an_application_ships(tmp_path: Path) -> None:
    assert sdk("wheels") and sdk("wheels-2.37"), "in the store"
    bundle = tmp_path / "bundle"
    model = context_model(
        tmp_path / "out", build_id="v2.49.40.260810104044", soc=60, arch=73, location="model_qnn.bin"
    )
    flags = ("--target", WINDOWS, "--soc", "SC8380XP", "-o", bundle, "--reports", tmp_path)

    def rules(*more: str | Path) -> tuple[int, set[str]]:
        done = run_stage("bundle", *flags, *more, model, environ={})
        report = json.loads((tmp_path / "bundle.json").read_text(encoding="utf-8"))
        return done.returncode, {f"{finding['rule']} {finding['severity']}" for finding in report["findings"]}

    assert rules() == (0, {"bundle-skel-path note"})
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
