#pragma once

#include <Kokkos_Core.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "support/attention/attention_problem.hpp"

/// Rows of whole-sequence arrays on an execution space: what a rank holds of a sequence.
namespace annulus::test {

/// How a (batch, heads, rows, width) array lies in memory.
enum class Storage : std::uint8_t {
  dense,         ///< (batch, heads, rows, width)
  tokens_first,  ///< (batch, rows, heads, width)
  inside,        ///< a range of heads and rows of a larger array, whose other elements are NaN
};

/// An array with any strides, and the memory that it lies in.
template <class T, class Exec>
class StridedArray {
 public:
  using Memory = Array4<T, Exec>;

  /// Every element of the memory, inside the array or not, starts as NaN.
  StridedArray(const Exec& exec, Storage storage, std::int64_t batch, std::int64_t heads, std::int64_t rows,
               std::int64_t width) {
    const bool inside = storage == Storage::inside, tokens_first = storage == Storage::tokens_first;
    const std::int64_t margin = inside ? 1 : 0;
    const std::int64_t second = (tokens_first ? rows : heads) + 3 * margin;
    const std::int64_t third = (tokens_first ? heads : rows) + 2 * margin;
    memory_ = Memory(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "annulus::test::memory"), batch,
                     second, third, width + 8 * margin);
    Kokkos::deep_copy(exec, memory_, T(std::numeric_limits<float>::quiet_NaN()));
    exec.fence("annulus::test: the memory is NaN");
    const std::size_t strides[] = {memory_.stride(0), memory_.stride(tokens_first ? 2 : 1),
                                   memory_.stride(tokens_first ? 1 : 2), 1};
    T* const first = memory_.data() + margin * (2 * memory_.stride(1) + memory_.stride(2) + 8);
    view_ = Strided4<T, Exec>(first, Kokkos::LayoutStride(batch, strides[0], heads, strides[1], rows,
                                                          strides[2], width, strides[3]));
  }

  const Strided4<T, Exec>& view() const { return view_; }
  Strided4<const T, Exec> read() const { return view_; }
  const Memory& memory() const { return memory_; }

  /// Elements of the memory that lie outside the array and are no longer NaN, their first mark.
  std::int64_t touched_margins() const {
    const auto host = host_memory();
    std::int64_t numbers = 0, own = 0;
    for (std::size_t i = 0; i < host.size(); ++i) numbers += !std::isnan(static_cast<float>(host.data()[i]));
    const Strided4<T, Kokkos::DefaultHostExecutionSpace> view = view_in(host);
    for (std::size_t b = 0; b < view.extent(0); ++b)
      for (std::size_t h = 0; h < view.extent(1); ++h)
        for (std::size_t i = 0; i < view.extent(2); ++i)
          for (std::size_t c = 0; c < view.extent(3); ++c)
            own += !std::isnan(static_cast<float>(view(b, h, i, c)));
    return numbers - own;
  }

  /// (batch, heads, rows) of an array of width 1.
  Strided3<T, Exec> rows() const { return Kokkos::subview(view_, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL, 0); }
  Strided3<const T, Exec> read_rows() const { return rows(); }

  /// Takes the rows of `whole` at `positions`.
  void load(const Array& whole, const PositionMap& positions) {
    const auto host = host_memory();
    const Strided4<T, Kokkos::DefaultHostExecutionSpace> view = view_in(host);
    for_each_element(whole, positions, [&](auto b, auto h, auto i, auto c, const double& value) {
      view(b, h, i, c) = T(static_cast<float>(value));
    });
    Kokkos::deep_copy(memory_, host);
  }

  /// Writes the array to the rows of `whole` at `positions`.
  void store(Array& whole, const PositionMap& positions) const {
    const auto host = host_memory();
    const Strided4<T, Kokkos::DefaultHostExecutionSpace> view = view_in(host);
    for_each_element(whole, positions, [&](auto b, auto h, auto i, auto c, double& value) {
      value = static_cast<float>(view(b, h, i, c));
    });
  }

 private:
  auto host_memory() const { return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), memory_); }
  template <class Host>
  auto view_in(const Host& host) const {
    return Strided4<T, Kokkos::DefaultHostExecutionSpace>(host.data() + (view_.data() - memory_.data()),
                                                          view_.layout());
  }
  template <class Whole, class Action>
  static void for_each_element(Whole& whole, const PositionMap& positions, const Action& action) {
    for (std::int64_t b = 0; b < whole.batch; ++b)
      for (std::int64_t h = 0; h < whole.heads; ++h)
        for (std::int64_t i = 0; i < positions.count; ++i) {
          auto* const row = whole.row(b, h, positions(i));
          for (std::int64_t c = 0; c < whole.width; ++c) action(b, h, i, c, row[c]);
        }
  }

  Memory memory_;
  Strided4<T, Exec> view_;
};

/// Rows of `whole` at `positions`, on an execution space.
template <class T, class Exec>
StridedArray<T, Exec> rows_on(const Exec& exec, const Array& whole, const PositionMap& positions,
                              Storage storage = Storage::dense) {
  StridedArray<T, Exec> array(exec, storage, whole.batch, whole.heads, positions.count, whole.width);
  array.load(whole, positions);
  return array;
}

/// An array for the rows of `whole` at `positions`, every element `value`; what lies around it is NaN.
template <class Exec>
StridedArray<float, Exec> filled_rows(const Exec& exec, const Array& whole, const PositionMap& positions,
                                      float value, Storage storage = Storage::dense) {
  StridedArray<float, Exec> array(exec, storage, whole.batch, whole.heads, positions.count, whole.width);
  Kokkos::deep_copy(exec, array.view(), value);
  return array;
}

/// A number for each head of `all`, (1, heads, 1, 1), on an execution space; no data where it has no heads.
template <class T, class Exec>
class HeadNumbers {
 public:
  HeadNumbers(const Exec& exec, const Array& all) : array_(rows_on<T>(exec, all, one_row)) {}

  Array1<T, Exec> view() const {
    const auto heads = array_.memory().size();
    return heads == 0 ? Array1<T, Exec>() : Array1<T, Exec>(array_.memory().data(), heads);
  }
  void store(Array& all) const { array_.store(all, one_row); }

 private:
  static constexpr PositionMap one_row{.base = 0, .hi = 0, .lo = 1, .block = 1, .first = 0, .count = 1};
  StridedArray<T, Exec> array_;
};

}  // namespace annulus::test
