#include <annulus/attention/comm/mpi.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string_view>
#include <thread>

#include "attention/comm/mpi/communicator.hpp"
#include "attention/comm/mpi/start_watch.hpp"
#include "attention/comm/mpi/watchdog.hpp"
#include "attention/comm/reductions/split.hpp"
#include "attention/comm/staged/staged.hpp"
#include "base/kokkos/execution/threads.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/printable.hpp"
#include "base/system/descriptor.hpp"
#include "cluster/topology/job.hpp"

namespace annulus::comm {

namespace {

/// Ranks of the job that share memory with this one.
MPI_Comm machine_of_this_rank() {
  MPI_Comm machine = MPI_COMM_NULL;
  ANNULUS_MPI(MPI_Comm_split_type, MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
  return machine;
}

/// How many ranks of `machine` may run on a core on which this one may run.
int count_sharing_cores(MPI_Comm machine) {
  const std::vector<int> mine = available_cores();
  int ranks = 1, width = mine.back() + 1;
  ANNULUS_MPI(MPI_Comm_size, machine, &ranks);
  ANNULUS_MPI(MPI_Allreduce, MPI_IN_PLACE, &width, 1, MPI_INT, MPI_MAX, machine);
  const std::size_t cores = static_cast<std::size_t>(width);
  std::vector<char> mask(cores), masks(cores * static_cast<std::size_t>(ranks));  // masks: (ranks, cores)
  for (const int core : mine) mask[static_cast<std::size_t>(core)] = 1;
  ANNULUS_MPI(MPI_Allgather, mask.data(), width, MPI_CHAR, masks.data(), width, MPI_CHAR, machine);
  int sharing = 0;
  for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r)
    sharing += std::any_of(mine.begin(), mine.end(),
                           [&](int core) { return masks[r * cores + static_cast<std::size_t>(core)] != 0; });
  return sharing;
}

/// The lowest rank on the machine of each rank of the job.
std::vector<int> lowest_ranks(int size) {
  const MpiLink machine(machine_of_this_rank());
  int lowest = 0;
  ANNULUS_MPI(MPI_Comm_rank, MPI_COMM_WORLD, &lowest);
  ANNULUS_MPI(MPI_Bcast, &lowest, 1, MPI_INT, 0, machine.handle);
  std::vector<int> all(static_cast<std::size_t>(size));
  ANNULUS_MPI(MPI_Allgather, &lowest, 1, MPI_INT, all.data(), 1, MPI_INT, MPI_COMM_WORLD);
  return all;
}

/// MPI sees this process alone. Where its launcher has started `several`, each would do all of the work; an
/// answer is given by rank 0.
void require_alone(const std::optional<SeveralRanks>& several, MpiEnvironment::For what) {
  const char* const wanted = std::getenv("ANNULUS_ALONE");
  if (!several || (wanted != nullptr && std::string_view(wanted) == "1")) return;
  if (what == MpiEnvironment::For::an_answer) {
    if (several->rank > 0) std::_Exit(0);
    return;
  }
  if (several->rank > 0 && several->all_know) {  // rank 0 says it
    std::this_thread::sleep_for(speaks_after(several->rank));
    std::_Exit(1);
  }
  fail(
      "{} has started several processes ({}), of which this program's MPI ({}) knows nothing, so that each "
      "would be a run of one rank: start them with the mpirun of that MPI{}; "
      "ANNULUS_ALONE=1 lets each run alone",
      several->launcher, several->evidence, mpi_name(),
      several->launcher.starts_with("srun") ? ", or by srun --mpi=pmix where srun --mpi=list has it" : "");
}

}  // namespace

MpiEnvironment::MpiEnvironment(For what) : exceptions_(std::uncaught_exceptions()) {
  int initialized = 0, provided = MPI_THREAD_SINGLE;
  const auto variables = process_variables();  // Open MPI changes them when it starts by itself
  const auto several = several_ranks(variables);
  // An answer needs no other rank; starting MPI takes half a second, and Open MPI a second process.
  if (what == For::an_answer && !several && !launched_rank(variables)) return;
  const StartWatch watch;
  MPI_Initialized(&initialized);
  if (!initialized) {
    const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    require(code == MPI_SUCCESS, "MPI_Init_thread failed: {}", mpi_error_text(code));
    finalize_ = true;
  } else {
    MPI_Query_thread(&provided);
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  ANNULUS_MPI(MPI_Comm_rank, MPI_COMM_WORLD, &rank_);
  ANNULUS_MPI(MPI_Comm_size, MPI_COMM_WORLD, &size_);
  if (finalize_ && size_ == 1) require_alone(several, what);
  require(provided >= MPI_THREAD_FUNNELED,
          "this MPI gives MPI_THREAD_SINGLE, but Annulus computes with threads: "
          "use an MPI built with thread support");
  const MpiLink machine(machine_of_this_rank());
  ranks_sharing_cores_ = count_sharing_cores(machine.handle);
  watchdog_ = std::make_unique<MpiWatchdog>();
}

// MPI does not need the arguments since version 2; taking them leaves room for those that still read them.
MpiEnvironment::MpiEnvironment(int&, char**&, For what) : MpiEnvironment(what) {}

MpiEnvironment::~MpiEnvironment() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  const bool ends = finalize_ && !finalized && std::uncaught_exceptions() <= exceptions_;
  if (ends) watchdog_->wait_for_all();
  watchdog_.reset();
  if (ends) MPI_Finalize();
}

void MpiEnvironment::set_stall_timeout(std::chrono::milliseconds timeout) const {
  watchdog_->watchdog()->set_timeout(timeout);
}

std::unique_ptr<Communicator> MpiEnvironment::world(int ranks_per_node, const std::string& remark) const {
  require(watchdog_ != nullptr, "MpiEnvironment: MPI has not been started, since an answer was to be given");
  const Watchdog::ActivityScope activity(watchdog_->watchdog().get(), "the start of the program");
  const Watchdog::Waiting waiting(watchdog_->watchdog().get());
  const int direct = mpi_reads_device_memory() ? 1 : 0;
  if (direct != 0) share_device_memory();
  int range[4] = {ranks_per_node, -ranks_per_node, direct, -direct};  // maxima and, negated, minima
  ANNULUS_MPI(MPI_Allreduce, MPI_IN_PLACE, range, 4, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  require(range[2] == -range[3],
          "some ranks give memory of GPUs to MPI as it is, others through memory of the host: start all with "
          "the same MPI and the same ANNULUS_MPI_DEVICE_MEMORY (mpirun -x)");
  require(range[0] == -range[1],
          "ranks disagree about the ranks per node: from {} to {}: start all with the same arguments",
          -range[1], range[0]);
  require(ranks_per_node >= 0 && ranks_per_node <= size_,
          "{} ranks per node: give 1 to {} (the ranks of the job), or 0 to take the machines as they are",
          ranks_per_node, size_);
  Topology topology = ranks_per_node > 0 ? Topology::uniform(size_, ranks_per_node)
                                         : topology_of_machines(lowest_ranks(size_));
  auto world =
      std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, std::move(topology),
                                        MpiCommunicator::default_chunk_bytes, watchdog_->watchdog(), remark);
  if (mpi_reads_device_memory()) return world;
  return staged(std::move(world));
}

void MpiEnvironment::abort(const std::string& message) const {
  mpi_abort(message);
}

void write_line(int rank, const std::string& message) {
  std::string line = fmt::format("annulus: rank {}: {}", rank, message);
  std::replace(line.begin(), line.end(), '\n', ' ');
  line = printable_message(line) + '\n';
  // One call, past all buffers: lines of several ranks do not mix.
  (void)write_all(STDERR_FILENO, line);  // what cannot be written nobody can be told
}

std::chrono::milliseconds speaks_after(int rank) {
  return std::chrono::milliseconds(rank == 0 ? 0 : std::min(1000 + 25 * rank, 2500));
}

void claim_end() {
  static std::atomic<bool> ends = false;
  while (ends.exchange(true)) std::this_thread::sleep_for(std::chrono::seconds(1));
}

void mpi_abort(const std::string& message) {
  claim_end();
  mpi_abort_claimed(message);
}

void mpi_abort_claimed(const std::string& message) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  // A handler of ours must not keep this rank alive while it holds its line back: a lower rank may be ending
  // the job.
  std::signal(SIGTERM, SIG_DFL);
  MpiWatchdog::silence_others();
  std::this_thread::sleep_for(speaks_after(rank));
  write_line(rank, message);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::_Exit(1);
}

}  // namespace annulus::comm
