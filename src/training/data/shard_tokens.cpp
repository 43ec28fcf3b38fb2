#include "shard_tokens.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/system/system_error.hpp"
#include "token_type.hpp"
#include "training/io/atomic.hpp"

namespace annulus::data {

ShardTokens::ShardTokens(std::filesystem::path beside) : beside_(std::move(beside)) {
  held_.reserve(most_held + (std::size_t{1} << 21));  // growing would hold it twice
}

void ShardTokens::settle() {
  if (std::ssize(held_) > most_held) write();
}

void ShardTokens::write() {
  if (!file_) {
    const std::filesystem::path name = io::temporary_name(beside_);
    file_.emplace(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    require_system(file_->get() >= 0, "write", beside_);
    ::unlink(name.c_str());
  }
  const auto bytes = std::as_bytes(std::span(held_));
  const bool done =
      write_all(file_->get(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()});  // NOLINT
  require_system(done, "write", beside_);
  written_ += std::ssize(held_);
  held_.clear();
}

void ShardTokens::read(std::int64_t start, std::span<std::int32_t> out) const {
  const auto front = static_cast<std::size_t>(std::clamp<std::int64_t>(written_ - start, 0, std::ssize(out)));
  auto bytes = std::as_writable_bytes(out.first(front));
  for (auto at = static_cast<off_t>(start) * off_t{sizeof(std::int32_t)}; !bytes.empty();) {
    const ssize_t count = ::pread(file_->get(), bytes.data(), bytes.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = EIO;
    require_system(count > 0, "read back", beside_);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    at += count;
  }
  const std::int64_t from = std::max(start - written_, std::int64_t{0});
  std::copy_n(held_.begin() + from, out.size() - front, out.begin() + static_cast<std::ptrdiff_t>(front));
}

void ShardTokens::erase_front(std::int64_t count) {
  if (count >= written_) {
    held_.erase(held_.begin(), held_.begin() + (count - written_));
    file_.reset();
    written_ = 0;
    return;
  }
  ShardTokens rest(beside_);
  for (const std::int64_t all = size(); count < all; rest.settle()) {
    std::vector<std::int32_t>& piece = rest.end();
    const std::size_t before = piece.size();
    piece.resize(before + static_cast<std::size_t>(std::min(piece_tokens, all - count)));
    read(count, std::span(piece).subspan(before));
    count += static_cast<std::int64_t>(piece.size() - before);
  }
  *this = std::move(rest);
}

}  // namespace annulus::data
