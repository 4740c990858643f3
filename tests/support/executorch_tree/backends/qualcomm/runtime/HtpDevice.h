#pragma once

namespace executorch {
namespace qnn {
// 0, or the number of the QNN error that the device would give.
int find_skel(int arch);
} // namespace qnn
} // namespace executorch
