# Read by Buck, and by CMake with Python.
RUNNER_PARTS = ["executor_runner.cpp", "options.cpp"]

EXECUTOR_RUNNER_SRCS = ["examples/portable/executor_runner/" + part for part in RUNNER_PARTS] + [
    "extension/data_loader/file_data_loader.cpp",
]
