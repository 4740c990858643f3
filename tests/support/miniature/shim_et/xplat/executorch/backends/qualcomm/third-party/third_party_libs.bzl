load("@fbsource//xplat/executorch/backends/qualcomm/qnn_version.bzl", "get_qnn_library_version")
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")

_INSIDE = "fbsource//third-party/qualcomm/qnn/qnn-{}:".format(get_qnn_library_version())
_HERE = "//backends/qualcomm/third-party:"

# By name: the target inside Meta, and the open one.
_LIBRARIES = {
    "api": (_INSIDE + "api", _HERE + "qnn_api"),
    "app_sources": (_INSIDE + "app_sources", _HERE + "qnn_app_sources"),
    "qnn_offline_compile_libs": (_INSIDE + "qnn_offline_compile_libs", _HERE + "qnn_offline_compile_libs"),
    "log": ("fbsource//third-party/toolchains:log", _HERE + "log"),
    "pybind11": ("fbsource//third-party/pybind11:pybind11", "//third-party:pybind11"),
}

def qnn_third_party_dep(name):
    if name not in _LIBRARIES:
        fail("no such library: " + name)
    return _LIBRARIES[name][1 if runtime.is_oss else 0]
