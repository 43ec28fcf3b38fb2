#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/system/descriptor.hpp"

/// The one door through which files come in: every reader opens its file here.
namespace annulus {

/// What a file is expected to be.
struct FileKind {
  std::string_view name;  ///< in messages: "a TOML file"
  std::uint64_t
      most_bytes;  ///< larger ones are refused before they are read; of files read by lines, of a line
};

/// How deep tables, arrays and objects of TOML and JSON files may lie inside of one another: libraries walk
/// through them by recursion.
inline constexpr int deepest_nesting = 100;

namespace kinds {
inline constexpr std::uint64_t mib = std::uint64_t{1} << 20;
inline constexpr FileKind any{"a smaller file", 1024 * mib};
inline constexpr FileKind toml{"a TOML file of Annulus", 2 * mib};
inline constexpr FileKind json{"a JSON file of Annulus", 64 * mib};
inline constexpr FileKind manifest{"the manifest of a checkpoint", 256 * mib};
inline constexpr FileKind json_lines{"a file of JSON records, one a line", 16 * mib};
inline constexpr FileKind block_list{"a block list", 16 * mib};
inline constexpr FileKind document_list{"a list of documents", mib};
inline constexpr FileKind hosts{"a list of hosts", 64 * mib};
inline constexpr FileKind hwloc{"hwloc's XML", 64 * mib};
inline constexpr FileKind model_config{"a config.json", 16 * mib};
inline constexpr FileKind weights_index{"an index of weights", 64 * mib};
/// Large ones, of which parts are read; these readers have limits of their own.
inline constexpr FileKind safetensors{"a safetensors file", ~std::uint64_t{0}};
inline constexpr FileKind hdf5{"an HDF5 file", ~std::uint64_t{0}};
}  // namespace kinds

/// Whether a name may be a symbolic link: names that users choose may, names that programs choose may not,
/// because what stands there might lead out of the folder.
enum class Links : std::uint8_t { follow, refuse };

/// A regular file that is open for reading.
class InputFile {
 public:
  /// Never waits for a pipe. Throws Error that names `path` when it cannot be opened, is a folder, a pipe or
  /// a device, a link where `links` refuses them, or larger than `kind` may be.
  InputFile(const std::filesystem::path& path, const FileKind& kind, Links links = Links::follow);

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  int descriptor() const { return file_.get(); }

  /// Reads on where the last call ended; gives the number of bytes, 0 at the end.
  std::size_t read(std::span<char> out);
  /// Reads bytes from `at` on; gives fewer than `out` has where the file ends. Threads may call it together.
  std::size_t read_at(std::uint64_t at, std::span<std::byte> out) const;

 private:
  std::string path_;
  Descriptor file_;
  std::uint64_t size_ = 0;
};

/// The whole contents of a file. Throws Error as InputFile does.
std::string read_text(const std::filesystem::path& path, const FileKind& kind = kinds::any,
                      Links links = Links::follow);

/// All that standard input gives, within the limit of `kind`.
std::string read_standard_input(const FileKind& kind);

/// The lines of a file, one after the other.
class LineReader {
 public:
  LineReader(const std::filesystem::path& path, const FileKind& kind, Links links = Links::follow);

  /// Takes the next line, without its end; false behind the last. Throws Error that names file and line where
  /// a line is longer than `kind` may be.
  bool next(std::string& line);
  /// Number of the line that next() gave, from 1.
  std::int64_t number() const { return number_; }
  /// Whether that line had an end: a last line without may be torn.
  bool complete() const { return complete_; }

 private:
  InputFile file_;
  FileKind kind_;
  std::string buffer_;
  std::size_t begin_ = 0;  // of what is left in the buffer
  std::int64_t number_ = 0;
  bool complete_ = false;
};

/// Opens a regular file of a folder that the program owns, for reading and appending, and makes it where it
/// is missing. Throws Error that names `path` for a link, a pipe or a device there.
Descriptor open_own_file(const std::filesystem::path& path, bool truncate = false);

/// Throws Error when `path` is a symbolic link: `what` ("the checkpoint folder") must be in its place itself.
void require_no_link(const std::filesystem::path& path, std::string_view what);

/// Whether `name` names a file in a folder and nothing outside of it: no "/", no zero byte, not "." or "..".
bool is_plain_name(std::string_view name);

}  // namespace annulus
