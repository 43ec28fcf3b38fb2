#pragma once

#include <Kokkos_Core.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <annulus/attention/comm/sums.hpp>
#include <annulus/base/dtype.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/queue.hpp>
#include <annulus/cluster/topology/topology.hpp>

/// One interface for all transports. Every rank of a communicator calls the same collectives in the same
/// order. Memory handed over is contiguous and stays untouched (sent from) or unread (received into) until
/// the request that carries it has been waited for.
namespace annulus::comm {

class Watchdog;

enum class ReduceOp : std::uint8_t { sum, max, min };

/// What a reduction combines: `count` elements of each rank, or for each rank.
struct Reduction {
  std::size_t count = 0;
  DType type = DType::f32;
  ReduceOp op = ReduceOp::sum;
  Sums sums = Sums::rank_order;
};

/// One message of an exchange. `data` may be null when `bytes` is 0 (such a message is still matched).
struct Send {
  const void* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
};
struct Receive {
  void* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
};

/// A View as a message. The View must be contiguous.
template <class ViewType>
Send send_view(const ViewType& view, int peer) {
  require(view.span_is_contiguous(), "cannot send the strided View '{}': pack it first", view.label());
  return {view.data(), view.size() * sizeof(typename ViewType::value_type), peer};
}
template <class ViewType>
Receive receive_view(const ViewType& view, int peer) {
  require(view.span_is_contiguous(), "cannot receive into the strided View '{}': unpack it afterwards",
          view.label());
  return {view.data(), view.size() * sizeof(typename ViewType::value_type), peer};
}

/// An exchange under way. Move-only. Destroying a request that is still active waits for it (and swallows a
/// transport error, which the next call on the communicator reports again). While an exception unwinds the
/// stack nobody waits: peers may never send; the exchange is given up, and its buffers may go.
class Request {
 public:
  /// What a back-end keeps of an exchange under way.
  class State {
   public:
    virtual ~State() = default;
    /// Blocks until all messages have completed. Throws Error when a peer or the transport failed.
    virtual void wait() = 0;
    /// Advances the transport; true when all messages have completed. Throws like wait.
    virtual bool test() = 0;

    /// The owner goes away: waits until nobody uses the memory of the messages any more, as wait() does where
    /// they do not go on without the host. What it throws goes to keep().
    virtual void finish() { wait(); }
    /// The next call on the communicator throws `error`, where it would not find it by itself.
    virtual void keep(const std::string& /*error*/) noexcept {}
    /// An exception unwinds the stack: nobody waits, and the destructor follows.
    virtual void give_up() noexcept {}
  };

  Request() = default;
  explicit Request(std::unique_ptr<State> state) : state_(std::move(state)) {}
  Request(Request&&) noexcept = default;
  Request& operator=(Request&& other) noexcept;  ///< drops what was under way first
  ~Request();

  /// An exchange is under way.
  bool active() const { return state_ != nullptr; }
  /// Waits for it; afterwards the request is inactive. Does nothing when it already is.
  void wait();
  /// Advances it; true (and the request inactive) once all messages have completed.
  bool test();

 private:
  void drop() noexcept;

  std::unique_ptr<State> state_;
};

/// A group of ranks. The pointer-and-type members are what back-ends implement; the View templates below are
/// what the rest of the library calls.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  int size() const { return topology().ranks(); }
  /// Which ranks share a node.
  virtual const Topology& topology() const = 0;
  /// "null", "loopback", "mpi", … and version, for logs.
  virtual std::string description() const = 0;
  /// The number that `rank` of this communicator has in the whole job, of which this may be a part.
  virtual int world_rank(int rank) const { return rank; }
  /// What this rank is doing, for the report of a stalled run; null where nobody would ask. Communicators
  /// that hand on to another one hand this on, too.
  virtual Watchdog* watchdog() const { return nullptr; }

  /// Posts a group of sends and receives. Messages between one pair of ranks on one channel match in the
  /// order in which they are posted (within a group: in the order listed); channels (0, 1, …) are independent
  /// of one another. A rank may send to itself. Do not count on a send completing before its receive is
  /// posted. The two sides of a message must agree on its size: otherwise the wait of the receiver (loopback:
  /// of both) throws Error.
  virtual Request exchange(const Queue& queue, std::span<const Send> sends, std::span<const Receive> receives,
                           int channel = 0) = 0;

