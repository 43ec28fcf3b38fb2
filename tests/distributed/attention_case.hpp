#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <annulus/attention/reference.hpp>
#include <annulus/comm/communicator.hpp>
#include <annulus/distributed/attention.hpp>
#include <annulus/plan/plan.hpp>

#include "support/exec.hpp"

namespace annulus::test {

namespace reference = attention::reference;

/// Results of both passes in global order.
struct Results {
  reference::Array out, lse, dq, dk, dv;
};

/// A whole attention problem on seeded values, with the answers of the double-precision reference and of one
/// rank. It knows neither ranks nor layout, so one serves every way of spreading it.
struct Sample {
  Mask mask;
  int heads = 0, kv_heads = 0, head_dim = 0, batch = 0;
  DType type = DType::f32;
  double scale = 1.0;
  reference::Array q, k, v, d_out;  // values as they are after rounding to `type`
  Results exact, one_rank;

  plan::Problem problem(const Topology& topology, const Layout& layout) const;
};

struct Shape {
  std::int64_t tokens = 97;
  int heads = 4, kv_heads = 2, head_dim = 16, batch = 1;
};

/// Computed at the first call with these arguments and kept.
std::shared_ptr<const Sample> make_sample(const Mask& mask, const Shape& shape, DType type = DType::f32);
std::shared_ptr<const Sample> make_sample(const std::string& mask, const Shape& shape,
                                          DType type = DType::f32);

/// Relative errors ‖x − reference‖ / ‖reference‖ over all rows of all ranks; for lse of the rows that have
/// keys. Norms count as at least 0.1 an element (root mean square): the gradients of a row with one key are
/// exactly zero.
struct Errors {
  double out = 0, lse = 0, dq = 0, dk = 0, dv = 0;
  double from_one_rank = 0;  ///< the largest such distance of a result from what one rank computes
  bool finite = true;        ///< no NaN, infinity only in the lse of rows without keys
  double worst() const;      ///< of those against the reference
};

/// What sums in fp32 explain, whatever the storage type: the reference starts from the stored values, and the
/// host's kernels multiply in fp32.
inline constexpr double tolerance = 3e-6;

/// What runs a second time, on the same buffers.
enum class Again : std::uint8_t {
  nothing,
  forward,  ///< with Forward::finished, which must have the bits of out, rounded
  all,      ///< that, and both passes as they ran, which must give the same bits
};

/// Runs the two passes of Attention on this rank's rows of the sample and compares with the reference.
/// Collective.
Errors run(comm::Communicator& communicator, const Sample& sample, const plan::Plan& forward,
           const plan::Plan& backward, Again again = Again::nothing,
           const distributed::Settings& settings = {});

/// The same with an Attention over fp32 that is there already, and Again::forward; `positions` are those of
/// this rank's rows.
Errors run(comm::Communicator& communicator, const Sample& sample,
           distributed::Attention<TestExec, float>& attention, const PositionMap& positions);

/// The plans of a named schedule on the communicator's topology.
Errors run(comm::Communicator& communicator, const Sample& sample, const std::string& schedule,
           const Layout& layout, const distributed::Settings& settings = {});

/// EXPECTs that every error, and the distance from one rank, is within `limit`; `what` is added to the
/// message.
void expect_correct(const Errors& errors, const std::string& what, double limit = tolerance);

}  // namespace annulus::test
