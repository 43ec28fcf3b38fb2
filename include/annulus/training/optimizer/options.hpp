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

/// Learning rate by optimizer step: linear warm-up to the peak `lr`, then one of four curves. 0 ≤ min_lr ≤
/// lr, 0 ≤ warmup_steps ≤ schedule_steps, 1 ≤ schedule_steps, 0 ≤ decay_steps ≤ schedule_steps −
/// warmup_steps.
struct LearningRateSchedule {
  enum class Curve : std::uint8_t {
    cosine,    ///< half a cosine down to min_lr
    linear,    ///< a line down to min_lr
    constant,  ///< stays at lr
    wsd        ///< warm-up, stable, decay (Hu et al., MiniCPM): lr, then a line of decay_steps down to min_lr
  };

  double lr = 0.0, min_lr = 0.0;
  std::int64_t warmup_steps = 0;
  std::int64_t schedule_steps = 1;
  Curve curve = Curve::cosine;
  std::int64_t decay_steps = 0;  ///< of wsd; 0: it stays at lr

  /// The rate of optimizer step `step`, counted from 0. Step warmup_steps − 1 is the first at `lr` (step 0
  /// without warm-up); of a curve that ends, step schedule_steps − 1 and all later ones run at `min_lr`.
  double at(std::int64_t step) const;
  /// Whether the curve comes down to min_lr at all.
  bool ends() const { return curve != Curve::constant && (curve != Curve::wsd || decay_steps > 0); }

  /// "cosine", "linear", "constant" or "wsd"; else Error beginning with `field`.
  static Curve parse_curve(std::string_view name, std::string_view field);
  static std::string_view name_of(Curve curve);

  bool operator==(const LearningRateSchedule&) const = default;
};

}  // namespace annulus::optimizer
