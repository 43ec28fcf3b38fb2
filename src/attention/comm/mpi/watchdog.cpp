#include "attention/comm/mpi/watchdog.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>

#include "base/system/signals.hpp"

namespace annulus::comm {

namespace {

using namespace std::chrono_literals;
using Clock = Watchdog::Clock;

constexpr auto tick = 100ms;
constexpr auto answer_within = 3s;
constexpr auto abort_within = 2s;
/// A look that comes so much later than it should: the process was stopped meanwhile.
constexpr auto pause = 2s;
/// Time from SIGTERM to the line that says where a rank waits. Open MPI's mpirun kills one second after
/// SIGTERM.
constexpr auto patience = 300ms;
constexpr auto never = Clock::time_point::max();

std::atomic<MpiWatchdog*> active = nullptr;

// The handler of SIGTERM touches nothing but these.
volatile std::sig_atomic_t terminated = 0;
SecondTermination second;
struct sigaction before {};

extern "C" void on_termination(int signal, siginfo_t* info, void* context) {
  terminated = 1;
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL) {
    before.sa_handler(signal);
  } else if (second.came()) {  // the thread that is to end the process may wait for MPI as all others do
    end_by(signal);
  }
}

void catch_termination() {
  struct sigaction action {};
  action.sa_sigaction = on_termination;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  terminated = 0;
  second.reset();
  handle_unless_ignored(SIGTERM, action, before);
}

/// Lets the transfers of devices end, which may take them longer than anybody wants to wait.
void end_transfers(const std::shared_ptr<Watchdog>& watchdog) {
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  std::thread([watchdog, ended] {
    watchdog->abort();
    *ended = true;
  }).detach();
  for (const auto until = Clock::now() + abort_within; !*ended && Clock::now() < until;)
    std::this_thread::sleep_for(tick / 20);
}

MPI_Comm duplicate_world() {
  MPI_Comm handle = MPI_COMM_NULL;
  ANNULUS_MPI(MPI_Comm_dup, MPI_COMM_WORLD, &handle);
  return handle;
}

}  // namespace

MpiWatchdog::MpiWatchdog()
    : watchdog_(std::make_shared<Watchdog>([this] { start(); })),
      link_(duplicate_world()),
      end_(never),
      signalled_(never) {
  int provided = MPI_THREAD_SINGLE;
  ANNULUS_MPI(MPI_Comm_set_errhandler, link_.handle, MPI_ERRORS_RETURN);
  ANNULUS_MPI(MPI_Query_thread, &provided);
  ANNULUS_MPI(MPI_Comm_rank, link_.handle, &rank_);
  ANNULUS_MPI(MPI_Comm_size, link_.handle, &ranks_);
  talks_ = provided == MPI_THREAD_MULTIPLE;
  heard_.resize(static_cast<std::size_t>(ranks_));
  lowest_alarm_ = ranks_;
}

MpiWatchdog::~MpiWatchdog() {
  if (!thread_.joinable()) return;
  active = nullptr;
  thread_.request_stop();
  thread_.join();
  sigaction(SIGTERM, &before, nullptr);
}

void MpiWatchdog::wait_for_all() {
  const Watchdog::ActivityScope activity(watchdog_.get(), "the end of the program");
  const Watchdog::Waiting waiting(watchdog_.get());
  MPI_Barrier(link_.handle);
}

void MpiWatchdog::start() {
  if (ranks_ == 1) return;
  catch_termination();
  thread_ = thread_without_signals([this](const std::stop_token& stop) { run(stop); });
  active = this;
}

void MpiWatchdog::run(const std::stop_token& stop) {
  Clock::time_point last = Clock::now();
  while (!stop.stop_requested()) {
    std::this_thread::sleep_for(tick);
    const Clock::time_point now = Clock::now();
    if (now - last > tick + pause) {
      watchdog_->exclude_suspended_time(last, now - tick);
      stopped_ = now - last;
    }
    last = now;
    if (can_talk()) poll_messages();
    poll_signal();
    if (now > end_) end_job();
    if (end_ != never) continue;
    if (const std::string failure = watchdog_->poll(); !failure.empty()) {
      const std::string message = failure + "; this rank: " + status();
      claim_end();
      end_transfers(watchdog_);
      mpi_abort_claimed(message);
    }
    if (const auto timeout = watchdog_->exceeded()) report_stall(*timeout);
  }
}

