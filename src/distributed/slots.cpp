#include "distributed/slots.hpp"

#include <algorithm>

namespace annulus::distributed {

using plan::home;
using plan::Pass;
using plan::Piece;
using plan::Slot;
using plan::Tensor;

void Capacity::cover(const Capacity& other) {
  for (std::size_t t = 0; t < slots.size(); ++t) {
    slots[t].resize(std::max(slots[t].size(), other.slots[t].size()));
    for (std::size_t s = 0; s < other.slots[t].size(); ++s)
      slots[t][s] = std::max(slots[t][s], other.slots[t][s]);
  }
  staging.resize(std::max(staging.size(), other.staging.size()));
  for (std::size_t i = 0; i < other.staging.size(); ++i) staging[i] = std::max(staging[i], other.staging[i]);
}

namespace {

// Tensors that a pass sums up at home; the others at home belong to the caller and are only read.
bool is_result(Pass pass, Tensor tensor) {
  return pass == Pass::forward ? tensor == Tensor::o || tensor == Tensor::lse : plan::is_gradient(tensor);
}

// The element of that index, which is made when it is not there.
template <class T>
T& at(std::vector<T>& all, Slot slot) {
  const auto i = static_cast<std::size_t>(slot);
  if (all.size() <= i) all.resize(i + 1);
  return all[i];
}

}  // namespace

std::string place_text(const Piece& piece) {
  return fmt::format("of shard {}, rows [{}, {}), heads [{}, {})", piece.owner, piece.rows.begin,
                     piece.rows.end, piece.heads.begin, piece.heads.end);
}

std::string text(const Piece& piece) {
  return fmt::format("{} {}", plan::name_of(piece.tensor), place_text(piece));
}

std::optional<Piece>& Slots::contents(Tensor tensor, Slot slot) {
  return at(contents_[static_cast<std::size_t>(tensor)], slot);
}

void Slots::check_piece(const Piece& piece) const {
  const plan::Problem& problem = site_.plan.problem;
  site_.check(piece.owner >= 0 && piece.owner < problem.ranks(), "names {}, but there are {} ranks",
              text(piece), problem.ranks());
  const Piece whole = problem.whole(piece.tensor, piece.owner);
  site_.check(piece.rows.begin >= 0 && piece.rows.begin <= piece.rows.end &&
                  piece.rows.end <= whole.rows.end && piece.heads.begin >= 0 &&
                  piece.heads.begin <= piece.heads.end && piece.heads.end <= whole.heads.end,
              "names {}, but that shard has {} rows and {} heads", text(piece), whole.rows.end,
              whole.heads.end);
}

Block Slots::landing(const Piece& piece, Slot slot) {
  check_piece(piece);
  site_.check(slot >= 0, "uses slot {}", slot);
  const plan::Problem& problem = site_.plan.problem;
  const Block block = block_of(piece, piece, slot, problem.batch, problem.head_dim);
  auto& size = at(capacity_.slots[static_cast<std::size_t>(piece.tensor)], slot);
  size = std::max(size, block.elements());
  return block;
}

Block Slots::hold(const Piece& piece, Slot slot) {
  const Block block = landing(piece, slot);
  contents(piece.tensor, slot) = piece;
  return block;
}

Block Slots::find(const Piece& piece, Slot slot, const char* verb) {
  check_piece(piece);
  site_.check(slot >= 0, "uses slot {}", slot);
  const plan::Problem& problem = site_.plan.problem;
  const std::optional<Piece> held =
      slot == home ? std::optional(problem.whole(piece.tensor, site_.rank)) : contents(piece.tensor, slot);
  site_.check(held.has_value(), "{} {} at slot {}, which holds nothing", verb, text(piece), slot);
  site_.check(held->owner == piece.owner && held->rows.begin <= piece.rows.begin &&
                  piece.rows.end <= held->rows.end && held->heads.begin <= piece.heads.begin &&
                  piece.heads.end <= held->heads.end,
              "{} {} at slot {}, which holds {}", verb, text(piece), slot, text(*held));
  return block_of(*held, piece, slot, problem.batch, problem.head_dim);
}

Block Slots::find_result(const Piece& piece, Slot slot, const char* verb) {
  site_.check(slot != home || is_result(site_.plan.pass, piece.tensor), "{} the caller's {}", verb,
              text(piece));
  return find(piece, slot, verb);
}

int Slots::take_staging(std::size_t bytes, int wait) {
  const auto free = std::find_if(staging_free_from_.begin(), staging_free_from_.end(),
                                 [&](int from) { return from <= site_.step; });
  const auto index = static_cast<int>(free - staging_free_from_.begin());
  at(staging_free_from_, index) = wait;
  auto& size = at(capacity_.staging, index);
  size = std::max(size, bytes);
  return index;
}

}  // namespace annulus::distributed
