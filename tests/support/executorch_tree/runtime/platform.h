#pragma once

namespace executorch {
// Says it on stderr when logging is compiled in, with the source file that asks.
void log(const char* file, const char* text);
} // namespace executorch

#define ET_LOG(text) ::executorch::log(__FILE__, text)
