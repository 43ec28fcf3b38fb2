#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <annulus/attention/sequence/mask.hpp>
#include <annulus/base/kokkos/queue.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/execution/event.hpp"
#include "base/kokkos/memory/memory.hpp"

namespace annulus::attention {

/// Values of the host in the memory of an execution space.
template <class Exec, class T>
class ValuesOn {
 public:
  /// Takes others, in the same memory as far as that suffices: nobody uses the ones before. They are copied
  /// in the order of `exec`, for which the host does not wait: `values` stay until the next wait_for_copy.
  void set(const Exec& exec, const char* label, std::span<const T> values) {
    set_ = !values.empty();
    if (!set_) return;
    // Batches that need a few more take no other memory.
    if (!numbers_.allocated() || numbers_.view().size() < values.size())
      reserve(exec, label, std::bit_ceil(values.size()));
    const Kokkos::View<const T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> host(values.data(),
                                                                                  values.size());
    Kokkos::deep_copy(exec, Kokkos::subview(*numbers_, std::pair<std::size_t, std::size_t>(0, values.size())),
                      host);
    copied_.record(exec);
  }
  /// Makes room for `count` values: set() of no more takes no other memory. What was set is gone where this
  /// takes other memory.
  void reserve(const Exec& exec, const char* label, std::size_t count) {
    if (numbers_.allocated() && numbers_.view().size() >= count) return;
    numbers_ = {};  // before the new one is there, not beside it
    numbers_ = Owned<Array1<T, Exec>>::uninitialized(exec, MemoryCategory::data, label, room_for(count));
  }
  /// Values that there is room for where `count` are asked for.
  static constexpr std::size_t room_for(std::size_t count) { return std::max<std::size_t>(count, 1024); }

  /// Waits until the copy has been made. A stream has passed it long ago when the next batch comes.
  void wait_for_copy() const { copied_.wait(); }

  /// The values; null where there are none.
  const T* data() const { return set_ ? numbers_.view().data() : nullptr; }

 private:
  Owned<Array1<T, Exec>> numbers_;
  Event copied_;
  bool set_ = false;
};

/// A mask whose arrays lie in the memory of an execution space. Keeps copies: the Mask may go away.
template <class Exec>
class MaskOn {
 public:
  MaskOn() = default;
  MaskOn(const Exec& exec, const Mask& mask) { set(exec, mask); }

  /// Takes another mask, in the same memory as far as that suffices: nobody uses the one before.
  void set(const Exec& exec, const Mask& mask) {
    document_starts_.wait_for_copy(), block_row_starts_.wait_for_copy(), block_columns_.wait_for_copy();
    mask_ = mask;
    rule_ = mask_.rule();
    document_starts_.set(exec, documents_label, mask_.document_starts());
    block_row_starts_.set(exec, "annulus::attention::block_row_starts", mask_.block_row_starts());
    block_columns_.set(exec, "annulus::attention::block_columns", mask_.block_columns());
    // Null is how MaskRule says "no documents" and "no blocks".
    rule_.document_starts = document_starts_.data();
    rule_.block_row_starts = block_row_starts_.data();
    rule_.block_columns = block_columns_.data();
  }

  /// Makes room for any documents of a sequence of `tokens` tokens: later masks of it take no other memory
  /// for theirs. The mask stays.
  void reserve_documents(const Exec& exec, std::int64_t tokens) {
    document_starts_.wait_for_copy();
    document_starts_.reserve(exec, documents_label, most_document_starts(tokens));
    set(exec, Mask(mask_));
  }
  /// Document starts of a sequence of `tokens` documents of one token, with the end of the last.
  static constexpr std::size_t most_document_starts(std::int64_t tokens) {
    return static_cast<std::size_t>(tokens) + 1;
  }
  /// Bytes that reserve_documents makes room for.
  static constexpr std::int64_t reserved_bytes(std::int64_t tokens) {
    using Starts = ValuesOn<Exec, std::int64_t>;
    return static_cast<std::int64_t>(Starts::room_for(most_document_starts(tokens)) * sizeof(std::int64_t));
  }

  /// The rule for kernels on Exec; lives as long as this object.
  const MaskRule& rule() const { return rule_; }

 private:
  static constexpr const char* documents_label = "annulus::attention::document_starts";

  Mask mask_;  // from which the copies are made
  MaskRule rule_;
  ValuesOn<Exec, std::int64_t> document_starts_, block_row_starts_, block_columns_;
};

}  // namespace annulus::attention
