#include "serving_process.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include <annulus/base/error.hpp>

namespace annulus::data {

namespace {

/// Calls `transfer`, which may take a part of the bytes, until all are through.
template <class Byte, class Transfer>
void transfer_all(std::span<Byte> bytes, const std::string& name, const Transfer& transfer) {
  while (!bytes.empty()) {
    const ssize_t count = transfer(bytes);
    require(count > 0 || (count < 0 && errno == EINTR), "{} has ended ({}): see what it says, and pack again",
            name, count < 0 ? std::generic_category().message(errno) : "it sends nothing more");
    if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace

void ServingProcess::send_bytes(std::span<const std::byte> bytes) const {
  transfer_all(bytes, name_,
               [&](const auto& left) { return ::send(socket_, left.data(), left.size(), MSG_NOSIGNAL); });
}

void ServingProcess::receive_bytes(std::span<std::byte> bytes) const {
  transfer_all(bytes, name_, [&](const auto& left) { return ::recv(socket_, left.data(), left.size(), 0); });
}

}  // namespace annulus::data
