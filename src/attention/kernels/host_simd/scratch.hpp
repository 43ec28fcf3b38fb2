#pragma once

#include <cstddef>
#include <utility>

#include "base/kokkos/memory/memory.hpp"

namespace annulus::attention::host_simd {

/// Memory of the host out of this thread's pool: getting it from the system and touching its pages for the
/// first time takes longer than most uses do.
using PooledBuffer = Owned<Kokkos::View<std::byte*, Kokkos::HostSpace>>;
/// The smallest free buffer that holds `bytes`; where none does, a new one takes the place of the largest
/// free one, so that requests that grow leave no trail.
PooledBuffer take_buffer(std::size_t bytes);
/// Gives a buffer back to the pool of this thread.
void give_back(PooledBuffer buffer);

/// `count` values for the time of a call, not initialized. Steps of equal shape allocate nothing after the
/// first.
template <class T>
class PooledScratch {
 public:
  using View = Array1<T, HostExec>;

  explicit PooledScratch(std::size_t count) : count_(count), buffer_(take_buffer(count * sizeof(T))) {}
  PooledScratch(PooledScratch&&) noexcept = default;
  PooledScratch& operator=(PooledScratch&&) = delete;
  ~PooledScratch() {
    if (buffer_.allocated()) give_back(std::move(buffer_));
  }

  View view() const { return View(reinterpret_cast<T*>(buffer_.view().data()), count_); }

 private:
  std::size_t count_;
  PooledBuffer buffer_;
};

}  // namespace annulus::attention::host_simd
