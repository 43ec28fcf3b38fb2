#include "plan/describe.hpp"

#include <fmt/format.h>

namespace annulus::plan {

std::string describe_slot(Slot slot) {
  return slot == local_slot ? "local" : fmt::format("slot {}", slot);
}

std::string describe(const TensorSlice& slice) {
  return fmt::format("{}[{}] rows {}:{} heads {}:{}", name_of(slice.tensor), slice.owner, slice.rows.begin,
                     slice.rows.end, slice.heads.begin, slice.heads.end);
}

std::string describe(const Compute& compute) {
  return fmt::format("compute q[{}] rows {}:{} x kv[{}] rows {}:{} heads {}:{}", compute.q_shard,
                     compute.q_rows.begin, compute.q_rows.end, compute.kv_shard, compute.kv_rows.begin,
                     compute.kv_rows.end, compute.heads.begin, compute.heads.end);
}

std::string describe(const Clear& clear) {
  return fmt::format("clear {} in {}", describe(clear.slice), describe_slot(clear.slot));
}

std::string describe_send(const Transfer& send) {
  return fmt::format("send {} from {} to rank {}", describe(send.slice), describe_slot(send.slot), send.peer);
}

std::string describe_receive(const Transfer& receive) {
  std::string text = fmt::format("receive {} from rank {} into {}", describe(receive.slice), receive.peer,
                                 describe_slot(receive.slot));
  if (receive.on_receive != OnReceive::store) {
    text += fmt::format(", {} to {}", name_of(receive.on_receive), describe_slot(receive.target));
  }
  return text;
}

}  // namespace annulus::plan
