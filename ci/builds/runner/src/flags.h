// The command line: the flags of ExecuTorch's runner in every spelling that it takes, and ours.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace runner {

struct Flags {
  std::string model_path = "model.pte";
  std::string output_folder_path = "outputs";
  std::string input_list_path = "input_list.txt";
  int64_t iteration = 1;
  int64_t warm_up = 0;
  bool shared_buffer = false;
  int64_t method_index = 0;
  std::string etdump_path = "etdump.etdp";
  bool dump_intermediate_outputs = false;
  std::string debug_output_path = "debug_output.bin";
  int64_t debug_buffer_size = 20000000;
  std::string input_shape_path;
  std::string output_shape_path;
  std::string performance_output_path = "inference_speed.txt";
  int64_t log_level = 0;
  int64_t htp_performance_mode = 0;
  int64_t profile_level = 0;
  std::string heap_profiling_path;
  // Defaults of ExecuTorch's generate_lpai_compiler_spec.
  int64_t lpai_fps = 1;
  int64_t lpai_ftrt_ratio = 10;
  int64_t lpai_client_perf_type = 1;
  int64_t lpai_affinity = 1;
  int64_t lpai_core_selection = 0;
  std::string metrics_path;
  bool help = false;
  bool version = false;

  // Names of the flags that were on the command line.
  std::set<std::string> given;

  bool has(const std::string& name) const { return given.count(name) != 0; }
};

// Throws Failure(ExitCode::usage) with the offending argument. `arguments` is without the program's name.
Flags parse_flags(const std::vector<std::string>& arguments);

// The text of --help.
std::string usage();

} // namespace runner
