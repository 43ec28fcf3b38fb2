#include <annulus/training/optimizer/adamw_options.hpp>

#include <cmath>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::optimizer {

void AdamWOptions::validate(std::string_view section) const {
  for (const auto& [name, beta] : {std::pair("beta1", beta1), std::pair("beta2", beta2)})
    require(beta >= 0 && beta < 1, "{}{} = {}: give a number from 0 up to, but not 1", section, name, beta);
  require(std::isfinite(epsilon) && epsilon > 0, "{}epsilon = {}: give a small positive number", section,
          epsilon);
  require(std::isfinite(weight_decay) && weight_decay >= 0,
          "{}weight_decay = {}: give 0 or a positive number", section, weight_decay);
}

}  // namespace annulus::optimizer
