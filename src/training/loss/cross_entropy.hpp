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

struct LogitRows {
  float* logits;            // (rows, row_stride), the first `vocabulary` of each
  std::int64_t row_stride;  // a multiple of packet_elements
  int rows, vocabulary;
  const std::int32_t* targets;  // (rows)
  double* losses;               // (rows)
  std::uint8_t* greedy;         // (rows), 1 where greedy decoding chooses the target; null: nobody asks
  float scale;                  // of the gradient
  float soft_cap;               // of the logits; 0: none
  bool gradient;                // false: the logits stay
};

/// Loss and gradient of rows of logits, a team a row. A row is read twice: for its maximum and the sum of its
/// exponentials, and for the gradient, which goes where the logits were: element j of type T to the bytes
/// from j · sizeof(T) of the row. A row is a number of packets; what lies behind the vocabulary is not read,
/// and may be written.
///
/// The team has a fixed size, so that sums are formed in the same order on any number of threads.
///
/// `capped`: a logit x counts as soft_cap · tanh(x / soft_cap), made of it each time it is read.
template <class Exec, class T, bool capped>
class CrossEntropyRows {
 public:
  static constexpr int packet_size = packet_elements<Exec>;
  using Packet = Pack<packet_size>;
  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;

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
    const float raw_target = counts ? row[target] : 0.0f;  // before the row is overwritten
    const float target_logit = cap(raw_target);

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
      const bool chosen = counts && sum > 0.0 && (capped || target_logit == largest) &&
                          !is_beaten(team, row, target, raw_target);
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

  KOKKOS_FORCEINLINE_FUNCTION float cap(float logit) const {
    if constexpr (capped)
      return rows_.soft_cap * hyperbolic_tangent(logit / rows_.soft_cap);
    else
      return logit;
  }

  // The gradient of a logit, of that of the capped one, which is `logit`.
  KOKKOS_FORCEINLINE_FUNCTION float before_cap(float gradient, float logit) const {
    if constexpr (capped) {
      const float t = logit / rows_.soft_cap;
      return gradient * (1.0f - t * t);
    } else {
      return gradient;
    }
  }

  // What lies behind the vocabulary is not read: nobody wrote it.
  KOKKOS_FUNCTION Packet packet(const float* row, int first) const {
    Packet packet;
    if (first + packet_size <= rows_.vocabulary) {
      packet = hold<packet_size>(row + first).values();
      if constexpr (capped) {
        for (int i = 0; i < packet_size; ++i) packet[i] = cap(packet[i]);
      }
    } else {
      for (int i = 0; i < packet_size; ++i)
        packet[i] = first + i < rows_.vocabulary ? cap(row[first + i]) : minus_infinity;
    }
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

  // Whether greedy decoding takes another entry than the target, whose logit is `value`: one before it that
  // is as large, or, where that is not known to be the largest, a larger one.
  KOKKOS_FUNCTION bool is_beaten(const Member& team, const float* row, int target, float value) const {
    int found = 0;
    const int end = capped ? rows_.vocabulary : target;
    for (int entry = team.team_rank(); entry < end; entry += team.team_size())
      if (row[entry] > value || (entry < target && row[entry] == value)) found = 1;
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
          gradient[i] =
              before_cap(factor * exponential(logits[i] - shift) - (first + i == target ? rows_.scale : 0.0f),
                         logits[i]);
      }
      // A smaller T lands on logits of this round, or of earlier ones.
      if constexpr (sizeof(T) < sizeof(float)) team.team_barrier();
      if (first < rows_.vocabulary) store(reinterpret_cast<T*>(row) + first, held_as<T>(gradient));
    });
  }

  LogitRows rows_;
};

template <class Exec, class T>
void cross_entropy_rows(const Exec& exec, const LogitRows& rows) {
  if (rows.soft_cap > 0.0f)
    CrossEntropyRows<Exec, T, true>::launch(exec, rows);
  else
    CrossEntropyRows<Exec, T, false>::launch(exec, rows);
}

}  // namespace annulus::loss::detail
