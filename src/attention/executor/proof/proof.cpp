#include "attention/executor/proof/proof.hpp"

#include <fmt/ranges.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include <annulus/base/error.hpp>

#include "attention/comm/agreement.hpp"
#include "attention/executor/proof/read_back.hpp"
#include "attention/plan/proof.hpp"

namespace annulus::executor {

namespace {

constexpr std::size_t shown_findings = 5;

/// Bytes of the steps of all ranks that one of them can take.
constexpr std::size_t most_gathered = std::size_t{1} << 30;

std::string first_of(std::vector<std::string> diagnostics) {
  if (diagnostics.size() > shown_findings) diagnostics.resize(shown_findings);
  return fmt::format("{}", fmt::join(diagnostics, "\n  "));
}

Queue host_queue() {
  return Queue(Kokkos::DefaultHostExecutionSpace());
}

/// The entries of steps, one after the other.
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}

  template <class T>
  void put(const std::vector<T>& entries) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::size_t count = entries.size();
    append(&count, sizeof count);
    append(entries.data(), count * sizeof(T));
  }
  template <class T>
  void take(std::vector<T>& entries) {
    std::size_t count = 0;
    read(&count, sizeof count);
    entries.resize(count);
    read(entries.data(), count * sizeof(T));
  }
  void put(const plan::Step& step) {
    put(step.clears), put(step.sends), put(step.receives), put(step.computes);
  }
  plan::Step take_step() {
    plan::Step step;
    take(step.clears), take(step.sends), take(step.receives), take(step.computes);
    return step;
  }
  std::vector<std::byte>& all() { return bytes_; }

 private:
  void append(const void* data, std::size_t size) {
    const auto* const begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }
  void read(void* data, std::size_t size) {
    if (size > 0) std::memcpy(data, bytes_.data() + position_, size);
    position_ += size;
  }
  std::vector<std::byte> bytes_;
  std::size_t position_ = 0;
};

/// The sums do not tell: the programs are wrong, or right in a way that they do not show. Rank 0 gets the
/// steps of all programs and looks at them side by side.
void prove_gathered(comm::Communicator& communicator, const Program& program) {
  Bytes mine;
  for (const plan::Step& step : read_back(program)) mine.put(step);
  const auto longest = static_cast<std::size_t>(communicator.all_reduce_value<std::int64_t>(
      static_cast<std::int64_t>(mine.all().size()), comm::ReduceOp::max));
  const auto ranks = static_cast<std::size_t>(communicator.size());
  require(
      ranks * longest <= most_gathered,
      "the programs of plan '{}' ({}) do not fit together, or are too large to see whether they do; prove "
      "the plan on fewer ranks (annulus-plan --validate)",
      program.plan.schedule, program.plan.pass_text());
  mine.all().resize(longest);
  std::vector<std::byte> all(ranks * longest);
  communicator.all_gather(host_queue(), mine.all().data(), all.data(), longest);
  std::string problem;
  if (communicator.rank() == 0) {
    std::vector<std::vector<plan::Step>> programs(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * longest);
      Bytes bytes(std::vector(begin, begin + static_cast<std::ptrdiff_t>(longest)));
      for (std::size_t step = 0; step < program.steps.size(); ++step)
        programs[rank].push_back(bytes.take_step());
    }
    plan::Plan gathered = program.plan;
    gathered.period = 0;
    gathered.step = [&programs](int rank, int step) {
      return programs[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
    };
    try {
      const auto wrong = plan::violations(gathered);
      if (!wrong.empty()) {
        problem = fmt::format("the programs of plan '{}' ({}) do not fit together:\n  {}", gathered.schedule,
                              gathered.pass_text(), first_of(wrong));
      }
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  comm::throw_together(communicator, problem);
}

}  // namespace

ProgramProof::ProgramProof(const Program& program, int ranks)
    : premises_(program.plan.problem, program.pass, static_cast<int>(program.steps.size()), ranks),
      rank_(program.rank) {
  plan::RankProof proof(premises_, rank_);
  for (const plan::Step& step : read_back(program)) proof.add(step);
  plan::RankFindings found = proof.finish();
  const auto& wrong = found.malformed.empty() ? found.violations : found.malformed;
  require(wrong.empty(), "the program of plan '{}' ({}) is wrong:\n  {}", program.plan.schedule,
          program.plan.pass_text(), first_of(wrong));
  check_finishing(program);
  for (std::size_t rank = 0; rank < found.sent.size(); ++rank)
    tells_.push_back({found.sent[rank], found.computed[rank]});
  received_ = std::move(found.received);
  expected_weight_ = plan::expected_weight(premises_, rank_);
}

void prove_together(comm::Communicator& communicator, const std::vector<const Program*>& programs) {
  std::vector<ProgramProof> made;
  std::string problem;
  try {
    for (const Program* program : programs) made.emplace_back(*program, communicator.size());
  } catch (const Error& error) {
    problem = error.what();
  }
  comm::throw_together(communicator, problem);
  std::vector<const ProgramProof*> proofs;
  for (const ProgramProof& proof : made) proofs.push_back(&proof);
  prove_together(communicator, programs, proofs);
}

void prove_together(comm::Communicator& communicator, const std::vector<const Program*>& programs,
                    const std::vector<const ProgramProof*>& proofs) {
  const auto ranks = static_cast<std::size_t>(communicator.size()), count = proofs.size();
  std::vector<PeerSums> tells, told(count * ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    for (const ProgramProof* proof : proofs) tells.push_back(proof->tells(rank));
  communicator.all_to_all(host_queue(), tells.data(), told.data(), count * sizeof(PeerSums));
  std::vector<std::int32_t> unanswered(count);  // ranks that are not answered, of each program
  for (std::size_t p = 0; p < count; ++p)
    unanswered[p] = proofs[p]->is_answered([&](std::size_t rank) { return told[rank * count + p]; }) ? 0 : 1;
  communicator.all_reduce(host_queue(), unanswered.data(), count, DType::i32, comm::ReduceOp::sum);
  for (std::size_t p = 0; p < count; ++p)
    if (unanswered[p] > 0) prove_gathered(communicator, *programs[p]);
}

}  // namespace annulus::executor
