#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/file.hpp"

namespace annulus::io {

/// Unpacks a gzip file (RFC 1952) from front to back; members that follow one another are one text.
class GzipReader {
 public:
  /// `file` outlives this object. Throws Error when zlib cannot be started.
  explicit GzipReader(const InputFile& file);
  ~GzipReader();
  GzipReader(GzipReader&&) noexcept;
  GzipReader& operator=(GzipReader&&) noexcept;

  /// Appends the next bytes, `most` at most; false at the end. Throws Error that names the file where it is
  /// damaged or cut off.
  bool append(std::string& text, std::size_t most);

  /// Bytes of the file that were read.
  std::uint64_t read() const;

 private:
  class Stream;
  std::unique_ptr<Stream> stream_;
};

}  // namespace annulus::io
