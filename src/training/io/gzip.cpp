#include "training/io/gzip.hpp"

#include <zlib.h>

#include <span>
#include <vector>

#include <annulus/base/error.hpp>

namespace annulus::io {

class GzipReader::Stream {
 public:
  explicit Stream(const InputFile& file) : file_(file), packed_(std::size_t{1} << 18) {
    constexpr int largest_window = 15, gzip_alone = 16;
    require(::inflateInit2(&stream_, largest_window + gzip_alone) == Z_OK,
            "'{}': zlib cannot be started: free some memory", file.path());
  }
  ~Stream() { ::inflateEnd(&stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bool append(std::string& text, std::size_t most) {
    const std::size_t before = text.size();
    text.resize(before + most);
    stream_.next_out = reinterpret_cast<Bytef*>(text.data() + before);
    stream_.avail_out = static_cast<uInt>(most);
    while (stream_.avail_out > 0 && !ended_) step();
    text.resize(text.size() - stream_.avail_out);
    return text.size() > before;
  }
  std::uint64_t read() const { return read_ - stream_.avail_in; }

 private:
  void step() {
    if (stream_.avail_in == 0) {
      const std::size_t size = file_.read_at(read_, std::as_writable_bytes(std::span(packed_)));
      stream_.next_in = packed_.data();
      stream_.avail_in = static_cast<uInt>(size);
      read_ += size;
      if (size == 0) {
        require(between_members_, "'{}' ends in the middle of its gzip data: copy it again", file_.path());
        ended_ = true;
        return;
      }
    }
    if (between_members_) {
      require(::inflateReset(&stream_) == Z_OK, "'{}': zlib cannot go on", file_.path());
      between_members_ = false;
    }
    const int result = ::inflate(&stream_, Z_NO_FLUSH);
    between_members_ = result == Z_STREAM_END;
    require(result == Z_OK || result == Z_STREAM_END,
            "'{}' is no gzip file, or a damaged one, near byte {} ({}): copy it again, or rename it if it is "
            "not packed",
            file_.path(), read(), stream_.msg == nullptr ? "wrong data" : stream_.msg);
  }

  const InputFile& file_;
  std::vector<Bytef> packed_;
  z_stream stream_{};
  std::uint64_t read_ = 0;
  bool between_members_ = true, ended_ = false;
};

GzipReader::GzipReader(const InputFile& file) : stream_(std::make_unique<Stream>(file)) {}
GzipReader::~GzipReader() = default;
GzipReader::GzipReader(GzipReader&&) noexcept = default;
GzipReader& GzipReader::operator=(GzipReader&&) noexcept = default;

bool GzipReader::append(std::string& text, std::size_t most) {
  return stream_->append(text, most);
}

std::uint64_t GzipReader::read() const {
  return stream_->read();
}

}  // namespace annulus::io
