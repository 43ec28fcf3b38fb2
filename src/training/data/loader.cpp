#include "training/data/loader.hpp"

#include <string>
#include <vector>

#include <annulus/base/error.hpp>

namespace annulus::data {

Loader::Loader(const Blend& data, const LoaderOptions& options)
    : data_(data),
      options_(options),
      order_(data_.order(options.seed, options.shuffle)),
      taken_(order_.complete(options.start)),
      batch_(taken_) {
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
  if (!thread_.joinable()) return;
  // An exception keeps this rank from what the others may wait for, and them from what this reader waits for.
  if (std::uncaught_exceptions() > exceptions_ && options_.rows.leave.at_once) options_.rows.leave.at_once();
  thread_.join();
}

void Loader::deal_batch() {
  const std::int64_t groups = options_.groups, sequences = options_.dealing.sequences(batches_++) * groups;
  std::vector<BlendOrder::Draw> draws;
  std::vector<std::int64_t> work;
  for (std::int64_t i = 0; i < sequences; ++i) draws.push_back(order_.next(batch_));
  for (const BlendOrder::Draw& draw : draws)
    work.push_back(options_.dealing.work(data_.read(draw, PositionMap()).document_starts));
  const std::vector<int> group_of = deal(work, static_cast<int>(groups));
  for (std::size_t i = 0; i < draws.size(); ++i)
    if (group_of[i] == options_.group) of_batch_.push_back(draws[i]);
}

Sequence Loader::read_next() {
  if (options_.dealing.work && options_.groups > 1) {
    if (of_batch_.empty()) deal_batch();
  } else {
    order_.skip(batch_, options_.group);
    of_batch_.push_back(order_.next(batch_));
    order_.skip(batch_, options_.groups - options_.group - 1);
  }
  const BlendOrder::Draw draw = of_batch_.front();
  Sequence sequence = options_.rows.read([&](const PositionMap& rows) { return data_.read(draw, rows); });
  of_batch_.pop_front();
  return sequence;
}

bool Loader::read_one_ahead() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_ || std::ssize(ready_) < options_.prefetch; });
    if (stop_) return false;
  }
  Sequence sequence = read_next();
  {
    const std::lock_guard lock(mutex_);
    ready_.push_back(std::move(sequence));
  }
  changed_.notify_all();
  return true;
}

void Loader::read_ahead() {
  std::string why = "its run has ended";
  std::exception_ptr failure;
  try {
    while (read_one_ahead()) {
    }
  } catch (const std::exception& error) {
    failure = std::current_exception();
    why = error.what();
  } catch (...) {
    failure = std::current_exception();
    why = "an exception of unknown type";
  }
  // Before next() throws on this rank: so all ranks know.
  if (options_.rows.leave.tell) options_.rows.leave.tell(why);
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
  }
  changed_.notify_all();
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
    sequence = read_next();
  }
  changed_.notify_all();
  order_.skip(taken_, options_.groups);
  return sequence;
}

}  // namespace annulus::data
