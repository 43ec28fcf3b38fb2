#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace annulus::plan::validation {

/// Calls work(worker, rank) for all ranks 0 … ranks − 1, on `workers` threads that take one after the other.
/// Throws what a call has thrown, once all threads are done.
template <class Work>
void for_ranks(int ranks, int workers, const Work& work) {
  std::atomic<int> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto run = [&](int worker) {
    try {
      for (int rank = next++; rank < ranks; rank = next++) work(worker, rank);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = ranks;
    }
  };
  {
    std::vector<std::jthread> others;
    for (int worker = 1; worker < workers; ++worker) others.emplace_back(run, worker);
    run(0);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace annulus::plan::validation
