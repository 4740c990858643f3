// Stops and crashes: no part of a file is left behind, and a crash says what we were doing.
#pragma once

namespace runner {

// What a crash message says we were doing. Text that lives for ever.
extern const char* volatile doing;

void install_signals();

} // namespace runner
