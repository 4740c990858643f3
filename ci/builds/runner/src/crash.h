// Signals and crashes: a half-written file is removed, and a crash prints what the runner was doing.
#pragma once

namespace runner {

// The work that a crash message names. The text must have static lifetime.
extern const char* volatile doing;

void install_signals();

} // namespace runner
