// Reductions of MPI's own (Sums::native).
#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include <annulus/base/division.hpp>

#include "attention/comm/mpi/communicator.hpp"
#include "attention/comm/reductions/contributions.hpp"

namespace annulus::comm {

namespace {

MPI_Datatype mpi_type(DType type) {
  for (const auto& [ours, theirs] : {std::pair<DType, MPI_Datatype>(DType::f32, MPI_FLOAT),
                                     {DType::f64, MPI_DOUBLE},
                                     {DType::i32, MPI_INT32_T},
                                     {DType::i64, MPI_INT64_T}})
    if (ours == type) return theirs;
  fail("MPI reduces f32, f64, i32 and i64, not {}: sum in rank order (Sums::rank_order)", name_of(type));
}

MPI_Op mpi_op(ReduceOp op) {
  return op == ReduceOp::sum ? MPI_SUM : op == ReduceOp::max ? MPI_MAX : MPI_MIN;
}

/// MPI_Ireduce_scatter_block, into memory of its own: MPI wants what it reads and what it writes apart.
class ReduceScatterState final : public Request::State {
 public:
  ReduceScatterState(std::shared_ptr<MpiLink> link, const Queue& queue, const void* send, void* receive,
                     const Reduction& blocks)
      : link_(std::move(link)),
        queue_(queue),
        receive_(receive),
        bytes_(blocks.count * size_of(blocks.type)),
        memory_(queue, bytes_) {
    require(blocks.count <= static_cast<std::size_t>(std::numeric_limits<int>::max()),
            "MPI reduces blocks of up to {} elements, not {}: sum in rank order (Sums::rank_order)",
            std::numeric_limits<int>::max(), blocks.count);
    if (!queue.is_host()) queue.fence("annulus::comm::reduce_scatter: MPI writes to its memory");
    ANNULUS_MPI(MPI_Ireduce_scatter_block, send, memory_.data(), static_cast<int>(blocks.count),
                mpi_type(blocks.type), mpi_op(blocks.op), link_->handle, &request_);
  }
  ~ReduceScatterState() override {
    // Given up: collectives cannot be cancelled. They get a moment, and then their memory is left to them.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    int done = request_ == MPI_REQUEST_NULL ? 1 : 0;
    while (done == 0 && std::chrono::steady_clock::now() < until)
      MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
    if (done == 0) static_cast<void>(new ContributionMemory(std::move(memory_)));
  }

  void wait() override {
    const Watchdog::Waiting waiting(link_->watchdog.get());
    while (!test()) {
      advance_stages();
      std::this_thread::yield();
    }
  }
  bool test() override {
    int done = 0;
    ANNULUS_MPI(MPI_Test, &request_, &done, MPI_STATUS_IGNORE);
    if (done == 0) return false;
    if (!queue_.is_host())
      queue_.copy(receive_, memory_.data(), bytes_);
    else
      std::memcpy(receive_, memory_.data(), bytes_);
    return true;
  }
  void keep(const std::string& error) noexcept override { link_->swallowed = error; }

 private:
  std::shared_ptr<MpiLink> link_;
  Queue queue_;
  void* receive_;
  std::size_t bytes_;
  ContributionMemory memory_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace

void MpiCommunicator::all_reduce(const Queue& queue, void* data, const Reduction& elements) {
  if (elements.sums == Sums::rank_order || size() == 1)
    return PointToPointCommunicator::all_reduce(queue, data, elements);
  enter();
  ready(queue, "all_reduce");
  const MPI_Datatype type = mpi_type(elements.type);
  // MPI_Allreduce may leave other bits on other ranks. Here one rank has each element, and gives it to all.
  constexpr std::size_t largest = std::size_t{4} << 20;  // elements that a rank has at a time
  const std::size_t ranks = static_cast<std::size_t>(size()), element = size_of(elements.type);
  const ContributionMemory own(queue, std::min(ceil_divide(elements.count, ranks), largest) * element);
  std::vector<int> counts(ranks), first(ranks);
  block(fmt::format("an all_reduce of {} {}", elements.count, name_of(elements.type)), [&] {
    for (std::size_t begin = 0; begin < elements.count; begin += ranks * largest) {
      const std::size_t length = std::min(elements.count - begin, ranks * largest),
                        share = ceil_divide(length, ranks);
      for (std::size_t r = 0; r < ranks; ++r) {
        first[r] = static_cast<int>(std::min(length, r * share));
        counts[r] = static_cast<int>(std::min(length, (r + 1) * share)) - first[r];
      }
      void* const part = static_cast<std::byte*>(data) + begin * element;
      ANNULUS_MPI(MPI_Reduce_scatter, part, own.data(), counts.data(), type, mpi_op(elements.op),
                  collectives_->handle);
      ANNULUS_MPI(MPI_Allgatherv, own.data(), counts[static_cast<std::size_t>(rank_)], type, part,
                  counts.data(), first.data(), type, collectives_->handle);
    }
  });
}

Request MpiCommunicator::start_reduce_scatter(const Queue& queue, const void* send, void* receive,
                                              const Reduction& blocks, int channel) {
  if (blocks.sums == Sums::rank_order || blocks.count == 0)
    return PointToPointCommunicator::start_reduce_scatter(queue, send, receive, blocks, channel);
  check_channel(channel, "reduce_scatter");
  enter();
  ready(queue, "reduce_scatter");
  return Request(std::make_unique<ReduceScatterState>(collectives_, queue, send, receive, blocks));
}

}  // namespace annulus::comm
