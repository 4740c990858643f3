load(
    "@fbsource//tools/build_defs:default_platform_defs.bzl",
    "ANDROID",
    "CXX",
)
load("@fbsource//tools/build_defs:fbsource_utils.bzl", "is_fbcode")
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")

def define_common_targets():
    runtime.cxx_binary(
        name = "qnn_executor_runner",
        srcs = ["qnn_executor_runner.cpp"],
        deps = [
            "//executorch/runtime/executor:program",
            "//executorch/devtools/etdump:etdump_flatcc",
            "//executorch/kernels/portable:generated_lib",
            "//executorch/kernels/quantized:generated_lib",
            "//executorch/extension/data_loader:file_data_loader",
            "//executorch/extension/tensor:tensor",
            "//executorch/extension/runner_util:inputs",
            "//executorch/backends/qualcomm/runtime:runtime",
        ],
        platforms = [ANDROID, CXX] if is_fbcode() else [ANDROID],
        external_deps = ["gflags"],
    )
