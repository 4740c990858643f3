// qnn_executor_runner: see --help.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>
#include <executorch/runtime/platform/runtime.h>

#include "exit_code.h"
#include "files.h"
#include "flags.h"
#include "input_list.h"
#include "metrics.h"
#include "program.h"
#include "runtime_log.h"
#include "tracer.h"

#ifndef EXECUTORCH_VERSION
#error "EXECUTORCH_VERSION comes from CMakeLists.txt"
#endif

namespace runner {
namespace {

namespace et = executorch::runtime;
using Clock = std::chrono::steady_clock;

// A profile that nobody asked for covers this many runs and then stops growing.
constexpr size_t kUnaskedProfileRuns = 100;

// What a crash message says we were doing.
const char* volatile doing = "starting";

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void write_stderr(const char* text) {
  const ssize_t ignored = ::write(STDERR_FILENO, text, std::strlen(text));
  static_cast<void>(ignored);
}

void on_crash(int signal) {
  abandon_writing();
  write_stderr("qnn_executor_runner: error: the runtime crashed while ");
  write_stderr(doing);
  write_stderr(signal == SIGABRT ? " (it gave up, see its last message)\n" : " (invalid memory access)\n");
  ::_exit(static_cast<int>(ExitCode::crashed));
}

void on_stop(int signal) {
  abandon_writing();
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

void install_signals() {
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    std::signal(signal, on_crash);
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    std::signal(signal, on_stop);
  }
  // A file that would grow past its limit is then an error of write().
  std::signal(SIGXFSZ, SIG_IGN);
}

std::string version() {
  std::string text = "qnn_executor_runner for ExecuTorch " EXECUTORCH_VERSION "\nbackends:";
  for (const std::string& backend : backends_at_hand()) {
    text += " " + backend;
  }
#ifndef RUNNER_HAS_QNN
  text += "\nbuilt without the QNN backend: this ExecuTorch package has none for the target";
#endif
  return text + "\n";
}

void set_qnn_options(const Flags& flags) {
  et::BackendOptions<4> options;
  size_t count = 0;
  const auto set = [&](const char* flag, const auto& key, auto value) {
    if (flags.has(flag)) {
      ++count;
      static_cast<void>(options.set_option(key, value));
    }
  };
  set("log_level", "qnn_runtime_log_level", static_cast<int>(flags.log_level));
  set("htp_performance_mode", "qnn_runtime_htp_performance_mode", static_cast<int>(flags.htp_performance_mode));
  set("profile_level", "qnn_runtime_profile_level", static_cast<int>(flags.profile_level));
  set("heap_profiling_path", "qnn_runtime_heap_profiling_path", flags.heap_profiling_path.c_str());
  if (count == 0) {
    return;
  }
  if (flags.heap_profiling_path.size() >= et::kMaxOptionValueLength) {
    throw Failure(
        ExitCode::usage,
        "--heap_profiling_path: expected fewer than " + std::to_string(et::kMaxOptionValueLength) + " bytes, found " +
            std::to_string(flags.heap_profiling_path.size()));
  }
  const et::Error error = et::set_option("QnnBackend", options.view());
  if (error != et::Error::Ok) {
    throw Failure(
        ExitCode::option_refused,
        std::string("the QNN backend refused the runtime options: ") + et::to_string(error) + take_logged_errors(),
        et::get_backend_class("QnnBackend") == nullptr ? "leave the flags marked QNN out: this runner has no QNN backend"
                                                       : "");
  }
}

struct Inference {
  std::vector<std::string> files;
  std::vector<Shape> shapes;
};

std::vector<Shape> read_shapes(
    const std::string& path,
    const std::string& flag,
    const std::vector<Value>& values,
    size_t inferences) {
  if (path.empty()) {
    return {};
  }
  std::vector<ShapeLine> lines = parse_shapes(read_text(path, flag, ExitCode::shape_bad), path);
  const size_t once = values.size();
  const size_t each = once * inferences;
  while (lines.size() > once && lines.size() != each && lines.back().shape.empty()) {
    lines.pop_back();
  }
  if (lines.size() != once && lines.size() != each) {
    throw Failure(
        ExitCode::shape_bad,
        flag + " " + shown(path) + ": expected " + std::to_string(once) + " shapes, or " + std::to_string(each) +
            " for all " + std::to_string(inferences) + " inferences, found " + std::to_string(lines.size()));
  }
  std::vector<Shape> shapes;
  for (size_t i = 0; i < each; ++i) {
    const ShapeLine& line = lines[i % lines.size()];
    const Value& value = values[i % once];
    const bool fits = value.is_tensor() ? line.shape.size() == value.shape.size() : line.shape.empty();
    bool within = fits;
    for (size_t d = 0; within && d < line.shape.size(); ++d) {
      within = line.shape[d] <= value.shape[d];
    }
    if (!within) {
      throw Failure(
          ExitCode::shape_bad,
          path + ":" + std::to_string(line.number) + ": expected a shape within " + value.described() + ", found " +
              shown(line.shape));
    }
    shapes.push_back(line.shape);
  }
  return shapes;
}

// As `size_of_file`; a name that would be right beside the list gets a hint.
size_t size_of_input(const std::string& file, const std::string& what, const std::string& list) {
  try {
    return size_of_file(file, what, ExitCode::input_missing);
  } catch (const Failure& failure) {
    const std::string beside = list.substr(0, list.find_last_of('/') + 1) + file;
    if (file.front() == '/' || beside == file || ::access(beside.c_str(), R_OK) != 0) {
      throw;
    }
    throw Failure(
        failure.code(), failure.what(), "names are taken from the working folder, and this one is beside the list");
  }
}

// Reads the list and the shapes and looks at every input file: all that can be known before the model runs.
std::vector<Inference> plan(const Flags& flags, const Signature& signature) {
  const size_t inputs = signature.inputs.size();
  std::vector<Inference> inferences;
  const std::string& list = flags.input_list_path;
  if (inputs == 0 && !flags.has("input_list_path")) {
    inferences.emplace_back();
  } else {
    const std::string text = read_text(list, "input list", ExitCode::list_missing);
    for (ListLine& line : parse_input_list(text, list, inputs == 0)) {
      if (line.files.size() != inputs) {
        throw Failure(
            ExitCode::list_bad,
            list + ":" + std::to_string(line.number) + ": expected " + std::to_string(inputs) +
                " files, one for each input of method " + signature.method + ", found " +
                std::to_string(line.files.size()),
            line.files.size() > inputs ? "quote names that have spaces: \"my input.raw\"" : "");
      }
      inferences.push_back({std::move(line.files), {}});
    }
  }
  if (inferences.empty()) {
    throw Failure(ExitCode::list_bad, "input list " + shown(list) + ": expected a line for each inference, found none");
  }
  for (size_t i = 0; i < inputs; ++i) {
    const Value& value = signature.inputs[i];
    if (!value.is_tensor() && value.bytes == 0) {
      throw Failure(
          ExitCode::input_size,
          "input " + std::to_string(i) + ": expected a tensor or a number, the method takes " + value.described());
    }
  }
  const std::vector<Shape> shapes =
      read_shapes(flags.input_shape_path, "--input_shape_path", signature.inputs, inferences.size());
  for (size_t n = 0; n < inferences.size(); ++n) {
    Inference& inference = inferences[n];
    for (size_t i = 0; i < inputs; ++i) {
      const Value& value = signature.inputs[i];
      inference.shapes.push_back(shapes.empty() ? value.shape : shapes[n * inputs + i]);
      const std::string what = "input " + std::to_string(i) + " of inference " + std::to_string(n);
      const size_t found = size_of_input(inference.files[i], what, list);
      const size_t expected = value.is_tensor() ? bytes_of(value.type, inference.shapes[i]) : value.bytes;
      if (found != expected) {
        const std::string type = value.is_tensor() ? value.type_name() + shown(inference.shapes[i]) : value.described();
        throw Failure(
            ExitCode::input_size,
            what + " " + shown(inference.files[i]) + ": expected " + std::to_string(expected) + " bytes for " + type +
                ", found " + std::to_string(found),
            shapes.empty() && found < expected ? "give the shape by --input_shape_path if it is dynamic" : "");
      }
    }
  }
  return inferences;
}

void check_outputs(const Flags& flags) {
  prepare_folder(flags.output_folder_path);
  const auto check = [&](const char* flag, const std::string& path) {
    if (flags.has(flag) && !path.empty()) {
      check_writable(path, std::string("--") + flag);
    }
  };
  check("etdump_path", flags.etdump_path);
  check("performance_output_path", flags.performance_output_path);
  check("metrics_path", flags.metrics_path);
  if (flags.dump_intermediate_outputs) {
    check_writable(flags.debug_output_path, "--debug_output_path");
  }
}

// Files that upstream's runner always writes: a failure matters only when the file was asked for.
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

void run(const Flags& flags, Clock::time_point started) {
  doing = "reading the model";
  const ProgramFile file(flags.model_path);
  const Signature signature = signature_of(file, static_cast<size_t>(flags.method_index));

  doing = "checking the inputs";
  const std::vector<Inference> inferences = plan(flags, signature);
  const std::vector<Shape> output_shapes =
      read_shapes(flags.output_shape_path, "--output_shape_path", signature.outputs, inferences.size());
  check_outputs(flags);
  set_qnn_options(flags);
  bool shared = flags.shared_buffer;
  if (shared && !Memory::can_share()) {
    std::fprintf(
        stderr, "qnn_executor_runner: warning: --shared_buffer: there is no shared memory here, ordinary memory serves\n");
    shared = false;
  }

  Metrics metrics;
  metrics.executorch = EXECUTORCH_VERSION;
  metrics.model = flags.model_path;
  metrics.model_bytes = file.bytes();
  metrics.method = signature.method;
  metrics.backends = signature.backends;

  const bool profiling = !flags.etdump_path.empty();
  const bool profile_asked = flags.has("etdump_path") || flags.dump_intermediate_outputs;
  BoundedTracer tracer(profile_asked ? 0 : kUnaskedProfileRuns);
  BoundedSink sink(static_cast<size_t>(flags.debug_buffer_size));
  if (flags.dump_intermediate_outputs) {
    tracer.set_data_sink(&sink);
    tracer.set_event_tracer_debug_level(et::EventTracerDebugLogLevel::kIntermediateOutputs);
  }

  doing = "loading the method";
  const auto loading = Clock::now();
  Runnable method(file, signature, profiling || flags.dump_intermediate_outputs ? &tracer : nullptr, shared);
  metrics.load_ms = ms_since(loading);

  std::vector<Memory> staging;
  for (size_t i = 0; shared && i < signature.inputs.size(); ++i) {
    staging.emplace_back(signature.inputs[i].bytes, true);
  }
  std::vector<MappedFile> mapped;
  const auto map_inputs = [&](const Inference& inference) {
    mapped.clear();
    for (size_t i = 0; i < inference.files.size(); ++i) {
      mapped.emplace_back(inference.files[i], "input " + std::to_string(i), ExitCode::input_missing);
      const Value& value = signature.inputs[i];
      const size_t expected = value.is_tensor() ? bytes_of(value.type, inference.shapes[i]) : value.bytes;
      if (mapped.back().size() != expected) {
        throw Failure(
            ExitCode::input_size,
            "input " + std::to_string(i) + " " + shown(inference.files[i]) + ": expected " + std::to_string(expected) +
                " bytes, found " + std::to_string(mapped.back().size()) + ": it changed while we ran");
      }
      if (shared) {
        std::memcpy(staging[i].data(), mapped.back().data(), mapped.back().size());
      }
    }
  };
  const auto set_inputs = [&](const Inference& inference) {
    for (size_t i = 0; i < mapped.size(); ++i) {
      method.set_input(i, shared ? staging[i].data() : mapped[i].data(), inference.shapes[i]);
    }
  };
  if (!flags.input_shape_path.empty()) {
    for (const Inference& inference : inferences) {
      map_inputs(inference);
      set_inputs(inference);
    }
  }

  for (size_t n = 0; n < inferences.size(); ++n) {
    doing = "running the method";
    InferenceMetrics measured;
    map_inputs(inferences[n]);
    for (int64_t i = 0; i < flags.warm_up + flags.iteration; ++i) {
      // Each time anew: a method may reuse its inputs' planned memory for other tensors.
      set_inputs(inferences[n]);
      tracer.begin_run();
      const auto begin = Clock::now();
      method.execute();
      (i < flags.warm_up ? measured.warm_up_ms : measured.ms).push_back(ms_since(begin));
    }
    doing = "writing the outputs";
    for (size_t i = 0; i < signature.outputs.size(); ++i) {
      OutputBytes output;
      method.output(i, output);
      const std::string name = "output_" + std::to_string(n) + "_" + std::to_string(i) + ".raw";
      if (!output_shapes.empty() && signature.outputs[i].is_tensor()) {
        const Shape& shape = output_shapes[n * signature.outputs.size() + i];
        const size_t wanted = bytes_of(signature.outputs[i].type, shape);
        if (wanted > output.size) {
          throw Failure(
              ExitCode::output_bad,
              "output " + std::to_string(i) + ": expected " + shown(shape) + " by --output_shape_path, found " +
                  shown(output.shape));
        }
        output.size = wanted;
        output.shape = shape;
      }
      write_whole(flags.output_folder_path + "/" + name, output.data, output.size, "output " + std::to_string(i));
      measured.outputs.push_back({name, output.type, output.shape, output.size});
    }
    if (n == 0) {
      metrics.first_output_ms = ms_since(started);
    }
    metrics.inferences.push_back(std::move(measured));
  }

  doing = "writing the profile";
  if (flags.dump_intermediate_outputs) {
    if (sink.needed() > sink.limit()) {
      throw Failure(
          ExitCode::debug_buffer_small,
          "--debug_buffer_size: expected at least " + std::to_string(sink.needed()) + " bytes, found " +
              std::to_string(sink.limit()),
          "pass --debug_buffer_size " + std::to_string(sink.needed()));
    }
    write_whole(flags.debug_output_path, sink.bytes().data(), sink.bytes().size(), "--debug_output_path");
  }
  if (profiling) {
    const executorch::etdump::ETDumpResult dump = tracer.get_etdump_data();
    const std::unique_ptr<void, decltype(&std::free)> owned(dump.buf, &std::free);
    if (dump.buf != nullptr && dump.size > 0) {
      write_customary(flags, "etdump_path", flags.etdump_path, dump.buf, dump.size);
    }
  }
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
  doing = "unloading the method";
}

int guarded(const std::vector<std::string>& arguments, Clock::time_point started) {
  try {
    const Flags flags = parse_flags(arguments);
    if (flags.help) {
      std::fputs(usage().c_str(), stdout);
      return 0;
    }
    if (flags.version) {
      std::fputs(version().c_str(), stdout);
      return 0;
    }
    run(flags, started);
    return 0;
  } catch (const Failure& failure) {
    std::fprintf(stderr, "qnn_executor_runner: error: %s\n", printable(failure.what()).c_str());
    if (!failure.remedy().empty()) {
      std::fprintf(stderr, "  try: %s\n", printable(failure.remedy()).c_str());
    }
    return static_cast<int>(failure.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "qnn_executor_runner: error: out of memory while %s\n", doing);
    return static_cast<int>(ExitCode::out_of_memory);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "qnn_executor_runner: error: %s while %s\n", error.what(), doing);
    return static_cast<int>(ExitCode::crashed);
  }
}

} // namespace
} // namespace runner

int main(int argc, char** argv) {
  const auto started = std::chrono::steady_clock::now();
  runner::install_signals();
  runner::install_log();
  executorch::runtime::runtime_init();
  return runner::guarded({argv + (argc > 0 ? 1 : 0), argv + argc}, started);
}
