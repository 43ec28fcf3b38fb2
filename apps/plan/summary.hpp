#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <annulus/plan/plan.hpp>
#include <annulus/simulate/simulate.hpp>

namespace annulus::planner {

/// One simulated plan in numbers.
struct Summary {
  double time = 0;  ///< seconds
  double exposed = 0,
         exposed_mean = 0;  ///< exposed communication: of the rank with the most, and the mean; seconds
  std::int64_t intra_bytes = 0, inter_bytes = 0;  ///< sent, all ranks together
  simulate::Imbalance imbalance;
  std::int64_t buffer_bytes = 0;  ///< exchange buffers of the rank with the most
};

Summary summarize(const simulate::Simulation& simulation);

/// The case in a line.
std::string describe(const plan::Plan& plan);

/// What the summary says, as pairs of name and value, for the terminal and for the page.
std::vector<std::pair<std::string, std::string>> facts(const Summary& summary);

}  // namespace annulus::planner
