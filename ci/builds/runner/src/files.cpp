#include "files.h"

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace runner {
namespace {

// The name of the file being written, for the signal handler; empty when there is none.
char being_written[PATH_MAX];

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor& operator=(Descriptor&&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

std::string reason(int error) {
  return std::strerror(error);
}

struct Opened {
  Descriptor descriptor;
  size_t size;
};

Opened open_regular(const std::string& path, const std::string& what, ExitCode missing) {
  const auto fail = [&](const std::string& why) { return Failure(missing, what + " " + shown(path) + ": " + why); };
  // Without O_NONBLOCK opening a pipe of that name would block forever.
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (descriptor.get() < 0 || ::fstat(descriptor.get(), &status) != 0) {
    throw fail(reason(errno));
  }
  if (S_ISDIR(status.st_mode)) {
    throw fail("expected a file, found a folder");
  }
  if (!S_ISREG(status.st_mode)) {
    throw fail("expected a regular file, found a pipe or device");
  }
  return {std::move(descriptor), static_cast<size_t>(status.st_size)};
}

std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) {
    return ".";
  }
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string part_name(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  return folder + "." + name + "." + std::to_string(::getpid()) + ".part";
}

Failure unwritable(const std::string& what, const std::string& path, const std::string& why) {
  return {ExitCode::output_unwritable, what + " " + shown(path) + ": " + why};
}

} // namespace

MappedFile::MappedFile(const std::string& path, const std::string& what, ExitCode missing) {
  const Opened file = open_regular(path, what, missing);
  size_ = file.size;
  if (size_ == 0) {
    return;
  }
  // Private and writable: a method may change its inputs in place.
  void* memory = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.descriptor.get(), 0);
  if (memory == MAP_FAILED) {
    throw Failure(missing, what + " " + shown(path) + ": " + reason(errno));
  }
  data_ = memory;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(data_, size_);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

size_t size_of_file(const std::string& path, const std::string& what, ExitCode missing) {
  return open_regular(path, what, missing).size;
}

std::string read_text(const std::string& path, const std::string& what, ExitCode missing) {
  const MappedFile file(path, what, missing);
  return {static_cast<const char*>(file.data()), file.size()};
}

void prepare_folder(const std::string& path) {
  const std::string what = "output folder";
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno != ENOENT || ::mkdir(path.c_str(), 0777) != 0) {
      throw unwritable(what, path, reason(errno));
    }
  } else if (!S_ISDIR(status.st_mode)) {
    throw unwritable(what, path, "expected a folder, found a file");
  }
  if (::access(path.c_str(), W_OK | X_OK) != 0) {
    throw unwritable(what, path, reason(errno));
  }
}

void check_writable(const std::string& path, const std::string& what) {
  struct stat status {};
  if (path.empty()) {
    throw unwritable(what, path, "expected a file name, found an empty one");
  }
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    throw unwritable(what, path, "expected a file, found a folder");
  }
  if (::access(parent_of(path).c_str(), W_OK | X_OK) != 0) {
    throw unwritable(what, path, "its folder: " + reason(errno));
  }
}

void write_whole(const std::string& path, const void* data, size_t size, const std::string& what) {
  const std::string part = part_name(path);
  if (part.size() >= sizeof being_written) {
    throw unwritable(what, path, reason(ENAMETOOLONG));
  }
  // Set before the file exists, and the first byte last: a signal may arrive between any two steps.
  std::memcpy(being_written + 1, part.c_str() + 1, part.size());
  std::atomic_signal_fence(std::memory_order_seq_cst);
  being_written[0] = part[0];
  Descriptor descriptor(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  int error = descriptor.get() < 0 ? errno : 0;
  const auto* bytes = static_cast<const char*>(data);
  while (error == 0 && size > 0) {
    const ssize_t written = ::write(descriptor.get(), bytes, size);
    if (written > 0) {
      bytes += written;
      size -= static_cast<size_t>(written);
    } else if (written == 0 || errno != EINTR) {
      error = written == 0 ? ENOSPC : errno;
    }
  }
  // Some file systems report a full disk only here.
  if (descriptor.get() >= 0 && ::close(descriptor.release()) != 0 && error == 0) {
    error = errno;
  }
  if (error == 0 && ::rename(part.c_str(), path.c_str()) != 0) {
    error = errno;
  }
  if (error != 0) {
    ::unlink(part.c_str());
  }
  being_written[0] = '\0';
  if (error != 0) {
    throw unwritable(what, path, reason(error));
  }
}

void abandon_writing() noexcept {
  if (being_written[0] != '\0') {
    ::unlink(being_written);
  }
}

} // namespace runner
