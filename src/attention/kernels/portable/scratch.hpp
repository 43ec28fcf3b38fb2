#pragma once

#include <Kokkos_Core.hpp>
#include <cstddef>
#include <cstdint>

#include "attention/kernels/portable/tuning.hpp"

namespace annulus::attention::portable {

/// What a query row may attend to, and where it stands.
struct RowKeys {
  std::int64_t position, begin, end;
};

/// A team's scratch, at level 0: 18 KiB of stage, 20 KiB of scores and 6 KiB of rows' numbers, below the 48
/// KiB that every GPU gives a block without asking.
struct Scratch {
  float* stage;        ///< (2, rows, stage_stride), or (staged_rows, width)
  float* scores;       ///< (rows of the other side, score_stride): what the products take them for
  float* partial;      ///< (16, rows)
  float* row[2];       ///< per query row: (rows)
  RowKeys* queries;    ///< (rows)
  std::int64_t* keys;  ///< positions of the keys: (rows)

  /// Bytes, with room for alignment.
  static constexpr std::size_t bytes() {
    return sizeof(float) * (stage_floats + rows * score_stride + (16 + 2) * rows) +
           (sizeof(RowKeys) + sizeof(std::int64_t)) * rows + alignment;
  }

  template <class Member>
  KOKKOS_FORCEINLINE_FUNCTION explicit Scratch(const Member& member) {
    constexpr std::size_t aligned = alignment;  // a copy: devices have no statics
    stage = static_cast<float*>(
        member.team_scratch(0).get_shmem_aligned(static_cast<std::ptrdiff_t>(bytes() - aligned), aligned));
    scores = stage + stage_floats;
    partial = scores + rows * score_stride;
    row[0] = partial + 16 * rows;
    row[1] = row[0] + rows;
    queries = reinterpret_cast<RowKeys*>(row[1] + rows);
    keys = reinterpret_cast<std::int64_t*>(queries + rows);
  }

 private:
  static constexpr std::size_t alignment = 64;
};

}  // namespace annulus::attention::portable
