#include "program.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include <dlfcn.h>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/exec_aten/util/dim_order_util.h>
#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>

#include "exit_code.h"
#include "files.h"
#include "runtime_log.h"

#ifdef RUNNER_HAS_QNN
extern "C" void* QnnExecuTorchAllocCustomMem(size_t bytes, size_t alignment);
extern "C" void QnnExecuTorchFreeCustomMem(void* buffer);
#endif

namespace runner {
namespace {

namespace et = executorch::runtime;
using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::extension::MmapDataLoader;

constexpr size_t kAlignment = 64;

std::string because(et::Error error) {
  return std::string(et::to_string(error)) + take_logged_errors();
}

template <typename T>
T* aligned(T* pointer) {
  return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(pointer) + kAlignment - 1) / kAlignment * kAlignment);
}

// Possible reasons why the QNN backend failed to start, as seen from outside.
std::string qnn_remedy(const Signature& signature) {
  const auto& backends = signature.backends;
  if (std::find(backends.begin(), backends.end(), "QnnBackend") == backends.end() ||
      ::dlopen("libQnnHtp.so", RTLD_LAZY | RTLD_LOCAL) != nullptr) {
    return "";
  }
  return "set LD_LIBRARY_PATH to the QNN SDK's library folder for this machine (" + std::string(::dlerror()) + ")";
}

Value value_of(const et::Result<et::Tag>& tag, const et::Result<et::TensorInfo>& info) {
  Value value{tag.get(), ScalarType::Byte, {}, {}, 0};
  if (value.is_tensor()) {
    value.type = info->scalar_type();
    value.shape.assign(info->sizes().begin(), info->sizes().end());
    value.dim_order.assign(info->dim_order().begin(), info->dim_order().end());
    value.bytes = info->nbytes();
  } else if (value.tag == et::Tag::Bool) {
    value.bytes = 1;
  } else if (value.tag == et::Tag::Int || value.tag == et::Tag::Double) {
    value.bytes = 8;
  }
  return value;
}

} // namespace

std::string shown(const Shape& shape) {
  std::string text = "[";
  for (const int32_t size : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

size_t bytes_of(ScalarType type, const Shape& shape) {
  size_t bytes = et::elementSize(type);
  for (const int32_t size : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes)) {
      throw Failure(ExitCode::shape_bad, "a shape of " + shown(shape) + " is too large to be counted in bytes");
    }
  }
  return bytes;
}

std::string Value::type_name() const {
  return is_tensor() ? et::toString(type) : et::tag_to_string(tag);
}

std::string Value::described() const {
  return is_tensor() ? type_name() + shown(shape) : type_name();
}

bool Memory::can_share() {
#ifdef RUNNER_HAS_QNN
  // The backend's allocator crashes without the device's library.
  void* library = ::dlopen("libcdsprpc.so", RTLD_LAZY | RTLD_LOCAL);
  if (library != nullptr) {
    ::dlclose(library);
  }
  return library != nullptr;
#else
  return false;
#endif
}

Memory::Memory(size_t size, bool shared) : size_(size), shared_(shared) {
  if (shared_) {
#ifdef RUNNER_HAS_QNN
    owned_ = QnnExecuTorchAllocCustomMem(size_, kAlignment);
#endif
    data_ = static_cast<uint8_t*>(owned_);
  } else if (size_ <= std::numeric_limits<size_t>::max() - kAlignment) {
    // calloc returns large blocks as untouched pages: planned memory that is never used costs nothing.
    owned_ = std::calloc(1, size_ + kAlignment);
    data_ = aligned(static_cast<uint8_t*>(owned_));
  }
  if (owned_ == nullptr) {
    throw Failure(ExitCode::out_of_memory, "could not get " + std::to_string(size_) + " bytes for tensors");
  }
}

Memory::~Memory() {
  if (!shared_) {
    std::free(owned_);
    return;
  }
#ifdef RUNNER_HAS_QNN
  if (owned_ != nullptr) {
    QnnExecuTorchFreeCustomMem(owned_);
  }
#endif
}

