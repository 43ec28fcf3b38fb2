#include "attention/comm/mpi/communicator.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

#include "attention/comm/mpi/request.hpp"
#include "attention/comm/reductions/split.hpp"

#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace annulus::comm {

bool sends_device_memory(std::string_view wish, bool has_device, bool aware) {
  require(wish.empty() || wish == "direct" || wish == "staged",
          "ANNULUS_MPI_DEVICE_MEMORY is '{}': set it to direct (this MPI takes memory of GPUs) or staged "
          "(through memory of the host), or leave it unset to ask MPI",
          wish);
  return has_device && wish != "staged" && (aware || wish == "direct");
}

namespace {

/// Whether this MPI says that it takes pointers to memory of the vendor's GPUs. Each MPI has a question of
/// its own.
bool is_gpu_aware() {
#if defined(KOKKOS_ENABLE_CUDA) && defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#elif defined(KOKKOS_ENABLE_HIP) && defined(MPIX_ROCM_AWARE_SUPPORT)
  return MPIX_Query_rocm_support() == 1;
#elif defined(KOKKOS_ENABLE_CUDA) && defined(MPIX_GPU_SUPPORT_CUDA)  // MPICH
  int answer = 0;
  return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &answer) == MPI_SUCCESS && answer != 0;
#elif defined(KOKKOS_ENABLE_HIP) && defined(MPIX_GPU_SUPPORT_HIP)
  int answer = 0;
  return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_HIP, &answer) == MPI_SUCCESS && answer != 0;
#else
  return false;
#endif
}

}  // namespace

bool mpi_reads_device_memory() {
  static const bool answer = [] {
    const char* wish = std::getenv("ANNULUS_MPI_DEVICE_MEMORY");
    return sends_device_memory(wish == nullptr ? "" : wish, has_device, has_device && is_gpu_aware());
  }();
  return answer;
}

std::string mpi_error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) return fmt::format("error code {}", code);
  return std::string(text.data(), static_cast<std::size_t>(length));
}

std::string mpi_name() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string name(text.data());
  return name.substr(0, name.find_first_of(",\n"));
}

void mpi_check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  fail("{} failed on rank {}: {}", call, rank, mpi_error_text(code));
}

MpiLink::~MpiLink() {
  // Freeing is collective: not while an exception keeps this rank from what the others do.
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized && !has_strays && std::uncaught_exceptions() == 0) MPI_Comm_free(&handle);
}

namespace {

std::vector<int> world_ranks_of(MPI_Comm communicator) {
  MPI_Group job = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  int size = 0;
  ANNULUS_MPI(MPI_Comm_size, communicator, &size);
  ANNULUS_MPI(MPI_Comm_group, MPI_COMM_WORLD, &job);
  ANNULUS_MPI(MPI_Comm_group, communicator, &group);
  std::vector<int> ranks(static_cast<std::size_t>(size)), world_ranks(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  ANNULUS_MPI(MPI_Group_translate_ranks, group, size, ranks.data(), job, world_ranks.data());
  MPI_Group_free(&group);
  MPI_Group_free(&job);
  return world_ranks;
}

std::shared_ptr<MpiLink> duplicate(MPI_Comm parent, const std::shared_ptr<Watchdog>& watchdog) {
  MPI_Comm handle = MPI_COMM_NULL;
  ANNULUS_MPI(MPI_Comm_dup, parent, &handle);
  auto link = std::make_shared<MpiLink>(handle);
  link->watchdog = watchdog;
  link->world_ranks = world_ranks_of(handle);
  ANNULUS_MPI(MPI_Comm_set_errhandler, handle, MPI_ERRORS_RETURN);
  return link;
}

}  // namespace

MpiCommunicator::MpiCommunicator(MPI_Comm parent, Topology topology, std::size_t chunk_bytes,
                                 const std::shared_ptr<Watchdog>& watchdog, std::string remark,
                                 bool has_stages)
    : topology_(std::move(topology)),
      has_stages_(has_stages || (topology_.nodes() > 1 && topology_.nodes() < topology_.ranks())),
      remark_(std::move(remark)),
      chunk_bytes_(chunk_bytes),
      thread_(std::this_thread::get_id()),
      messages_(duplicate(parent, watchdog)),
      collectives_(duplicate(parent, watchdog)) {
  ANNULUS_MPI(MPI_Comm_rank, messages_->handle, &rank_);
  int size = 0;
  ANNULUS_MPI(MPI_Comm_size, messages_->handle, &size);
  require(size == topology_.ranks(), "the topology has {} ranks ({}), the MPI communicator {}",
          topology_.ranks(), topology_.to_string(), size);
  int known = 0, provided = MPI_THREAD_SINGLE, *upper = nullptr;
  ANNULUS_MPI(MPI_Comm_get_attr, MPI_COMM_WORLD, MPI_TAG_UB, &upper, &known);
  largest_channel_ = known ? *upper : 32767;  // the standard's least
  ANNULUS_MPI(MPI_Query_thread, &provided);
  any_thread_ = provided == MPI_THREAD_MULTIPLE;
}

void MpiCommunicator::enter() const {
  require(any_thread_ || std::this_thread::get_id() == thread_,
          "rank {}: this MPI was started without MPI_THREAD_MULTIPLE: only the thread that made the "
          "communicator may use it",
          rank_);
  for (const auto& link : {messages_, collectives_})
    if (!link->swallowed.empty()) throw Error(std::exchange(link->swallowed, {}));
}

void MpiCommunicator::meet() const {
  if (!has_stages_) return;
  MPI_Request all_here = MPI_REQUEST_NULL;
  ANNULUS_MPI(MPI_Ibarrier, collectives_->handle, &all_here);
  for (int done = 0; done == 0;) {
    ANNULUS_MPI(MPI_Test, &all_here, &done, MPI_STATUS_IGNORE);
    if (done != 0) break;
    advance_stages();
    std::this_thread::yield();
  }
}

std::string MpiCommunicator::description() const {
  return fmt::format("mpi: {}{}{}{}{}", mpi_name(), any_thread_ ? "" : ", communication from one thread only",
                     mpi_reads_device_memory() ? ", device memory as it is" : "", remark_.empty() ? "" : ", ",
                     remark_);
}

void MpiCommunicator::ready(const Queue& queue, const char* operation) const {
  if (queue.is_host() || !mpi_reads_device_memory()) PointToPointCommunicator::ready(queue, operation);
  queue.fence(std::string("annulus::comm::") + operation);
}

Request MpiCommunicator::post(const Queue& queue, std::span<const Send> sends,
                              std::span<const Receive> receives, int channel) {
  enter();
  if (!queue.is_host()) ready(queue, "exchange");  // inside reductions kernels write what is sent next
  const bool collective = channel < 0;
  require(channel <= largest_channel_, "rank {}: channel {}: this MPI has channels up to {}", rank_, channel,
          largest_channel_);
  auto state = std::make_unique<MpiState>(collective ? collectives_ : messages_);
  // Receives first: a message that finds its receive posted needs no copy.
  for (const Receive& receive : receives) state->receive(receive, channel, chunk_bytes_);
  for (const Send& send : sends) state->send(send, channel, chunk_bytes_);
  return Request(std::move(state));
}

void MpiCommunicator::broadcast(const Queue& queue, void* data, std::size_t bytes, int root) {
  check_root(root);
  enter();
  ready(queue, "broadcast");
  block(fmt::format("a broadcast of {} bytes from rank {}", bytes, world_rank(root)), [&] {
    for (std::size_t offset = 0; offset < bytes; offset += chunk_bytes_)
      ANNULUS_MPI(MPI_Bcast, static_cast<std::byte*>(data) + offset,
                  static_cast<int>(std::min(chunk_bytes_, bytes - offset)), MPI_BYTE, root,
                  collectives_->handle);
  });
}

void MpiCommunicator::all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes) {
  enter();
  if (bytes * static_cast<std::size_t>(size()) > chunk_bytes_)
    return PointToPointCommunicator::all_gather(queue, send, receive, bytes);
  ready(queue, "all_gather");
  if (bytes == 0) return;
  const bool in_place = send == static_cast<std::byte*>(receive) + static_cast<std::size_t>(rank_) * bytes;
  const int count = static_cast<int>(bytes);
  block(fmt::format("an all_gather of {} bytes per rank", bytes), [&] {
    ANNULUS_MPI(MPI_Allgather, in_place ? MPI_IN_PLACE : send, count, MPI_BYTE, receive, count, MPI_BYTE,
                collectives_->handle);
  });
}

