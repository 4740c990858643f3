#include <executorch/backends/qualcomm/runtime/QnnManager.h>

#include <pybind11/pybind11.h>

#include <stdexcept>

namespace {
int add(int one, int other) {
  return executorch::qnn::add(one, other);
}

int arch(pybind11::bytes program) {
  const std::string_view text = program;
  const int found = executorch::qnn::arch_of(text.data(), text.size());
  if (found == 0) {
    throw std::invalid_argument("not a QNN program");
  }
  return found;
}
} // namespace

PYBIND11_MODULE(PyQnnManagerAdaptor, module) {
  module.def("add", &add);
  module.def("arch", &arch);
  module.attr("api") = executorch::qnn::api();
}