Memory::Memory(Memory&& other) noexcept
    : owned_(std::exchange(other.owned_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_),
      shared_(other.shared_) {}

ProgramFile::ProgramFile(const std::string& path) : path_(path) {
  {
    const MappedFile file(path, "model", ExitCode::model_missing);
    bytes_ = file.size();
    if (bytes_ < et::Program::kMinHeadBytes) {
      throw Failure(
          ExitCode::model_bad,
          "model " + runner::shown(path) + ": expected an ExecuTorch program, found a file of " +
              std::to_string(bytes_) + " bytes");
    }
    const auto status = et::Program::check_header(file.data(), file.size());
    if (status != et::Program::CompatibleVersion) {
      const std::string found(static_cast<const char*>(file.data()) + 4, 4);
      throw Failure(
          ExitCode::model_bad,
          "model " + runner::shown(path) + ": expected an ExecuTorch program (`ET12` at byte 4), found " +
              runner::shown(found),
          status == et::Program::IncompatibleVersion ? "export it again with the executorch of this runner, see --version"
                                                     : "");
    }
  }
  et::Result<MmapDataLoader> loader = MmapDataLoader::from(path_.c_str(), MmapDataLoader::MlockConfig::NoMlock);
  if (!loader.ok()) {
    throw Failure(ExitCode::model_missing, "model " + runner::shown(path) + ": " + because(loader.error()));
  }
  loader_ = std::make_unique<MmapDataLoader>(std::move(loader.get()));
  et::Result<et::Program> program =
      et::Program::load(loader_.get(), et::Program::Verification::InternalConsistency);
  if (!program.ok()) {
    throw Failure(
        ExitCode::model_bad,
        "model " + runner::shown(path) + ": expected a whole program, found a damaged or truncated one: " +
            because(program.error()));
  }
  program_ = std::make_unique<et::Program>(std::move(program.get()));
}

std::string ProgramFile::method_name(size_t index) const {
  const et::Result<const char*> name = program_->get_method_name(index);
  if (name.ok()) {
    return *name;
  }
  std::string known;
  for (size_t i = 0; i < methods(); ++i) {
    known += (i > 0 ? ", " : "") + std::to_string(i) + " " + method_name(i);
  }
  throw Failure(
      ExitCode::method_missing,
      "--method_index: expected one of the program's " + std::to_string(methods()) + " methods (" + known + "), found " +
          std::to_string(index));
}

et::MethodMeta ProgramFile::meta(const std::string& method) const {
  et::Result<et::MethodMeta> meta = program_->method_meta(method.c_str());
  if (!meta.ok()) {
    throw Failure(
        ExitCode::model_bad,
        "model " + runner::shown(path_) + ": method " + method + " cannot be read: " + because(meta.error()));
  }
  return *meta;
}

Signature signature_of(const ProgramFile& file, size_t method_index) {
  Signature signature;
  signature.method = file.method_name(method_index);
  const et::MethodMeta meta = file.meta(signature.method);
  const auto unreadable = [&](const char* what, size_t index) {
    return Failure(
        ExitCode::model_bad,
        "model " + runner::shown(file.path()) + ": " + what + " " + std::to_string(index) + " of method " +
            signature.method + " cannot be read" + take_logged_errors());
  };
  for (size_t i = 0; i < meta.num_inputs(); ++i) {
    const auto tag = meta.input_tag(i);
    const auto info = meta.input_tensor_meta(i);
    if (!tag.ok() || (*tag == et::Tag::Tensor && !info.ok())) {
      throw unreadable("input", i);
    }
    signature.inputs.push_back(value_of(tag, info));
  }
  for (size_t i = 0; i < meta.num_outputs(); ++i) {
    const auto tag = meta.output_tag(i);
    const auto info = meta.output_tensor_meta(i);
    if (!tag.ok() || (*tag == et::Tag::Tensor && !info.ok())) {
      throw unreadable("output", i);
    }
    signature.outputs.push_back(value_of(tag, info));
  }
  for (size_t i = 0; i < meta.num_backends(); ++i) {
    const auto name = meta.get_backend_name(i);
    if (!name.ok()) {
      throw unreadable("backend", i);
    }
    signature.backends.emplace_back(*name);
    if (et::get_backend_class(*name) == nullptr) {
      std::string known;
      for (const std::string& backend : backends_at_hand()) {
        known += (known.empty() ? "" : ", ") + backend;
      }
      throw Failure(
          ExitCode::backend_missing,
          "method " + signature.method + " of model " + runner::shown(file.path()) + " needs the backend " + *name +
              ", this runner has: " + known,
          "run it with a runner built against an ExecuTorch that holds that backend");
    }
  }
  return signature;
}

std::vector<std::string> backends_at_hand() {
  std::vector<std::string> names;
  for (size_t i = 0; i < et::get_num_registered_backends(); ++i) {
    const auto name = et::get_backend_name(i);
    if (name.ok()) {
      names.emplace_back(*name);
    }
  }
  return names;
}

Runnable::Runnable(const ProgramFile& file, const Signature& signature, et::EventTracer* tracer, bool shared_buffer)
    : signature_(signature) {
  const et::MethodMeta meta = file.meta(signature.method);
  for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
    const auto size = meta.memory_planned_buffer_size(i);
    if (!size.ok() || *size < 0) {
      throw Failure(
          ExitCode::model_bad,
          "model " + runner::shown(file.path()) + ": the size of planned buffer " + std::to_string(i) + " cannot be read");
    }
    planned_.emplace_back(static_cast<size_t>(*size), false);
    planned_spans_.emplace_back(planned_.back().data(), planned_.back().size());
  }
  planned_allocator_ = std::make_unique<et::HierarchicalAllocator>(
      et::Span<et::Span<uint8_t>>(planned_spans_.data(), planned_spans_.size()));
  manager_ = std::make_unique<et::MemoryManager>(&method_allocator_, planned_allocator_.get(), &temporary_allocator_);
  take_logged_errors();
  et::Result<et::Method> method = file.program().load_method(signature.method.c_str(), manager_.get(), tracer);
  if (!method.ok()) {
    throw Failure(
        ExitCode::load_failed,
        "method " + signature.method + " of model " + runner::shown(file.path()) + " could not be loaded: " +
            because(method.error()),
        qnn_remedy(signature));
  }
  method_ = std::make_unique<et::Method>(std::move(method.get()));
  for (size_t i = 0; i < signature.outputs.size(); ++i) {
    const et::EValue& output = method_->get_output(i);
    if (!output.isTensor() || output.toTensor().const_data_ptr() != nullptr) {
      continue;
    }
    output_memory_.emplace_back(signature.outputs[i].bytes, shared_buffer);
    const et::Error error =
        method_->set_output_data_ptr(output_memory_.back().data(), output_memory_.back().size(), i);
    if (error != et::Error::Ok) {
      throw Failure(
          ExitCode::load_failed, "output " + std::to_string(i) + " took no memory: " + because(error));
    }
  }
}

