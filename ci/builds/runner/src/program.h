// A program and one of its methods: inputs, outputs, memory and execution.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <executorch/extension/data_loader/mmap_data_loader.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>

#include "input_list.h"

namespace runner {

// An input or output of a method.
struct Value {
  executorch::runtime::Tag tag;
  executorch::aten::ScalarType type;
  // Upper bounds where the shape is dynamic.
  Shape shape;
  std::vector<uint8_t> dim_order;
  size_t bytes = 0;

  bool is_tensor() const { return tag == executorch::runtime::Tag::Tensor; }
  std::string type_name() const;
  // `float32[1, 3, 8]`
  std::string described() const;
};

std::string shown(const Shape& shape);

// Bytes of a tensor of that type and shape; throws Failure(shape_bad) if the number overflows.
size_t bytes_of(executorch::aten::ScalarType type, const Shape& shape);

// Zeroed, aligned memory for tensors: from the heap or, shared with the device, from the QNN backend.
class Memory {
 public:
  Memory(size_t size, bool shared);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Memory& operator=(Memory&&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Whether this runner and this machine can share memory with the device.
  static bool can_share();

 private:
  void* owned_ = nullptr;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  bool shared_ = false;
};

// A program file, parsed but not loaded: no code of a backend has run yet.
class ProgramFile {
 public:
  explicit ProgramFile(const std::string& path);

  const std::string& path() const { return path_; }
  size_t bytes() const { return bytes_; }
  size_t methods() const { return program_->num_methods(); }
  std::string method_name(size_t index) const;
  const executorch::runtime::Program& program() const { return *program_; }
  executorch::runtime::MethodMeta meta(const std::string& method) const;

 private:
  std::string path_;
  size_t bytes_ = 0;
  std::unique_ptr<executorch::extension::MmapDataLoader> loader_;
  std::unique_ptr<executorch::runtime::Program> program_;
};

struct Signature {
  std::string method;
  std::vector<Value> inputs;
  std::vector<Value> outputs;
  std::vector<std::string> backends;
};

// Throws Failure(backend_missing) if this runner lacks one of the method's backends.
Signature signature_of(const ProgramFile& file, size_t method_index);

// The names of the backends that are linked in.
std::vector<std::string> backends_at_hand();

// The bytes of one output; a tensor's are the method's own memory.
struct OutputBytes {
  const void* data = nullptr;
  size_t size = 0;
  std::string type;
  Shape shape;
  // Holds what `data` points to when the output is a number.
  int64_t scalar = 0;
};

// A loaded method, ready to run.
class Runnable {
 public:
  Runnable(
      const ProgramFile& file,
      const Signature& signature,
      executorch::runtime::EventTracer* tracer,
      bool shared_buffer);

  // `data` holds the input's bytes and must outlive the next `execute`: where the method has planned no
  // memory for the input, it works on these very bytes. Throws Failure(shape_bad) when the shape does not fit.
  void set_input(size_t index, void* data, const Shape& shape);

  // Throws Failure(inference_failed).
  void execute();

  void output(size_t index, OutputBytes& into);

 private:
  const Signature& signature_;
  executorch::extension::MallocMemoryAllocator method_allocator_;
  executorch::extension::MallocMemoryAllocator temporary_allocator_;
  std::vector<Memory> planned_;
  std::vector<executorch::runtime::Span<uint8_t>> planned_spans_;
  std::unique_ptr<executorch::runtime::HierarchicalAllocator> planned_allocator_;
  std::unique_ptr<executorch::runtime::MemoryManager> manager_;
  std::vector<Memory> output_memory_;
  std::unique_ptr<executorch::runtime::Method> method_;
};

} // namespace runner