  virtual void broadcast(const Queue& queue, void* data, std::size_t bytes, int root) = 0;
  /// In place; the same result, bit for bit, on every rank. Elements are combined in rank order, neighbours
  /// first: (x0 + x1) + (x2 + x3). The largest power of two below n splits n ranks: those before it are
  /// combined, then those behind it, then both results. So the bits depend on the number of ranks alone, and
  /// not on the size, the transport or the nodes. bf16 and f16 are combined in f32 and rounded once. Integers
  /// wrap; a NaN survives max and min.
  ///
  /// Sums::native takes ncclAllReduce, or MPI's reductions, which know f32, f64, i32 and i64 and throw Error
  /// for others. Null and loopback have no reductions but those in rank order.
  virtual void all_reduce(const Queue& queue, void* data, const Reduction& elements) = 0;
  void all_reduce(const Queue& queue, void* data, std::size_t count, DType type, ReduceOp op) {
    all_reduce(queue, data, {.count = count, .type = type, .op = op});
  }
  /// Rank r's `bytes` bytes land at receive + r · bytes.
  virtual void all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes) = 0;
  /// Block r of `bytes` bytes goes to rank r; rank r's block lands at receive + r · bytes.
  virtual void all_to_all(const Queue& queue, const void* send, void* receive, std::size_t bytes) = 0;
  virtual void barrier() = 0;

  /// An all_gather, and a reduction of size() blocks of which rank r receives block r, that return while they
  /// are under way, on a channel of exchanges. Ranks start the collectives of a communicator in one order,
  /// whatever their channels, and wait for them in any. A request ends before its communicator. `receive` may
  /// hold this rank's block already, at `send`.
  virtual Request start_all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes,
                                   int channel) = 0;
  /// What the ranks contribute travels; wait(), or the test() that sees its end, enqueues the combination on
  /// `queue`. What comes from other ranks lies in memory of the request: size() − 1 blocks. `receive` may be
  /// this rank's block of `send`.
  ///
  /// Sums::native takes ncclReduceScatter or MPI_Ireduce_scatter_block, and memory for one block. Memory of a
  /// device that goes through the host is complete when it returns.
  virtual Request start_reduce_scatter(const Queue& queue, const void* send, void* receive,
                                       const Reduction& blocks, int channel) = 0;

  /// SMs that an exchange of device memory may take from kernels while it is under way; 0 where it takes
  /// none, or as many as its library chooses.
  virtual int sms_of_exchange() const { return 0; }

  /// Advances what is under way. Transports that move data only inside calls (MPI), and collectives in stages
  /// that the host posts one after the other (all transports but NCCL), need it between pieces of compute;
  /// cheap.
  virtual void progress() {}

  /// The ranks with the same colour (≥ 0), ordered by (key, rank), as a communicator of their own, which may
  /// outlive this one. Collective. Throws Error on every rank when the order would separate ranks of one
  /// node.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Another communicator of the same ranks, for memory of the host and for one other thread, which uses it
  /// while this one is in use (BackgroundCommunicator waits on it). Null on all ranks where one of them may
  /// communicate from one thread alone. Collective.
  virtual std::unique_ptr<Communicator> for_another_thread() { return nullptr; }

  /// Ends all ranks: called by the rank that failed, with its message. MPI ends the processes and does not
  /// return; null and loopback throw Error, on the other ranks out of their waits.
  virtual void abort(const std::string& message) = 0;

  // Views. Contiguous; all of one rank's View takes part.
  template <class ViewType>
  void all_reduce(const Queue& queue, const ViewType& view, ReduceOp op = ReduceOp::sum,
                  Sums sums = Sums::rank_order) {
    all_reduce(queue, contiguous(view),
               {.count = view.size(),
                .type = dtype_of<typename ViewType::non_const_value_type>,
                .op = op,
                .sums = sums});
  }
  /// `receive` holds size() times as many elements as `send`.
  template <class SendView, class ReceiveView>
  Request start_all_gather(const Queue& queue, const SendView& send, const ReceiveView& receive,
                           int channel) {
    require(receive.size() == send.size() * static_cast<std::size_t>(size()),
            "all_gather: '{}' has {} elements, but {} ranks gather {} each", receive.label(), receive.size(),
            size(), send.size());
    return start_all_gather(queue, contiguous(send), contiguous(receive),
                            send.size() * sizeof(typename SendView::value_type), channel);
  }
  /// `send` holds size() times as many elements as `receive`.
  template <class SendView, class ReceiveView>
  Request start_reduce_scatter(const Queue& queue, const SendView& send, const ReceiveView& receive,
                               int channel, Sums sums = Sums::rank_order) {
    require(send.size() == receive.size() * static_cast<std::size_t>(size()),
            "reduce_scatter: '{}' has {} elements, but {} ranks receive {} each", send.label(), send.size(),
            size(), receive.size());
    return start_reduce_scatter(
        queue, contiguous(send), contiguous(receive),
        {.count = receive.size(), .type = dtype_of<typename ReceiveView::non_const_value_type>, .sums = sums},
        channel);
  }

  /// All-reduce of one number of the host.
  template <class T>
  T all_reduce_value(T value, ReduceOp op) {
    all_reduce(Queue(Kokkos::DefaultHostExecutionSpace()), &value, 1, dtype_of<T>, op);
    return value;
  }

 private:
  template <class ViewType>
  static typename ViewType::value_type* contiguous(const ViewType& view) {
    require(view.span_is_contiguous(), "the View '{}' is strided: communication needs contiguous memory",
            view.label());
    return view.data();
  }
};

/// The communicator of one rank on its own; exchanges with itself are copies.
std::unique_ptr<Communicator> make_null();

}  // namespace annulus::comm
