#include "gflags.h"

#include <string.h>

namespace gflags {
const char* value(int argc, char** argv, const char* name, const char* fallback) {
  for (int i = 1; i < argc; ++i) {
    const char* flag = argv[i];
    const unsigned long length = strlen(name);
    if (strncmp(flag, "--", 2) != 0 || strncmp(flag + 2, name, length) != 0) {
      continue;
    }
    if (flag[2 + length] == '=') {
      return flag + 3 + length;
    }
    if (flag[2 + length] == '\0' && i + 1 < argc) {
      return argv[i + 1];
    }
  }
  return fallback;
}
} // namespace gflags
