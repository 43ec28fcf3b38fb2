#include "training/run/stragglers.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <ranges>

#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/watchdog.hpp"
#include "training/io/logging.hpp"

namespace annulus::training {

namespace {

// Optimizer steps of a judgement. With the one that warms up, and two that may be quick, something that is
// slow from the start is named in the 17th step, and what becomes slow later after 14.
constexpr std::size_t window_steps = 16;
constexpr std::ptrdiff_t quick_steps = 2;
// Noise of 2 % of a time leaves the median of so many steps within 1 %. Where it is larger, so is what is
// named.
constexpr double deviations = 4;

// GPUs of one kind differ by some percent in their clocks. Messages beside others on one link differ more.
constexpr double rank_named = 1.06, rank_noticed = 1.03;
constexpr double link_named = 1.5, link_noticed = 1.25;

// What an idle machine loses to timers and to waking threads.
constexpr double least_compute_seconds = 5e-4;  // of an optimizer step
constexpr double least_message_seconds = 2e-4;

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 != 0) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// The median of `sorted` (two or more) without one of those that equal `value`.
double median_of_others(const std::vector<double>& sorted, double value) {
  const std::ptrdiff_t left_out = std::ranges::lower_bound(sorted, value) - sorted.begin();
  const std::ptrdiff_t others = std::ssize(sorted) - 1;
  const auto other = [&](std::ptrdiff_t i) { return sorted[static_cast<std::size_t>(i + (i >= left_out))]; };
  return (other((others - 1) / 2) + other(others / 2)) / 2;
}

}  // namespace

bool Stragglers::Window::add(double slowness, bool costly, const Limits& limits) {
  steps_.emplace_back(slowness, costly);
  if (steps_.size() > window_steps) steps_.pop_front();
  const double middle = median();
  if (middle < limits.noticed) named_ = false;
  std::ptrdiff_t quick = 0;
  std::vector<double> noise;
  for (const auto& [s, is_costly] : steps_) {
    quick += s < limits.noticed || !is_costly;
    noise.push_back(std::abs(s - middle));
  }
  const bool slow = steps_.size() == window_steps && middle >= limits.named && quick <= quick_steps &&
                    middle - 1 >= deviations * median_of(noise);
  return slow && !std::exchange(named_, true);
}

double Stragglers::Window::median() const {
  std::vector<double> slowness;
  for (const auto& [s, is_costly] : steps_) slowness.push_back(s);
  return median_of(std::move(slowness));
}

Stragglers::Stragglers(const Topology& world)
    : topology_(world), late_(static_cast<std::size_t>(world.ranks())) {}

Stragglers::Judgement Stragglers::add(std::span<const RankTimes> ranks) {
  Judgement judgement;
  if (!std::exchange(warm_, true)) return judgement;
  judge_ranks(ranks, judgement);
  judge_links(ranks, judgement);
  return judgement;
}

void Stragglers::judge_ranks(std::span<const RankTimes> ranks, Judgement& judgement) {
  std::vector<double> work;
  for (const RankTimes& times : ranks)
    if (times.compute.work > 0 && times.compute.seconds > 0) work.push_back(times.compute.work);
  if (work.size() < 2) return;
  const double least_work = median_of(work) / 2;
  std::vector<std::pair<int, double>> speeds;  // of those that are judged: seconds for each unit of work
  for (int rank = 0; rank < std::ssize(ranks); ++rank) {
    const auto& [seconds, work_of_rank] = ranks[static_cast<std::size_t>(rank)].compute;
    if (work_of_rank >= least_work && seconds > 0) speeds.emplace_back(rank, seconds / work_of_rank);
  }
  if (speeds.size() < 2) return;
  std::vector<double> sorted;
  double sum = 0;
  for (const auto& [rank, speed] : speeds) {
    sorted.push_back(speed);
    sum += speed;
  }
  std::ranges::sort(sorted);
  const double mean = sum / static_cast<double>(speeds.size());
  for (const auto& [rank, speed] : speeds) {
    const double others = median_of_others(sorted, speed);
    const ComputeTime& mine = ranks[static_cast<std::size_t>(rank)].compute;
    const bool costly = mine.seconds - mine.work * others >= least_compute_seconds;
    Window& window = ranks_[rank];
    if (window.add(speed / others, costly, {rank_named, rank_noticed}))
      judgement.named.push_back({.rank = rank, .slowness = window.median()});
    if (speed == sorted.back()) judgement.slowest.rank = {rank, speed / mean};
  }
}

double Stragglers::lateness(std::span<const RankTimes> ranks) {
  std::vector<double> seconds;
  for (const RankTimes& times : ranks) seconds.push_back(times.compute.seconds);
  const double middle = median_of(seconds);
  double most = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::deque<double>& late = late_[rank];
    late.push_back(seconds[rank] - middle);
    if (late.size() > window_steps) late.pop_front();
    most = std::max(most, median_of({late.begin(), late.end()}));
  }
  return most;
}

