#pragma once

#include <string>

#include "run_record.hpp"

namespace annulus::report {

/// What audits of attention found in a run that has some, as HTML: curves of each quantity over optimizer
/// steps, heat maps of the last audit by layer and head, and where weights and gradients lie in the first and
/// the last one.
std::string attention_figures(const RunRecord& run);

}  // namespace annulus::report
