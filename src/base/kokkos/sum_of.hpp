#pragma once

#include <Kokkos_Core.hpp>

namespace annulus {

/// A Kokkos reducer: the sum of values of a type of ours, whose T{} is 0 and which has +=.
template <class T>
class SumOf {
 public:
  using reducer = SumOf;
  using value_type = T;
  using result_view_type = Kokkos::View<T, Kokkos::AnonymousSpace, Kokkos::MemoryUnmanaged>;

  KOKKOS_FUNCTION explicit SumOf(T& sum) : sum_(&sum) {}

  KOKKOS_FUNCTION void init(T& value) const { value = T{}; }
  KOKKOS_FUNCTION void join(T& sum, const T& value) const { sum += value; }
  KOKKOS_FUNCTION T& reference() const { return *sum_; }
  KOKKOS_FUNCTION result_view_type view() const { return result_view_type(sum_); }

 private:
  T* sum_;
};

}  // namespace annulus
