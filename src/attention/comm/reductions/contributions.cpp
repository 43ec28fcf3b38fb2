#include "attention/comm/reductions/contributions.hpp"

#include <memory>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

namespace annulus::comm {

namespace {

class CombiningState final : public Request::State {
 public:
  CombiningState(Request request, ContributionMemory memory, const Queue& queue, const Reduction& reduction,
                 const Contributions& contributions, void* out)
      : memory_(std::move(memory)),
        request_(std::move(request)),
        queue_(queue),
        reduction_(reduction),
        contributions_(contributions),
        out_(out) {}

  void wait() override {
    request_.wait();
    combine();
  }
  bool test() override {
    if (!request_.test()) return false;
    combine();
    return true;
  }

 private:
  void combine() {
    reduce_in_order(queue_, reduction_.type, reduction_.op, contributions_, out_, reduction_.count);
  }

  ContributionMemory memory_;  // outlives the request, which writes to it
  Request request_;
  Queue queue_;
  Reduction reduction_;
  Contributions contributions_;
  void* out_;
};

}  // namespace

ContributionMemory::ContributionMemory(const Queue& queue, std::size_t bytes) {
  constexpr MemoryCategory category = MemoryCategory::workspace;
  const char* const label = "annulus::comm::contributions";
  if (queue.is_host()) {
    host_ = Bytes<Kokkos::HostSpace>::uninitialized(HostExec(), category, label, bytes);
    data_ = host_.view().data();
  } else {
    const auto* exec = queue.instance<DeviceExec>();
    require(exec != nullptr, "reductions of device memory are for queues of {}", DeviceExec::name());
    device_ = Bytes<DeviceExec::memory_space>::uninitialized(*exec, category, label, bytes);
    data_ = device_.view().data();
  }
}

Request combine_after(Request request, ContributionMemory memory, const Queue& queue,
                      const Reduction& reduction, const Contributions& contributions, void* out) {
  return Request(std::make_unique<CombiningState>(std::move(request), std::move(memory), queue, reduction,
                                                  contributions, out));
}

}  // namespace annulus::comm
