load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")

def third_party_dep(name):
    return ("//backends/xnnpack/third-party:{}" if runtime.is_oss else "//third-party/{0}:{0}").format(name)
