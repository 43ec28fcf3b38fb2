#pragma once

#include <annulus/base/kokkos/tensor.hpp>
#include <cstdint>
#include <functional>
#include <limits>

#include "base/kokkos/exponential.hpp"
#include "base/kokkos/pack.hpp"
#include "training/loss/lm_head.hpp"

/// Kernels of the LM head's loss.
namespace annulus::loss::detail {

using annulus::detail::host_memory;

/// Elements that a thread reads and writes at a time. On a device 32 bytes of fp32, 16 of bfloat16; on the
/// host so many that loops over them become vector code.
template <class Exec>
inline constexpr int packet_elements = host_memory<Exec> ? 64 : 8;

/// Loss and gradient of rows of logits, a team a row. A row is read twice: for its maximum and the sum of its
/// exponentials, and for the gradient, which goes where the logits were: element j of type T to the bytes
/// from j · sizeof(T) of the row. A row is a number of packets; what lies behind the vocabulary is not read,
/// and may be written.
///
/// The team has a fixed size, so that sums are formed in the same order on any number of threads.
template <class Exec, class T>
class CrossEntropyRows {
 public:
  static constexpr int packet_size = packet_elements<Exec>;
  using Packet = Pack<packet_size>;
  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;

  struct LogitRows {
    float* logits;            // (rows, row_stride), the first `vocabulary` of each
    std::int64_t row_stride;  // a multiple of packet_size
    int rows, vocabulary;
    const std::int32_t* targets;  // (rows)
    double* losses;               // (rows)
    std::uint8_t* greedy;         // (rows), 1 where greedy decoding chooses the target; null: nobody asks
    float scale;                  // of the gradient
    bool gradient;                // false: the logits stay
  };

  static void launch(const Exec& exec, const LogitRows& rows) {
    Kokkos::parallel_for("annulus::loss::cross_entropy", Policy(exec, rows.rows, host_memory<Exec> ? 1 : 512),
                         CrossEntropyRows(rows));
  }

  explicit CrossEntropyRows(const LogitRows& rows) : rows_(rows) {}

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    float* const row = rows_.logits + team.league_rank() * rows_.row_stride;
    const std::int32_t target = rows_.targets[team.league_rank()];
    const bool counts = target >= 0 && target < rows_.vocabulary;
    if (!counts && !rows_.gradient) {
      Kokkos::single(Kokkos::PerTeam(team), [&] {
        rows_.losses[team.league_rank()] = 0.0;
        if (rows_.greedy != nullptr) rows_.greedy[team.league_rank()] = 0;
      });
      return;
    }
    const float target_logit = counts ? row[target] : 0.0f;  // before the row is overwritten

    float largest = minus_infinity;
    double sum = 0.0;  // of exp(logit - largest)
    if (counts) read(team, row, largest, sum);

    Kokkos::single(Kokkos::PerTeam(team), [&] {
      rows_.losses[team.league_rank()] =
          counts ? Kokkos::log(sum) + (static_cast<double>(largest) - static_cast<double>(target_logit))
                 : 0.0;
    });
    if (rows_.greedy != nullptr) {
      // All threads of the team know the same here. A logit that is no number makes the sum none.
      const bool chosen =
          counts && sum > 0.0 && target_logit == largest && !stands_before(team, row, target, largest);
      Kokkos::single(Kokkos::PerTeam(team), [&] { rows_.greedy[team.league_rank()] = chosen ? 1 : 0; });
    }
    if (rows_.gradient) differentiate(team, row, counts ? target : -1, largest, sum);
  }

 private:
  static constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

  // Calls body(first element) for the packets of this thread; every thread of the team makes as many rounds.
  template <class Body>
  KOKKOS_FUNCTION void for_each_packet(const Member& team, const Body& body) const {
    const int step = team.team_size() * packet_size;
    for (int begin = 0; begin < rows_.vocabulary; begin += step) body(begin + team.team_rank() * packet_size);
  }

