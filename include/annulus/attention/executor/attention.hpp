#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/kernels/local.hpp>
#include <annulus/attention/plan/plan.hpp>
#include <annulus/base/kokkos/queue.hpp>
#include <annulus/base/kokkos/tensor.hpp>

namespace annulus::executor {

/// The plans of both passes over one problem.
struct Plans {
  plan::Plan forward;
  /// The plan of the backward pass; none where nobody calls Attention::backward: exchange buffers then hold
  /// what the forward pass needs.
  std::optional<plan::Plan> backward;
  /// Attention::recompute runs this one: a forward plan in which the first positions alone take part
  /// (plan::Problem::positions). Where there is none it runs `forward`.
  std::optional<plan::Plan> recompute = std::nullopt;

  /// The plans that are there, in the order of the members.
  std::vector<const plan::Plan*> all() const;
};

/// Plans that a rank has resolved and proved by itself (Attention::preparation).
class PreparedPlans;
using Prepare = std::function<std::shared_ptr<const PreparedPlans>(Plans plans)>;

/// When ranks make sure that prepared plans are alike on all of them and fit together: in the call that takes
/// them, or before it (executor::agree).
enum class Agreed : std::uint8_t { in_this_call, ahead };

/// Which blocks of keys each query head attends to, in memory of the execution space: what dynamic sparsity
/// leaves of a plan's mask, chosen while a step runs. The plan says nothing of it: all that the mask wants
/// travels, and kernels compute what is listed.
struct BlockLists {
  std::int64_t block_size = 0;     ///< tokens, in global positions; 0: no lists, the mask alone
  std::int64_t heads_of_list = 1;  ///< heads that share a list: 1, or all of a kv head
  /// (batch, heads / heads_of_list, block rows + 1): where block rows of a list begin and end in
  /// `block_columns`; lists may share columns.
  const std::int64_t* block_row_starts = nullptr;
  const std::int64_t* block_columns = nullptr;  ///< block columns, increasing in a row
  /// Bits of the blocks that each query has (MaskRule::query_blocks), in the place of block_row_starts and
  /// block_columns, (batch, heads / heads_of_list, tokens, words).
  const std::uint32_t* query_blocks = nullptr;
  /// (Attention::steps(pass)): the unmasked (query, key) pairs of the local kernels of a round of the plan,
  /// over all heads, are added at the number of its first step (plan::Plan::round). Null: nobody counts.
  std::int64_t* pairs = nullptr;

  bool empty() const { return block_size == 0; }
};

/// Keys and values that lie in a rank's memory while it computes with them.
template <class Exec, class T>
struct PassingKeys {
  Strided4<const T, Exec> k,
      v;  ///< (batch, kv_heads, rows, head_dim and v_head_dim): of some sequences, heads and rows
  PositionMap positions;         ///< of the rows
  std::int64_t first_batch = 0;  ///< the first sequence, of the whole batch
  std::int64_t first_kv_head = 0;
};

/// Called with keys that pass by, by the rank's own thread; enqueues on the instance of the pass what reads
/// them. Some pass several times. A pass whose plan's queries stay (Attention::queries_stay) shows all keys
/// that this rank's queries may see.
template <class Exec, class T>
using OnKeys = std::function<void(const PassingKeys<Exec, T>&)>;

/// One local computation of a rank, in numbers.
struct LocalWork {
  plan::Pass pass = plan::Pass::forward;
  std::int64_t pairs = 0;  ///< unmasked (query, key) pairs, or those of synthetic_pairs, over heads and batch
  std::int64_t query_rows = 0, key_rows = 0;
  std::int64_t heads = 0;        ///< of queries, over the batch
  const Queue* queue = nullptr;  ///< on which it is to be done
  int free_sms = 0;              ///< SMs that the kernel leaves to exchanges under way
};

/// How passes are run. `kernel` alone may change bits of results; a synthetic kernel leaves none.
struct Settings {
  /// Kernels leave at least kernel.free_sms SMs free, and more while exchanges are under way that need them
  /// (comm::Communicator::sms_of_exchange).
  attention::KernelOptions kernel;

