#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "prediction/simulator/selected.hpp"

namespace annulus::options {

/// Which pairs predictions and emulations count (Shared::sparsity_of_prediction).
struct Sparsity {
  std::shared_ptr<const simulator::SelectedBlocks> blocks;  ///< of a file
  simulator::Selected selected;                             ///< refers to `blocks`
  std::int64_t columns = 0;  ///< of these selections, of all sequences (plan::column_traffic)
};

/// `text` is the share of the pairs that is left out, a file with a selection (read_selection), or empty for
/// all pairs. Throws Error naming --sparsity, and an option of the problem that does not fit the file.
Sparsity sparsity_of(const std::string& text, const plan::Problem& problem);

}  // namespace annulus::options
