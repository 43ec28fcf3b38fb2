#include <annulus/attention/sparsity/options.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <annulus/base/error.hpp>

#include "attention/sparsity/patterns/table.hpp"
#include "attention/sparsity/patterns/text.hpp"
#include "attention/sparsity/selection_memory.hpp"

namespace annulus::sparsity {

namespace {

/// Calls visit(type) for each pattern of the table.
template <class... P, class Visit>
void for_each_pattern(const std::variant<P...>*, const Visit& visit) {
  (visit(std::type_identity<P>()), ...);
}
template <class Visit>
void for_each_pattern(const Visit& visit) {
  for_each_pattern(static_cast<const decltype(AnyPattern::of)*>(nullptr), visit);
}

template <class Visit>
auto visit(const PatternOptions& options, const Visit& visit) {
  return std::visit(visit, options.pattern().of);
}

}  // namespace

PatternOptions::PatternOptions() : PatternOptions(std::make_shared<const AnyPattern>()) {}
PatternOptions::PatternOptions(std::shared_ptr<const AnyPattern> pattern) : pattern_(std::move(pattern)) {}

PatternOptions PatternOptions::parse(std::string_view text, std::string_view field) {
  PartReader parts(text, field);
  std::optional<AnyPattern> found;
  std::vector<std::string_view> names, examples;
  for_each_pattern([&](auto type) {
    using P = typename decltype(type)::type;
    names.push_back(P::name);
    examples.push_back(P::example);
    if (parts.name() == P::name) found = AnyPattern{P::read(parts)};
  });
  if (!found)
    parts.reject_text(fmt::format("the pattern '{}' is unknown; known {} {}, for instance {}", parts.name(),
                                  names.size() == 1 ? "is" : "are", fmt::join(names, " and "),
                                  fmt::join(examples, " or ")));
  return PatternOptions(std::make_shared<const AnyPattern>(*std::move(found)));
}

std::string PatternOptions::to_string() const {
  return visit(*this, [](const auto& pattern) { return pattern.to_string(); });
}

void PatternOptions::check(std::int64_t tokens, std::string_view field, bool packed) const {
  const std::string context = fmt::format("{} = '{}'", field, to_string());
  visit(*this, [&](const auto& pattern) { pattern.check(tokens, packed, context); });
}

bool operator==(const PatternOptions& a, const PatternOptions& b) {
  return a.pattern() == b.pattern();
}

SelectionMemory selection_memory(const PatternOptions& options, const SelectionShape& shape) {
  return visit(options, [&](const auto& pattern) { return pattern.memory(shape); });
}

SelectionForm selection_form(const PatternOptions& options, std::int64_t tokens, bool packed) {
  return visit(options, [&](const auto& pattern) { return pattern.form(tokens, packed); });
}

std::optional<TopBlocks> top_blocks(const PatternOptions& options, std::int64_t tokens) {
  return visit(options, [&](const auto& pattern) -> std::optional<TopBlocks> {
    if constexpr (requires { pattern.blocks_of(tokens); }) return pattern.blocks_of(tokens);
    return std::nullopt;
  });
}

double predicted_density(const PatternOptions& options, std::int64_t tokens) {
  return visit(options, [&](const auto& pattern) {
    return tokens < pattern.dense_below ? 1.0 : pattern.density(tokens);
  });
}

double predicted_density(const PatternOptions& options, std::int64_t tokens,
                         std::span<const std::int64_t> document_starts) {
  double selected = 0, all = 0;
  for (std::size_t i = 0; i < document_starts.size(); ++i) {
    const std::int64_t end = i + 1 < document_starts.size() ? document_starts[i + 1] : tokens,
                       of_document = end - document_starts[i];
    if (of_document <= 0) continue;  // the list may be closed
    const double pairs = 0.5 * static_cast<double>(of_document) * static_cast<double>(of_document + 1);
    selected += pairs * predicted_density(options, of_document);
    all += pairs;
  }
  return all > 0 ? selected / all : 1;
}

}  // namespace annulus::sparsity
