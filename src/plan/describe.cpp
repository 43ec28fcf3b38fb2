#include "plan/describe.hpp"

#include <fmt/format.h>

namespace annulus::plan {

std::string describe_slot(Slot slot) {
  return slot == home ? "home" : fmt::format("slot {}", slot);
}

std::string describe(const Piece& piece) {
  return fmt::format("{}[{}] rows {}:{} heads {}:{}", name_of(piece.tensor), piece.owner, piece.rows.begin,
                     piece.rows.end, piece.heads.begin, piece.heads.end);
}

std::string describe(const Compute& compute) {
  return fmt::format("compute q[{}] rows {}:{} x kv[{}] rows {}:{} heads {}:{}", compute.q_shard,
                     compute.q_rows.begin, compute.q_rows.end, compute.kv_shard, compute.kv_rows.begin,
                     compute.kv_rows.end, compute.heads.begin, compute.heads.end);
}

std::string describe(const Clear& clear) {
  return fmt::format("clear {} in {}", describe(clear.piece), describe_slot(clear.slot));
}

std::string describe_send(const Transfer& send) {
  return fmt::format("send {} from {} to rank {}", describe(send.piece), describe_slot(send.slot), send.peer);
}

std::string describe_receive(const Transfer& receive) {
  std::string text = fmt::format("receive {} from rank {} into {}", describe(receive.piece), receive.peer,
                                 describe_slot(receive.slot));
  if (receive.arrival != Arrival::store) {
    text += fmt::format(", {} to {}", name_of(receive.arrival), describe_slot(receive.target));
  }
  return text;
}

}  // namespace annulus::plan
