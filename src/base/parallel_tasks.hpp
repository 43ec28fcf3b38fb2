#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace annulus {

/// Calls work(thread, task) for all tasks 0 … tasks − 1, on `threads` threads, the caller's among them, that
/// take one after the other in order. Throws what a call has thrown, once all threads are done; tasks that
/// nobody has taken by then are left.
template <class Index, class Work>
void parallel_tasks(Index tasks, int threads, const Work& work) {
  std::atomic<Index> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto run = [&](int thread) {
    try {
      for (Index task = next++; task < tasks; task = next++) work(thread, task);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = tasks;
    }
  };
  {
    std::vector<std::jthread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
    run(0);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace annulus
