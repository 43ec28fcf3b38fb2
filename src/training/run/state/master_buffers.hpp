#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "training/optimizer/master_weights.hpp"
#include "training/run/state/flat_buffer.hpp"
#include "training/run/state/tensor_hashes.hpp"

/// What a run does with master weights and moments wherever they lie.
namespace annulus::training {

/// Refers to their memory.
template <class Exec, class T>
Buffers buffers_of(const Exec& exec, const optimizer::MasterWeights<Exec, T>& masters) {
  return masters.visit(
      exec, [](const auto& where, const auto& values, const auto& first_moment, const auto& second_moment) {
        return Buffers{{where, values}, {where, first_moment}, {where, second_moment}};
      });
}

/// What memory.offload_optimizer does, for the log; empty where they lie in memory of Exec.
template <class Exec, class T>
std::string offload_text(const optimizer::MasterWeights<Exec, T>& masters) {
  if (!masters.offloaded()) return {};
  return fmt::format(
      "memory.offload_optimizer: master weights and moments, {} a rank, lie in pinned memory of the host, "
      "whose threads update them",
      bytes_text(12 * masters.size()));
}

/// Hashes of masters and moments, made where they lie.
template <class Exec, class T>
std::vector<std::uint64_t> master_hashes(const Exec& exec, const optimizer::MasterWeights<Exec, T>& masters,
                                         std::size_t tensors, const std::vector<TensorRange>& pieces) {
  return masters.visit(exec, [&](const auto& where, const auto&... buffers) {
    return tensor_hashes<float>(where, tensors, pieces, {buffers...});
  });
}

}  // namespace annulus::training
