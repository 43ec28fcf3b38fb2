#include "attention/plan/validate/structure.hpp"

#include "attention/plan/text.hpp"

namespace annulus::plan::validation {
namespace {

class Structure {
 public:
  Structure(const Premises& premises, int rank, int number, Diagnostics& diagnostics)
      : premises_(premises), rank_(rank), step_(number), diagnostics_(diagnostics) {}

  void check(const Step& step) {
    for (const Clear& clear : step.clears) check(clear);
    for (const Transfer& send : step.sends) check(send, [&] { return describe_send(send); });
    for (const Transfer& receive : step.receives) {
      check(receive, [&] { return describe_receive(receive); });
      check_arrival(receive);
    }
    for (const Compute& compute : step.computes) check(compute);
  }

 private:
  template <class... Args>
  void fault(const auto& subject, fmt::format_string<Args...> text, Args&&... args) {
    diagnostics_.add("rank {}, step {}: {}: {}", rank_, step_, subject(),
                     fmt::format(text, std::forward<Args>(args)...));
  }

  bool is_rank(int rank) const { return rank >= 0 && rank < premises_.ranks(); }

  void check_slot(Slot slot, const auto& subject) {
    if (slot < 0) fault(subject, "slot {} does not exist", slot);
  }

  template <class T>
  static bool inside(T begin, T end, T size) {
    return begin >= 0 && begin < end && end <= size;
  }

  void check_rows(RowRange rows, int owner, const auto& subject) {
    const std::int64_t count = premises_.shard(owner).count;
    if (!inside(rows.begin, rows.end, count)) {
      fault(subject, "rows {}:{} are no rows of shard {}, which has {}", rows.begin, rows.end, owner, count);
    }
  }

  void check_heads(HeadRange heads, int count, const auto& subject) {
    if (!inside(heads.begin, heads.end, count)) {
      fault(subject, "heads {}:{} are not among the {} heads", heads.begin, heads.end, count);
    }
  }

  void check(const TensorSlice& slice, const auto& subject) {
    if (!is_rank(slice.owner)) return fault(subject, "rank {} does not exist", slice.owner);
    check_rows(slice.rows, slice.owner, subject);
    check_heads(slice.heads,
                is_query_side(slice.tensor) ? premises_.problem.heads : premises_.problem.kv_heads, subject);
  }

  void check(const Clear& clear) {
    const auto subject = [&] { return describe(clear); };
    check(clear.slice, subject);
    check_slot(clear.slot, subject);
    if (clear.slot == local_slot)
      fault(subject, "the local buffer is the caller's; only exchange slots are cleared");
  }

  void check(const Transfer& transfer, const auto& subject) {
    check(transfer.slice, subject);
    check_slot(transfer.slot, subject);
    check_slot(transfer.target, subject);
    if (!is_rank(transfer.peer)) fault(subject, "rank {} does not exist", transfer.peer);
    if (transfer.post != step_) fault(subject, "says that it is posted in step {}", transfer.post);
    if (transfer.wait <= step_) fault(subject, "waits in step {}, before it travels", transfer.wait);
    if (transfer.wait >= premises_.steps) {
      fault(subject, "is never waited for: it names step {} of {}", transfer.wait, premises_.steps);
    }
  }

  void check_arrival(const Transfer& receive) {
    const Tensor tensor = receive.slice.tensor;
    const auto subject = [&] { return describe_receive(receive); };
    if (receive.on_receive == OnReceive::add && !is_gradient(tensor)) {
      fault(subject, "only gradients are added on arrival");
    }
    if (receive.on_receive == OnReceive::merge && tensor != Tensor::o && tensor != Tensor::lse) {
      fault(subject, "only o and lse are merged on arrival");
    }
    if (receive.on_receive != OnReceive::store && receive.slot == receive.target) {
      fault(subject, "lands in the slot that it is added to or merged into");
    }
  }

  void check(const Compute& compute) {
    const auto subject = [&] { return describe(compute); };
    if (!is_rank(compute.q_shard)) return fault(subject, "rank {} does not exist", compute.q_shard);
    if (!is_rank(compute.kv_shard)) return fault(subject, "rank {} does not exist", compute.kv_shard);
    check_rows(compute.q_rows, compute.q_shard, subject);
    check_rows(compute.kv_rows, compute.kv_shard, subject);
    check_heads(compute.heads, premises_.problem.heads, subject);
    for (const Slot slot : {compute.q_slot, compute.kv_slot, compute.out_slot, compute.kv_grad_slot}) {
      check_slot(slot, subject);
    }
  }

  const Premises& premises_;
  int rank_, step_;
  Diagnostics& diagnostics_;
};

}  // namespace

void check_structure(const Premises& premises, int rank, int number, const Step& step,
                     Diagnostics& diagnostics) {
  Structure(premises, rank, number, diagnostics).check(step);
}

}  // namespace annulus::plan::validation
