#include "attention/comm/nccl/peer_copies.hpp"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/nccl/paths.hpp"
#include "base/kokkos/gpu_runtime.hpp"

namespace annulus::comm {

namespace {

// Enough pieces under way to hide the few microseconds between two of them, and few enough calls for the
// longest messages.
constexpr std::size_t piece_bytes = std::size_t{16} << 20;
constexpr std::uint32_t pieces_of_window = 4;
// Memory of 2 MiB is an allocation of its own; smaller ones would share it with others' memory.
constexpr std::size_t counter_bytes = std::size_t{2} << 20;
/// Control messages about windows have channels of their own, above those of callers.
constexpr int first_control_channel = 8192;

using StreamOperation = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

/// A function of the CUDA driver; nullptr where the driver does not have it.
StreamOperation driver_function(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found);
  return code == cudaSuccess && found == cudaDriverEntryPointSuccess
             ? reinterpret_cast<StreamOperation>(address)
             : nullptr;
}
StreamOperation wait_value() {
  static const StreamOperation function = driver_function("cuStreamWaitValue32");
  return function;
}
StreamOperation write_value() {
  static const StreamOperation function = driver_function("cuStreamWriteValue32");
  return function;
}

CUdeviceptr address_of(const std::uint32_t* counter) {
  return reinterpret_cast<CUdeviceptr>(counter);
}
/// The stream waits until the counter has come to `value`; counters wrap.
void wait_for(cudaStream_t stream, const std::uint32_t* counter, std::uint32_t value) {
  const CUresult code = wait_value()(stream, address_of(counter), value, CU_STREAM_WAIT_VALUE_GEQ);
  require(code == CUDA_SUCCESS, "cuStreamWaitValue32 failed with code {}", static_cast<int>(code));
}
/// What the stream holds is complete, and seen by the other GPU, before the counter changes.
void set(cudaStream_t stream, const std::uint32_t* counter, std::uint32_t value) {
  const CUresult code = write_value()(stream, address_of(counter), value, CU_STREAM_WRITE_VALUE_DEFAULT);
  require(code == CUDA_SUCCESS, "cuStreamWriteValue32 failed with code {}", static_cast<int>(code));
}

/// Forgets a failure, so that no later call reports it.
bool succeeded(cudaError_t code) {
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  return code == cudaSuccess;
}

/// The copies of CUDA's streams.
class CopyEngines final : public PeerCopies {
 public:
  CopyEngines(Communicator& control, int channels)
      : PeerCopies(control.rank(), control.topology()), control_(control), channels_(channels) {}
  ~CopyEngines() override;

  /// What make() does; false where this or another rank cannot.
  bool connect();
  void post(int channel, const CollectiveStage& stage, const Event& begin, cudaStream_t stream) override;
  void finish() override;
  void abort() noexcept override;

 private:
  /// One direction between this rank and a peer, on a channel.
  struct Lane {
    cudaStream_t stream = nullptr;
    std::byte* window = nullptr;         ///< in the receiver's memory
    std::uint32_t* waits_for = nullptr;  ///< the counter that the peer advances
    std::uint32_t* counts = nullptr;     ///< the counter that this side advances, in the peer's memory
    std::uint32_t pieces = 0;            ///< enqueued so far; wraps
  };
  /// What is left of a message to enqueue.
  struct Remaining {
    Lane* lane;
    const std::byte* source;  ///< null: a message to receive
    std::byte* target;        ///< null: a message to send
    std::size_t bytes;
  };
  /// A window on its way to the sender.
  struct Offer {
    cudaIpcMemHandle_t handle{};
    Request request;
  };
  enum class Counter : std::uint8_t { arrived, taken };
  using LaneKey = std::pair<int, int>;  ///< channel, peer

  /// Whether this rank could open the counters of all peers.
  bool open(const std::vector<cudaIpcMemHandle_t>& counters_of_ranks);
  Lane& incoming(int channel, int peer);
  Lane& outgoing(int channel, int peer);
  Lane& make_lane(std::map<LaneKey, Lane>& lanes, LaneKey key) const;
  void enqueue_piece(Remaining& message) const;
  /// Index in the counters of any rank of this node: what `peer` advances, or this rank at the peer's.
  std::size_t counter_index(int channel, int peer, Counter counter) const;

