#include "session.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>

#include "crash.h"
#include "exit_code.h"
#include "files.h"
#include "metrics.h"
#include "plan.h"
#include "program.h"
#include "runtime_log.h"
#include "tracer.h"

namespace runner {
namespace {

namespace et = executorch::runtime;
using Clock = std::chrono::steady_clock;

// A profile that nobody requested covers this many runs and then stops growing.
constexpr size_t kUnaskedProfileRuns = 100;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct IntegerOption {
  const char* flag;
  const char* key;
  int64_t Flags::*member;
};

constexpr IntegerOption kIntegerOptions[] = {
    {"log_level", "qnn_runtime_log_level", &Flags::log_level},
    {"htp_performance_mode", "qnn_runtime_htp_performance_mode", &Flags::htp_performance_mode},
    {"profile_level", "qnn_runtime_profile_level", &Flags::profile_level},
    {"lpai_fps", "qnn_runtime_lpai_fps", &Flags::lpai_fps},
    {"lpai_ftrt_ratio", "qnn_runtime_lpai_ftrt_ratio", &Flags::lpai_ftrt_ratio},
    {"lpai_client_perf_type", "qnn_runtime_lpai_client_perf_type", &Flags::lpai_client_perf_type},
    {"lpai_affinity", "qnn_runtime_lpai_affinity", &Flags::lpai_affinity},
    {"lpai_core_selection", "qnn_runtime_lpai_core_selection", &Flags::lpai_core_selection},
};
constexpr const char* kHeapProfiling = "heap_profiling_path";

// Returns the integer options that were set, by key.
std::map<std::string, int64_t> set_qnn_options(const Flags& flags) {
  std::vector<et::BackendOption> options;
  std::map<std::string, int64_t> set;
  const auto add = [&](const char* key, et::OptionValue value) {
    et::BackendOption& option = options.emplace_back();
    std::strncpy(option.key, key, sizeof option.key - 1);
    option.value = value;
  };
  for (const IntegerOption& option : kIntegerOptions) {
    if (flags.has(option.flag)) {
      const int64_t value = flags.*(option.member);
      add(option.key, static_cast<int>(value));
      set[option.key] = value;
    }
  }
  if (flags.has(kHeapProfiling)) {
    std::array<char, et::kMaxOptionValueLength> path{};
    if (flags.heap_profiling_path.size() >= path.size()) {
      throw Failure(
          ExitCode::usage,
          "--heap_profiling_path: expected fewer than " + std::to_string(path.size()) + " bytes, found " +
              std::to_string(flags.heap_profiling_path.size()));
    }
    flags.heap_profiling_path.copy(path.data(), path.size() - 1);
    add("qnn_runtime_heap_profiling_path", path);
  }
  if (options.empty()) {
    return set;
  }
  const et::Error error = et::set_option("QnnBackend", et::Span<et::BackendOption>(options.data(), options.size()));
  if (error != et::Error::Ok) {
    throw Failure(
        ExitCode::option_refused,
        std::string("the QNN backend refused the runtime options: ") + et::to_string(error) + take_logged_errors(),
        et::get_backend_class("QnnBackend") == nullptr ? "leave the flags marked QNN out: this runner has no QNN backend"
                                                       : "");
  }
  return set;
}

bool shares_memory(const Flags& flags) {
  if (flags.shared_buffer && !Memory::can_share()) {
    std::fprintf(
        stderr,
        "qnn_executor_runner: warning: --shared_buffer: there is no shared memory here, ordinary memory serves\n");
    return false;
  }
  return flags.shared_buffer;
}

// The inputs of one inference at a time.
class Inputs {
 public:
  Inputs(const Signature& signature, bool shared) : signature_(signature) {
    for (size_t i = 0; shared && i < signature.inputs.size(); ++i) {
      staging_.emplace_back(signature.inputs[i].bytes, true);
    }
  }

