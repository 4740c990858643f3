#include <executorch/kernels/optimized/third-party/eigen/Eigen/Core>
#include <executorch/runtime/platform.h>

#include <stdio.h>

extern "C" int flatcc_identifier_size(void);
int re2_version();

namespace executorch {
void log(const char* file, const char* text) {
#ifdef ET_LOG_ENABLED
  if (flatcc_identifier_size() != 4 || re2_version() != EIGEN_TWO) {
    return;
  }
  fprintf(stderr, "[executorch] %s: %s\n", file, text);
#else
  (void)file;
  (void)text;
#endif
}
} // namespace executorch
