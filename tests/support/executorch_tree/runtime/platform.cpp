#include <executorch/runtime/platform.h>

#include <stdio.h>

namespace executorch {
void log(const char* file, const char* text) {
#ifdef ET_LOG_ENABLED
  fprintf(stderr, "[executorch] %s: %s\n", file, text);
#else
  (void)file;
  (void)text;
#endif
}
} // namespace executorch
