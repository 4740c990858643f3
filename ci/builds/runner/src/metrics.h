// The values that --metrics_path and --performance_output_path write, and their formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace runner {

struct OutputMetrics {
  std::string file;
  std::string type;
  std::vector<int32_t> shape;
  size_t bytes = 0;
};

struct InferenceMetrics {
  std::vector<double> warm_up_ms;
  std::vector<double> ms;
};

struct Metrics {
  std::string executorch;
  std::string model;
  size_t model_bytes = 0;
  std::string method;
  std::vector<std::string> backends;
  // Runtime options that the command line set, by the backend's key.
  std::map<std::string, int64_t> options;
  double load_ms = 0;
  // From the start of main until all outputs of the first inference were written.
  double first_output_ms = 0;
  std::vector<InferenceMetrics> inferences;
  // Of the last inference.
  std::vector<OutputMetrics> outputs;

  double total_ms() const;
  double mean_ms() const;
  size_t runs() const;
  // Highest resident memory of this program so far.
  static long peak_rss_kb();
  std::string as_json() const;
};

} // namespace runner
