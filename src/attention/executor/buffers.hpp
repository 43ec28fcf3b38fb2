#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/base/dtype.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/staged/staged.hpp"
#include "attention/executor/slots.hpp"
#include "base/kokkos/memory/memory.hpp"

namespace annulus::executor {

/// What the exchange slots and staging buffers of a rank need, by pass: no transfer is under way from one
/// pass to the next.
struct PassCapacity {
  Capacity forward;  ///< of the first positions alone, too
  Capacity backward;

  Capacity& of(plan::Pass pass) { return pass == plan::Pass::forward ? forward : backward; }
};

/// Enough for these plans on `rank`. Its bytes are enough for plans of the same schedule that send any rows
/// of the same slices, in any parts: a part of a slice may lie in a staging buffer, and in a slot of its own.
PassCapacity capacity_for_any_rows(const Plans& plans, int rank);

/// What a rank has under way at once in a pass of these plans.
comm::ExchangeLoad exchange_load(const Plans& plans, int rank);
/// Enough for plans of the same schedule that send any rows of the same slices, each in as many parts as the
/// layout `balanced` makes of what two ranks have to do with each other (BalancedCut::most_shared_documents).
comm::ExchangeLoad load_for_any_rows(const Plans& plans, int rank);

/// Where they lie in one block of memory. What one pass alone needs lies where the other has something else.
struct ExchangeLayout {
  std::array<std::vector<std::size_t>, plan::tensor_count> slots;  ///< bytes from the start
  std::vector<std::size_t> staging;                                ///< bytes from the start
  std::size_t bytes = 0;                                           ///< of the block
};
ExchangeLayout exchange_layout(const PassCapacity& capacity, DType dtype);

/// The exchange slots and staging buffers of a rank, in one block of memory. It grows when plans need more
/// and is kept otherwise. Each plan lays its own out in it: one plan has little in a slot where another has
/// much, and the largest of all slots would be more than any plan needs.
template <class Exec>
class ExchangeBuffers {
 public:
  /// Buffers in the same block, which grows for both: while the ones are in use the others hold nothing.
  ExchangeBuffers beside() const {
    ExchangeBuffers made;
    made.block_ = block_;
    return made;
  }

  /// What they hold is lost.
  void lay_out(const Exec& exec, const PassCapacity& capacity, DType dtype) {
    layout_ = exchange_layout(capacity, dtype);
    Bytes& bytes = *block_;
    if (bytes.allocated() && bytes.view().size() >= layout_.bytes) return;
    // Streams of transports may have used what goes away here. Buffers that suffice are the next pass' own
    // without a wait: no transfer is under way from one pass to the next.
    exec.fence("annulus::executor::ExchangeBuffers: buffers that are too small go away");
    bytes = Bytes();  // before the new one is there, not beside it
    bytes = Bytes::uninitialized(exec, MemoryCategory::communication, "annulus::executor::exchange",
                                 layout_.bytes);
  }

  void* slot(plan::Tensor tensor, plan::Slot slot) const {
    return at(layout_.slots[static_cast<std::size_t>(tensor)][static_cast<std::size_t>(slot)]);
  }
  void* staging(int index) const { return at(layout_.staging[static_cast<std::size_t>(index)]); }

 private:
  using Bytes = Owned<Array1<std::byte, Exec>>;

  void* at(std::size_t offset) const { return block_->view().data() + offset; }

  ExchangeLayout layout_;
  std::shared_ptr<Bytes> block_ = std::make_shared<Bytes>();
};

}  // namespace annulus::executor
