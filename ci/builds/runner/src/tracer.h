// The profile of a run: ExecuTorch's event tracer with limits.
#pragma once

#include <cstdint>
#include <vector>

#include <executorch/devtools/etdump/data_sinks/data_sink_base.h>
#include <executorch/devtools/etdump/etdump_flatcc.h>

namespace runner {

// Keeps recorded tensors, 64-byte aligned as ExecuTorch's own sink does. Past the limit it only counts,
// so that the message can say how much would have been enough.
class BoundedSink final : public executorch::etdump::DataSinkBase {
 public:
  explicit BoundedSink(size_t limit) : limit_(limit) {}

  executorch::runtime::Result<size_t> write(const void* data, size_t size) override;
  size_t get_used_bytes() const override { return bytes_.size(); }

  size_t needed() const { return needed_; }
  size_t limit() const { return limit_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  const size_t limit_;
  size_t needed_ = 0;
  std::vector<uint8_t> bytes_;
};

// Records events of the first `most` runs (0: of all), so that a profile that nobody requested does
// not grow with the number of inferences.
class BoundedTracer final : public executorch::etdump::ETDumpGen {
 public:
  explicit BoundedTracer(size_t most) : most_(most) {}

  void begin_run() { ++runs_; }

  executorch::runtime::EventTracerEntry start_profiling(
      const char* name,
      executorch::runtime::ChainID chain,
      executorch::runtime::DebugHandle handle) override {
    return full() ? executorch::runtime::EventTracerEntry{} : ETDumpGen::start_profiling(name, chain, handle);
  }
  void end_profiling(executorch::runtime::EventTracerEntry entry) override {
    if (!full()) {
      ETDumpGen::end_profiling(entry);
    }
  }
  executorch::runtime::EventTracerEntry start_profiling_delegate(const char* name, executorch::runtime::DelegateDebugIntId index) override {
    return full() ? executorch::runtime::EventTracerEntry{} : ETDumpGen::start_profiling_delegate(name, index);
  }
  void end_profiling_delegate(executorch::runtime::EventTracerEntry entry, const void* data, size_t size) override {
    if (!full()) {
      ETDumpGen::end_profiling_delegate(entry, data, size);
    }
  }
  void log_profiling_delegate(
      const char* name,
      executorch::runtime::DelegateDebugIntId index,
      et_timestamp_t start,
      et_timestamp_t end,
      const void* data,
      size_t size) override {
    if (!full()) {
      ETDumpGen::log_profiling_delegate(name, index, start, end, data, size);
    }
  }
  void track_allocation(executorch::runtime::AllocatorID id, size_t size) override {
    if (!full()) {
      ETDumpGen::track_allocation(id, size);
    }
  }
  void create_event_block(const char* name) override {
    if (!full()) {
      ETDumpGen::create_event_block(name);
    }
  }

 private:
  bool full() const { return most_ != 0 && runs_ > most_; }

  const size_t most_;
  size_t runs_ = 0;
};

} // namespace runner
