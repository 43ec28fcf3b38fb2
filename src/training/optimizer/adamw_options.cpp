#include <annulus/training/optimizer/adamw_options.hpp>

#include <cmath>
#include <string_view>

#include <annulus/base/error.hpp>

namespace annulus::optimizer {

void AdamWOptions::validate() const {
  const auto require_beta = [](double beta, std::string_view name) {
    require(beta >= 0.0 && beta < 1.0, "AdamW: {} is {}, but it must lie in [0, 1)", name, beta);
  };
  require_beta(beta1, "beta1");
  require_beta(beta2, "beta2");
  require(std::isfinite(epsilon) && epsilon > 0.0, "AdamW: epsilon is {}, but it must be finite and positive",
          epsilon);
  require(std::isfinite(weight_decay) && weight_decay >= 0.0,
          "AdamW: weight_decay is {}, but it must be finite and not negative", weight_decay);
}

}  // namespace annulus::optimizer
