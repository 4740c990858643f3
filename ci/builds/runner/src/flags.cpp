#include "flags.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <sstream>
#include <variant>

#include "exit_code.h"

namespace runner {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

struct Whole {
  int64_t Flags::*member;
  int64_t least;
  int64_t most;
};

using Member = std::variant<std::string Flags::*, bool Flags::*, Whole>;

struct Flag {
  const char* name;
  Member member;
  const char* help;
};

const std::vector<Flag>& table() {
  static const std::vector<Flag> flags = {
      {"model_path", &Flags::model_path, "the program, a .pte file"},
      {"input_list_path", &Flags::input_list_path,
       "one inference a line: raw files separated by spaces, \"quoted\" where a name has spaces"},
      {"output_folder_path", &Flags::output_folder_path,
       "where output_<inference>_<index>.raw are written; made when missing"},
      {"method_index", Whole{&Flags::method_index, 0, kInt32Max}, "which method of the program to run"},
      {"iteration", Whole{&Flags::iteration, 1, kInt32Max}, "times that each inference is run and timed"},
      {"warm_up", Whole{&Flags::warm_up, 0, kInt32Max}, "untimed runs before each inference"},
      {"input_shape_path", &Flags::input_shape_path,
       "a shape a line, `1, 3, 8`: one for each input, once or for every inference"},
      {"output_shape_path", &Flags::output_shape_path, "the same for outputs: how much of each to write"},
      {"shared_buffer", &Flags::shared_buffer, "take inputs' and outputs' memory from the QNN backend"},
      {"etdump_path", &Flags::etdump_path, "where the profile is written; empty: nowhere"},
      {"dump_intermediate_outputs", &Flags::dump_intermediate_outputs,
       "record every operator's output in the profile"},
      {"debug_output_path", &Flags::debug_output_path, "where the recorded outputs are written"},
      {"debug_buffer_size", Whole{&Flags::debug_buffer_size, 1, std::numeric_limits<int64_t>::max()},
       "most bytes of recorded outputs"},
      {"performance_output_path", &Flags::performance_output_path,
       "where the mean time of an inference is written, in ms; empty: nowhere"},
      {"log_level", Whole{&Flags::log_level, 0, 5}, "QNN: override the log level, 1 (errors) to 5 (debug)"},
      {"htp_performance_mode", Whole{&Flags::htp_performance_mode, 0, 8}, "QNN: override the HTP performance mode"},
      {"profile_level", Whole{&Flags::profile_level, 0, 2}, "QNN: override the profile level"},
      {"heap_profiling_path", &Flags::heap_profiling_path, "QNN: where the DSP's heap use is written, on a device"},
      {"lpai_fps", Whole{&Flags::lpai_fps, 1, kInt32Max}, "LPAI: override the inferences a second to be reached"},
      {"lpai_ftrt_ratio", Whole{&Flags::lpai_ftrt_ratio, 1, kInt32Max},
       "LPAI: override the clock, in tenths: 50 is five times the base frequency"},
      {"lpai_client_perf_type", Whole{&Flags::lpai_client_perf_type, 1, 2},
       "LPAI: 1 real time (loading fails where it cannot be reached), 2 as well as it goes"},
      {"lpai_affinity", Whole{&Flags::lpai_affinity, 1, 2},
       "LPAI: the cores of --lpai_core_selection are 1 preferred, 2 the only ones"},
      {"lpai_core_selection", Whole{&Flags::lpai_core_selection, 0, kInt32Max},
       "LPAI: a bit for each core, 0x3 is cores 0 and 1; 0 is any"},
      {"metrics_path", &Flags::metrics_path, "where times, sizes and peak memory are written, as JSON"},
      {"version", &Flags::version, "show versions and the backends at hand"},
      {"help", &Flags::help, "show this"},
  };
  return flags;
}

const Flag* find(const std::string& name) {
  for (const Flag& flag : table()) {
    if (name == flag.name) {
      return &flag;
    }
  }
  return nullptr;
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

[[noreturn]] void unknown(const std::string& argument, const std::string& name) {
  std::string remedy = "--help lists the flags";
  if (name.size() < 64) {
    const Flag* best = nullptr;
    size_t nearest = name.size() / 3 + 2;
    for (const Flag& flag : table()) {
      const size_t distance = edit_distance(name, flag.name);
      if (distance < nearest) {
        nearest = distance;
        best = &flag;
      }
    }
    if (best != nullptr) {
      remedy = "did you mean --" + std::string(best->name) + "?";
    }
  }
  throw Failure(ExitCode::usage, "unknown flag " + shown(argument), remedy);
}

bool truth(const std::string& name, std::string value) {
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* yes : {"1", "t", "true", "y", "yes"}) {
    if (value == yes) {
      return true;
    }
  }
  for (const char* no : {"0", "f", "false", "n", "no"}) {
    if (value == no) {
      return false;
    }
  }
  throw Failure(ExitCode::usage, "--" + name + ": expected true or false, found " + shown(value));
}

int64_t whole(const std::string& name, const Whole& range, const std::string& value) {
  const bool hexadecimal = value.rfind("0x", 0) == 0 || value.rfind("0X", 0) == 0;
  errno = 0;
  char* end = nullptr;
  const long long number = std::strtoll(value.c_str(), &end, hexadecimal ? 16 : 10);
  const bool starts_well = !value.empty() && (value[0] == '-' || std::isdigit(static_cast<unsigned char>(value[0])));
  const bool is_number = starts_well && end == value.c_str() + value.size();
  if (!is_number || errno == ERANGE || number < range.least || number > range.most) {
    throw Failure(
        ExitCode::usage,
        "--" + name + ": expected a whole number from " + std::to_string(range.least) + " to " +
            std::to_string(range.most) + ", found " + shown(value));
  }
  return number;
}

struct Assign {
  Flags& flags;
  const std::string& name;
  const std::string& value;

