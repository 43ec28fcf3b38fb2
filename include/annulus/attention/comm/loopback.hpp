#pragma once

#include <chrono>
#include <functional>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/wire.hpp>

namespace annulus::comm {

struct LoopbackOptions {
  /// How long a rank may wait for one exchange before it fails with an error that names what it waits for.
  std::chrono::milliseconds wait_timeout = std::chrono::seconds(120);

  /// Carries every message, those of collectives too; outlives the run. Null: messages arrive when both sides
  /// have posted them.
  Wire* wire = nullptr;
};

/// Runs `body` once for each rank of `topology`, every rank a thread of this process, connected by memory.
/// For tests and for debugging in one debugger. When a rank throws, the others are woken out of their waits
/// with the error "rank R failed: …", all threads are joined, and the first exception is thrown again. A
/// deadlock (every rank waits, or has returned) is an error at once; it names what each rank waits for.
/// (Where a thread other than the rank's own has communicated it may yet bring what is missing: then only the
/// wait timeout ends the wait.) Without a wire sends complete when they are received.
void run_loopback(const Topology& topology, const std::function<void(Communicator&)>& body,
                  const LoopbackOptions& options = {});

}  // namespace annulus::comm
