#include "training/run/passes/sequence_plans.hpp"

#include <algorithm>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/fingerprint.hpp"

namespace annulus::training {

SequencePlans::SequencePlans(int rank, ResolvedAttention attention, Passes passes)
    : attention_(std::move(attention)),
      options_{.rank = rank, .backward = passes == Passes::both},
      sequences_(static_cast<std::size_t>(attention_.follows_documents ? attention_.sequences : 1)) {
  set(0, attention_.masks, attention_.documents);
  for (auto& sequence : sequences_) sequence = sequences_.front();
}

void SequencePlans::set(std::size_t sequence, std::vector<Mask> masks,
                        std::span<const std::int64_t> document_starts) {
  sequences_[sequence] =
      std::make_shared<const PlannedSequence>(attention_, std::move(masks), document_starts, options_);
}

data::RankRows SequencePlans::rank_rows(const std::shared_ptr<PlanAgreement>& agreement) const {
  if (!attention_.cuts_sequences()) return rows();
  return {
      rows(),
      [attention = attention_, options = options_, agreement](std::span<const std::int64_t> document_starts) {
        const auto sequence = std::make_shared<PlannedSequence>(
            attention, masks_with(attention, document_starts), document_starts, options);
        if (options.prepare) sequence->prepare(agreement.get());
        return sequence;
      },
      PlanAgreement::leave(agreement)};
}

data::Dealing SequencePlans::dealing() const {
  if (!attention_.cuts_sequences()) return {};
  return {.work = [attention = attention_](std::span<const std::int64_t> document_starts) {
    return pairs_in_layers(attention, masks_with(attention, document_starts));
  }};
}

SequencePlans::Cut& SequencePlans::Cut::operator+=(const Cut& other) {
  most_pairs += other.most_pairs;
  mean_pairs += other.mean_pairs;
  Fingerprint both;
  both.add(fingerprint);
  both.add(other.fingerprint);
  fingerprint = both.value();
  seconds_ahead += other.seconds_ahead;
  return *this;
}

std::optional<SequencePlans::Cut> SequencePlans::cut() const {
  if (problem().layout.kind() != Layout::Kind::balanced) return std::nullopt;
  Cut cut;
  std::vector<double> pairs;  // of each rank, or group of ranks that share heads
  Fingerprint fingerprint;
  for (const auto& sequence : sequences_) {
    const std::span<const std::int64_t> of_sequence = sequence->layout().cut_pairs();
    pairs.resize(of_sequence.size());
    for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i] += static_cast<double>(of_sequence[i]);
    fingerprint.add(sequence->layout().cut_fingerprint());
    fingerprint.add(sequence->problem(0).mask.documents_fingerprint());
    cut.seconds_ahead += sequence->seconds_ahead();
  }
  for (const double of_rank : pairs) {
    cut.most_pairs = std::max(cut.most_pairs, of_rank);
    cut.mean_pairs += of_rank / static_cast<double>(pairs.size());
  }
  cut.fingerprint = fingerprint.value();
  return cut;
}

bool SequencePlans::follow(int sequence, std::span<const std::int64_t> document_starts,
                           const std::shared_ptr<const data::HeldRows>& held) {
  if (!attention_.follows_documents) return false;
  const auto of_pass = static_cast<std::size_t>(sequence);
  const bool changes = !std::ranges::equal(document_starts, sequences_[of_pass]->document_starts());
  if (auto planned = std::dynamic_pointer_cast<const PlannedSequence>(held))
    sequences_[of_pass] = std::move(planned);  // with what is prepared, also where nothing changes
  else if (changes)
    set(of_pass, masks_with(attention_, document_starts), document_starts);
  if (!changes) return false;
  if (sequence == 0) {
    const PlannedSequence& first = *sequences_.front();
    for (int mask = 0; mask < first.masks(); ++mask)
      attention_.masks[static_cast<std::size_t>(mask)] = first.problem(mask).mask;
    attention_.problem = first.problem(0);
  }
  return true;
}

