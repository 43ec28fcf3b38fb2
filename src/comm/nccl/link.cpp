#include "comm/nccl/link.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>

#include <annulus/base/error.hpp>
#include <annulus/core/tensor.hpp>

#include "comm/nccl/ways.hpp"

namespace annulus::comm {

namespace {

std::string nccl_text(ncclResult_t code, const char* call, ncclComm_t communicator) {
  return fmt::format("{} failed: {}: {} (NCCL_DEBUG=INFO says more)", call, ncclGetErrorString(code),
                     ncclGetLastError(communicator));
}

bool is_well(ncclResult_t code) {
  return code == ncclSuccess || code == ncclInProgress;
}

/// What the streams of a lane have come to.
class EventMarks final : public Flights::Marks {
 public:
  EventMarks(EventPool::Taken begun, EventPool::Taken done)
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
      device_(Kokkos::Cuda().cuda_device()),
      topology_(control.topology()),
      has_inside_(topology_.nodes() > 1 && topology_.ranks_on(topology_.node(rank_)) > 1),
      watch_(control.watch()),
      flights_(
          std::max(options.channels, 0) + 1, [this] { return errors(); }, [this] { abort(); }) {
  require(options.channels > 0, "NCCL: {} channels: give at least 1", options.channels);
  require(options.most_blocks >= 0,
          "NCCL: {} thread blocks a channel: give 1 or more, or 0 for NCCL's choice", options.most_blocks);
  if (!options.multicast) setenv("NCCL_NVLS_ENABLE", "0", 0);
  ANNULUS_CUDA_CALL(cudaSetDevice, device_);
  ways_ = nccl_ways(control, device_);
  connect(control, options);
  if (watch_ != nullptr) watch_->add(&flights_);
}

void NcclLink::connect(Communicator& control, const NcclOptions& options) {
  const Watch::Doing doing(watch_, "the start of NCCL");
  ncclUniqueId id{};
  if (rank_ == 0) ANNULUS_NCCL_CALL(ncclGetUniqueId, &id);
  control.broadcast(HostExec(), &id, sizeof id, 0);
  const Watch::Waiting waiting(watch_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (options.most_blocks > 0) config.maxCTAs = options.most_blocks;
  // Hopper's NCCL starts its blocks in clusters of four, each of which waits until as many multiprocessors of
  // one GPC are free: beside a kernel that fills most of them it waits for the kernel's end. Blocks by
  // themselves fit anywhere.
  config.cgaClusterSize = 1;
  lanes_.resize(static_cast<std::size_t>(options.channels) + 1);
  int least = 0, greatest = 0;
  ANNULUS_CUDA_CALL(cudaDeviceGetStreamPriorityRange, &least, &greatest);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    lane.number = static_cast<int>(i);
    // Transfers before kernels: what a step waits for is worth more than what it computes meanwhile.
    for (Path* path : {&lane.all, &lane.inside})
      ANNULUS_CUDA_CALL(cudaStreamCreateWithPriority, &path->stream, cudaStreamNonBlocking, greatest);
    if (i == 0) {
      ANNULUS_NCCL_CALL(ncclCommInitRankConfig, &lane.all.communicator, control.size(), id, rank_, &config);
    } else {
      ANNULUS_NCCL_CALL(ncclCommSplit, lanes_[0].all.communicator, 0, rank_, &lane.all.communicator, &config);
    }
    if (topology_.nodes() > 1) {  // collective: ranks that are alone on their node take part, too
      const int color = has_inside_ ? topology_.node(rank_) : NCCL_SPLIT_NOCOLOR;
      ANNULUS_NCCL_CALL(ncclCommSplit, lanes_[0].all.communicator, color, topology_.local_rank(rank_),
                        &lane.inside.communicator, &config);
    }
  }
}

NcclLink::~NcclLink() {
  // Destroying is collective: not while an exception keeps this rank from what the others do.
  if (std::uncaught_exceptions() > 0) abort();
  {
    const Watch::Doing doing(watch_, "the end of NCCL");
    const Watch::Waiting waiting(watch_);
    for (const Path* path : paths())
      if (path->stream != nullptr && !aborted_) cudaStreamSynchronize(path->stream);
  }
  if (watch_ != nullptr) watch_->remove(&flights_);
  for (const Path* path : paths()) {
    if (path->stream != nullptr) cudaStreamDestroy(path->stream);
    if (path->communicator != nullptr && !aborted_) ncclCommDestroy(path->communicator);
  }
}

std::vector<NcclLink::Path*> NcclLink::paths() {
  std::vector<Path*> all;
  for (Lane& lane : lanes_)
    for (Path* path : {&lane.all, &lane.inside}) all.push_back(path);
  return all;
}

void NcclLink::track(const Lane& lane, const EventPool::Taken& begun, const EventPool::Taken& done,
                     std::vector<Pending> pending) {
  if (watch_ == nullptr) return;
  flights_.launch(lane.number, {std::make_unique<EventMarks>(begun, done), watch_->note(), std::move(pending),
                                watch_->limit()});
}

std::string NcclLink::errors() const {
  const std::lock_guard lock(mutex_);
  for (const Lane& lane : lanes_) {
    for (const ncclComm_t communicator : {lane.all.communicator, lane.inside.communicator}) {
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
  cudaSetDevice(device_);  // the thread that guards the waits has not chosen one
  for (Path* path : paths()) {
    if (path->communicator != nullptr) ncclCommAbort(path->communicator);
    path->communicator = nullptr;
  }
}

}  // namespace annulus::comm
