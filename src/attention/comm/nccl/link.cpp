#include "attention/comm/nccl/link.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/nccl/paths.hpp"

namespace annulus::comm {

namespace {

std::string nccl_text(ncclResult_t code, const char* call, ncclComm_t communicator) {
  return fmt::format("{} failed: {}: {} (NCCL_DEBUG=INFO says more)", call, ncclGetErrorString(code),
                     ncclGetLastError(communicator));
}

bool is_well(ncclResult_t code) {
  return code == ncclSuccess || code == ncclInProgress;
}

/// What the streams of a channel have come to.
class EventProgress final : public InFlightExchanges::StreamProgress {
 public:
  EventProgress(EventPool::Taken begun, EventPool::Taken done)
      : begun_(std::move(begun)), done_(std::move(done)) {}
  bool begun() const override { return passed(*begun_); }
  bool done() const override { return passed(*done_); }

 private:
  /// A device that fails is noticed by those who use it.
  static bool passed(const Event& event) {
    try {
      return event.done();
    } catch (const Error&) {
      return true;
    }
  }
  EventPool::Taken begun_, done_;
};

}  // namespace

void nccl_check(ncclResult_t code, const char* call, ncclComm_t communicator) {
  if (!is_well(code)) fail("{}", nccl_text(code, call, communicator));
}

NcclLink::NcclLink(Communicator& control, const NcclOptions& options)
    : rank_(control.rank()),
      device_(gpu_device()),
      topology_(control.topology()),
      watchdog_(control.watchdog()),
      in_flight_(
          std::max(options.channels, 0) + 1, [this] { return errors(); }, [this] { abort(); }) {
  require(options.channels > 0, "NCCL: {} channels: give at least 1", options.channels);
  require(options.max_ctas >= 0, "NCCL: {} thread blocks a channel: give 1 or more, or 0 for NCCL's choice",
          options.max_ctas);
  if (!options.nvlink_multicast) setenv("NCCL_NVLS_ENABLE", "0", 0);
  ANNULUS_GPU_CALL(SetDevice, device_);
  path_summary_ = nccl_paths(control, device_);
  if (options.copy_engines && topology_.nodes() < topology_.ranks())
    copies_ = PeerCopies::make(control, options.channels + 1);
  has_intra_node_ =
      copies_ == nullptr && topology_.nodes() > 1 && topology_.ranks_on(topology_.node(rank_)) > 1;
  connect(control, options);
  if (watchdog_ == nullptr) return;
  watchdog_->add(&in_flight_);
  timer_.emplace(watchdog_->message_times());
}

void NcclLink::connect(Communicator& control, const NcclOptions& options) {
  const Watchdog::ActivityScope activity(watchdog_, "the start of NCCL");
  ncclUniqueId id{};
  if (rank_ == 0) ANNULUS_NCCL_CALL(ncclGetUniqueId, &id);
  control.broadcast(HostExec(), &id, sizeof id, 0);
  const Watchdog::Waiting waiting(watchdog_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (options.max_ctas > 0) config.maxCTAs = options.max_ctas;
  // Hopper's NCCL starts its blocks in clusters of four, each of which waits until as many SMs of
  // one GPC are free: beside a kernel that fills most of them it waits for the kernel's end. Blocks by
  // themselves fit anywhere.
  config.cgaClusterSize = 1;
  channels_.resize(static_cast<std::size_t>(options.channels) + 1);
  int least = 0, greatest = 0;
  ANNULUS_GPU_CALL(DeviceGetStreamPriorityRange, &least, &greatest);
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    NcclChannel& channel = channels_[i];
    channel.index = static_cast<int>(i);
    // Transfers before kernels: what a step waits for is worth more than what it computes meanwhile.
    for (CommStream* comm_stream : {&channel.world, &channel.intra_node})
      ANNULUS_GPU_CALL(StreamCreateWithPriority, &comm_stream->stream, ANNULUS_GPU(StreamNonBlocking),
                       greatest);
    if (topology_.nodes() > 1) channel.world.queue = Queue(DeviceExec(channel.world.stream));
    if (i == 0) {
      ANNULUS_NCCL_CALL(ncclCommInitRankConfig, &channel.world.communicator, control.size(), id, rank_,
                        &config);
    } else {
      ANNULUS_NCCL_CALL(ncclCommSplit, channels_[0].world.communicator, 0, rank_, &channel.world.communicator,
                        &config);
    }
    if (topology_.nodes() > 1 &&
        copies_ == nullptr) {  // collective: ranks that are alone on their node take part, too
      const int color = has_intra_node_ ? topology_.node(rank_) : NCCL_SPLIT_NOCOLOR;
      ANNULUS_NCCL_CALL(ncclCommSplit, channels_[0].world.communicator, color, topology_.local_rank(rank_),
                        &channel.intra_node.communicator, &config);
    }
  }
}

NcclLink::~NcclLink() {
  // Destroying is collective: not while an exception keeps this rank from what the others do.
  if (std::uncaught_exceptions() > 0) abort();
  {
    const Watchdog::ActivityScope activity(watchdog_, "the end of NCCL");
    const Watchdog::Waiting waiting(watchdog_);
    for (const CommStream* comm_stream : comm_streams())
      if (comm_stream->stream != nullptr && !aborted_)
        static_cast<void>(ANNULUS_GPU(StreamSynchronize)(comm_stream->stream));
    if (copies_ != nullptr && !aborted_) {
      try {
        copies_->finish();
      } catch (const std::exception&) {  // a device that fails is noticed by those who use it
      }
    }
  }
  if (watchdog_ != nullptr) watchdog_->remove(&in_flight_);
  for (CommStream* comm_stream : comm_streams()) {
    // An instance of Kokkos ends with a wait for the whole device, where work may wait for what never comes.
    if (aborted_ && comm_stream->queue) static_cast<void>(new Queue(*comm_stream->queue));
    comm_stream->queue.reset();
    if (comm_stream->stream != nullptr) static_cast<void>(ANNULUS_GPU(StreamDestroy)(comm_stream->stream));
    if (comm_stream->communicator != nullptr && !aborted_) ncclCommDestroy(comm_stream->communicator);
  }
}

std::vector<NcclLink::CommStream*> NcclLink::comm_streams() {
  std::vector<CommStream*> all;
  for (NcclChannel& channel : channels_)
    for (CommStream* comm_stream : {&channel.world, &channel.intra_node}) all.push_back(comm_stream);
  return all;
}

void NcclLink::track(const NcclChannel& channel, const EventPool::Taken& begun, const EventPool::Taken& done,
                     std::vector<Pending> pending) {
  if (watchdog_ == nullptr) return;
  in_flight_.add(channel.index, {std::make_unique<EventProgress>(begun, done), watchdog_->note(),
                                 std::move(pending), watchdog_->timeout()});
}

std::string NcclLink::errors() const {
  const std::lock_guard lock(mutex_);
  for (const NcclChannel& channel : channels_) {
    for (const ncclComm_t communicator : {channel.world.communicator, channel.intra_node.communicator}) {
      if (aborted_ || communicator == nullptr) continue;
      ncclResult_t error = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(communicator, &error);
      if (!is_well(asked)) return nccl_text(asked, "ncclCommGetAsyncError", communicator);
      if (!is_well(error)) return nccl_text(error, "a transfer over NCCL", communicator);
    }
  }
  return {};
}

void NcclLink::poll() const {
  require(!aborted_, "rank {}: NCCL was aborted after an error: end the program", rank_);
  const std::string error = errors();
  if (!error.empty()) fail("{}", error);
}

void NcclLink::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (aborted_.exchange(true)) return;
  static_cast<void>(ANNULUS_GPU(SetDevice)(device_));  // the thread that guards the waits has not chosen one
  if (copies_ != nullptr) copies_->abort();
  for (CommStream* comm_stream : comm_streams()) {
    if (comm_stream->communicator != nullptr) ncclCommAbort(comm_stream->communicator);
    comm_stream->communicator = nullptr;
  }
}

}  // namespace annulus::comm
