#include "metrics.h"

#include <cstdio>
#include <fstream>
#include <numeric>

#include "exit_code.h"

namespace runner {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const size_t length = utf8_length(text, i);
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += text[i];
    } else if (byte < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      out += escaped;
    } else if (length == 0) {
      out += "\\ufffd";
    } else {
      out.append(text, i, length);
    }
    i += length == 0 ? 1 : length;
  }
  return out + "\"";
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

template <typename Items, typename Show>
std::string array(const Items& items, Show show) {
  std::string out = "[";
  for (const auto& item : items) {
    out += (out.size() > 1 ? ", " : "") + show(item);
  }
  return out + "]";
}

} // namespace

double Metrics::total_ms() const {
  double total = 0;
  for (const InferenceMetrics& inference : inferences) {
    total = std::accumulate(inference.ms.begin(), inference.ms.end(), total);
  }
  return total;
}

size_t Metrics::runs() const {
  size_t count = 0;
  for (const InferenceMetrics& inference : inferences) {
    count += inference.ms.size();
  }
  return count;
}

double Metrics::mean_ms() const {
  return runs() == 0 ? 0 : total_ms() / static_cast<double>(runs());
}

long Metrics::peak_rss_kb() {
  // getrusage would give the peak of the process that started this one if that is higher: exec keeps it.
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == "VmHWM:") {
      long kilobytes = 0;
      status >> kilobytes;
      return kilobytes;
    }
  }
  return 0;
}

std::string Metrics::as_json() const {
  const auto output = [](const OutputMetrics& out) {
    return "{\"file\": " + quoted(out.file) + ", \"type\": " + quoted(out.type) +
        ", \"shape\": " + array(out.shape, [](int32_t size) { return std::to_string(size); }) +
        ", \"bytes\": " + std::to_string(out.bytes) + "}";
  };
  const auto inference = [&](const InferenceMetrics& run) {
    return "\n    {\"warm_up_ms\": " + array(run.warm_up_ms, number) + ", \"ms\": " + array(run.ms, number) + "}";
  };
  std::string set;
  for (const auto& [key, value] : options) {
    set += (set.empty() ? "" : ", ") + quoted(key) + ": " + std::to_string(value);
  }
  return "{\n  \"schema\": 1,\n  \"executorch\": " + quoted(executorch) + ",\n  \"model\": " + quoted(model) +
      ",\n  \"model_bytes\": " + std::to_string(model_bytes) + ",\n  \"method\": " + quoted(method) +
      ",\n  \"backends\": " + array(backends, quoted) + ",\n  \"runtime_options\": {" + set + "},\n  \"load_ms\": " + number(load_ms) +
      ",\n  \"first_output_ms\": " + number(first_output_ms) + ",\n  \"mean_ms\": " + number(mean_ms()) +
      ",\n  \"peak_rss_kb\": " + std::to_string(peak_rss_kb()) + ",\n  \"outputs\": " + array(outputs, output) + ",\n  \"inferences\": " +
      array(inferences, inference) + "\n}\n";
}

} // namespace runner
