#include "tracer.h"

namespace runner {

executorch::runtime::Result<size_t> BoundedSink::write(const void* data, size_t size) {
  constexpr size_t alignment = 64;
  const size_t offset = (needed_ + alignment - 1) / alignment * alignment;
  needed_ = offset + size;
  if (needed_ <= limit_) {
    const auto* begin = static_cast<const uint8_t*>(data);
    bytes_.resize(offset);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }
  return offset;
}

} // namespace runner
