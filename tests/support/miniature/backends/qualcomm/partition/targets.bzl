load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")
load("@fbsource//tools/build_defs:fbsource_utils.bzl", "is_fbcode")

def define_common_targets():
    if not is_fbcode():
        return

    runtime.python_library(
        name = "partition",
        srcs = glob(["*.py"]),
        deps = ["//executorch/backends/qualcomm/builders:builders"],
    )
