#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace annulus::data {

/// A file to take documents from.
struct InputFile {
  std::filesystem::path path;
  std::string key;  ///< path inside the input it came from: the same wherever that input lies
  std::uint64_t bytes = 0;
  std::int64_t modified = 0;  ///< time of the last change, in the file system's own units
};

/// The files of the inputs: files as they are, folders walked in sorted order (by the bytes of the path),
/// without names that start with a dot, and only with one of `extensions` when there are any. Throws Error
/// when an input is missing, nothing is found, or `output` lies inside an input.
std::vector<InputFile> find_inputs(std::span<const std::filesystem::path> inputs,
                                   std::span<const std::string> extensions,
                                   const std::filesystem::path& output);

/// Of the first files of a list: changes when one of them, its size or its time of change does.
class InputFingerprint {
 public:
  void add(const InputFile& file);
  std::int64_t files() const { return files_; }
  std::string text() const;

 private:
  std::int64_t files_ = 0;
  std::uint32_t crc_ = 0;
};

/// Where the next document starts.
struct InputPosition {
  std::int64_t file = 0;       ///< index of the file
  std::int64_t offset = 0;     ///< byte inside it: 0, or the start of a line of a JSON-lines file
  std::uint32_t checksum = 0;  ///< CRC-32 of the bytes of the file before that
  friend bool operator==(const InputPosition&, const InputPosition&) = default;
};

/// The file at the position is there and begins with the bytes that were read from it.
bool begins_as_before(std::span<const InputFile> files, const InputPosition& position);

/// Reads the documents of the files one by one.
class DocumentReader {
 public:
  /// `files` outlive the reader.
  DocumentReader(std::span<const InputFile> files, InputPosition start);

  /// The next document, whatever it holds (it may be empty or binary); nothing at the end. Throws Error when
  /// a file cannot be read or a record has no text.
  std::optional<std::string> next();

  /// Where the document that next() gives next starts.
  InputPosition position() const { return position_; }

 private:
  std::optional<std::string> next_record(const InputFile& file);
  std::span<const InputFile> files_;
  InputPosition position_;
  std::ifstream records_;  // the JSON-lines file that is being read
};

}  // namespace annulus::data
