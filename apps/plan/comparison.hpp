#pragma once

#include <string>
#include <vector>

#include "plan/options.hpp"
#include "plan/summary.hpp"

namespace annulus::planner {

/// One schedule in the table.
struct Row {
  std::string schedule, layout;
  Summary summary;     ///< of no meaning when it refuses
  std::string reason;  ///< why the schedule cannot serve the case; empty when it can
};

/// All schedules on one case, each on its best layout where that is open, the fastest first, those that
/// refuse behind. A hybrid is tried on every grid of more than one rank each way.
std::vector<Row> compare(const Case& c);

std::string table(const std::vector<Row>& rows);

/// What was chosen, and the best of what it was chosen from.
std::string table(const simulate::Choice& choice);

}  // namespace annulus::planner
