#pragma once

#include <Kokkos_Core.hpp>
#include <exception>
#include <functional>
#include <utility>

#include <annulus/base/kokkos/queue.hpp>
#include <annulus/base/kokkos/tensor.hpp>

namespace annulus {

/// Calls `forget` with the stream (a cudaStream_t or hipStream_t) of every OwnInstance that ends from now on.
/// For modules that keep memory for a stream: its work is done then, and another stream may get its handle.
void at_stream_end(std::function<void(void* stream)> forget);

namespace detail {
void stream_ends(void* stream);
}

/// An execution space instance of its own: on a device a stream, which lives as long as this object and its
/// copies of the instance; on the host the default instance. Make it the first member of what works on it:
/// at its end it waits for the work of the stream, and what modules keep for the stream goes.
template <class Exec>
class OwnInstance {
 public:
  OwnInstance() : OwnInstance(make()) {}
  /// Takes over an instance whose stream nobody else ends.
  explicit OwnInstance(Exec exec) : exec_(std::move(exec)) {}
  ~OwnInstance() {
    if constexpr (has_stream<Exec>) {
      // An error is under way: the stream may wait for what never comes, and the process ends.
      if (std::uncaught_exceptions() > 0) return;
      try {
        exec_.fence("annulus::core: a stream ends");
        detail::stream_ends(stream_of(exec_));
      } catch (const std::exception&) {  // a device that no longer works: the next call says so
      }
    }
  }
  OwnInstance(const OwnInstance&) = delete;
  OwnInstance& operator=(const OwnInstance&) = delete;

  const Exec& operator*() const { return exec_; }

 private:
  static Exec make() {
    if constexpr (std::is_same_v<Exec, HostExec>)
      return Exec();
    else
      return Kokkos::Experimental::partition_space(Exec(), 1)[0];
  }

  Exec exec_;
};

}  // namespace annulus
