#pragma once

#include <cstdint>
#include <string_view>

namespace annulus::optimizer {

/// What a user chooses of AdamW. Apart from the optimizer, so that configurations need no Kokkos.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;

  /// Throws Error naming the field behind `section`: betas in [0, 1), epsilon > 0, weight_decay ≥ 0.
  void validate(std::string_view section = "AdamW: ") const;
};

/// Learning rate by optimizer step: linear warm-up to the peak `lr`, then half a cosine down to `min_lr`.
/// 0 ≤ min_lr ≤ lr, 0 ≤ warmup_steps ≤ schedule_steps, 1 ≤ schedule_steps.
struct LearningRateSchedule {
  double lr = 0.0, min_lr = 0.0;
  std::int64_t warmup_steps = 0;
  std::int64_t schedule_steps = 1;

  /// The rate of optimizer step `step`, counted from 0. Step warmup_steps − 1 is the first at `lr` (step 0
  /// without warm-up), step schedule_steps − 1 and all later ones run at `min_lr`.
  double at(std::int64_t step) const;

  bool operator==(const LearningRateSchedule&) const = default;
};

}  // namespace annulus::optimizer
