"""The frame of benchmarks, and the generated SDK that provisioning is measured with."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ci.upkeep import bench
from ci.upkeep.bench import provision
from ci.upkeep.bench import sdk as sdk_archive
from ci.upkeep.bench.frame import (
    Aim,
    Benchmark,
    Contender,
    Measured,
    Spread,
    measure,
)
from ci.upkeep.bench.sdk import Generated, generate
from ci.upkeep.bench.server import serving
from provisioning.base.command_line import Verb, main
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import Artifact, Outcome, Report
from provisioning.manifest import load_profile

AIM = Aim("fast", "slow", 2.0)


def nothing(directory: Path) -> None: ...


def contender(name: str, log: list[str] | None = None) -> Contender:
    return Contender(name, lambda directory: (log if log is not None else []).append(name))


class TestMeasuring:
    def test_a_run_that_did_not_do_its_work_is_an_error(self, tmp_path: Path) -> None:
        def check(directory: Path) -> None:
            raise CheckFailed("nothing was done")

        with pytest.raises(CheckFailed, match="nothing was done"):
            measure(Benchmark([Contender("a", nothing, check)], []), 1, tmp_path / "work")


class TestRatios:
    def test_they_are_of_pairs_within_a_round(self) -> None:
        measured = Measured({"fast": [1.0, 10.0, 2.0], "slow": [3.0, 20.0, 8.0]})
        assert measured.ratio(AIM) == Spread(3.0, 2.0, 4.0)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`python -m ci bench` with one benchmark, `stub`, whose slow contender takes the given time."""

    def run(*argv: str, slow: float = 0.0, fault: Exception | None = None) -> int:
        @contextmanager
        def prepared(work: Path, *, quick: bool) -> Iterator[Benchmark]:
            if fault is not None:
                raise fault
            slept = Contender("slow", lambda directory: time.sleep(slow))
            yield Benchmark(
                [Contender("fast", lambda directory: time.sleep(0.01)), slept], [AIM], {"quick": quick}
            )

        module = types.ModuleType("stub_benchmark")
        module.prepared = prepared  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "stub_benchmark", module)
        monkeypatch.setattr(bench, "BENCHMARKS", {"stub": Verb("stub_benchmark", "a stub")})
        verbs = {"bench": Verb("ci.upkeep.bench", "benchmarks")}
        reports = ["--reports", str(tmp_path / "reports"), "--work", str(tmp_path / "work")]
        return main("python -m ci", "", verbs, ["bench", *argv, *reports])

    return run


class TestTheVerb:
    def test_a_missed_aim_fails_when_it_is_to_be_checked(
        self, run: Callable[..., int], tmp_path: Path
    ) -> None:
        assert run("stub", "--rounds", "1", "--check") == 1
        assert Report.read(tmp_path / "reports/bench-stub.json").outcome is Outcome.FAIL

    def test_a_benchmark_that_cannot_run_says_why_and_reports_an_error(
        self, run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("stub", fault=EnvironmentLacking("no such tool", remedy="get it")) == 3
        assert capsys.readouterr().err == "error: no such tool\n  try: get it\n"
        report = Report.read(tmp_path / "reports/bench-stub.json")
        assert (report.outcome, [finding.message for finding in report.findings]) == (
            Outcome.ERROR,
            ["no such tool"],
        )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sdk_archive, "POOL", 500_000)  # enough variety for so little
        return generate(tmp_path_factory.mktemp("sdk") / "v1.zip", "qairt/1/", seed=1, scale=0.002)


class TestProvisioningContenders:
    @pytest.fixture
    def sdk(self, made: Generated, tmp_path: Path) -> Iterator[provision.Sdk]:
        component = load_profile(provision.PROFILE).components[provision.COMPONENT]
        with serving(made.path.parent) as base:
            digest = Artifact.of("archive", made.path).sha256
            yield provision.Sdk(made, f"{base}/v1.zip", digest, "qairt/1/", component)

    def test_ours_lands_a_selection(self, sdk: provision.Sdk, tmp_path: Path) -> None:
        sdk.provision_some(tmp_path)
        sdk.check_some(tmp_path)

    def test_a_tree_that_lacks_bytes_is_noticed(self, sdk: provision.Sdk, tmp_path: Path) -> None:
        sdk.provision_all(tmp_path)
        victim = next(tmp_path.rglob("libQnn*.so"))
        victim.chmod(0o600)
        victim.write_bytes(b"")
        with pytest.raises(
            CheckFailed, match=f"expected {sdk.archive.files} files of {sdk.archive.unpacked} bytes"
        ):
            sdk.check_all(tmp_path)

    def test_the_shell_chain_refuses_other_bytes_than_the_ones_named(
        self, sdk: provision.Sdk, tmp_path: Path
    ) -> None:
        import subprocess

        with pytest.raises(subprocess.CalledProcessError, match="sha256sum"):
            provision.run_shell(provision.shell_tools(), replace(sdk, sha256="0" * 64), tmp_path)
