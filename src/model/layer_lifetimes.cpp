#include "model/layer_lifetimes.hpp"

#include <algorithm>
#include <ranges>

namespace annulus::model {

void Lifetimes::use(Tensor tensor, int step) {
  if (kept_.has(tensor)) return;
  Lifetime& life = lifetimes_[static_cast<std::size_t>(tensor)];
  life.first = life.empty() ? step : std::min(life.first, step);
  life.last = std::max(life.last, step);
}

Placement place(const Shapes& shapes, const std::vector<Lifetimes>& passes) {
  struct Candidate {
    Tensor tensor;
    std::int64_t bytes;
    double weight;
  };
  std::vector<Candidate> candidates;
  for (int i = 0; i < tensor_count; ++i) {
    const auto tensor = static_cast<Tensor>(i);
    const std::int64_t bytes = aligned(shapes.bytes(tensor, false));
    double length = 0;  // in passes
    for (const Lifetimes& pass : passes) {
      const Lifetime& life = pass.of(tensor);
      if (!life.empty()) length += double(std::min(life.last, pass.steps()) - life.first + 1) / pass.steps();
    }
    if (length > 0) candidates.push_back({tensor, bytes, length * double(bytes)});
  }
  std::ranges::stable_sort(candidates, std::greater<>(), &Candidate::weight);

  Placement placement;
  const auto offset = [&](Tensor tensor) -> std::int64_t& {
    return placement.offset[static_cast<std::size_t>(tensor)];
  };
  std::vector<Candidate> placed;
  for (const Candidate& next : candidates) {
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

}  // namespace annulus::model
