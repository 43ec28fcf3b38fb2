#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <annulus/plan/plan.hpp>

#include "distributed/block.hpp"
#include "distributed/local_call.hpp"
#include "distributed/slots.hpp"

/// What one rank does in a pass of a plan, with every slice of the plan resolved to a place in memory.
/// Neither Kokkos nor communication. Made once per plan, so that a plan that reads what a slot does not hold
/// is an error before the first message and not in the middle of a pass.
namespace annulus::distributed {

/// One side of a message. Bytes leave from (or land in) the block itself, or a staging buffer when the block
/// is not contiguous or its type is not the wire's.
struct Message {
  plan::TensorSlice slice;
  Block block;
  DType wire = DType::f32;
  int peer = 0;
  int staging = none;  ///< index of the staging buffer
  std::size_t bytes = 0;
  static constexpr int none = -1;
};

/// Messages that are posted together and waited for together.
struct Exchange {
  plan::Channel channel = plan::Channel::activations;
  std::vector<Message> sends, receives;
  int wait = 0;  ///< step that waits for it
};

/// What becomes of landed data.
struct Action {
  enum class Kind : std::uint8_t { unpack, add, merge };
  Kind kind = Kind::add;
  Block from, to;          ///< unpack: `to` alone, out of the staging buffer; merge: the o blocks
  Block from_lse, to_lse;  ///< merge
  DType wire = DType::f32;
  int staging = Message::none;
};

/// A block that is set to the neutral element of its sum, and the slice that it stands for from then on.
struct Cleared {
  plan::TensorSlice slice;
  Block block;
};

/// What profilers call a step and its parts: "burst backward step 3", "burst backward step 3: compute q[1]
/// rows 0:16 x kv[1] rows 0:16 heads 0:4".
struct StepNames {
  std::string step, wait, post, compute;
};

struct ProgramStep {
  StepNames names;         ///< of profiling regions
  std::vector<int> waits;  ///< indices into Program::exchanges
  std::vector<Action> actions;
  std::vector<Cleared> clears;
  std::vector<int> posts;  ///< indices into Program::exchanges
  std::vector<LocalCall> computes;
};

struct Program {
  plan::Plan plan;  ///< what it was made of; to say in errors what other ranks do
  plan::Pass pass = plan::Pass::forward;
  int rank = 0;
  std::vector<Exchange> exchanges;
  std::vector<ProgramStep> steps;
  /// Forward: of the caller's O, what no local call finishes (LocalCall::finishes).
  std::vector<Block> unfinished;
  Capacity capacity;
};

/// Resolves the steps of `rank`. Throws Error naming schedule, rank and step when the plan cannot be run: it
/// reads what a slot does not hold, lands in the caller's inputs, or waits before it posts.
Program make_program(const plan::Plan& plan, int rank, const Cutting& cutting);

/// Sets LocalCall::pairs of all calls. Apart from make_program, because kernels need it not and counting
/// takes time.
void count_pairs(Program& program, const Mask& mask);

}  // namespace annulus::distributed
