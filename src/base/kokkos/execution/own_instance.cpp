#include "base/kokkos/execution/own_instance.hpp"

#include <mutex>
#include <vector>

namespace annulus {

namespace {

struct Listeners {
  std::mutex mutex;
  std::vector<std::function<void(void*)>> all;
};

Listeners& listeners() {
  static Listeners instance;
  return instance;
}

}  // namespace

void at_stream_end(std::function<void(void* stream)> forget) {
  const std::lock_guard lock(listeners().mutex);
  listeners().all.push_back(std::move(forget));
}

namespace detail {

void stream_ends(void* stream) {
  std::vector<std::function<void(void*)>> all;
  {
    const std::lock_guard lock(listeners().mutex);  // not while they run: they take locks of their own
    all = listeners().all;
  }
  for (const auto& forget : all) forget(stream);
}

}  // namespace detail

}  // namespace annulus
