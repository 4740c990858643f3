#include <executorch/backends/qualcomm/runtime/HtpDevice.h>
#include <executorch/runtime/platform.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace executorch {
namespace qnn {
// As FastRPC searches: the entries of ADSP_LIBRARY_PATH, separated by semicolons.
int find_skel(int arch) {
  const char* entry = getenv("ADSP_LIBRARY_PATH");
  while (entry) {
    const char* end = strchr(entry, ';');
    const int length = end ? static_cast<int>(end - entry) : static_cast<int>(strlen(entry));
    char path[1024];
    snprintf(path, sizeof(path), "%.*s/libQnnHtpV%dSkel.so", length, entry, arch);
    if (FILE* skel = fopen(path, "rb")) {
      fclose(skel);
      return 0;
    }
    entry = end ? end + 1 : nullptr;
  }
  ET_LOG("Failed to load skel, error: 4000");
  return 4000;
}
} // namespace qnn
} // namespace executorch
