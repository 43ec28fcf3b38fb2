#pragma once

#define OMPI_SKIP_MPICXX 1  // the C++ bindings would need a library of their own
#include <mpi.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "attention/comm/mpi/device_memory.hpp"
#include "attention/comm/point_to_point.hpp"
#include "attention/comm/watchdog.hpp"

namespace annulus::comm {

/// Throws Error with the call, the rank in the job and MPI's own words unless `code` is MPI_SUCCESS.
/// Communicators of Annulus return errors instead of ending the program, so that the message can name what
/// was going on.
void mpi_check(int code, const char* call);
#define ANNULUS_MPI(function, ...) ::annulus::comm::mpi_check(function(__VA_ARGS__), #function)

/// MPI's text for an error code.
std::string mpi_error_text(int code);

/// "Open MPI v4.1.4".
std::string mpi_name();

/// A duplicated MPI communicator, shared by the Communicator and the requests under way on it.
struct MpiLink {
  /// Takes over `owned`, which is freed with the last user.
  explicit MpiLink(MPI_Comm owned) : handle(owned) {}
  ~MpiLink();
  MpiLink(const MpiLink&) = delete;
  MpiLink& operator=(const MpiLink&) = delete;

  MPI_Comm handle;
  std::shared_ptr<Watchdog> watchdog;  ///< null: nobody watches
  std::vector<int> world_ranks;        ///< of the ranks of `handle`
  std::string swallowed;               ///< error of a request that nobody waited for: the next call throws it
  std::chrono::steady_clock::time_point give_up_at{};  ///< set when the first request is given up
  /// Messages may lie here that nobody receives any more. `handle` is not freed then: MPICH gives its context
  /// to the next communicator, which would receive them.
  bool has_strays = false;
};

/// Communication over MPI.
///
/// One duplicated communicator carries the exchanges, with the channel as tag: MPI keeps messages of one pair
/// of ranks and one tag in order and matches tags independently, and a new channel costs nothing. (A
/// communicator for each channel would have to be made collectively, before anybody knows which channels a
/// plan uses.) A second one carries the collectives.
///
/// MPI counts are int. A message of n bytes travels as n / chunk_bytes full chunks and one of n % chunk_bytes
/// (perhaps 0) bytes: the short last chunk makes two sides that disagree on the size notice in every case.
/// (Open MPI 4.1 fetches a message that is longer than its receive whole, past the end of the buffer, before
/// it says so: after that error the process should end.)
///
/// Reductions in rank order come from PointToPointCommunicator, others from MPI.
///
/// An MPI that says so (mpi_reads_device_memory) is given memory of devices as it is, once the work that the
/// queue holds is done.
class MpiCommunicator final : public PointToPointCommunicator {
 public:
  static constexpr std::size_t default_chunk_bytes = std::size_t{1} << 30;

  /// Duplicates `parent` (collective). `chunk_bytes` splits messages; tests make it small. `watch` sees the
  /// waits of this rank. description() ends with `remark`. `has_stages`: collectives of other communicators
  /// of the job may go in stages.
  MpiCommunicator(MPI_Comm parent, Topology topology, std::size_t chunk_bytes = default_chunk_bytes,
                  const std::shared_ptr<Watchdog>& watchdog = nullptr, std::string remark = {},
                  bool has_stages = false);

  int rank() const override { return rank_; }
  const Topology& topology() const override { return topology_; }
  std::string description() const override;
  int world_rank(int rank) const override { return messages_->world_ranks[static_cast<std::size_t>(rank)]; }
  Watchdog* watchdog() const override { return messages_->watchdog.get(); }
  void broadcast(const Queue& queue, void* data, std::size_t bytes, int root) override;
  using Communicator::all_reduce;
  void all_reduce(const Queue& queue, void* data, const Reduction& elements) override;
  Request start_reduce_scatter(const Queue& queue, const void* send, void* receive, const Reduction& blocks,
                               int channel) override;
  void all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes) override;
  void all_to_all(const Queue& queue, const void* send, void* receive, std::size_t bytes) override;
  void barrier() override;
  void progress() override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> for_another_thread() override;
  void abort(const std::string& message) override;

 protected:
  Request post(const Queue& queue, std::span<const Send> sends, std::span<const Receive> receives,
               int channel) override;
  void ready(const Queue& queue, const char* operation) const override;

 private:
  /// Throws what an earlier request swallowed, and on a thread from which this MPI must not be called.
  void enter() const;
  /// Waits, before a call that blocks inside MPI, until all ranks are about to make it, while stages advance
  /// (see post_in_turn). From then on the ranks of this communicator need nothing but MPI.
  void meet() const;
  /// Makes a call that blocks inside MPI, and says what the rank is doing meanwhile.
  template <class Call>
  void block(const std::string& activity, const Call& call) const {
    const Watchdog::ActivityScope scope(watchdog(), activity);
    const Watchdog::Waiting waiting(watchdog());
    meet();
    call();
  }

  Topology topology_;
  bool has_stages_ = false;  ///< alike on all ranks of the job
  std::string remark_;
  int rank_ = 0, largest_channel_ = 0;
  std::size_t chunk_bytes_;
  bool any_thread_ = false;
  std::thread::id thread_;
  std::shared_ptr<MpiLink> messages_, collectives_;
};

/// Writes "annulus: rank R: message" to stderr as one line, in one call.
void write_line(int rank, const std::string& message);

/// Writes such a line and ends the job with exit status 1; see MpiEnvironment::abort.
[[noreturn]] void mpi_abort(const std::string& message);

/// How long a rank holds its line back before it ends the job. An abort takes mpirun some tenths of a second,
/// on a busy machine a whole one: ranks other than 0 leave it that time, so that a failure that all ranks see
/// is told once.
std::chrono::milliseconds speaks_after(int rank);

/// The calling thread will end the job: threads that want to later stay in here. (One that guards another and
/// the one that it guards may fail of one cause.) Then mpi_abort without this call.
void claim_end();
[[noreturn]] void mpi_abort_claimed(const std::string& message);

}  // namespace annulus::comm