void Stragglers::judge_links(std::span<const RankTimes> ranks, Judgement& judgement) {
  const double late = lateness(ranks);
  std::map<Link, std::vector<comm::MessageTime>> ends;
  for (int rank = 0; rank < std::ssize(ranks); ++rank)
    for (const comm::MessageTime& time : ranks[static_cast<std::size_t>(rank)].links)
      if (time.messages > 0)
        ends[time.receives ? Link(time.peer, rank) : Link(rank, time.peer)].push_back(time);
  // A rank whose list is full has left out links that are faster.
  const auto lists_all = [&](int rank, bool receives) {
    return std::ranges::count_if(ranks[static_cast<std::size_t>(rank)].links, [&](const auto& time) {
             return time.messages > 0 && time.receives == receives;
           }) < std::ssize(ranks[0].links) / 2;
  };
  std::map<Link, comm::MessageTime> links;
  std::map<bool, std::vector<double>> rates;  // by kind: inside of a node
  for (const auto& [link, times] : ends) {
    const auto& [sender, receiver] = link;
    if (times.size() == 1 && !(times[0].receives ? lists_all(sender, false) : lists_all(receiver, true)))
      continue;
    const comm::MessageTime& fastest = *std::ranges::max_element(times, {}, &comm::MessageTime::rate);
    links[link] = fastest;
    rates[topology_.same_node(sender, receiver)].push_back(fastest.rate());
  }
  for (auto& [inside, sorted] : rates) std::ranges::sort(sorted);
  std::vector<std::pair<double, Slowest::Link>> by_slowness;
  for (const auto& [link, message] : links) {
    const auto& [sender, receiver] = link;
    const std::vector<double>& sorted = rates[topology_.same_node(sender, receiver)];
    if (sorted.size() < 2) continue;
    const double others = median_of_others(sorted, message.rate());
    const double slowness = others / message.rate();
    by_slowness.emplace_back(slowness, Slowest::Link{sender, receiver, message.rate()});
    const double lost = message.seconds - static_cast<double>(message.bytes) / others;
    const double explained = 2 * late / static_cast<double>(message.messages);
    const bool costly = lost >= std::max(least_message_seconds, explained);
    Window& window = links_[link];
    if (window.add(slowness, costly, {link_named, link_noticed}))
      judgement.named.push_back(
          {.rank = sender, .receiver = receiver, .slowness = window.median(), .rate = message.rate()});
  }
  std::ranges::stable_sort(by_slowness, std::greater(), &std::pair<double, Slowest::Link>::first);
  for (const auto& [slowness, link] : by_slowness | std::views::take(Slowest::most_links))
    judgement.slowest.links.push_back(link);
}

StragglerWatch::StragglerWatch(comm::Communicator& world, bool on_gpu)
    : world_(world), on_gpu_(on_gpu), places_(comm::gather_gpu_ids(world)), stragglers_(world.topology()) {}

Slowest StragglerWatch::observe(const ComputeTime& mine) {
  if (world_.size() == 1) return {};
  RankTimes times{.compute = mine, .links = {}};
  if (comm::Watchdog* const watchdog = world_.watchdog(); watchdog != nullptr) {
    std::vector<comm::MessageTime> links = watchdog->message_times().take();
    std::erase_if(links, [&](const comm::MessageTime& time) { return time.peer == world_.rank(); });
    std::ranges::sort(links, {}, &comm::MessageTime::rate);
    std::array<std::size_t, 2> listed{};
    for (const comm::MessageTime& time : links) {
      std::size_t& count = listed[time.receives ? 1 : 0];
      if (count < RankTimes::links_each_way)
        times.links[(time.receives ? RankTimes::links_each_way : 0) + count++] = time;
    }
  }
  std::vector<RankTimes> all(static_cast<std::size_t>(world_.size()));
  world_.all_gather(HostExec(), &times, all.data(), sizeof times);
  if (world_.rank() != 0) return {};
  const Stragglers::Judgement judgement = stragglers_.add(all);
  for (const Straggler& straggler : judgement.named) logging::warn("{}", warning(straggler));
  return judgement.slowest;
}

std::string StragglerWatch::who(int rank) const {
  return fmt::format("rank {} ({})", rank,
                     comm::device_text(places_[static_cast<std::size_t>(rank)], on_gpu_));
}

std::string StragglerWatch::warning(const Straggler& straggler) const {
  constexpr const char* gpu =
      "its clocks, power and temperature (nvidia-smi -q -d PERFORMANCE) and at other programs on it";
  constexpr const char* cpu = "other programs on its cores and at the cores to which ranks are bound";
  constexpr const char* in_node = "NVLink and PCIe of the two devices (nvidia-smi topo -m, nvlink -s)";
  constexpr const char* network = "NICs, cables and switch ports between the two nodes (ibstat, ethtool)";
  if (!straggler.receiver)
    return fmt::format(
        "{} is slow: in the last {} optimizer steps its attention kernels took {:.2f} times as long as those "
        "of the other ranks for the same work, and all wait for it. Look at {} (docs/running.md)",
        who(straggler.rank), window_steps, straggler.slowness, on_gpu_ ? gpu : cpu);
  const bool inside = world_.topology().same_node(straggler.rank, *straggler.receiver);
  return fmt::format(
      "the link from {} to {} is slow: in the last {} optimizer steps its messages took {:.2f} times as long "
      "as those of the other links {} ({:.3g} GB/s now). Look at {} (docs/running.md)",
      who(straggler.rank), who(*straggler.receiver), window_steps, straggler.slowness,
      inside ? "inside of nodes" : "between nodes", straggler.rate * 1e-9, inside ? in_node : network);
}

}  // namespace annulus::training
