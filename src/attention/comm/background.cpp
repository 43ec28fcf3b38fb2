#include "attention/comm/background.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace annulus::comm {

namespace {

constexpr auto shortest_sleep = std::chrono::microseconds(20),
               longest_sleep = std::chrono::microseconds(1000);

/// An exchange for which a thread of the background waits.
class BackgroundState final : public Request::State {
 public:
  BackgroundState(Request request, const std::atomic<bool>& given_up)
      : request_(std::move(request)), given_up_(given_up) {}

  void wait() override {
    for (auto sleep = shortest_sleep; !test(); sleep = std::min(2 * sleep, longest_sleep))
      std::this_thread::sleep_for(sleep);
  }
  bool test() override {
    require(!given_up_, "a wait in the background was given up");
    return request_.test();
  }

 private:
  Request request_;
  const std::atomic<bool>& given_up_;
};

template <class T>
void combine(ReduceOp op, const std::vector<T>& all, T* data, std::size_t count) {
  using Unsigned = std::make_unsigned_t<T>;  // sums wrap
  std::copy_n(all.begin(), count, data);
  for (std::size_t i = count; i < all.size(); ++i) {
    T& result = data[i % count];
    result = op == ReduceOp::sum
                 ? static_cast<T>(static_cast<Unsigned>(result) + static_cast<Unsigned>(all[i]))
             : op == ReduceOp::max ? std::max(result, all[i])
                                   : std::min(result, all[i]);
  }
}

}  // namespace

BackgroundCommunicator::BackgroundCommunicator(std::unique_ptr<Communicator> twin)
    : twin_(std::move(twin)), topology_(Topology::uniform(twin_->size(), twin_->size())) {}

Request BackgroundCommunicator::post(const Queue&, std::span<const Send> sends,
                                     std::span<const Receive> receives, int channel) {
  // Kernels of the rank's own thread run on the host's instance, whose fence would wait for them.
  const Queue idle{Kokkos::Serial()};
  const int of_twin = channel < 0 ? -channel : channel - lowest_channel + 1;
  return Request(
      std::make_unique<BackgroundState>(twin_->exchange(idle, sends, receives, of_twin), given_up_));
}

void BackgroundCommunicator::all_reduce(const Queue& queue, void* data, const Reduction& elements) {
  const auto& [count, type, op, sums] = elements;
  const auto reduce = [&]<class T>(T* values) {
    std::vector<T> all(count * static_cast<std::size_t>(size()));
    all_gather(queue, values, all.data(), count * sizeof(T));
    if (count > 0) combine(op, all, values, count);
  };
  if (type == DType::i32) return reduce(static_cast<std::int32_t*>(data));
  require(type == DType::i64, "a reduction in the background is over i32 or i64, not {}", name_of(type));
  reduce(static_cast<std::int64_t*>(data));
}

std::unique_ptr<Communicator> BackgroundCommunicator::split(int, int) {
  fail("a communicator of the background has no groups: split the one of the ranks' own threads");
}

}  // namespace annulus::comm
