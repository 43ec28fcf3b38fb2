#include "training/data/loader.hpp"

#include <annulus/base/error.hpp>

namespace annulus::data {

Loader::Loader(std::shared_ptr<const TokenDataset> dataset, const LoaderOptions& options)
    : dataset_(std::move(dataset)),
      options_(options),
      order_(dataset_->sequences(), options.seed, options.shuffle),
      taken_(order_.advance(options.start, 0)) {
  require(options.groups > 0 && options.group >= 0 && options.group < options.groups,
          "data-parallel group {} of {} was asked for: groups are numbered from 0", options.group,
          options.groups);
  require(options.prefetch >= 0, "prefetch is {}: give the number of sequences to read ahead, or 0",
          options.prefetch);
  if (options.prefetch > 0) thread_ = std::thread([this] { read_ahead(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Sequence Loader::read(StreamState state) const {
  const std::int64_t index = order_(order_.advance(state, options_.group));
  return options_.rows.read([&](const PositionMap& rows) { return dataset_->read(index, rows); });
}

void Loader::read_ahead() {
  for (StreamState ahead = order_.advance(options_.start, 0);;
       ahead = order_.advance(ahead, options_.groups)) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || std::ssize(ready_) < options_.prefetch; });
      if (stop_) return;
    }
    try {
      Sequence sequence = read(ahead);
      const std::lock_guard lock(mutex_);
      ready_.push_back(std::move(sequence));
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    changed_.notify_all();
    if (failure_) return;
  }
}

Sequence Loader::next() {
  Sequence sequence;
  if (thread_.joinable()) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty() || failure_; });
    if (ready_.empty()) std::rethrow_exception(failure_);
    sequence = std::move(ready_.front());
    ready_.pop_front();
  } else {
    sequence = read(taken_);
  }
  changed_.notify_all();
  taken_ = order_.advance(taken_, options_.groups);
  return sequence;
}

}  // namespace annulus::data