  /// false: a rank waits for the transfers that it has just posted before it computes. Shows what overlap is
  /// worth. (A valid plan cannot deadlock by it: validate proves plans for transports that run one group of
  /// transfers after another.)
  bool overlap = true;

  /// A rank that waits longer than this in one step ends the run with an error that says in which step of
  /// which plan it is and for what and whom it waits. Zero: it waits for ever.
  std::chrono::milliseconds stall_timeout{0};

  /// Takes the place of local kernels: called once for each, on the rank's own thread, and may sleep as long
  /// as a model says, or enqueue a kernel that spins (emulator::spinning_kernel). Results are of no meaning
  /// then; transfers are real.
  std::function<void(const LocalWork&)> synthetic_kernel;
  /// What LocalWork::pairs counts, of one sequence and summed over the heads, where it is not all unmasked
  /// pairs: those that dynamic sparse attention selects. Called when plans are set, by all ranks that are
  /// threads of a process at the same time.
  std::function<std::int64_t(const plan::Problem& problem, const PositionMap& queries,
                             const PositionMap& keys, plan::HeadRange heads)>
      synthetic_pairs = {};
};

/// Attention over a sequence that is spread over the ranks of a communicator: the forward and the backward
/// pass of one plan each, run by one executor. Exchange buffers are allocated once and reused by every call.
/// All ranks call forward and backward in the same order.
///
/// T is the storage type of q, k, v and d_out: float, bfloat16 or float16. Exec may be any Kokkos execution
/// space instance type for which the library is built.
template <class Exec, class T>
class Attention {
 public:
  /// The plans' problem must fit the communicator (ranks), and all plans the same problem. What is to run is
  /// proved before the first message (docs/schedules.md). Throws Error on every rank when ranks disagree, or
  /// when what one of them, or all together, would run is wrong.
  Attention(const Exec& exec, comm::Communicator& communicator, plan::Plan forward, plan::Plan backward,
            const Settings& settings = {});
  /// One pair of plans for all sequences of the batch. Or as many pairs as the batch has sequences, each for
  /// one of them (Problem::batch = 1), whose problems differ in their masks alone: a pass then runs one plan
  /// after the other.
  Attention(const Exec& exec, comm::Communicator& communicator, const std::vector<Plans>& plans,
            const Settings& settings = {});
  /// Makes an attention with the communicator and the settings of `beside`, in whose exchange buffers it
  /// works: they cover what the one or the other needs, and no pass of one may run beside a pass of the
  /// other.
  Attention(const Exec& exec, const std::vector<Plans>& plans, const Attention& beside);
  ~Attention();
  Attention(Attention&&) noexcept;
  Attention& operator=(Attention&&) noexcept;

  /// Arrays of this rank's rows, contiguous but for `finished`.
  struct Forward {
    Array4<const T, Exec> q;     ///< (batch, heads, rows, head_dim)
    Array4<const T, Exec> k, v;  ///< (batch, kv_heads, rows, head_dim), and v_head_dim
    float scale = 1.0f;          ///< of the scores
    float soft_cap = 0.0f;       ///< of the scores (attention::Operands); 0: none
    Array4<float, Exec> out;     ///< (batch, heads, rows, v_head_dim), written
    Array3<float, Exec> lse;     ///< (batch, heads, rows), written
    BlockLists blocks = {};      ///< equal on all ranks
    /// Output in T, with the extents of `out` and any strides but 1 in the last index, or none (no data): out
    /// goes here, rounded to T, and what `out` itself then holds is of no worth. Kernels write it where the
    /// plan has a local call behind which nobody touches a row of out; other rows are converted at the end.
    Strided4<T, Exec> finished = {};
    /// (heads), or none (no data): a learned logit of each head, which joins the softmax of every row behind
    /// its last key (attention::join_sinks). `lse` is then with it; a row without any key gives 0.
    Array1<const T, Exec> sinks = {};
    OnKeys<Exec, T> on_keys = {};  ///< or none
  };
  void forward(const Exec& exec, const Forward& arrays);

  /// Computes out and lse again, with forward's bits, of this rank's rows that take part in Plans::recompute,
  /// which are its first ones, and leaves the others as they are, those of `finished`, too. The arrays are
  /// those of forward, of all rows; q, k and v of rows that take no part are not read (docs/schedules.md).
  void recompute(const Exec& exec, const Forward& arrays);

