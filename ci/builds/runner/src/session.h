// One run of the runner, from reading the model to writing the last file.
#pragma once

#include <chrono>

#include "flags.h"

namespace runner {

// Throws Failure. `started`: when the process began, for the time to the first output.
void run_session(const Flags& flags, std::chrono::steady_clock::time_point started);

} // namespace runner