  void operator()(std::string Flags::*member) const {
    if (value.find('\0') != std::string::npos) {
      throw Failure(ExitCode::usage, "--" + name + ": expected a name without NUL, found " + shown(value));
    }
    flags.*member = value;
  }
  void operator()(bool Flags::*member) const { flags.*member = truth(name, value); }
  void operator()(const Whole& range) const { flags.*(range.member) = whole(name, range, value); }
};

} // namespace

Flags parse_flags(const std::vector<std::string>& arguments) {
  Flags flags;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "-h" || argument == "--helpfull") {
      flags.help = true;
      continue;
    }
    if (argument.size() < 2 || argument[0] != '-' || argument == "--") {
      throw Failure(
          ExitCode::usage,
          "unexpected argument " + shown(argument) + ": everything is given by flags",
          "--help lists the flags");
    }
    const size_t dashes = argument[1] == '-' ? 2 : 1;
    const size_t equals = argument.find('=');
    const bool has_value = equals != std::string::npos;
    std::string name = argument.substr(dashes, has_value ? equals - dashes : std::string::npos);
    std::replace(name.begin(), name.end(), '-', '_');
    std::string value = has_value ? argument.substr(equals + 1) : "";

    const Flag* flag = find(name);
    if (flag == nullptr && name.rfind("no", 0) == 0) {
      const Flag* negated = find(name.substr(2));
      if (negated != nullptr && std::holds_alternative<bool Flags::*>(negated->member)) {
        if (has_value) {
          throw Failure(ExitCode::usage, "--" + name + ": expected no value, found " + shown(value));
        }
        flag = negated;
        name = negated->name;
        value = "false";
      }
    } else if (flag != nullptr && !has_value) {
      if (std::holds_alternative<bool Flags::*>(flag->member)) {
        value = "true";
      } else if (++i < arguments.size()) {
        value = arguments[i];
      } else {
        throw Failure(ExitCode::usage, "--" + name + ": expected a value, found the end of the command line");
      }
    }
    if (flag == nullptr) {
      unknown(argument, name);
    }
    std::visit(Assign{flags, name, value}, flag->member);
    flags.given.insert(name);
  }
  return flags;
}

std::string usage() {
  const Flags defaults;
  std::ostringstream text;
  text << "usage: qnn_executor_runner --model_path MODEL.pte --input_list_path LIST [flags]\n"
          "\n"
          "Runs an ExecuTorch program on raw inputs and writes its outputs.\n"
          "A value follows its flag after `=` or a space; one dash does for two;\n"
          "a switch takes --flag, --noflag or --flag=true.\n"
          "\nflags:\n";
  for (const Flag& flag : table()) {
    text << "  --" << flag.name << "\n      " << flag.help;
    if (const auto* member = std::get_if<std::string Flags::*>(&flag.member)) {
      if (!(defaults.*(*member)).empty()) {
        text << " [" << defaults.*(*member) << "]";
      }
    } else if (const auto* number = std::get_if<Whole>(&flag.member)) {
      text << " [" << defaults.*(number->member) << "]";
    }
    text << "\n";
  }
  text << "\nexamples:\n"
          "  qnn_executor_runner --model_path model.pte --input_list_path input_list.txt --output_folder_path outputs\n"
          "  qnn_executor_runner --model_path=model.pte --iteration 100 --warm_up 5 --metrics_path metrics.json\n"
          "  qnn_executor_runner --model_path model.pte --dump_intermediate_outputs --etdump_path etdump.etdp\n"
          "\nexit codes:\n";
  for (const ExitCodeMeaning& entry : exit_codes()) {
    const std::string number = std::to_string(static_cast<int>(entry.code));
    text << "  " << std::string(2 - std::min<size_t>(2, number.size()), ' ') << number << "  " << entry.meaning << "\n";
  }
  return text.str();
}

} // namespace runner