void SequencePlans::recompute_before(std::int64_t position) {
  require(position >= 0 && position <= problem().mask.tokens(),
          "attention is to be computed again before position {} of a sequence of {} tokens: take a position "
          "in it, or 0 for none",
          position, problem().mask.tokens());
  require(position == 0 || problem().mask.rule().right == 0,
          "memory.recompute = 'sequence-selective' computes attention of the earlier positions without the "
          "later ones, which attention.mask = '{}' shows them: use selective or full",
          problem().mask.to_string());
  options_.before = position;
  replan();
}

void SequencePlans::prepare_with(executor::Prepare prepare) {
  options_.prepare = std::move(prepare);
  replan();
}

void SequencePlans::replan() {
  const auto all = sequences_;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::shared_ptr<const PlannedSequence>& before = all[i];
    if (i > 0 && before == all[i - 1]) {  // alike, as all are in the beginning
      sequences_[i] = sequences_[i - 1];
      continue;
    }
    std::vector<Mask> masks;
    for (int mask = 0; mask < before->masks(); ++mask) masks.push_back(before->problem(mask).mask);
    set(i, std::move(masks), before->document_starts());
  }
}

std::vector<Mask> SequencePlans::masks(int mask) const {
  std::vector<Mask> masks;
  for (const auto& sequence : sequences_) masks.push_back(sequence->problem(mask).mask);
  return masks;
}

std::vector<std::vector<executor::Plans>> SequencePlans::make() const {
  std::vector<std::vector<executor::Plans>> all(attention_.masks.size());
  for (int mask = 0; mask < std::ssize(all); ++mask)
    for (const auto& sequence : sequences_)
      all[static_cast<std::size_t>(mask)].push_back(sequence->plans(mask));
  return all;
}

std::vector<executor::Plans> SequencePlans::of_first() const {
  std::vector<executor::Plans> all;
  for (int mask = 0; mask < std::ssize(attention_.masks); ++mask)
    all.push_back(sequences_.front()->plans(mask));
  return all;
}

std::vector<std::vector<executor::Plans>> SequencePlans::largest() const {
  std::vector<std::vector<executor::Plans>> all(attention_.masks.size());
  if (!attention_.cuts_sequences()) return all;
  // Every shard is wanted by every rank.
  const std::vector<Mask> full(attention_.masks.size(), Mask::parse("full", problem().mask.tokens()));
  const PlannedSequence sequence(attention_, full, attention_.documents, options_);
  for (int mask = 0; mask < sequence.masks(); ++mask)
    all[static_cast<std::size_t>(mask)].push_back(sequence.plans(mask));
  return all;
}

std::vector<SequencePlans::Prepared> SequencePlans::prepared() const {
  std::vector<Prepared> all(attention_.masks.size());
  for (int mask = 0; mask < std::ssize(all); ++mask)
    for (const auto& sequence : sequences_) {
      Prepared& of_mask = all[static_cast<std::size_t>(mask)];
      auto [plans, pairs] = sequence->prepare(mask);
      of_mask.plans.push_back(std::move(plans));
      of_mask.pairs += pairs;
      of_mask.agreed = std::min(of_mask.agreed, sequence->agreed());
    }
  return all;
}

std::int64_t SequencePlans::pairs(int mask) const {
  std::int64_t pairs = 0;
  for (const auto& sequence : sequences_) pairs += sequence->pairs(mask);
  return pairs * problem().batch;
}

double SequencePlans::pairs() const {
  if (attention_.masks.size() == 1) return static_cast<double>(pairs(0));
  double sum = 0;
  for (const int mask : attention_.mask_of_layer) sum += static_cast<double>(pairs(mask));
  return sum / static_cast<double>(attention_.mask_of_layer.size());
}

std::int64_t SequencePlans::pairs_before(int mask) const {
  std::int64_t pairs = 0;
  for (const auto& sequence : sequences_) {
    const Mask& of_sequence = sequence->problem(mask).mask;
    const PositionMap queries = Layout().shard(of_sequence.tokens(), 1, 0).slice({0, options_.before});
    pairs += of_sequence.pairs(queries, queries);  // the mask is causal
  }
  return pairs * problem().batch;
}

double SequencePlans::imbalance_before() const {
  double most = 1;
  if (options_.before == 0) return most;
  for (const auto& sequence : sequences_)
    for (int mask = 0; mask < sequence->masks(); ++mask)
      most = std::max(most, plan::worker_imbalance(*sequence->plans(mask).recompute));
  return most;
}

}  // namespace annulus::training