  // What lies behind the vocabulary is not read: nobody wrote it.
  KOKKOS_FUNCTION Packet packet(const float* row, int first) const {
    if (first + packet_size <= rows_.vocabulary) return hold<packet_size>(row + first).values();
    Packet packet;
    for (int i = 0; i < packet_size; ++i)
      packet[i] = first + i < rows_.vocabulary ? row[first + i] : minus_infinity;
    return packet;
  }

  // What is no number may come out or not: it is seen in the sum of exponentials.
  struct Larger {
    KOKKOS_FUNCTION float operator()(float a, float b) const {
      KOKKOS_IF_ON_DEVICE((return Kokkos::fmax(a, b);))
      KOKKOS_IF_ON_HOST((return a < b ? b : a;))  // one instruction, which also becomes vector code
    }
  };

  // The first `count` elements combined, first with second half, as a vector unit can.
  template <int count = packet_size, class Operation>
  KOKKOS_FUNCTION static float fold(Packet values, const Operation& operation) {
    if constexpr (count == 1) {
      return values[0];
    } else {
      for (int i = 0; i < count / 2; ++i) values[i] = operation(values[i], values[i + count / 2]);
      return fold<count / 2>(values, operation);
    }
  }

  // Softmax in one pass: the sum so far is kept relative to the maximum so far. A maximum of -inf has no
  // exponentials, and +inf or NaN makes the sum NaN.
  KOKKOS_FUNCTION void read(const Member& team, const float* row, float& largest, double& sum) const {
    float mine = minus_infinity;
    double mine_sum = 0.0;
    for_each_packet(team, [&](int first) {
      const Packet logits = packet(row, first);
      const float now = Larger()(mine, fold(logits, Larger()));
      const float shift = now == minus_infinity ? 0.0f : now;
      Packet parts;
      for (int i = 0; i < packet_size; ++i) parts[i] = exponential(logits[i] - shift);
      if (now > mine) mine_sum *= static_cast<double>(exponential(mine - shift));
      mine_sum += static_cast<double>(fold(parts, std::plus<float>()));
      mine = now;
    });
    largest = mine;
    team.team_reduce(Kokkos::Max<float>(largest));
    const float shift = largest == minus_infinity ? 0.0f : largest;
    sum = mine_sum * Kokkos::exp(static_cast<double>(mine) - static_cast<double>(shift));
    team.team_reduce(Kokkos::Sum<double>(sum));
  }

  // Whether an entry before `end` has the logit `value`.
  KOKKOS_FUNCTION bool stands_before(const Member& team, const float* row, int end, float value) const {
    int found = 0;
    for (int entry = team.team_rank(); entry < end; entry += team.team_size())
      if (row[entry] == value) found = 1;
    team.team_reduce(Kokkos::Max<int>(found));
    return found != 0;
  }

  // scale · (softmax - one-hot), or 0 where target is -1
  KOKKOS_FUNCTION void differentiate(const Member& team, float* row, std::int32_t target, float largest,
                                     double sum) const {
    const float shift = largest == minus_infinity ? 0.0f : largest;
    const float factor = target < 0 ? 0.0f : static_cast<float>(static_cast<double>(rows_.scale) / sum);
    for_each_packet(team, [&](int first) {
      Packet gradient{};
      if (target >= 0) {
        const Packet logits = packet(row, first);
        for (int i = 0; i < packet_size; ++i)
          gradient[i] = factor * exponential(logits[i] - shift) - (first + i == target ? rows_.scale : 0.0f);
      }
      // A smaller T lands on logits of this round, or of earlier ones.
      if constexpr (sizeof(T) < sizeof(float)) team.team_barrier();
      if (first < rows_.vocabulary) store(reinterpret_cast<T*>(row) + first, held_as<T>(gradient));
    });
  }

  LogitRows rows_;
};

}  // namespace annulus::loss::detail
