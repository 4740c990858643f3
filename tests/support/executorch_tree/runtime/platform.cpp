#include <executorch/runtime/platform.h>

#include <stdio.h>

extern "C" int flatcc_identifier_size(void);

namespace executorch {
void log(const char* file, const char* text) {
#ifdef ET_LOG_ENABLED
  if (flatcc_identifier_size() != 4) {
    return;
  }
  fprintf(stderr, "[executorch] %s: %s\n", file, text);
#else
  (void)file;
  (void)text;
#endif
}
} // namespace executorch
