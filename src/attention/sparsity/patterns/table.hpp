#pragma once

#include <variant>

#include "attention/sparsity/patterns/infllm_v2.hpp"
#include "attention/sparsity/patterns/moba.hpp"
#include "attention/sparsity/patterns/vertical_slash.hpp"
#include "attention/sparsity/patterns/xattention.hpp"

namespace annulus::sparsity {

/// All patterns. The header of a pattern says how it is written and what it costs, and knows neither Kokkos
/// nor MPI; its source says how it selects. It is a struct that can be compared, and has
/// - name and example: constants, of its text;
/// - read(PartReader&): itself, of the parts of its text; to_string(): the text, every value in it;
/// - check(tokens, packed, context): throws Error that begins with `context` where a sequence, or one of
///   several documents (`packed`), has not what it asks for;
/// - memory(SelectionShape), form(tokens, packed) and density(tokens): as selection_memory, selection_form
/// and
///   predicted_density;
/// - make<Exec, T>(): the Pattern that selects.
struct AnyPattern {
  std::variant<VerticalSlash, XAttention, Moba, InfLlmV2> of;
  friend bool operator==(const AnyPattern&, const AnyPattern&) = default;
};

}  // namespace annulus::sparsity
