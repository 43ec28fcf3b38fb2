#pragma once

#include <memory>
#include <string>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/plan.hpp>

#include "support/attention/attention_problem.hpp"
#include "support/exec.hpp"

namespace annulus::test {

/// An attention problem with the answers of the double-precision reference and of one rank. It knows neither
/// ranks nor layout, so one serves every way of spreading it.
struct Sample : AttentionProblem {
  DType type = DType::f32;
  AttentionResult exact, one_rank;

  plan::Problem problem(const Topology& topology, const Layout& layout) const;
};

struct Shape {
  std::int64_t tokens = 97;
  int heads = 4, kv_heads = 2, head_dim = 16, batch = 1;
  double soft_cap = 0;  ///< of the scores; 0: none
  bool sinks = false;   ///< random ones
  int v_head_dim = 0;   ///< 0: head_dim
};

/// Computed at the first call with these arguments and kept.
std::shared_ptr<const Sample> make_sample(const std::string& mask, const Shape& shape,
                                          DType type = DType::f32);

/// Relative errors of results over all rows of all ranks against the reference.
struct Errors : AttentionErrors {
  double from_one_rank = 0;  ///< the largest distance of a result from what one rank computes
  AttentionErrors norms{};   ///< of each result as a whole: ArrayError::norm
};

/// What runs a second time, on the same buffers.
enum class Again : std::uint8_t {
  nothing,
  forward,  ///< with Forward::finished, which must have the bits of out, rounded
  all,      ///< that, and both passes as they ran, which must give the same bits
};

/// Runs the two passes of Attention on this rank's rows of the sample and compares with the reference.
/// Collective.
Errors run(comm::Communicator& communicator, const Sample& sample, const plan::Plan& forward,
           const plan::Plan& backward, Again again = Again::nothing, const executor::Settings& settings = {});

/// Runs them with an Attention over fp32 that is there already, and Again::forward; `positions` are those of
/// this rank's rows.
Errors run(comm::Communicator& communicator, const Sample& sample,
           executor::Attention<TestExec, float>& attention, const PositionMap& positions);

/// Runs the plans of a named schedule on the communicator's topology.
Errors run(comm::Communicator& communicator, const Sample& sample, const std::string& schedule,
           const Layout& layout, const executor::Settings& settings = {});

/// EXPECTs that every error, and the distance from one rank, is within `limit`; `what` is added to the
/// message.
void expect_correct(const Errors& errors, const std::string& what, double limit = fp32_tolerance);

}  // namespace annulus::test
