#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <annulus/plan/plan.hpp>

#include "distributed/step_names.hpp"

/// What one rank does in a pass of a plan, with every piece of the plan resolved to a place in memory.
/// Neither Kokkos nor communication. Made once per plan, so that a plan that reads what a slot does not hold
/// is an error before the first message and not in the middle of a pass.
namespace annulus::distributed {

/// The elements of a piece inside the compact array that a slot holds: (batch, heads, run), where a run is
/// the piece's rows of one head, contiguous in memory.
struct Block {
  plan::Tensor tensor = plan::Tensor::q;
  plan::Slot slot = plan::home;
  std::int64_t offset = 0;  ///< elements before the first one
  std::int64_t batch = 0, heads = 0, rows = 0;
  std::int64_t width = 1;  ///< elements of a row: head_dim, or 1 for row statistics
  std::int64_t batch_stride = 0, head_stride = 0;

  std::int64_t run() const { return rows * width; }
  std::int64_t elements() const { return batch * heads * run(); }
  /// The elements follow one another without gaps.
  bool contiguous() const;
  friend bool operator==(const Block&, const Block&) = default;
};

/// The part `part` of the array of `held` that lies in `slot`. `batch` and `head_dim` as in Problem.
Block block_of(const plan::Piece& held, const plan::Piece& part, plan::Slot slot, int batch, int head_dim);

/// One side of a message. Bytes leave from (or land in) the block itself, or a staging buffer when the block
/// is not contiguous or its type is not the wire's.
struct Message {
  plan::Piece piece;
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

/// One call of a local kernel.
struct LocalCall {
  Block q, k, v;
  Block o, lse;              ///< forward: merged into; backward: lse is read
  Block d, d_o, dq, dk, dv;  ///< backward
  PositionMap q_positions, kv_positions;
  std::int64_t pairs = 0;  ///< unmasked (query, key) pairs over heads and batch, once count_pairs has run
};

struct ProgramStep {
  StepNames names;         ///< of profiling regions
  std::vector<int> waits;  ///< indices into Program::exchanges
  std::vector<Action> actions;
  std::vector<Block> clears;
  std::vector<int> posts;  ///< indices into Program::exchanges
  std::vector<LocalCall> computes;
};

/// Bytes of staging buffers and elements of slots that a program needs.
struct Capacity {
  std::array<std::vector<std::int64_t>, plan::tensor_count> slots;  ///< elements; slot 0 is not counted
  std::vector<std::size_t> staging;                                 ///< bytes

  /// Enough for both.
  void cover(const Capacity& other);
};

struct Program {
  plan::Plan plan;  ///< what it was made of; to say in errors what other ranks do
  plan::Pass pass = plan::Pass::forward;
  int rank = 0;
  std::vector<Exchange> exchanges;
  std::vector<ProgramStep> steps;
  Capacity capacity;
};

/// How a compute is cut by batch and kv head while transfers are in flight, so that the executor can give the
/// transport a turn between the parts: transports like Open MPI move data only while somebody is inside one
/// of their calls.
struct Cutting {
  std::int64_t least_pairs =
      0;            ///< (query, key, head) triples, masked or not, that a part has at least; 0: never cut
  int threads = 1;  ///< every part keeps this many threads busy
};

/// Resolves the steps of `rank`. Throws Error naming schedule, rank and step when the plan cannot be run: it
/// reads what a slot does not hold, lands in the caller's inputs, or waits before it posts.
Program make_program(const plan::Plan& plan, int rank, const Cutting& cutting);

/// Sets LocalCall::pairs of all calls. Apart from make_program, because kernels need it not and counting
/// takes time.
void count_pairs(Program& program, const Mask& mask);

/// Type in which a tensor lies in memory: q, k, v, d_o like the problem's activations, everything else fp32.
DType storage(plan::Tensor tensor, DType activation);

}  // namespace annulus::distributed
