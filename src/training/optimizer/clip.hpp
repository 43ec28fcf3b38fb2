#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/memory.hpp"

namespace annulus::optimizer {

/// What clipping found: the Euclidean norm of all gradients, and the factor that brings it down to the bound
/// (1 below it). The factor is 0 when the norm is not finite; the optimizer step should then be left out.
struct Clipping {
  double norm = 0.0;
  float scale = 1.0f;

  bool finite() const { return std::isfinite(norm); }
};

/// Elements [begin, end) of a buffer of gradients whose squares are summed block by block; the blocks start
/// at `begin` and are numbered from `first_block` on.
struct NormRange {
  std::int64_t begin = 0, end = 0, first_block = 0;
};

/// The blocks of which a norm is the sum. Their numbers, not where a rank holds them, give the order of the
/// sum: shards of a buffer give the bits of the whole when each block lies in one shard.
template <class Exec>
class NormBlocks {
 public:
  /// Elements of a block; the last one of a range may be shorter.
  static constexpr std::int64_t size = 16384;

  /// `count`: blocks of all ranks. Throws Error when a range's numbers do not fit into them.
  NormBlocks(const Exec& exec, std::span<const NormRange> ranges, std::int64_t count);

  /// Blocks of all ranks.
  std::int64_t count() const { return count_; }
  struct NormBlock {
    std::int64_t begin, end, number;
  };
  /// This rank's blocks.
  const Array1<NormBlock, Exec>& own() const { return *own_; }
  /// Elements that a buffer must have at least.
  std::int64_t end() const { return end_; }
  /// All blocks start at multiples of this many elements: 16, 8, … 1.
  int alignment() const { return alignment_; }

 private:
  std::int64_t count_, end_ = 0;
  int alignment_ = 16;
  Owned<Array1<NormBlock, Exec>> own_;
};

/// Clipping by global norm. Gradients are not changed: the scale goes to the optimizer's step. The sum of
/// squares is formed in double from blocks of fixed size added in order, so that it depends neither on the
/// number of threads nor on how many ranks hold the gradients.
template <class Exec>
class GradientClipper {
 public:
  /// `max_norm` > 0, infinity to measure without clipping; else Error.
  explicit GradientClipper(double max_norm);

  /// Measures the blocks of `gradients`. With a communicator, whose ranks hold all blocks once: a collective
  /// call with one result on every rank.
  Clipping measure(const Exec& exec, const Array1<const float, Exec>& gradients,
                   const NormBlocks<Exec>& blocks, comm::Communicator* communicator = nullptr);

 private:
  double max_norm_;
  Owned<Array1<double, Exec>> sums_;  // (blocks + 1): the sum of squares of each block, and of all
};

}  // namespace annulus::optimizer
