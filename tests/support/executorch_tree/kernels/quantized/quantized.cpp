// Registers nothing: it stands for a library that needs torch's.
#include <c10/core/Device.h>

extern "C" const char* quantized_ops() {
  static const c10::Device device(c10::DeviceType::CPU);
  return device.is_cpu() ? "quantized_decomposed" : "";
}
