"""A stand-in for AI Hub, which speaks its client's own messages. It runs in the environment `hub`.

`python hub_server.py PLAY.json` prints its address. The play says what it answers; see `Play` in
tests/support/hub.py. Every request is a line of the play's `requests`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import h5py
import numpy
from qai_hub import public_api_pb2 as pb
from qai_hub.util.dataset_entries_converters import dataset_entries_to_h5, h5_to_dataset_entries

PLAY = Path(sys.argv[1])
FOLDER = PLAY.parent
FILES = FOLDER / "files"
INPUTS = FILES / "inputs.npz"
PLACES, BIT = 16, 0x10
RUNNER = Path(__file__).with_name("context_runner.py")
MONTH = 30 * 24 * 3600

counts: dict[str, int] = {}
jobs: dict[str, Any] = {}
computed: dict[str, Path] = {}
"""The files with what jobs gave."""
broken: dict[str, str] = {}
"""Why jobs could not be computed."""
computing = threading.Lock()


def play() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(PLAY.read_text(encoding="utf-8"))
    return document


def new_id(kind: str) -> str:
    counts[kind] = counts.get(kind, 0) + 1
    return f"{kind}{counts[kind]}"


def compute(number: str) -> None:
    try:
        # The jobs share files, and h5py.
        with computing:
            computed[number] = answers_of(number)
    except Exception as error:
        broken[number] = f"{type(error).__name__}: {error}"


def answers_of(number: str) -> Path:
    """Run the job: on QNN's emulator, or else the play's answers stand for what the device computes."""
    job = jobs[number].inference_job
    dataset, plays = job.dataset.dataset_id, play()
    with h5py.File(FILES / dataset) as file:
        inputs = h5_to_dataset_entries(file)
    count = len(next(iter(inputs.values())))
    answers = Path(plays["answers"])
    if plays["libraries"]:
        answers = FILES / f"{number}-answers.npz"
        numpy.savez(INPUTS, **{name: numpy.stack(arrays) for name, arrays in inputs.items()})  # type: ignore[arg-type]
        context = (FILES / job.model.model_id).read_bytes()
        outputs = emulate(plays["libraries"], context)
        if plays["layer_differs"]:
            outputs = emulate_another_layer(plays["libraries"], context, outputs)
        numpy.savez(answers, **outputs)
    with numpy.load(answers) as arrays:
        lists = {name: list(arrays[name][:count]) for name in arrays.files}
    path = FILES / f"{number}-out"
    with h5py.File(path, "w") as file:
        dataset_entries_to_h5(lists, file)
    return path


def emulate(libraries: str, context: bytes) -> dict[str, Any]:
    """Run the context on INPUTS."""
    (FILES / "context").write_bytes(context)
    outputs = FILES / "outputs.npz"
    command = [sys.executable, str(RUNNER), libraries, str(FILES / "context"), str(INPUTS), str(outputs)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={"LD_LIBRARY_PATH": libraries})
    with numpy.load(outputs) as arrays:
        return {name: arrays[name] for name in arrays.files}


def emulate_another_layer(libraries: str, context: bytes, outputs: dict[str, Any]) -> dict[str, Any]:
    """Run the context with a bit of a weight turned over: the first that makes a difference."""
    for place in range(len(context) // PLACES, len(context), len(context) // PLACES):
        changed = bytearray(context)
        changed[place] ^= BIT
        try:
            others = emulate(libraries, bytes(changed))
        except subprocess.CalledProcessError:
            continue
        if any((others[name] != array).any() for name, array in outputs.items()):
            return others
    raise AssertionError("no bit of the context changes its outputs")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _send(
        self, body: Any = b"", status: int = 200, kind: str = "application/x-protobuf", **headers: str
    ) -> None:
        data = body if isinstance(body, bytes) else body.SerializeToString()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self) -> None:
        place = urlsplit(self.path)
        words = [word for word in place.path.split("/") if word]
        body, plays = self._body(), play()
        step = f"{self.command} {'/'.join(word for word in words[2:] if not any(map(str.isdigit, word)))}"
        with (FOLDER / "requests").open("a", encoding="utf-8") as log:
            log.write(f"{step}\n")
        if words[0] == "storage":
            self._storage(words[1], body, plays)
            return
        if self.headers["Authorization"] != f"token {plays['token']}":
            self._send(json.dumps({"detail": self.headers["Authorization"]}).encode(), 401, "text/json")
            return
        if refusal := plays["refused"].get(step):
            text = json.dumps({"detail": refusal[1]}).encode()
            self._send(text, refusal[0], "text/json")
            return
        self._api(self.command, words[2:], body, plays, parse_qs(place.query))

    def _storage(self, name: str, body: bytes, plays: dict[str, Any]) -> None:
        if self.command == "GET":
            self._send((FILES / name).read_bytes(), kind="application/octet-stream")
            return
        if plays["cut_uploads"] > counts.get("cut", 0):
            new_id("cut")
            self.close_connection = True
            self.connection.close()
            return
        if self.command == "POST":
            # A form: the file is its last part.
            boundary = b"--" + self.headers["content-type"].partition("boundary=")[2].encode()
            body = body.split(boundary)[-2].partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
        (FILES / name).write_bytes(body)
        self._send(ETag="1")

    def _api(
        self, method: str, words: list[str], body: bytes, plays: dict[str, Any], query: dict[str, list[str]]
    ) -> None:
        base = f"http://{self.headers['Host']}/storage"
        match method, *words:
            case "GET", "devices":
                names = [name for name in query.get("name", []) if name]
                rows = [row for row in plays["devices"] if not names or row["name"] in names]
                if query.get("select") == ["True"]:
                    rows = [row for row in rows if row["name"] not in plays["withdrawn"]]
                self._send(pb.DeviceList(devices=[pb.Device(**row) for row in rows]))
            case "GET", "frameworks":
                rows = [
                    pb.Framework(name="QAIRT", api_version=".".join(text.split(".")[:2]), full_version=text)
                    for text in plays["runtimes"]
                ]
                self._send(pb.FrameworkList(frameworks=rows))
            case "POST", "models" | "datasets" as kind:
                response = pb.CreateUpdateResponse(id=new_id(kind))
                response.expiration_time.seconds = int(time.time()) + MONTH
                self._send(response)
            case "GET", "models" | "datasets", number:
                if not (FILES / number).is_file():
                    self._send(b"", 404)
                elif words[0] == "models":
                    kind = pb.ModelType.Value("MODEL_TYPE_QNN_CONTEXT_BINARY")
                    self._send(pb.Model(model_id=number, model_type=kind))
                else:
                    self._send(pb.Dataset(dataset_id=number, permanent=True))
            case "GET", "models", number, "multipart_upload":
                urls = pb.FileMultipartUploadURL(
                    urls=[f"{base}/{number}"], upload_id="1", max_part_size=1 << 30
                )
                self._send(pb.FileUploadResponse(multipart_url=urls))
            case "GET", "datasets", number, "upload_url":
                url = pb.FileUploadURL(url=f"{base}/{number}", file_field_name="file")
                self._send(pb.FileUploadResponse(url=url))
            case "GET", "datasets", number, "download_data":
                url = pb.FileDownloadURL(url=f"{base}/{number}", filename=f"{number}.h5")
                self._send(pb.FileDownloadResponse(url=url))
            case ("POST", "models", number, "multipart_upload") | ("PATCH" | "POST", "datasets", number, *_):
                self._send(pb.CreateUpdateResponse(id=number))
            case "POST", "jobs":
                job = pb.Job()
                job.ParseFromString(body)
                number = new_id("j")
                job.inference_job.inference_job_id = number
                jobs[number] = job
                with (FOLDER / "jobs").open("a", encoding="utf-8") as log:
                    log.write(job.inference_job.options + "\n")
                threading.Thread(target=compute, args=[number]).start()
                self._send(pb.CreateUpdateResponse(id=number))
            case "GET", "jobs", number:
                self._job(number, plays)
            case "GET", "jobs", number, "result":
                self._result(number)
            case "GET", "jobs", number, *_:
                artifact = pb.NamedArtifactDownloadURL(url=f"{base}/device.log", filename="device.log")
                (FILES / "device.log").write_text(plays["log"], encoding="utf-8")
                self._send(pb.NamedArtifactDownloadURLList(artifacts=[artifact]))
            case _:
                self._send(f"{method} {words}".encode(), 404)

    def _job(self, number: str, plays: dict[str, Any]) -> None:
        if number not in jobs:
            self._send(b"", 404)
            return
        job = jobs[number]
        state, reason = plays["state"], plays["reason"]
        if number in broken:
            state, reason = "FAILED", broken[number]
        if state == "DONE" and number not in computed:
            state = "PROVISIONING_DEVICE"
        job.inference_job.job_state = pb.JobState.Value(f"JOB_STATE_{state}")
        if state == "FAILED":
            job.inference_job.failure_reason = reason
            job.available_artifacts[:] = [pb.JobArtifactType.Value("JOB_ARTIFACT_TYPE_DEVICE_LOG")]
        self._send(job)

    def _result(self, number: str) -> None:
        result, job = pb.JobResult(), jobs[number].inference_job
        result.inference_job_result.output_dataset_id = computed[number].name
        if job.is_profiling_on:
            detail = result.inference_job_result.detail
            detail.major_version, detail.minor_version = 1, 2
            detail.execution_time = 500
            detail.all_execution_times[:] = [500, 520, 480]
            unit = pb.ComputeUnit.Value("COMPUTE_UNIT_NPU")
            detail.layer_details.add(name="conv", compute_unit=unit)
        self._send(result)


for method in ("GET", "POST", "PUT", "PATCH"):
    setattr(Handler, f"do_{method}", Handler.answer)

if __name__ == "__main__":
    FILES.mkdir(exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
