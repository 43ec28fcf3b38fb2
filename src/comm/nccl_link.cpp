#include "comm/nccl_link.hpp"

#include <cstdlib>
#include <exception>

#include <annulus/base/error.hpp>
#include <annulus/core/tensor.hpp>

namespace annulus::comm {

void cuda_check(cudaError_t code, const char* call) {
  require(code == cudaSuccess, "{} failed: {}", call, cudaGetErrorString(code));
}

void nccl_check(ncclResult_t code, const char* call, ncclComm_t communicator) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  fail("{} failed: {}: {} (NCCL_DEBUG=INFO says more)", call, ncclGetErrorString(code),
       ncclGetLastError(communicator));
}

namespace {

/// Ranks that compute on one GPU would wait for each other for ever.
void require_own_gpus(Communicator& control, int device) {
  struct Place {
    char bus[16];
    int node;
  };
  Place mine{};
  ANNULUS_CUDA_CALL(cudaDeviceGetPCIBusId, mine.bus, static_cast<int>(sizeof mine.bus), device);
  mine.node = control.topology().node(control.rank());
  std::vector<Place> all(static_cast<std::size_t>(control.size()));
  control.all_gather(HostExec(), &mine, all.data(), sizeof mine);
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      require(std::string(all[a].bus) != all[b].bus || all[a].node != all[b].node,
              "NCCL: ranks {} and {} both use the GPU {} of node {}: start one rank a GPU, or use the "
              "transport mpi",
              b, a, all[a].bus, all[a].node);
    }
  }
}

}  // namespace

NcclLink::NcclLink(Communicator& control, const NcclOptions& options) : rank_(control.rank()) {
  require(options.channels > 0, "NCCL: {} channels: give at least 1", options.channels);
  require(options.most_blocks >= 0,
          "NCCL: {} thread blocks a channel: give 1 or more, or 0 for NCCL's choice", options.most_blocks);
  if (!options.multicast) setenv("NCCL_NVLS_ENABLE", "0", 0);
  const int device = Kokkos::Cuda().cuda_device();
  ANNULUS_CUDA_CALL(cudaSetDevice, device);
  require_own_gpus(control, device);

  ncclUniqueId id{};
  if (rank_ == 0) ANNULUS_NCCL_CALL(ncclGetUniqueId, &id);
  control.broadcast(HostExec(), &id, sizeof id, 0);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (options.most_blocks > 0) config.maxCTAs = options.most_blocks;
  lanes_.resize(static_cast<std::size_t>(options.channels) + 1);
  int least = 0, greatest = 0;
  ANNULUS_CUDA_CALL(cudaDeviceGetStreamPriorityRange, &least, &greatest);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    // Transfers before kernels: what a step waits for is worth more than what it computes meanwhile.
    ANNULUS_CUDA_CALL(cudaStreamCreateWithPriority, &lane.stream, cudaStreamNonBlocking, greatest);
    if (i == 0) {
      ANNULUS_NCCL_CALL(ncclCommInitRankConfig, &lane.communicator, control.size(), id, rank_, &config);
    } else {
      ANNULUS_NCCL_CALL(ncclCommSplit, lanes_[0].communicator, 0, rank_, &lane.communicator, &config);
    }
  }
}

NcclLink::~NcclLink() {
  // Destroying is collective: not while an exception keeps this rank from what the others do.
  if (std::uncaught_exceptions() > 0) abort();
  for (const Lane& lane : lanes_) {
    if (lane.stream != nullptr) {
      if (!aborted_) cudaStreamSynchronize(lane.stream);
      cudaStreamDestroy(lane.stream);
    }
    if (lane.communicator != nullptr && !aborted_) ncclCommDestroy(lane.communicator);
  }
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

cudaEvent_t NcclLink::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      const cudaEvent_t event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  ANNULUS_CUDA_CALL(cudaEventCreateWithFlags, &event, cudaEventDisableTiming);
  return event;
}

void NcclLink::give_back(cudaEvent_t event) noexcept {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
}

void NcclLink::lane_after(const Lane& lane, const Queue& queue) {
  const cudaEvent_t event = take_event();
  ANNULUS_CUDA_CALL(cudaEventRecord, event, static_cast<cudaStream_t>(queue.stream()));
  ANNULUS_CUDA_CALL(cudaStreamWaitEvent, lane.stream, event, 0);
  give_back(event);  // the wait holds what was recorded, whatever is recorded next
}

void NcclLink::queue_after(const Queue& queue, const Lane& lane) {
  const cudaEvent_t event = take_event();
  ANNULUS_CUDA_CALL(cudaEventRecord, event, lane.stream);
  ANNULUS_CUDA_CALL(cudaStreamWaitEvent, static_cast<cudaStream_t>(queue.stream()), event, 0);
  give_back(event);
}

void NcclLink::poll() const {
  require(!aborted_, "rank {}: NCCL was aborted after an error: end the program", rank_);
  for (const Lane& lane : lanes_) {
    ncclResult_t error = ncclSuccess;
    nccl_check(ncclCommGetAsyncError(lane.communicator, &error), "ncclCommGetAsyncError", lane.communicator);
    nccl_check(error, "a transfer over NCCL", lane.communicator);
  }
}

void NcclLink::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (aborted_) return;
  aborted_ = true;
  for (Lane& lane : lanes_) {
    if (lane.communicator != nullptr) ncclCommAbort(lane.communicator);
    lane.communicator = nullptr;
  }
}

}  // namespace annulus::comm
