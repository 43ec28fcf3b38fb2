#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>

#include "attention/executor/proof/program.hpp"
#include "attention/plan/proof.hpp"

namespace annulus::executor {

/// What one rank tells another of a program.
struct PeerSums {
  plan::MessageSum sent;      ///< of the messages from the one to the other
  plan::ComputeSum computed;  ///< by the one, with the queries of the other
};

/// What a rank's program shows alone. docs/schedules.md says why this, with what ranks tell one another, is a
/// proof.
class ProgramProof {
 public:
  /// Throws Error with the first things that are wrong.
  ProgramProof(const Program& program, int ranks);

  const PeerSums& tells(std::size_t rank) const { return tells_[rank]; }

  /// Told this by each rank: what they send is what is received here, and this rank's queries are computed as
  /// they should be. When false, that may still be so.
  template <class TellOf>
  bool is_answered(const TellOf& told) const {
    plan::ComputeSum computed;
    bool meets = true;
    for (std::size_t from = 0; from < received_.size(); ++from) {
      computed += told(from).computed;
      meets = meets && told(from).sent == received_[from];
    }
    return meets && computed.partial == 0 && computed.weight == expected_weight_;
  }

 private:
  plan::Premises premises_;
  int rank_;
  std::vector<PeerSums> tells_;             // [rank]
  std::vector<plan::MessageSum> received_;  // [rank]
  std::uint64_t expected_weight_ = 0;       // of the rank's queries
};

/// Proves that the programs of all ranks, together, compute what they should and come to an end: on the
/// programs that the executor runs, before their first message. docs/schedules.md says what is proved where.
///
/// Collective. `programs` are this rank's, in the same order on every rank. Throws Error on all ranks where a
/// rank's program is wrong by itself (plan::RankProof of what read_back reads), naming rank, step and slice,
/// or where programs do not fit together: a send meets no receive, ranks wait for one another, or an unmasked
/// (query, key, head) is not computed exactly once.
void prove_together(comm::Communicator& communicator, const std::vector<const Program*>& programs);
/// Proves programs together each of which is right by itself, as `proofs` has shown. Collective; throws Error
/// on all ranks where they do not fit together.
void prove_together(comm::Communicator& communicator, const std::vector<const Program*>& programs,
                    const std::vector<const ProgramProof*>& proofs);

}  // namespace annulus::executor
