// Reading and writing files: inputs are mapped, outputs are written atomically.
#pragma once

#include <cstddef>
#include <string>

#include "exit_code.h"

namespace runner {

// A regular file in memory, without a copy. Writes to the memory never reach the file.
class MappedFile {
 public:
  // `what` names the file's part in messages: "input 0", "model". Throws Failure(missing).
  MappedFile(const std::string& path, const std::string& what, ExitCode missing);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// The size of a readable regular file. Throws Failure(missing).
size_t size_of_file(const std::string& path, const std::string& what, ExitCode missing);

std::string read_text(const std::string& path, const std::string& what, ExitCode missing);

// Throws Failure(output_unwritable) if files cannot be written there. Creates the last folder if missing.
void prepare_folder(const std::string& path);

// Throws Failure(output_unwritable) if a file of that name could not be written.
void check_writable(const std::string& path, const std::string& what);

// Replaces the file atomically. On Failure(output_unwritable) the old file is unchanged.
void write_whole(const std::string& path, const void* data, size_t size, const std::string& what);

// Removes the file being written, if any. Safe in a signal handler.
void abandon_writing() noexcept;

} // namespace runner
