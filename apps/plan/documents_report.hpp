#pragma once

#include <string>

#include "plan/options.hpp"

namespace annulus::planner {

/// Who holds what of the sequence of --documents, and what each rank computes and sends in the pass, on the
/// layout `balanced` beside the problem's (zigzag where that is balanced itself).
std::string documents_report(const PlanCase& c);

}  // namespace annulus::planner
