#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <annulus/comm/nccl.hpp>

namespace annulus::comm {

/// Throws Error with the call and what CUDA or NCCL says unless all went well.
void cuda_check(cudaError_t code, const char* call);
void nccl_check(ncclResult_t code, const char* call, ncclComm_t communicator = nullptr);
#define ANNULUS_CUDA_CALL(function, ...) ::annulus::comm::cuda_check(function(__VA_ARGS__), #function)
#define ANNULUS_NCCL_CALL(function, ...) ::annulus::comm::nccl_check(function(__VA_ARGS__), #function)

/// The NCCL communicators of a rank, one a channel and one for collectives, each with its stream. Shared by
/// the Communicator and the requests under way.
class NcclLink {
 public:
  /// Collective over `control`.
  NcclLink(Communicator& control, const NcclOptions& options);
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  struct Lane {
    ncclComm_t communicator = nullptr;
    cudaStream_t stream = nullptr;
  };
  int channels() const { return static_cast<int>(lanes_.size()) - 1; }
  const Lane& lane(int channel) const { return lanes_[static_cast<std::size_t>(channel)]; }
  const Lane& collectives() const { return lanes_.back(); }

  /// Events without times, kept for reuse.
  cudaEvent_t take_event();
  void give_back(cudaEvent_t event) noexcept;

  /// The lane's stream waits for what `queue` holds by now; `queue` waits for what the lane's stream holds.
  void lane_after(const Lane& lane, const Queue& queue);
  void queue_after(const Queue& queue, const Lane& lane);

  /// Throws what NCCL met since it was asked last, and after abort().
  void poll() const;

  /// Ends the kernels of all exchanges under way, wherever they wait. Nothing can be posted any more.
  void abort() noexcept;

 private:
  std::vector<Lane> lanes_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> events_;
  int rank_ = 0;
  bool aborted_ = false;
};

}  // namespace annulus::comm
