"""AI Hub's own client against a stand-in of the service: what is uploaded, what comes back, what fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy
import pytest

from ci.hub.service import HubOptions, run_contexts
from ci.suite.contexts import ContextOutcome, ContextRun
from ci.work import Failure
from provisioning.base.errors import ToolkitError
from tests.support.hub import OTHER_PHONE, PHONE, TOKEN, VALUES, Play, StandIn, job_in, stand_in

pytestmark = pytest.mark.long("each starts the service, and its client twice")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    folder = tmp_path / "hub"
    folder.mkdir()
    numpy.savez(folder / "answers.npz", y=VALUES * 2)
    with stand_in(folder, play_in(folder)) as service:
        for name, value in service.environ.items():
            monkeypatch.setenv(name, value)
        yield service


def play_in(folder: Path) -> Play:
    return Play(answers=str(folder / "answers.npz"))


def options_of(hub: StandIn, **changes: object) -> HubOptions:
    options = HubOptions(
        store=hub.folder / "store",
        uploads_agreed=True,
        seconds=60,
        poll_seconds=0.1,
        rate_seconds=0.1,
        python=hub.python,
    )
    return replace(options, **changes)  # type: ignore[arg-type]


def outcome_of(hub: StandIn, **changes: object) -> ContextOutcome:
    job = job_in(hub.folder, **changes)  # type: ignore[arg-type]
    return run_contexts(options_of(hub), [job], hub.folder / "into")["net"]


def failure_of(hub: StandIn, **changes: object) -> Failure:
    outcome = outcome_of(hub, **changes)
    assert isinstance(outcome, Failure)
    return outcome


def test_the_outputs_of_a_phone_are_written_as_qnn_net_run_writes_them(hub: StandIn) -> None:
    run = outcome_of(hub, profile=True)
    assert isinstance(run, ContextRun)
    assert run.device == PHONE["name"]
    assert run.build_id == "2.50.0"
    for number, values in enumerate(VALUES):
        found = numpy.fromfile(run.outputs / f"Result_{number}" / "y.raw", numpy.float32)
        assert found.tolist() == (values * 2).ravel().tolist()
    assert run.profile is not None
    assert run.profile.latency_us == 500
    assert run.profile.layers == {"NPU": 1}
    assert (hub.folder / "jobs").read_text(encoding="utf-8") == "--qairt_version 2.50\n"


def test_a_context_is_uploaded_once_and_a_result_is_kept(hub: StandIn) -> None:
    outcome_of(hub)
    outcome_of(hub)
    assert hub.requests("POST jobs") == 1
    outcome_of(hub, profile=True)
    assert hub.requests("POST jobs") == 2
    assert hub.requests("POST models") == 1
    assert hub.requests("POST datasets") == 1


def test_another_service_is_asked_anew(hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome_of(hub)
    folder = tmp_path / "other"
    folder.mkdir()
    with stand_in(folder, play_in(hub.folder)) as other:
        for name, value in other.environ.items():
            monkeypatch.setenv(name, value)
        outcome_of(hub)
        assert [other.requests(f"POST {kind}") for kind in ("models", "datasets", "jobs")] == [1, 1, 1]


@pytest.mark.whole
def test_nothing_is_uploaded_without_agreement(hub: StandIn) -> None:
    with pytest.raises(ToolkitError) as error:
        run_contexts(options_of(hub, uploads_agreed=False), [job_in(hub.folder)], hub.folder / "into")
    assert error.value.exit_code == 2
    assert hub.requests("POST models") == 0


def test_a_device_with_another_chip_is_refused_before_an_upload(hub: StandIn) -> None:
    failure = failure_of(hub, device=str(OTHER_PHONE["name"]))
    assert failure.exit_code == 1
    assert "v75" in failure.message
    assert hub.requests("POST models") == 0


@pytest.mark.whole
def test_a_runtime_older_than_the_context_is_refused_with_the_versions(hub: StandIn) -> None:
    hub.plays(replace(play_in(hub.folder), runtimes=("2.47.0", "2.48.0")))
    failure = failure_of(hub)
    assert failure.exit_code == 3
    assert "2.47.0, 2.48.0" in failure.message
    assert hub.requests("POST models") == 0


def test_a_wrong_token_is_refused_and_not_shown(
    hub: StandIn, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QAIHUB_API_TOKEN", "a-wrong-one")
    with pytest.raises(ToolkitError) as error:
        outcome_of(hub)
    assert error.value.exit_code == 3
    written = "".join(
        path.read_text(errors="replace") for path in (hub.folder / "into").rglob("*") if path.is_file()
    )
    assert "a-wrong-one" not in error.value.message + "".join(capfd.readouterr()) + written


@pytest.mark.whole
def test_a_missing_token_is_asked_for(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QAIHUB_API_TOKEN")
    monkeypatch.setenv("QAIHUB_CLIENT_INI", str(hub.folder / "none.ini"))
    with pytest.raises(ToolkitError) as error:
        outcome_of(hub)
    assert error.value.exit_code == 3
    assert "https://" in error.value.fix


@pytest.mark.whole
@pytest.mark.parametrize(
    ("step", "status", "code"),
    [("POST jobs", 403, 3), ("POST datasets", 413, 1), ("POST jobs", 400, 4)],
)
def test_a_refusal_has_the_service_s_words_and_an_exit_code(
    hub: StandIn, step: str, status: int, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    # The service may repeat the token.
    hub.plays(replace(play_in(hub.folder), refused={step: (status, f"not so, {TOKEN}")}))
    failure = failure_of(hub)
    assert failure.exit_code == code
    assert "not so" in failure.message
    assert TOKEN not in failure.message + "".join(capfd.readouterr())


@pytest.mark.whole
def test_a_withdrawn_device_is_named(hub: StandIn) -> None:
    hub.plays(replace(play_in(hub.folder), withdrawn=[str(PHONE["name"])]))
    failure = failure_of(hub)
    assert failure.exit_code == 4
    assert str(PHONE["name"]) in failure.message


@pytest.mark.whole
def test_a_failed_job_is_explained_by_the_device_s_log(hub: StandIn) -> None:
    log = "<E> Failed to create context from binary with err 0x1388\nqnn error 5000\n"
    hub.plays(replace(play_in(hub.folder), state="FAILED", reason="the model did not load", log=log))
    failure = failure_of(hub)
    assert failure.exit_code == 1
    assert "the model did not load" in failure.message
    assert failure.log is not None
    assert failure.log.read_text(encoding="utf-8") == log
    hub.plays(play_in(hub.folder))
    assert isinstance(outcome_of(hub), ContextRun)


@pytest.mark.whole
def test_a_job_that_does_not_end_is_gone_on_with_by_the_same_command(hub: StandIn) -> None:
    hub.plays(replace(play_in(hub.folder), state="PROVISIONING_DEVICE"))
    job = job_in(hub.folder)
    failure = run_contexts(options_of(hub, seconds=1), [job], hub.folder / "into")["net"]
    assert isinstance(failure, Failure)
    assert failure.exit_code == 4
    hub.plays(play_in(hub.folder))
    assert isinstance(outcome_of(hub), ContextRun)
    assert hub.requests("POST jobs") == 1


@pytest.mark.whole
def test_an_upload_that_is_cut_is_repeated(hub: StandIn) -> None:
    hub.plays(replace(play_in(hub.folder), cut_uploads=1))
    assert isinstance(outcome_of(hub), ContextRun)


@pytest.mark.whole
@pytest.mark.parametrize(
    "answers",
    [{"y": VALUES[:, :, :3]}, {"y": VALUES.astype("float16")}, {"y": VALUES[:1]}, {"y": VALUES, "z": VALUES}],
    ids=["shape", "dtype", "samples", "outputs"],
)
def test_a_result_of_another_form_is_no_result(hub: StandIn, answers: dict[str, numpy.ndarray]) -> None:
    numpy.savez(hub.folder / "answers.npz", **answers)  # type: ignore[arg-type]
    failure = failure_of(hub)
    assert failure.exit_code == 1
    assert failure.kind == "shape"


INTERRUPTED = """
import sys
from pathlib import Path
from ci.hub.service import HubOptions, run_contexts
from tests.support.hub import job_in
folder = Path(sys.argv[1])
options = HubOptions(store=folder / "store", uploads_agreed=True, poll_seconds=0.1, python=sys.argv[2])
run_contexts(options, [job_in(folder)], folder / "into")
"""


def test_an_interrupted_run_is_gone_on_with(hub: StandIn) -> None:
    hub.plays(replace(play_in(hub.folder), state="PROVISIONING_DEVICE"))
    command = [sys.executable, "-c", INTERRUPTED, str(hub.folder), hub.python]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=dict(os.environ)) as process:
        while not hub.requests("POST jobs"):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
    hub.plays(play_in(hub.folder))
    assert isinstance(outcome_of(hub), ContextRun)
    assert hub.requests("POST jobs") == 1


@pytest.mark.whole
@pytest.mark.parametrize(("step", "status"), [("GET devices", 503), ("GET devices", 500)])
def test_a_service_that_is_down_is_the_network_s_fault(hub: StandIn, step: str, status: int) -> None:
    hub.plays(replace(play_in(hub.folder), refused={step: (status, "down")}))
    with pytest.raises(ToolkitError) as error:
        outcome_of(hub)
    assert error.value.exit_code == 4


@pytest.mark.whole
def test_too_many_jobs_are_waited_for_and_the_wait_is_shown(
    hub: StandIn, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.plays(replace(play_in(hub.folder), refused={"POST jobs": (429, "too many jobs")}))
    job = job_in(hub.folder)
    failure = run_contexts(options_of(hub, seconds=1), [job], hub.folder / "into")["net"]
    assert isinstance(failure, Failure)
    assert failure.exit_code == 4
    assert "next try" in capfd.readouterr().err
