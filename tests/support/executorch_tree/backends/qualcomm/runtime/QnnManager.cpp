#include <executorch/backends/qualcomm/runtime/HtpDevice.h>
#include <executorch/backends/qualcomm/runtime/QnnManager.h>
#include <executorch/runtime/platform.h>

#include <QnnCommon.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

namespace executorch {
namespace qnn {

int add(int one, int other) {
  return one + other;
}

const char* api() {
  return QNN_API_VERSION;
}

int arch_of(const char* program, unsigned long size) {
  static const char key[] = ";arch=";
  for (unsigned long i = 0; i + sizeof(key) + 1 <= size; ++i) {
    if (memcmp(program + i, key, sizeof(key) - 1) == 0) {
      return atoi(program + i + sizeof(key) - 1);
    }
  }
  return 0;
}

int open_device(int arch) {
  if (!dlopen("libQnnHtp.so", RTLD_NOW)) {
    ET_LOG(dlerror());
    return 1009;
  }
  return find_skel(arch);
}

} // namespace qnn
} // namespace executorch
