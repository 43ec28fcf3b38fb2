#include <annulus/io/json_lines.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <cerrno>
#include <fstream>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/io/atomic.hpp>

#include "descriptor.hpp"
#include "system_error.hpp"

namespace annulus::io {

namespace {

/// Cuts the file behind its last line end; returns the length that is left.
off_t cut_torn_line(int descriptor, off_t size) {
  char buffer[4096];
  while (size > 0) {
    const off_t begin = size > off_t{sizeof buffer} ? size - off_t{sizeof buffer} : 0;
    const ssize_t count = ::pread(descriptor, buffer, static_cast<std::size_t>(size - begin), begin);
    if (count != size - begin) return -1;
    for (off_t i = count; i > 0; --i) {
      if (buffer[i - 1] == '\n') return ::ftruncate(descriptor, begin + i) == 0 ? begin + i : -1;
    }
    size = begin;
  }
  return ::ftruncate(descriptor, 0) == 0 ? 0 : -1;
}

}  // namespace

JsonLinesWriter::JsonLinesWriter(const std::filesystem::path& path, Mode mode) : path_(path.string()) {
  const int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (mode == Mode::create ? O_TRUNC : 0);
  descriptor_ = ::open(path.c_str(), flags, 0666);
  detail::require_system(descriptor_ >= 0, "write", path);
  if (mode == Mode::create) return;
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || cut_torn_line(descriptor_, status.st_size) < 0) {
    const int error = errno;
    close();
    fail("cannot continue '{}': {}", path_, detail::explain(error));
  }
}

JsonLinesWriter::JsonLinesWriter(JsonLinesWriter&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

JsonLinesWriter& JsonLinesWriter::operator=(JsonLinesWriter&& other) noexcept {
  if (this != &other) {
    close();
    path_ = std::move(other.path_);
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

JsonLinesWriter::~JsonLinesWriter() {
  close();
}

void JsonLinesWriter::close() noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void JsonLinesWriter::write(const nlohmann::json& record) {
  require(descriptor_ >= 0, "cannot write a record to '{}': the file is not open; open it first", path_);
  const std::string line = record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const off_t end = ::lseek(descriptor_, 0, SEEK_END);
  if (!detail::write_all(descriptor_, line)) {
    const int error = errno;
    if (end >= 0 && ::ftruncate(descriptor_, end) != 0) errno = error;  // the first error is the one to tell
    fail("cannot write a record to '{}': {}", path_, detail::explain(error));
  }
}

void read_json_lines(const std::filesystem::path& path,
                     const std::function<void(const nlohmann::json&, std::int64_t)>& use) {
  std::ifstream file(path);
  detail::require_system(file.is_open(), "open", path);
  std::string line;
  for (std::int64_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
    if (record.is_discarded()) {
      if (file.eof()) return;  // torn by a crash while it was written
      fail("'{}', line {}: no JSON: correct or delete the line", path.string(), number);
    }
    use(record, number);
  }
  detail::require_system(!file.bad(), "read", path);
}

void filter_json_lines(const std::filesystem::path& path,
                       const std::function<bool(const nlohmann::json&)>& keep) {
  if (!std::filesystem::exists(path)) return;
  std::string kept;
  read_json_lines(path, [&](const nlohmann::json& record, std::int64_t) {
    if (keep(record)) kept += record.dump() + "\n";
  });
  write_text_atomically(path, kept);
}

}  // namespace annulus::io
