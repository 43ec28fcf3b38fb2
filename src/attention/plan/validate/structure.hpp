#pragma once

#include "attention/plan/proof.hpp"
#include "attention/plan/validate/diagnostics.hpp"

namespace annulus::plan::validation {

/// Indices, ranges, and posts and waits of every entry of a step: what all else takes for granted.
void check_structure(const Premises& premises, int rank, int number, const Step& step,
                     Diagnostics& diagnostics);

}  // namespace annulus::plan::validation
