#include <annulus/data/loader.hpp>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include <annulus/base/error.hpp>

namespace annulus::data {

/// The thread fills `ready` ahead of next(); both ends hold `mutex`. Reading itself happens without it.
struct Loader::Impl {
  Impl(std::shared_ptr<const TokenDataset> source, const LoaderOptions& given)
      : dataset(std::move(source)),
        options(given),
        order(dataset->sequences(), given.seed, given.shuffle),
        taken(order.advance(given.start, 0)),
        ahead(taken) {
    if (options.prefetch > 0) thread = std::thread([this] { run(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
  }

  Sequence read(StreamState state) const {
    return dataset->read(order(order.advance(state, options.group)), options.rows);
  }

  void run() {
    for (;;) {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stop || std::ssize(ready) < options.prefetch; });
        if (stop) return;
      }
      try {
        Sequence sequence = read(ahead);
        ahead = order.advance(ahead, options.groups);
        const std::lock_guard lock(mutex);
        ready.push_back(std::move(sequence));
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
      }
      changed.notify_all();
      if (failure) return;
    }
  }

  Sequence next() {
    Sequence sequence;
    if (thread.joinable()) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !ready.empty() || failure; });
      if (ready.empty()) std::rethrow_exception(failure);
      sequence = std::move(ready.front());
      ready.pop_front();
    } else {
      sequence = read(taken);
    }
    changed.notify_all();
    taken = order.advance(taken, options.groups);
    return sequence;
  }

  const std::shared_ptr<const TokenDataset> dataset;
  const LoaderOptions options;
  const SequenceOrder order;
  StreamState taken;  // what next() gave is before this

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Sequence> ready;
  std::exception_ptr failure;  // written by the thread under the mutex, before it ends
  bool stop = false;
  StreamState ahead;  // the thread's own
  std::thread thread;
};

Loader::Loader(std::shared_ptr<const TokenDataset> dataset, const LoaderOptions& options) {
  require(options.groups > 0 && options.group >= 0 && options.group < options.groups,
          "data-parallel group {} of {} was asked for: groups are numbered from 0", options.group,
          options.groups);
  require(options.prefetch >= 0, "prefetch is {}: give the number of sequences to read ahead, or 0",
          options.prefetch);
  impl_ = std::make_unique<Impl>(std::move(dataset), options);
}

Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

Sequence Loader::next() {
  return impl_->next();
}

StreamState Loader::state() const {
  return impl_->taken;
}

}  // namespace annulus::data
