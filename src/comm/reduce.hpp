#pragma once

#include <annulus/comm/communicator.hpp>
#include <cstddef>
#include <span>

namespace annulus::comm {

/// out[i] = sources[0][i] op sources[1][i] op …, evaluated from the left, for i < count; host memory. `out`
/// may be one of the sources. bf16 and f16 are combined in f32 and rounded once; integer sums wrap; a NaN
/// survives max and min.
void reduce_in_order(DType type, ReduceOp op, std::span<const void* const> sources, void* out,
                     std::size_t count);

}  // namespace annulus::comm