  void take(const Inference& inference) {
    mapped_.clear();
    for (size_t i = 0; i < inference.files.size(); ++i) {
      mapped_.emplace_back(inference.files[i], "input " + std::to_string(i), ExitCode::input_missing);
      const MappedFile& file = mapped_.back();
      const size_t expected = bytes_of_input(signature_.inputs[i], inference.shape_of(i, signature_));
      if (file.size() != expected) {
        throw Failure(
            ExitCode::input_size,
            "input " + std::to_string(i) + " " + shown(inference.files[i]) + ": expected " +
                std::to_string(expected) + " bytes, found " + std::to_string(file.size()) +
                ": it changed while we ran");
      }
      if (!staging_.empty() && file.size() > 0) {
        std::memcpy(staging_[i].data(), file.data(), file.size());
      }
    }
  }

  void give(Runnable& method, const Inference& inference) const {
    for (size_t i = 0; i < mapped_.size(); ++i) {
      void* data = staging_.empty() ? mapped_[i].data() : staging_[i].data();
      method.set_input(i, data, inference.shape_of(i, signature_));
    }
  }

 private:
  const Signature& signature_;
  std::vector<Memory> staging_;
  std::vector<MappedFile> mapped_;
};

InferenceMetrics infer(
    const Flags& flags,
    Runnable& method,
    Inputs& inputs,
    const Inference& inference,
    BoundedTracer& tracer) {
  InferenceMetrics measured;
  inputs.take(inference);
  for (int64_t i = 0; i < flags.warm_up + flags.iteration; ++i) {
    // Before each run: a method may reuse its inputs' planned memory for other tensors.
    inputs.give(method, inference);
    tracer.begin_run();
    const auto begin = Clock::now();
    method.execute();
    (i < flags.warm_up ? measured.warm_up_ms : measured.ms).push_back(ms_since(begin));
  }
  return measured;
}

OutputMetrics write_output(
    const Flags& flags,
    const Value& value,
    Runnable& method,
    size_t inference,
    size_t index,
    const Shape* wanted) {
  OutputBytes output;
  method.output(index, output);
  if (wanted != nullptr && value.is_tensor()) {
    const size_t bytes = bytes_of(value.type, *wanted);
    if (bytes > output.size) {
      throw Failure(
          ExitCode::output_bad,
          "output " + std::to_string(index) + ": expected " + shown(*wanted) + " by --output_shape_path, found " +
              shown(output.shape));
    }
    output.size = bytes;
    output.shape = *wanted;
  }
  const std::string name = "output_" + std::to_string(inference) + "_" + std::to_string(index) + ".raw";
  write_whole(flags.output_folder_path + "/" + name, output.data, output.size, "output " + std::to_string(index));
  return {name, output.type, output.shape, output.size};
}

// Files that ExecuTorch's runner always writes: failing to write one is an error only if it was requested.
void write_customary(const Flags& flags, const char* flag, const std::string& path, const void* data, size_t size) {
  try {
    write_whole(path, data, size, std::string("--") + flag);
  } catch (const Failure& failure) {
    if (flags.has(flag)) {
      throw;
    }
    std::fprintf(stderr, "qnn_executor_runner: warning: %s\n", printable(failure.what()).c_str());
  }
}

void write_recorded(const Flags& flags, const BoundedSink& sink) {
  if (sink.needed() > sink.limit()) {
    throw Failure(
        ExitCode::debug_buffer_small,
        "--debug_buffer_size: expected at least " + std::to_string(sink.needed()) + " bytes, found " +
            std::to_string(sink.limit()),
        "pass --debug_buffer_size " + std::to_string(sink.needed()));
  }
  write_whole(flags.debug_output_path, sink.bytes().data(), sink.bytes().size(), "--debug_output_path");
}

void write_profile(const Flags& flags, BoundedTracer& tracer) {
  const executorch::etdump::ETDumpResult dump = tracer.get_etdump_data();
  const std::unique_ptr<void, decltype(&std::free)> owned(dump.buf, &std::free);
  if (dump.buf != nullptr && dump.size > 0) {
    write_customary(flags, "etdump_path", flags.etdump_path, dump.buf, dump.size);
  }
}

void write_measured(const Flags& flags, const Metrics& metrics) {
  if (!flags.performance_output_path.empty()) {
    char mean[32];
    const int length = std::snprintf(mean, sizeof mean, "%.6g", metrics.mean_ms());
    write_customary(
        flags, "performance_output_path", flags.performance_output_path, mean, static_cast<size_t>(length));
  }
  if (!flags.metrics_path.empty()) {
    const std::string json = metrics.as_json();
    write_whole(flags.metrics_path, json.data(), json.size(), "--metrics_path");
  }
  std::fprintf(
      stderr,
      "qnn_executor_runner: %zu runs of %zu inferences took %.3f ms, mean %.3f ms; loading took %.3f ms\n",
      metrics.runs(),
      metrics.inferences.size(),
      metrics.total_ms(),
      metrics.mean_ms(),
      metrics.load_ms);
}

} // namespace

void run_session(const Flags& flags, Clock::time_point started) {
  doing = "reading the model";
  const ProgramFile file(flags.model_path);
  const Signature signature = signature_of(file, static_cast<size_t>(flags.method_index));

  doing = "checking the inputs";
  const Plan plan = make_plan(flags, signature);
  const std::map<std::string, int64_t> options = set_qnn_options(flags);
  const bool shared = shares_memory(flags);

  const bool profiling = !flags.etdump_path.empty();
  const bool profile_asked = flags.has("etdump_path") || flags.dump_intermediate_outputs;
  BoundedTracer tracer(profile_asked ? 0 : kUnaskedProfileRuns);
  BoundedSink sink(static_cast<size_t>(flags.debug_buffer_size));
  if (flags.dump_intermediate_outputs) {
    tracer.set_data_sink(&sink);
    tracer.set_event_tracer_debug_level(et::EventTracerDebugLogLevel::kIntermediateOutputs);
  }

  Metrics metrics;
  metrics.executorch = EXECUTORCH_VERSION;
  metrics.model = flags.model_path;
  metrics.model_bytes = file.bytes();
  metrics.method = signature.method;
  metrics.backends = signature.backends;
  metrics.options = options;

  doing = "loading the method";
  const auto loading = Clock::now();
  Runnable method(file, signature, profiling || flags.dump_intermediate_outputs ? &tracer : nullptr, shared);
  metrics.load_ms = ms_since(loading);

  Inputs inputs(signature, shared);
  if (!flags.input_shape_path.empty()) {
    // Only the method knows which of its sizes may change: all are tried before the first run.
    for (const Inference& inference : plan.inferences) {
      inputs.take(inference);
      inputs.give(method, inference);
    }
  }
  const size_t outputs = signature.outputs.size();
  metrics.outputs.resize(outputs);
  for (size_t n = 0; n < plan.inferences.size(); ++n) {
    doing = "running the method";
    InferenceMetrics measured = infer(flags, method, inputs, plan.inferences[n], tracer);
    doing = "writing the outputs";
    for (size_t i = 0; i < outputs; ++i) {
      const Shape* wanted = plan.output_shapes.empty() ? nullptr : &plan.output_shapes[n * outputs + i];
      metrics.outputs[i] = write_output(flags, signature.outputs[i], method, n, i, wanted);
    }
    if (n == 0) {
      metrics.first_output_ms = ms_since(started);
    }
    metrics.inferences.push_back(std::move(measured));
  }

  doing = "writing the profile";
  if (flags.dump_intermediate_outputs) {
    write_recorded(flags, sink);
  }
  if (profiling) {
    write_profile(flags, tracer);
  }
  write_measured(flags, metrics);
  doing = "unloading the method";
}

} // namespace runner