void MpiWatchdog::end_job() const {
  claim_end();
  end_transfers(watchdog_);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::_Exit(1);
}

void MpiWatchdog::send(int rank, Tag tag) const {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Isend(nullptr, 0, MPI_BYTE, rank, tag, link_.handle, &request) == MPI_SUCCESS)
    MPI_Request_free(&request);
}

void MpiWatchdog::poll_messages() {
  while (true) {
    int found = 0;
    MPI_Status received;
    const int code = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, link_.handle, &found, &received);
    if (code != MPI_SUCCESS || !found) return;
    const int other = received.MPI_SOURCE;
    MPI_Recv(nullptr, 0, MPI_BYTE, other, received.MPI_TAG, link_.handle, MPI_STATUS_IGNORE);
    if (received.MPI_TAG == silence) silenced_ = true;
    if (received.MPI_TAG == silence) continue;
    heard_[static_cast<std::size_t>(other)] = true;
    if (received.MPI_TAG != alarm) continue;
    lowest_alarm_ = std::min(lowest_alarm_, other);
    if (end_ == never) {
      write_line(rank_, fmt::format("rank {} has stalled; this rank: {}", other, status()));
      silenced_ = true;
      end_ = Clock::now() + 2 * answer_within;  // should the other one be gone by then
    }
    send(other, answer);
  }
}

std::string MpiWatchdog::status() const {
  std::string text = watchdog_->describe();
  if (stopped_ != Clock::duration::zero())
    text = fmt::format("(stood still for {:.1f} s) {}", Watchdog::in_seconds(stopped_), text);
  return text;
}

void MpiWatchdog::report_stall(Watchdog::Timeout timeout) {
  silenced_ = true;  // the SIGTERM that follows needs no explanation
  end_ = Clock::now() + answer_within;
  heard_[static_cast<std::size_t>(rank_)] = true;
  if (can_talk())
    for (int r = 0; r < ranks_; ++r)
      if (r != rank_) send(r, alarm);
  write_line(rank_, "stalled: " + status());
  const auto answered = [&] { return std::find(heard_.begin(), heard_.end(), false) == heard_.end(); };
  while (Clock::now() < end_ && !(can_talk() && answered())) {
    std::this_thread::sleep_for(tick / 10);
    if (can_talk()) poll_messages();
  }
  if (rank_ > lowest_alarm_) {  // which speaks for all that have stalled
    std::this_thread::sleep_for(answer_within / 3);
    end_job();
  }
  std::vector<int> silent;
  for (int r = 0; can_talk() && r < ranks_; ++r)
    if (!heard_[static_cast<std::size_t>(r)]) silent.push_back(r);
  write_line(
      rank_,
      fmt::format("{}the run ends because a wait has taken longer than {} s; where ranks are no more "
                  "than slow, raise the timeout (run.stall_timeout in training, --stall-timeout)",
                  silent.empty()
                      ? ""
                      : fmt::format("no answer within {} s from rank {}: killed, stopped or out of reach; ",
                                    answer_within.count(), fmt::join(silent, ", ")),
                  Watchdog::in_seconds(timeout)));
  end_job();
}

void MpiWatchdog::poll_signal() {
  if (terminated == 0) return;
  if (signalled_ == never) signalled_ = Clock::now();
  if (!silenced_ && Clock::now() - signalled_ < patience) return;
  const double shortest = Watchdog::in_seconds(patience - 2 * tick);
  if (!std::exchange(silenced_, true) && watchdog_->longest_wait() > shortest)
    write_line(rank_,
               fmt::format("asked to end (SIGTERM: another rank is lost, or somebody ends the job): {}",
                           watchdog_->describe()));
  if ((before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_DFL) {
    std::signal(SIGTERM, SIG_DFL);
    kill(getpid(), SIGTERM);
  }
}

void MpiWatchdog::silence_others() {
  MpiWatchdog* const watchdog = active;
  if (watchdog == nullptr || !watchdog->can_talk()) return;
  for (int r = 0; r < watchdog->ranks_; ++r)
    if (r != watchdog->rank_) watchdog->send(r, silence);
}

}  // namespace annulus::comm
