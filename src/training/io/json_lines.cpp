#include "training/io/json_lines.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/system/system_error.hpp"
#include "training/io/atomic.hpp"
#include "training/io/json.hpp"

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

JsonLinesWriter::JsonLinesWriter(const std::filesystem::path& path, Mode mode)
    : path_(path.string()), file_(open_own_file(path, mode == Mode::create)) {
  if (mode == Mode::create) return;
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0 || cut_torn_line(file_.get(), status.st_size) < 0)
    fail("cannot continue '{}': {}", path_, system_error_text(errno));
}

void JsonLinesWriter::write(const nlohmann::json& record) {
  require(file_.get() >= 0, "cannot write a record to '{}': the file is not open; open it first", path_);
  append_record(file_.get(), path_,
                record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

namespace {

/// Calls `use` with each record, its line and the line's number.
template <class Use>
void for_each_record(const std::filesystem::path& path, Links links, const Use& use) {
  LineReader lines(path, kinds::json_lines, links);
  for (std::string line; lines.next(line);) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    if (!lines.complete() && !nlohmann::json::accept(line)) return;  // torn by a crash while it was written
    const std::string origin = fmt::format("{}, line {}", path.string(), lines.number());
    const nlohmann::json record = parse_json(line, origin);
    take_json_apart(origin, [&] { use(record, line, lines.number()); });
  }
}

}  // namespace

void read_json_lines(const std::filesystem::path& path,
                     const std::function<void(const nlohmann::json&, std::int64_t)>& use) {
  for_each_record(
      path, Links::follow,
      [&](const nlohmann::json& record, const std::string&, std::int64_t number) { use(record, number); });
}

void filter_json_lines(const std::filesystem::path& path,
                       const std::function<bool(const nlohmann::json&)>& keep) {
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) return;
  write_atomically(
      path,
      [&](const std::filesystem::path& temporary) {
        const Descriptor kept = open_own_file(temporary, true);
        for_each_record(path, Links::refuse,
                        [&](const nlohmann::json& record, const std::string& line, std::int64_t) {
                          if (keep(record)) require_system(write_all(kept.get(), line + "\n"), "write", path);
                        });
      },
      Links::refuse);
}

}  // namespace annulus::io
