#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <annulus/optim/master_weights.hpp>
#include <annulus/train/flat_buffer.hpp>

#include "train/tensor_hashes.hpp"

/// What a run does with master weights and moments wherever they lie.
namespace annulus::train {

/// Refers to their memory.
template <class Exec, class T>
Buffers buffers_of(const Exec& exec, const optim::MasterWeights<Exec, T>& masters) {
  return masters.visit(
      exec, [](const auto& where, const auto& values, const auto& first_moment, const auto& second_moment) {
        return Buffers{{where, values}, {where, first_moment}, {where, second_moment}};
      });
}

/// Of memory.offload_optimizer, for the log; empty where they lie in memory of Exec.
template <class Exec, class T>
std::string offload_text(const optim::MasterWeights<Exec, T>& masters) {
  if (!masters.offloaded()) return {};
  return fmt::format(
      "memory.offload_optimizer: master weights and moments, {} a rank, lie in pinned memory of the host, "
      "whose "
      "threads update them",
      bytes_text(12 * masters.size()));
}

/// TensorHashes of masters and moments, made where they lie.
template <class Exec>
class MasterHashes {
 public:
  /// `where`: as for TensorHashes.
  template <class... Where>
  MasterHashes(const Exec& exec, bool offloaded, const Where&... where) {
    if (offloaded)
      on_host_.emplace(HostExec(), where...);
    else
      there_.emplace(exec, where...);
  }

  template <class T>
  std::vector<std::uint64_t> of(const Exec& exec, const optim::MasterWeights<Exec, T>& masters) const {
    return masters.visit(exec, [&](const auto& where, const auto&... buffers) {
      using Where = std::decay_t<decltype(where)>;
      if constexpr (std::is_same_v<Exec, HostExec>)
        return (there_ ? there_ : on_host_)->template of<float>(where, {buffers...});
      else if constexpr (std::is_same_v<Where, HostExec>)
        return on_host_->template of<float>(where, {buffers...});
      else
        return there_->template of<float>(where, {buffers...});
    });
  }

 private:
  std::optional<TensorHashes<Exec>> there_;
  std::optional<TensorHashes<HostExec>> on_host_;
};

}  // namespace annulus::train