void MpiCommunicator::all_to_all(const Queue& queue, const void* send, void* receive, std::size_t bytes) {
  enter();
  if (bytes == 0 || send == receive || bytes * static_cast<std::size_t>(size()) > chunk_bytes_)
    return PointToPointCommunicator::all_to_all(queue, send, receive, bytes);
  ready(queue, "all_to_all");
  const int count = static_cast<int>(bytes);
  block(fmt::format("an all_to_all of {} bytes a pair of ranks", bytes), [&] {
    ANNULUS_MPI(MPI_Alltoall, send, count, MPI_BYTE, receive, count, MPI_BYTE, collectives_->handle);
  });
}

void MpiCommunicator::barrier() {
  enter();
  block("a barrier", [&] { ANNULUS_MPI(MPI_Barrier, collectives_->handle); });
}

void MpiCommunicator::progress() {
  // A probe makes the library look at all its connections, whatever it is asked about.
  int found = 0;
  ANNULUS_MPI(MPI_Iprobe, MPI_ANY_SOURCE, MPI_ANY_TAG, messages_->handle, &found, MPI_STATUS_IGNORE);
  PointToPointCommunicator::progress();
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key) {
  std::vector<ColorKey> wishes(static_cast<std::size_t>(size()));
  const ColorKey mine{color, key};
  enter();
  SplitGroup group;
  MPI_Comm handle = MPI_COMM_NULL;
  block("a split of the ranks into groups", [&] {
    ANNULUS_MPI(MPI_Allgather, &mine, sizeof mine, MPI_BYTE, wishes.data(), sizeof mine, MPI_BYTE,
                collectives_->handle);
    group = split_group(wishes, topology_, rank_);  // throws on all ranks or none
    ANNULUS_MPI(MPI_Comm_split, collectives_->handle, color, group.rank, &handle);
  });
  const MpiLink temporary(handle);
  return std::make_unique<MpiCommunicator>(handle, std::move(group.topology), chunk_bytes_,
                                           messages_->watchdog, std::string(), has_stages_);
}

std::unique_ptr<Communicator> MpiCommunicator::for_another_thread() {
  if (all_reduce_value<std::int32_t>(any_thread_ ? 1 : 0, ReduceOp::min) == 0) return nullptr;
  std::unique_ptr<Communicator> made;
  block("a copy of the communicator for another thread", [&] {
    // The watchdog knows the waits of one thread.
    made = std::make_unique<MpiCommunicator>(collectives_->handle, topology_, chunk_bytes_);
  });
  return made;
}

void MpiCommunicator::abort(const std::string& message) {
  mpi_abort(message);
}

}  // namespace annulus::comm
