#pragma once

#include <string>
#include <vector>

#include "run_record.hpp"

namespace annulus::report {

/// What a run has reached, in a sentence or two.
std::string headline(const RunRecord& run);

/// A page that needs nothing else: headlines, charts over optimizer steps and tokens with the runs side by
/// side, memory by category, and the keys on which the configurations differ. `runs`: one or several.
std::string page(const std::vector<RunRecord>& runs);

}  // namespace annulus::report