  /// Arrays of the backward pass: those of forward with its lse, D = rowsum(dO∘O) of its out
  /// (attention::row_dot), the gradient of out like out, and the gradients of q, k and v like these, which
  /// are written (not added to).
  struct Backward {
    Array4<const T, Exec> q, k, v;
    float scale = 1.0f, soft_cap = 0.0f;
    Array3<const float, Exec> lse, d;  ///< (batch, heads, rows)
    Array4<const T, Exec> d_out;
    Array4<float, Exec> dq, dk, dv;
    BlockLists blocks = {};  ///< as in the forward pass
    Array1<const T, Exec> sinks = {};
    /// (heads), where there are sinks: their gradients of this rank's rows are added to it, as those of other
    /// parameters are (attention::sink_gradients).
    Array1<float, Exec> d_sinks = {};
    OnKeys<Exec, T> on_keys = {};  ///< or none
  };
  void backward(const Exec& exec, const Backward& arrays);

  /// Takes the plans of another batch (other documents, same shapes); keeps the buffers that still fit.
  /// Proves and throws like the constructor.
  void set_plans(const Exec& exec, plan::Plan forward, plan::Plan backward);
  void set_plans(const Exec& exec, const std::vector<Plans>& plans);

  /// Does of set_plans what needs no word with other ranks, on any thread and beside passes; lives on without
  /// this object. What is wrong with the plans is told by the set_plans that takes them, or by
  /// executor::agree.
  Prepare preparation(const Exec& exec) const;
  /// `Agreed::ahead`: no word with other ranks. As long as the buffers fit the device is not waited for
  /// either: masks and runs of rows are copied in the order of `exec`.
  void set_plans(const Exec& exec, const std::vector<std::shared_ptr<const PreparedPlans>>& plans,
                 Agreed agreed = Agreed::in_this_call);
  /// Reserves what these plans need of exchange buffers, and of pinned memory where messages pass through the
  /// host, whatever rows of their slices are sent, so that later ones that need no more allocate nothing.
  void reserve(const Exec& exec, const Plans& plans);
  /// Reserves what masks and layouts of later plans need on the device, whatever documents their sequences
  /// have and however these are cut: one document a token, and one run of rows.
  void reserve_documents(const Exec& exec);

  /// Steps of the plan of a pass; of several plans the most. What BlockLists::pairs has a count for each of.
  int steps(plan::Pass pass) const;
  /// Whether all plans of a pass claim that queries stay (plan::Plan::queries_stay); Plans::recompute is one
  /// of the forward pass.
  bool queries_stay(plan::Pass pass) const;

  /// false: from now on passes send and receive nothing, on all ranks, and wait for nobody: what computes
  /// alone take. Results are of no meaning then.
  void set_transfers(bool transfers);

  /// Seconds since construction (or reset_times) of waiting for transfers and in local kernels: of this
  /// rank's thread on the host, of the stream on a device (between events around each wait and around the
  /// kernels of each step; times() waits for the last of them). On a device waiting is exposed communication:
  /// time in which the stream had nothing to do but to wait for a transfer.
  struct Times {
    double exposed_communication = 0, computing = 0;
  };
  Times times() const;
  void reset_times();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Bytes of exchange slots and staging buffers (MemoryCategory::communication) that Attention holds on `rank`
/// for these plans. Goes through the steps of the rank. Throws Error as Attention does for plans that cannot
/// be run.
/// `largest`: what Attention::reserve was given.
std::int64_t exchange_memory(std::span<const Plans> plans, int rank, std::span<const Plans> largest = {});

/// Bytes of pinned memory (MemoryCategory::communication, of the host) that Attention::reserve reserves on
/// `rank` where messages pass through the host.
std::int64_t staging_memory(const Plans& largest, int rank);

/// Bytes (MemoryCategory::data) that Attention::reserve_documents reserves for each sequence with documents
/// of its own, where attention runs on a device, or on the host.
std::int64_t document_memory(const plan::Problem& problem, bool on_device);

}  // namespace annulus::executor