void Runnable::set_input(size_t index, void* data, const Shape& shape) {
  const Value& value = signature_.inputs[index];
  et::Error error = et::Error::Ok;
  if (value.is_tensor()) {
    Shape sizes = shape;
    std::vector<uint8_t> dim_order = value.dim_order;
    std::vector<TensorImpl::StridesType> strides(sizes.size());
    et::dim_order_to_stride_nocheck(sizes.data(), dim_order.data(), sizes.size(), strides.data());
    TensorImpl impl(
        value.type, static_cast<ssize_t>(sizes.size()), sizes.data(), data, dim_order.data(), strides.data());
    error = method_->set_input(Tensor(&impl), index);
  } else if (value.tag == et::Tag::Int) {
    int64_t number = 0;
    std::memcpy(&number, data, sizeof number);
    error = method_->set_input(number, index);
  } else if (value.tag == et::Tag::Double) {
    double number = 0;
    std::memcpy(&number, data, sizeof number);
    error = method_->set_input(number, index);
  } else if (value.tag == et::Tag::Bool) {
    error = method_->set_input(*static_cast<const uint8_t*>(data) != 0, index);
  }
  if (error != et::Error::Ok) {
    throw Failure(
        ExitCode::shape_bad,
        "input " + std::to_string(index) + ": method " + signature_.method + " takes " + value.described() +
            " and refused " + shown(shape) + ": " + because(error));
  }
}

void Runnable::execute() {
  take_logged_errors();
  const et::Error error = method_->execute();
  if (error != et::Error::Ok) {
    throw Failure(ExitCode::inference_failed, "method " + signature_.method + " failed: " + because(error));
  }
}

void Runnable::output(size_t index, OutputBytes& into) {
  const et::EValue& value = method_->get_output(index);
  into = {};
  into.data = &into.scalar;
  if (value.isTensor()) {
    const Tensor tensor = value.toTensor();
    into.data = tensor.const_data_ptr();
    into.size = tensor.nbytes();
    into.type = et::toString(tensor.scalar_type());
    into.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
  } else if (value.isInt()) {
    into.scalar = value.toInt();
    into.size = sizeof into.scalar;
    into.type = "Int";
  } else if (value.isDouble()) {
    const double number = value.toDouble();
    std::memcpy(&into.scalar, &number, sizeof number);
    into.size = sizeof number;
    into.type = "Double";
  } else if (value.isBool()) {
    into.scalar = value.toBool() ? 1 : 0;
    into.size = 1;
    into.type = "Bool";
  } else if (value.isNone()) {
    into.type = "None";
  } else {
    throw Failure(
        ExitCode::output_bad,
        "output " + std::to_string(index) + ": expected a tensor or a number, found " + et::tag_to_string(value.tag));
  }
}

} // namespace runner
