#include "training/model/layers/layer_lifetimes.hpp"

#include <algorithm>
#include <ranges>

namespace annulus::model {

void Lifetimes::use(Tensor tensor, int step) {
  if (kept_.has(tensor)) return;
  Lifetime& life = lifetimes_[static_cast<std::size_t>(tensor)];
  life.first = life.empty() ? step : std::min(life.first, step);
  life.last = std::max(life.last, step);
}

namespace {

struct Candidate {
  Tensor tensor;
  std::int64_t bytes;
  double weight;  // bytes · the share of the passes for which it lives
};

/// Tensors one after the other, each at the lowest place that is free of those with which a pass needs it at
/// once.
Placement place_in_order(const std::vector<Candidate>& order, const std::vector<Lifetimes>& passes) {
  Placement placement;
  const auto offset = [&](Tensor tensor) -> std::int64_t& {
    return placement.offset[static_cast<std::size_t>(tensor)];
  };
  std::vector<Candidate> placed;
  for (const Candidate& next : order) {
    std::vector<Candidate> beside;  // in the order of their places
    std::ranges::copy_if(placed, std::back_inserter(beside), [&](const Candidate& other) {
      return std::ranges::any_of(passes, [&](const Lifetimes& pass) {
        return pass.of(next.tensor).overlaps(pass.of(other.tensor));
      });
    });
    std::ranges::sort(beside, {}, [&](const Candidate& other) { return offset(other.tensor); });
    std::int64_t begin = 0;
    for (const Candidate& other : beside) {
      if (begin + next.bytes <= offset(other.tensor)) break;
      begin = std::max(begin, offset(other.tensor) + other.bytes);
    }
    offset(next.tensor) = begin;
    placement.bytes = std::max(placement.bytes, begin + next.bytes);
    placed.push_back(next);
  }
  return placement;
}

/// The largest sum of tensors that live at once: no placement takes less.
std::int64_t most_at_once(const std::vector<Candidate>& candidates, const std::vector<Lifetimes>& passes) {
  std::int64_t most = 0;
  for (const Lifetimes& pass : passes)
    for (int step = 0; step <= pass.steps(); ++step) {
      std::int64_t sum = 0;
      for (const Candidate& candidate : candidates)
        if (pass.of(candidate.tensor).overlaps({step, step})) sum += candidate.bytes;
      most = std::max(most, sum);
    }
  return most;
}

}  // namespace

Placement place(const Shapes& shapes, const std::vector<Lifetimes>& passes) {
  std::vector<Candidate> order;
  for (int i = 0; i < tensor_count; ++i) {
    const auto tensor = static_cast<Tensor>(i);
    const std::int64_t bytes = aligned(shapes.bytes(tensor, false));
    double length = 0;  // in passes
    for (const Lifetimes& pass : passes) {
      const Lifetime& life = pass.of(tensor);
      if (!life.empty()) length += double(std::min(life.last, pass.steps()) - life.first + 1) / pass.steps();
    }
    if (length > 0) order.push_back({tensor, bytes, length * double(bytes)});
  }
  std::ranges::stable_sort(order, std::greater<>(), &Candidate::weight);
  const std::int64_t least = most_at_once(order, passes);
  Placement best = place_in_order(order, passes), last = best;
  // The tensor that ends highest found no place between the others: it comes before them in the next try.
  constexpr int tries = 60;
  for (int i = 0; i < tries && best.bytes > least; ++i) {
    const auto highest = std::ranges::max_element(order, {}, [&](const Candidate& candidate) {
      return last.offset[static_cast<std::size_t>(candidate.tensor)] + candidate.bytes;
    });
    std::rotate(order.begin(), highest, highest + 1);
    last = place_in_order(order, passes);
    if (last.bytes < best.bytes) best = last;
  }
  return best;
}

}  // namespace annulus::model
