#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace annulus::data {

/// A process at the other end of a stream, which serves this one.
class ServingProcess {
 public:
  /// `name` is the subject of errors.
  ServingProcess(int socket, std::string name) : socket_(socket), name_(std::move(name)) {}

  /// Sends or receives all of the values. Throws Error when the other end has closed.
  template <class T, std::size_t extent>
  void send(std::span<T, extent> values) const {
    send_bytes(std::as_bytes(values));
  }
  template <class T, std::size_t extent>
  void receive(std::span<T, extent> values) const {
    receive_bytes(std::as_writable_bytes(values));
  }

 private:
  void send_bytes(std::span<const std::byte> bytes) const;
  void receive_bytes(std::span<std::byte> bytes) const;

  int socket_;
  std::string name_;
};

}  // namespace annulus::data
