#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/system/descriptor.hpp"

namespace annulus::io {

/// Writes a file of JSON records, one a line (metrics.jsonl). Every record goes out in one write when it is
/// given, so that another process can follow the file, and a crash leaves at most the last line torn.
class JsonLinesWriter {
 public:
  enum class Mode : std::uint8_t {
    create,  ///< starts an empty file
    append   ///< continues a file (or starts one); a torn last line is cut off
  };

  JsonLinesWriter() = default;
  /// Throws Error that names `path` when it cannot be written, or is a link, a pipe or a device.
  explicit JsonLinesWriter(const std::filesystem::path& path, Mode mode = Mode::create);

  /// Appends one record. Throws Error that names the file when it cannot be written (disk full); the file
  /// then ends with the last complete record.
  void write(const nlohmann::json& record);

  bool is_open() const { return file_.get() >= 0; }

 private:
  std::string path_;
  Descriptor file_{-1};
};

/// Calls `use` with each record of the file and its line number (from 1). Empty lines are passed over; a last
/// line without line end that is not JSON counts as torn and is passed over too. Any other line that is not
/// JSON, and a record that `use` cannot take apart, is an Error that names file and line.
void read_json_lines(const std::filesystem::path& path,
                     const std::function<void(const nlohmann::json& record, std::int64_t line)>& use);

/// Keeps only the records for which `keep` returns true, atomically: a resumed run drops what the interrupted
/// one wrote after its checkpoint. The others stay as they are, byte for byte. A missing file is fine, a link
/// in its place an Error.
void filter_json_lines(const std::filesystem::path& path,
                       const std::function<bool(const nlohmann::json& record)>& keep);

}  // namespace annulus::io
