#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/base/kokkos/tensor.hpp>

/// Rows of a whole sequence that are looked at instead of all.
namespace annulus::bench {

/// The first row, the last and others in between, one in each of equal stretches but not at equal distances.
inline std::vector<std::int64_t> sampled_indices(std::int64_t tokens) {
  constexpr std::int64_t stretches = 12;
  std::vector<std::int64_t> sample{0, tokens - 1};
  for (std::int64_t i = 0; i < stretches; ++i) {
    const std::int64_t begin = tokens * i / stretches, end = tokens * (i + 1) / stretches;
    if (end > begin) sample.push_back(begin + (i * 7919 + 13) % (end - begin));
  }
  std::sort(sample.begin(), sample.end());
  sample.erase(std::unique(sample.begin(), sample.end()), sample.end());
  return sample;
}

/// ‖x − expected‖ / ‖expected‖, summed up as rows come in. `least` is a lower bound of the square of the
/// norm; against almost nothing a root mean square of 10⁻³ counts.
struct ErrorNorm {
  double error = 0, norm = 0, least = 0, count = 0;
  void add(double x, double expected) {
    if (x == expected && std::isinf(expected)) return;  // lse of a row without keys
    const double difference = x - expected;
    error += std::isfinite(difference) ? difference * difference : std::numeric_limits<double>::infinity();
    norm += expected * expected;
    count += 1;
  }
  double relative() const {
    return error == 0 ? 0.0 : std::sqrt(error / std::max({norm, least, 1e-6 * count}));
  }
};

/// Numbers of every sampled row: (sequence and head, sample, width). Every rank adds its part.
class Samples {
 public:
  Samples(std::int64_t heads, std::int64_t samples, std::int64_t width, double value = 0)
      : samples_(samples), width_(width), values_(static_cast<std::size_t>(heads * samples * width), value) {}
  double* row(std::int64_t head, std::int64_t sample) {
    return values_.data() + (head * samples_ + sample) * width_;
  }
  const double* row(std::int64_t head, std::int64_t sample) const {
    return values_.data() + (head * samples_ + sample) * width_;
  }
  void all_reduce(comm::Communicator& communicator, comm::ReduceOp op = comm::ReduceOp::sum) {
    communicator.all_reduce(Queue(HostExec()), values_.data(), values_.size(), DType::f64, op);
  }

 private:
  std::int64_t samples_, width_;
  std::vector<double> values_;
};

}  // namespace annulus::bench
