#pragma once

#include <cstddef>
#include <utility>

#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/buffer_pool.hpp"

namespace annulus::attention::host_simd {

/// This thread's pool of memory for the time of a call.
BufferPool<Kokkos::HostSpace>& scratch_pool();

/// `count` values for the time of a call, not initialized. Steps of equal shape allocate nothing after the
/// first.
template <class T>
class Scratch {
 public:
  using View = Array1<T, HostExec>;

  explicit Scratch(std::size_t count) : count_(count), buffer_(scratch_pool().take(count * sizeof(T))) {}
  Scratch(Scratch&&) noexcept = default;
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch() {
    if (buffer_.allocated()) scratch_pool().give_back(std::move(buffer_));
  }

  View view() const { return View(reinterpret_cast<T*>(buffer_.view().data()), count_); }

 private:
  std::size_t count_;
  BufferPool<Kokkos::HostSpace>::Buffer buffer_;
};

}  // namespace annulus::attention::host_simd
