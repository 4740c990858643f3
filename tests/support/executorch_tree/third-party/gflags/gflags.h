#pragma once

namespace gflags {
// The value of --name=value or --name value, else the fallback.
const char* value(int argc, char** argv, const char* name, const char* fallback);
} // namespace gflags
