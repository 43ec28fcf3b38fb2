#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "training/model/parameters.hpp"

namespace annulus::parameter_sharding {

/// Which rank owns which elements of a flat buffer: every unit is cut into one part for each rank, all of the
/// same padded size, a multiple of `block` elements. The last parts of a unit may be shorter, or empty.
///
/// A rank's shard holds its parts of all units, one behind the other, with their padding. A padded buffer
/// holds all parts of all units: unit by unit, rank by rank.
class Partition {
 public:
  /// Throws Error unless ranks and block are positive.
  Partition(std::span<const model::ParameterUnit> units, int ranks, std::int64_t block);

  int ranks() const { return ranks_; }
  int units() const { return static_cast<int>(units_.size()); }
  /// Elements of all units.
  std::int64_t size() const { return units_.empty() ? 0 : units_.back().end; }

  /// Elements of `unit` that `rank` owns, in the whole model.
  model::ParameterUnit part(int unit, int rank) const;
  /// Elements of a rank's part of a unit, with padding; equal on every rank.
  std::int64_t part_size(int unit) const { return at(unit).part_size; }
  std::int64_t padded_size(int unit) const { return ranks_ * part_size(unit); }
  /// Where a rank's part of `unit` lies in its shard, and where the unit lies in a padded buffer.
  std::int64_t offset_in_shard(int unit) const { return at(unit).offset; }
  std::int64_t padded_offset(int unit) const { return ranks_ * offset_in_shard(unit); }

  std::int64_t shard_size() const { return shard_size_; }
  std::int64_t padded_size() const { return ranks_ * shard_size_; }

 private:
  struct Unit {
    std::int64_t begin, end, part_size, offset;
  };
  const Unit& at(int unit) const { return units_[static_cast<std::size_t>(unit)]; }

  int ranks_;
  std::int64_t shard_size_ = 0;
  std::vector<Unit> units_;
};

}  // namespace annulus::parameter_sharding
