#pragma once

#include <vector>

#include <annulus/attention/comm/communicator.hpp>

#include "attention/executor/proof/program.hpp"

namespace annulus::executor {

/// Proves that the programs of all ranks, together, compute what they should and come to an end: on the
/// programs that the executor runs, before their first message. docs/schedules.md says what is proved where.
///
/// Collective. `programs` are this rank's, in the same order on every rank. Throws Error on all ranks where a
/// rank's program is wrong by itself (plan::RankProof of what read_back reads), naming rank, step and slice,
/// or where programs do not fit together: a send meets no receive, ranks wait for one another, or an unmasked
/// (query, key, head) is not computed exactly once.
void prove_together(comm::Communicator& communicator, const std::vector<const Program*>& programs);

}  // namespace annulus::executor
