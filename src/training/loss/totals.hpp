#pragma once

#include <annulus/base/kokkos/tensor.hpp>

#include "training/loss/cross_entropy.hpp"
#include "training/loss/lm_head.hpp"

namespace annulus::loss::detail {

/// Adds the losses of a call to the totals, counts its targets and notes the first one out of range. One
/// team, so that the sum has one order.
template <class Exec>
class AddLosses {
 public:
  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;

  static void launch(const Exec& exec, const Array1<const double, Exec>& losses,
                     const Array1<const std::int32_t, Exec>& targets, std::int64_t vocabulary,
                     const Array1<LmHeadTotals, Exec>& totals) {
    Kokkos::parallel_for("annulus::loss::add_losses", Policy(exec, 1, host_memory<Exec> ? 1 : 1024),
                         AddLosses(losses, targets, vocabulary, totals));
  }

  AddLosses(const Array1<const double, Exec>& losses, const Array1<const std::int32_t, Exec>& targets,
            std::int64_t vocabulary, const Array1<LmHeadTotals, Exec>& totals)
      : losses_(losses), targets_(targets), vocabulary_(vocabulary), totals_(totals) {}

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const auto tokens = static_cast<std::int64_t>(targets_.extent(0));
    double loss_sum = 0.0;
    std::int64_t valid = 0, wrong = tokens;
    for (std::int64_t token = team.team_rank(); token < tokens; token += team.team_size()) {
      const std::int32_t target = targets_(token);
      if (target >= 0 && target < vocabulary_) {
        loss_sum += losses_(token);
        ++valid;
      } else if (target != ignored_target && token < wrong) {
        wrong = token;
      }
    }
    team.team_reduce(Kokkos::Sum<double>(loss_sum));
    team.team_reduce(Kokkos::Sum<std::int64_t>(valid));
    team.team_reduce(Kokkos::Min<std::int64_t>(wrong));
    Kokkos::single(Kokkos::PerTeam(team), [&] {
      LmHeadTotals& totals = totals_(0);
      totals.loss_sum += loss_sum;
      totals.valid += valid;
      if (wrong < tokens && totals.wrong_token < 0) {
        totals.wrong_token = wrong;
        totals.wrong_target = targets_(wrong);
        totals.vocabulary = vocabulary_;
      }
    });
  }

 private:
  Array1<const double, Exec> losses_;         // (tokens)
  Array1<const std::int32_t, Exec> targets_;  // (tokens)
  std::int64_t vocabulary_;
  Array1<LmHeadTotals, Exec> totals_;  // (1)
};

/// Sums of consecutive losses, as many for each sum. A team a sum, so that it has one order.
template <class Exec>
class SumLosses {
 public:
  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;

  static void launch(const Exec& exec, const Array1<const double, Exec>& losses, std::int64_t tokens,
                     const Array1<double, Exec>& sums) {
    if (sums.extent(0) == 0) return;
    Kokkos::parallel_for("annulus::loss::sum_losses",
                         Policy(exec, static_cast<int>(sums.extent(0)), host_memory<Exec> ? 1 : 1024),
                         SumLosses(losses, tokens, sums));
  }

  SumLosses(const Array1<const double, Exec>& losses, std::int64_t tokens, const Array1<double, Exec>& sums)
      : losses_(losses), tokens_(tokens), sums_(sums) {}

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    double sum = 0.0;
    for (std::int64_t token = team.team_rank(); token < tokens_; token += team.team_size())
      sum += losses_(team.league_rank() * tokens_ + token);
    team.team_reduce(Kokkos::Sum<double>(sum));
    Kokkos::single(Kokkos::PerTeam(team), [&] { sums_(team.league_rank()) = sum; });
  }

 private:
  Array1<const double, Exec> losses_;  // (sums · tokens or more)
  std::int64_t tokens_;
  Array1<double, Exec> sums_;
};

}  // namespace annulus::loss::detail