  Communicator& control_;
  int channels_;
  std::uint32_t* counters_ = nullptr;                ///< of this rank (channel, local rank, 2)
  std::map<int, std::uint32_t*> counters_of_peers_;  ///< [rank]
  std::map<LaneKey, Lane> incoming_, outgoing_;
  std::list<Offer> offers_;
  EventPool events_;
  std::mutex mutex_;  ///< of the lanes against abort()
};

bool CopyEngines::connect() {
  std::vector<cudaIpcMemHandle_t> handles(static_cast<std::size_t>(control_.size()));
  cudaIpcMemHandle_t mine{};
  bool able = !is_set("NCCL_P2P_DISABLE") && wait_value() != nullptr && write_value() != nullptr;
  able = able && succeeded(cudaMalloc(reinterpret_cast<void**>(&counters_), counter_bytes));
  able = able && succeeded(cudaMemset(counters_, 0, counter_bytes)) && succeeded(cudaDeviceSynchronize()) &&
         succeeded(cudaIpcGetMemHandle(&mine, counters_));
  // Every rank takes part in what follows, able or not.
  control_.all_gather(HostExec(), &mine, handles.data(), sizeof mine);
  if (control_.all_reduce_value(able ? 1 : 0, ReduceOp::min) == 1) able = open(handles);
  if (control_.all_reduce_value(able ? 1 : 0, ReduceOp::min) == 1) return true;
  finish();
  return false;
}

CopyEngines::~CopyEngines() {
  // Without finish() an exception is under way: others may still use the memory, and the process ends.
  for (auto* lanes : {&incoming_, &outgoing_})
    for (auto& [key, lane] : *lanes) cudaStreamDestroy(lane.stream);
}

bool CopyEngines::open(const std::vector<cudaIpcMemHandle_t>& counters_of_ranks) {
  const std::size_t all = counter_index(channels_ - 1, rank_, Counter::taken) + 1;
  if (all * sizeof(std::uint32_t) > counter_bytes) return false;
  for (int peer = 0; peer < topology_.ranks(); ++peer) {
    if (!reaches(peer)) continue;
    void* opened = nullptr;
    if (!succeeded(cudaIpcOpenMemHandle(&opened, counters_of_ranks[static_cast<std::size_t>(peer)],
                                        cudaIpcMemLazyEnablePeerAccess)))
      return false;
    counters_of_peers_[peer] = static_cast<std::uint32_t*>(opened);
  }
  return true;
}

std::size_t CopyEngines::counter_index(int channel, int peer, Counter counter) const {
  const int ranks = topology_.ranks_on(topology_.node(rank_));
  const int index = (channel * ranks + topology_.local_rank(peer)) * 2 + static_cast<int>(counter);
  return static_cast<std::size_t>(index);
}

CopyEngines::Lane& CopyEngines::make_lane(std::map<LaneKey, Lane>& lanes, LaneKey key) const {
  Lane lane;
  int least = 0, greatest = 0;
  ANNULUS_GPU_CALL(DeviceGetStreamPriorityRange, &least, &greatest);
  ANNULUS_GPU_CALL(StreamCreateWithPriority, &lane.stream, cudaStreamNonBlocking, greatest);
  const auto [channel, peer] = key;
  const bool receives = &lanes == &incoming_;
  lane.waits_for = counters_ + counter_index(channel, peer, receives ? Counter::arrived : Counter::taken);
  lane.counts = counters_of_peers_.at(peer) +
                counter_index(channel, rank_, receives ? Counter::taken : Counter::arrived);
  return lanes.emplace(key, lane).first->second;
}

CopyEngines::Lane& CopyEngines::incoming(int channel, int peer) {
  const auto found = incoming_.find({channel, peer});
  if (found != incoming_.end()) return found->second;
  void* window = nullptr;
  const cudaError_t code = cudaMalloc(&window, piece_bytes * pieces_of_window);
  require(succeeded(code), "rank {}: no {} MiB of GPU memory for messages of rank {}: {}", rank_,
          piece_bytes * pieces_of_window >> 20, peer, cudaGetErrorString(code));
  Lane& lane = make_lane(incoming_, {channel, peer});
  lane.window = static_cast<std::byte*>(window);
  Offer& offer = offers_.emplace_back();
  ANNULUS_GPU_CALL(IpcGetMemHandle, &offer.handle, window);
  const Send send{&offer.handle, sizeof offer.handle, peer};
  offer.request = control_.exchange(HostExec(), {&send, 1}, {}, first_control_channel + channel);
  return lane;
}

CopyEngines::Lane& CopyEngines::outgoing(int channel, int peer) {
  const auto found = outgoing_.find({channel, peer});
  if (found != outgoing_.end()) return found->second;
  cudaIpcMemHandle_t handle{};
  const Receive receive{&handle, sizeof handle, peer};
  control_.exchange(HostExec(), {}, {&receive, 1}, first_control_channel + channel).wait();
  void* window = nullptr;
  ANNULUS_GPU_CALL(IpcOpenMemHandle, &window, handle, cudaIpcMemLazyEnablePeerAccess);
  Lane& lane = make_lane(outgoing_, {channel, peer});
  lane.window = static_cast<std::byte*>(window);
  return lane;
}

void CopyEngines::enqueue_piece(Remaining& message) const {
  Lane& lane = *message.lane;
  const std::size_t bytes = std::min(message.bytes, piece_bytes);
  std::byte* const place = lane.window + lane.pieces % pieces_of_window * piece_bytes;
  const std::uint32_t piece = ++lane.pieces;
  if (message.source != nullptr) {
    wait_for(lane.stream, lane.waits_for, piece - pieces_of_window);
    ANNULUS_GPU_CALL(MemcpyAsync, place, message.source, bytes, cudaMemcpyDefault, lane.stream);
    message.source += bytes;
  } else {
    wait_for(lane.stream, lane.waits_for, piece);
    ANNULUS_GPU_CALL(MemcpyAsync, message.target, place, bytes, cudaMemcpyDefault, lane.stream);
    message.target += bytes;
  }
  set(lane.stream, lane.counts, piece);
  message.bytes -= bytes;
}

void CopyEngines::post(int channel, const CollectiveStage& stage, const Event& begin, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  // Windows are offered before any is asked for, so two ranks never wait for each other's. Messages to send
  // come before those to receive: CUDA may let copies of several streams share a queue, and then a piece to
  // send must not wait behind one that comes in exchange for it.
  std::vector<Remaining> messages, to_receive;
  for (const Receive& receive : stage.receives) {
    if (receive.bytes == 0 || !reaches(receive.peer)) continue;
    to_receive.push_back(
        {&incoming(channel, receive.peer), nullptr, static_cast<std::byte*>(receive.data), receive.bytes});
  }
  for (const Send& send : stage.sends) {
    if (send.bytes == 0 || !reaches(send.peer)) continue;
    messages.push_back(
        {&outgoing(channel, send.peer), static_cast<const std::byte*>(send.data), nullptr, send.bytes});
  }
  messages.insert(messages.end(), to_receive.begin(), to_receive.end());
  for (const Remaining& message : messages) begin.block(message.lane->stream);
  // Piece by piece, so that the first piece of each message is under way while the host enqueues the rest.
  // Messages of one lane keep their order: the later one starts when all of the earlier one is enqueued.
  for (bool any = true; any;) {
    any = false;
    std::vector<const Lane*> busy;
    for (Remaining& message : messages) {
      if (message.bytes == 0 || std::ranges::find(busy, message.lane) != busy.end()) continue;
      busy.push_back(message.lane);
      enqueue_piece(message);
      any = true;
    }
  }
  for (const Remaining& message : messages) {
    const EventPool::Taken end = events_.take();
    end->record(message.lane->stream);
    end->block(stream);
  }
}

void CopyEngines::finish() {
  for (auto* lanes : {&incoming_, &outgoing_})
    for (auto& [key, lane] : *lanes) ANNULUS_GPU_CALL(StreamSynchronize, lane.stream);
  offers_.clear();
  control_.barrier();  // nobody writes into the memory of others any more
  for (auto& [key, lane] : outgoing_) cudaIpcCloseMemHandle(lane.window);
  for (const auto& [peer, counters] : counters_of_peers_) cudaIpcCloseMemHandle(counters);
  control_.barrier();  // nobody has the memory of others mapped
  for (auto& [key, lane] : incoming_) cudaFree(lane.window);
  cudaFree(counters_);
  counters_ = nullptr;
  counters_of_peers_.clear();
}

void CopyEngines::abort() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  // A rank that waits for a peer's window holds the lock; its host never comes to what it would enqueue.
  if (!lock.owns_lock() || counters_ == nullptr) return;
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return;
  for (auto* lanes : {&incoming_, &outgoing_})
    for (const auto& [key, lane] : *lanes)
      static_cast<void>(write_value()(stream, address_of(lane.waits_for), lane.pieces, 0));
  cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
}

}  // namespace

std::unique_ptr<PeerCopies> PeerCopies::make(Communicator& control, int channels) {
  auto copies = std::make_unique<CopyEngines>(control, channels);
  return copies->connect() ? std::move(copies) : nullptr;
}

}  // namespace annulus::comm
