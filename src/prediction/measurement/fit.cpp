#include "prediction/measurement/fit.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <annulus/base/error.hpp>

#include "prediction/measurement/median.hpp"

namespace annulus::measurement {

namespace {

/// seconds = latency + slope · bytes
struct Line {
  double latency = 0, slope = 0;
  double ratio(const Timing& t) const { return (latency + slope * t.bytes) / t.seconds; }
};

}  // namespace

LinkFit fit_link(std::span<const Timing> timings) {
  require(!timings.empty(), "a link cannot be fitted without any time");
  for (const Timing& t : timings)
    require(t.bytes > 0 && t.seconds > 0, "a message of {} bytes took {} s: both must be positive", t.bytes,
            t.seconds);
  Line best;
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](const Line& line) {
    double sum = 0;
    for (const Timing& t : timings) sum += std::abs(std::log(line.ratio(t)));
    if (sum < least) {
      least = sum;
      best = line;
    }
  };
  for (std::size_t i = 0; i < timings.size(); ++i) {
    const Timing& a = timings[i];
    consider({0, a.seconds / a.bytes});
    for (const Timing& b : timings.subspan(i + 1)) {
      const double slope = (b.seconds - a.seconds) / (b.bytes - a.bytes),
                   latency = a.seconds - slope * a.bytes;
      if (std::isfinite(slope) && slope > 0 && latency >= 0) consider({latency, slope});
    }
  }
  std::vector<double> errors;
  for (const Timing& t : timings) errors.push_back(std::abs(best.ratio(t) - 1));
  return {.link = {.bandwidth = 1 / best.slope, .latency = best.latency},
          .median_error = median(errors),
          .largest_error = *std::max_element(errors.begin(), errors.end())};
}

int count_nics(int ranks, std::span<const Timing> one, std::span<const Timing> all) {
  require(ranks >= 1, "a node of {} ranks has no NICs to count", ranks);
  require(one.size() == all.size() && !all.empty(),
          "NICs are found from the same sizes twice, but there are {} times of one rank and {} of all",
          one.size(), all.size());
  const double latency = fit_link(one).link.latency;
  std::vector<double> factors;
  double factor = 0;  // of the largest size
  for (std::size_t i = 0; i < all.size(); ++i) {
    require(one[i].bytes == all[i].bytes, "NICs are found from the same sizes twice: {} and {} bytes differ",
            one[i].bytes, all[i].bytes);
    factor = ranks * one[i].seconds / all[i].seconds;
    if (one[i].seconds >= 4 * latency) factors.push_back(factor);
  }
  if (!factors.empty()) factor = median(factors);
  int nics = 1;
  for (int divisor = 2; divisor <= ranks; ++divisor) {
    const auto distance = [&](int d) { return std::abs(std::log(factor / d)); };
    if (ranks % divisor == 0 && distance(divisor) < distance(nics)) nics = divisor;
  }
  return nics == ranks ? 0 : nics;
}

}  // namespace annulus::measurement
