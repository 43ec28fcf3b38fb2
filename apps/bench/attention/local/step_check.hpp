#pragma once

#include <nlohmann/json.hpp>

#include "bench/attention/local/passes.hpp"

namespace annulus::bench {

/// Compares the steps of a ring with a pass in one piece, every element: attention of two halves of the keys,
/// one merged into the other, and gradients that are written or added to, in both orders of sums. results()
/// of `passes` hold the pass in one piece, checked before (check_local); `running` becomes results of the
/// steps.
///
/// Returns ‖x − whole‖ / ‖whole‖ by step and tensor, and the tolerance. Throws Error naming both where one is
/// beyond it.
template <class T>
nlohmann::json check_steps(const LocalPasses<T>& passes,
                           const LocalResults<typename LocalPasses<T>::Exec>& running);

}  // namespace annulus::bench
