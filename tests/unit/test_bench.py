"""The frame of benchmarks, and the generated SDK that provisioning is measured with."""

from __future__ import annotations

import sys
import time
import types
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ci.upkeep import bench
from ci.upkeep.bench import provision
from ci.upkeep.bench.frame import (
    Aim,
    Benchmark,
    Contender,
    Measured,
    Spread,
    empty,
    measure,
    metrics_of,
    rendered,
)
from ci.upkeep.bench.sdk import SHAPE, Generated, generate
from ci.upkeep.bench.server import serving
from provisioning import archive
from provisioning.base.command_line import Verb, main
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import Artifact, Outcome, Report
from provisioning.base.settings import store_path
from provisioning.manifest import load_profile

AIM = Aim("fast", "slow", 2.0)


def nothing(directory: Path) -> None: ...


def contender(name: str, log: list[str] | None = None) -> Contender:
    return Contender(name, lambda directory: (log if log is not None else []).append(name))


class TestMeasuring:
    def test_contenders_take_turns_in_opposite_order_every_other_round(self, tmp_path: Path) -> None:
        log: list[str] = []
        measure(Benchmark([contender("a", log), contender("b", log)], []), 3, tmp_path / "work")
        assert "".join(log) == "abbaab"

    def test_each_run_gets_an_empty_directory_of_its_own(self, tmp_path: Path) -> None:
        seen: list[Path] = []

        def run(directory: Path) -> None:
            seen.append(directory)
            assert list(directory.iterdir()) == []
            (directory / "f").touch()

        measure(Benchmark([Contender("a", run), Contender("b", run)], []), 2, tmp_path / "work")
        assert len(set(seen)) == 4

    def test_only_the_run_is_timed(self, tmp_path: Path) -> None:
        slow_check = Contender("a", nothing, lambda directory: time.sleep(0.3))
        assert measure(Benchmark([slow_check], []), 1, tmp_path / "work").seconds["a"][0] < 0.2

    def test_a_run_that_did_not_do_its_work_is_an_error(self, tmp_path: Path) -> None:
        def check(directory: Path) -> None:
            raise CheckFailed("nothing was done")

        with pytest.raises(CheckFailed, match="nothing was done"):
            measure(Benchmark([Contender("a", nothing, check)], []), 1, tmp_path / "work")

    def test_nothing_is_left_behind(self, tmp_path: Path) -> None:
        make = Contender("a", lambda directory: (directory / "f").write_bytes(b"x"))
        measure(Benchmark([make], []), 2, tmp_path / "work")
        assert not (tmp_path / "work").exists()

    def test_emptying_keeps_files_and_what_links_lead_to(self, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.write_bytes(b"precious")
        (tmp_path / "in").mkdir()
        (tmp_path / "in/f").write_bytes(b"big")
        (tmp_path / "in/f").chmod(0o444)
        (tmp_path / "in/link").symlink_to(outside)
        empty(tmp_path / "in")
        assert ((tmp_path / "in/f").stat().st_size, outside.read_bytes()) == (0, b"precious")


class TestRatios:
    def test_they_are_of_pairs_within_a_round(self) -> None:
        measured = Measured({"fast": [1.0, 10.0, 2.0], "slow": [3.0, 20.0, 8.0]})
        assert measured.ratio(AIM) == Spread(3.0, 2.0, 4.0)

    def test_metrics_hold_numbers_for_contenders_and_ratios(self) -> None:
        benchmark = Benchmark([contender("fast"), contender("slow")], [AIM], {"files": 7})
        assert metrics_of(benchmark, Measured({"fast": [1.0, 1.0], "slow": [2.0, 3.0]})) == {
            "files": 7,
            "contenders": {
                "fast": {"median": 1.0, "least": 1.0, "most": 1.0, "seconds": [1.0, 1.0]},
                "slow": {"median": 2.5, "least": 2.0, "most": 3.0, "seconds": [2.0, 3.0]},
            },
            "ratios": {"fast vs slow": {"median": 2.5, "least": 2.0, "most": 3.0, "aim": 2.0}},
        }

    @pytest.mark.parametrize(("slow", "verdict"), [(2.0, "reached"), (1.9, "MISSED")])
    def test_the_table_says_whether_an_aim_was_reached(self, slow: float, verdict: str) -> None:
        benchmark = Benchmark([contender("fast"), contender("slow")], [AIM])
        text = rendered(benchmark, Measured({"fast": [1.0], "slow": [slow]}))
        assert (
            text.splitlines()[-1] == f"fast vs slow  {slow:.2f} ({slow:.2f} to {slow:.2f}), aim 2: {verdict}"
        )


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
    def test_a_missed_aim_passes_and_is_noted(self, run: Callable[..., int], tmp_path: Path) -> None:
        assert run("stub", "--rounds", "1") == 0
        report = Report.read(tmp_path / "reports/bench-stub.json")
        assert [(f.rule, f.severity.value, f.subject) for f in report.findings] == [
            ("bench-aim", "note", "fast vs slow")
        ]

    def test_a_missed_aim_fails_when_it_is_to_be_checked(
        self, run: Callable[..., int], tmp_path: Path
    ) -> None:
        assert run("stub", "--rounds", "1", "--check") == 1
        assert Report.read(tmp_path / "reports/bench-stub.json").outcome is Outcome.FAIL

    def test_a_store_that_was_named_is_the_one_that_is_measured(
        self, run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("QNN_CI_STORE", "/srv/another")
        assert run("stub", "--rounds", "1", "--store", str(tmp_path / "mine")) == 0
        assert store_path() == tmp_path / "mine"

    def test_a_place_to_work_in_that_cannot_be_made_is_wrong_use(
        self, run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "work").touch()
        assert run("stub") == 2
        assert f"error: --work {tmp_path / 'work'}: File exists" in capsys.readouterr().err

    def test_a_reached_aim_passes_the_check(self, run: Callable[..., int]) -> None:
        assert run("stub", "--rounds", "1", "--check", slow=0.2) == 0

    def test_the_report_holds_the_measurements_and_the_command(
        self, run: Callable[..., int], tmp_path: Path
    ) -> None:
        run("stub", "--rounds", "2", "--quick")
        report = Report.read(tmp_path / "reports/bench-stub.json")
        assert report.command == "nox -s bench -- stub --rounds 2 --quick"
        assert (report.metrics["quick"], set(report.metrics)) == (
            True,
            {"quick", "cores", "contenders", "ratios"},
        )

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

    def test_the_work_directory_is_left_as_it_was(self, run: Callable[..., int], tmp_path: Path) -> None:
        run("stub", "--rounds", "1")
        assert list((tmp_path / "work").iterdir()) == []

    def test_list_names_the_benchmarks(
        self, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert (run("--list"), capsys.readouterr().out) == (0, "stub  a stub\n")

    @pytest.mark.parametrize("argv", [[], ["unheard-of"]])
    def test_wrong_use(self, run: Callable[..., int], argv: list[str]) -> None:
        assert run(*argv) == 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return generate(tmp_path_factory.mktemp("sdk") / "v1.zip", "qairt/1/", seed=1, scale=0.002)


class TestTheGeneratedSdk:
    def test_the_same_seed_gives_the_same_bytes(self, made: Generated, tmp_path: Path) -> None:
        again = generate(tmp_path / "again.zip", "qairt/1/", seed=1, scale=0.002)
        assert again.path.read_bytes() == made.path.read_bytes()

    def test_it_is_a_zip_that_others_find_whole(self, made: Generated) -> None:
        with zipfile.ZipFile(made.path) as found:
            assert found.testzip() is None
            assert (len(found.infolist()), sum(i.file_size for i in found.infolist())) == (
                made.files,
                made.unpacked,
            )

    def test_it_is_as_compressible_as_the_real_one(self, made: Generated) -> None:
        assert 2.4 < made.unpacked / made.path.stat().st_size < 3.2

    def test_at_full_size_it_is_as_large_as_the_claim_needs(self) -> None:
        assert sum(directory.megabytes for directory in SHAPE) > 1500
        assert sum(directory.files for directory in SHAPE) > 6000

    def test_the_rules_of_the_official_sdk_fit_it(self, made: Generated) -> None:
        from provisioning.store import Want
        from provisioning.store.tree_plan import Placing

        part = load_profile(provision.PROFILE).components[provision.COMPONENT].parts[0]
        source = part.source.model_copy(update={"strip": "qairt/1/"})
        placing = Placing(part.model_copy(update={"source": source}), Want(frozenset({"x86_64-linux"})))
        placed = {placing(member.name) for member in archive.members(made.path)} - {None}
        assert "lib/x86_64-linux-clang/libQnnTensor0.so" in placed
        assert not any("aarch64" in path for path in placed if path)


class TestProvisioningContenders:
    @pytest.fixture
    def sdk(self, made: Generated, tmp_path: Path) -> Iterator[provision.Sdk]:
        component = load_profile(provision.PROFILE).components[provision.COMPONENT]
        with serving(made.path.parent) as base:
            digest = Artifact.of("archive", made.path).sha256
            yield provision.Sdk(made, f"{base}/v1.zip", digest, "qairt/1/", component)

    def test_ours_lands_everything(self, sdk: provision.Sdk, tmp_path: Path) -> None:
        sdk.provision_all(tmp_path)
        sdk.check_all(tmp_path)

    def test_ours_lands_a_selection(self, sdk: provision.Sdk, tmp_path: Path) -> None:
        sdk.provision_some(tmp_path)
        sdk.check_some(tmp_path)

    def test_everything_is_not_taken_for_a_selection(self, sdk: provision.Sdk, tmp_path: Path) -> None:
        sdk.provision_all(tmp_path)
        with pytest.raises(CheckFailed, match="nothing for other targets"):
            sdk.check_some(tmp_path)

    def test_a_tree_that_lacks_bytes_is_noticed(self, sdk: provision.Sdk, tmp_path: Path) -> None:
        sdk.provision_all(tmp_path)
        victim = next(tmp_path.rglob("libQnn*.so"))
        victim.chmod(0o600)
        victim.write_bytes(b"")
        with pytest.raises(
            CheckFailed, match=f"expected {sdk.made.files} files of {sdk.made.unpacked} bytes"
        ):
            sdk.check_all(tmp_path)

    def test_the_server_gives_the_archive_as_it_is(self, sdk: provision.Sdk) -> None:
        with urllib.request.urlopen(sdk.url) as answer:
            assert answer.read() == sdk.made.path.read_bytes()

    def test_their_functions_are_called_with_our_address_on_our_disk(
        self, sdk: provision.Sdk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scripts = tmp_path / "site/executorch/backends/qualcomm/scripts"
        scripts.mkdir(parents=True)
        (tmp_path / "site/executorch/__init__.py").touch()
        (scripts / "download_qnn_sdk.py").write_text(
            "import logging, pathlib, sys, tempfile\n"
            "logger = logging.getLogger(__name__)\n"
            "_output_stream = sys.stdout\n"
            "def _download_qnn_sdk(dst_folder):\n"
            "    print('noise', file=_output_stream)\n"
            "    dst_folder.mkdir()\n"
            "    said = f'{QNN_ZIP_URL} {QNN_VERSION} {tempfile.gettempdir()}'\n"
            "    (dst_folder / 'called').write_text(said)\n"
            "    return dst_folder\n"
        )
        monkeypatch.syspath_prepend(tmp_path / "site")
        provision.run_theirs(provision.executorch_downloader(), sdk, tmp_path)
        assert (tmp_path / "sdk/called").read_text() == f"{sdk.url} {sdk.component.version} {tmp_path}"

    def test_a_downloader_that_declines_is_an_error(self, sdk: provision.Sdk, tmp_path: Path) -> None:
        declines = types.SimpleNamespace(
            logger=types.SimpleNamespace(), _download_qnn_sdk=lambda dst_folder: None
        )
        with pytest.raises(EnvironmentLacking, match="found that it declined"):
            provision.run_theirs(declines, sdk, tmp_path)

    def test_without_executorch_the_remedy_is_the_session_that_has_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(EnvironmentLacking) as raised:
            provision.executorch_downloader()
        assert raised.value.remedy == "nox -s bench -- provision"

    def test_the_shell_chain_refuses_other_bytes_than_the_ones_named(
        self, sdk: provision.Sdk, tmp_path: Path
    ) -> None:
        import subprocess

        with pytest.raises(subprocess.CalledProcessError, match="sha256sum"):
            provision.run_shell(provision.shell_tools(), replace(sdk, sha256="0" * 64), tmp_path)
