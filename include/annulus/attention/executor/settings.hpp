#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include <annulus/attention/kernels/local.hpp>
#include <annulus/attention/plan/plan.hpp>
#include <annulus/base/kokkos/queue.hpp>

namespace annulus::executor {

/// One local computation of a rank, in numbers.
struct Work {
  plan::Pass pass = plan::Pass::forward;
  std::int64_t pairs = 0;  ///< unmasked (query, key) pairs, over heads and batch
  std::int64_t query_rows = 0, key_rows = 0;
  const Queue* queue = nullptr;  ///< on which it is to be done
  int free_sms = 0;              ///< SMs that the kernel leaves to exchanges under way
};

/// How passes are run. Nothing here changes results, but a synthetic kernel leaves none.
struct Settings {
  /// Kernels leave at least kernel.free_sms SMs free, and more while exchanges are under way that need them
  /// (comm::Communicator::sms_of_exchange).
  attention::KernelOptions kernel;

  /// false: a rank waits for the transfers that it has just posted before it computes. Shows what overlap is
  /// worth. (A valid plan cannot deadlock by it: validate proves plans for transports that run one group of
  /// transfers after another.)
  bool overlap = true;

  /// A rank that waits longer than this in one step ends the run with an error that says in which step of
  /// which plan it is and for what and whom it waits. Zero: it waits for ever.
  std::chrono::milliseconds stall_timeout{0};

  /// Takes the place of local kernels: called once for each, on the rank's own thread, and may sleep as long
  /// as a model says, or enqueue a kernel that spins (emulator::spinning_kernel). Results are of no meaning
  /// then; transfers are real.
  std::function<void(const Work&)> synthetic_kernel;
};

}  // namespace annulus::executor
