#pragma once

#include <nlohmann/json.hpp>
#include <vector>

namespace annulus::bench {

/// The objects of two cases have the same configuration on the same machinery.
bool is_same_case(const nlohmann::json& a, const nlohmann::json& b);

/// Adds to every pass of every case what follows from other cases: `striped_attention.measured_speedup` over
/// the contiguous ring and `speedup_at_equal_rate`, the same for the efficiencies, which what else the
/// machine does between two cases moves less (both null where that was not run), and, where the case was run
/// with and without overlap, `hidden_share`, the part of the exposed communication without overlap that
/// overlap hides.
void relate(std::vector<nlohmann::json>& cases);

}  // namespace annulus::bench
