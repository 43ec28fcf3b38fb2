#pragma once

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

}  // namespace annulus::optimizer
