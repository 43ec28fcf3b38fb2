#include "attention/comm/reductions/difference.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace annulus::comm {

namespace {

constexpr std::size_t most_values = 4;    // of one key in a message
constexpr std::size_t most_keys = 4;      // that are named beside the first
constexpr std::size_t most_machines = 3;  // that are named beside ranks

/// The keys of all ranks: those of rank 0 first.
std::vector<std::string> all_keys(const std::vector<RankFacts>& ranks) {
  std::vector<std::string> keys;
  std::set<std::string> known;
  for (const RankFacts& rank : ranks)
    for (const Facts::Fact& fact : rank.facts)
      if (known.insert(fact.key).second) keys.push_back(fact.key);
  return keys;
}

/// The ranks of each value, those of fewer ranks first.
using Camps = std::vector<std::pair<std::string, std::vector<int>>>;
Camps camps_of(const std::vector<RankFacts>& ranks, const std::string& key) {
  std::map<std::string, std::vector<int>> by_value;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Facts::Fact* const fact = ranks[rank].find(key);
    by_value[fact == nullptr ? "unknown" : fact->value].push_back(static_cast<int>(rank));
  }
  Camps camps(by_value.begin(), by_value.end());
  std::ranges::sort(camps, {}, [](const auto& camp) {
    return std::pair(camp.second.size(), -camp.second.front());  // of equal camps that of rank 0 comes last
  });
  return camps;
}

/// " (node7)", where the job has several machines and these ranks are on few.
std::string machines_text(const std::vector<RankFacts>& ranks, const std::vector<int>& of) {
  std::set<std::string> all, here;
  for (const RankFacts& rank : ranks) all.insert(rank.machine);
  for (const int rank : of) here.insert(ranks[static_cast<std::size_t>(rank)].machine);
  if (all.size() == 1 || here.size() > most_machines) return "";
  return fmt::format(" ({})", fmt::join(here, ", "));
}

}  // namespace

const Facts::Fact* RankFacts::find(const std::string& key) const {
  const auto found = std::ranges::find(facts, key, &Facts::Fact::key);
  return found == facts.end() ? nullptr : &*found;
}

std::string difference_text(const std::vector<RankFacts>& ranks) {
  std::optional<std::string> first;
  std::vector<std::string> others;
  for (const std::string& key : all_keys(ranks)) {
    if (camps_of(ranks, key).size() == 1) continue;
    if (!first)
      first = key;
    else
      others.push_back(key);
  }
  if (!first) return "ranks disagree about what they are to agree on: start the same program on every rank";
  std::string text = fmt::format("ranks disagree about {}: ", *first);
  const Camps camps = camps_of(ranks, *first);
  const std::size_t told = camps.size() <= most_values ? camps.size() : most_values - 1;
  for (std::size_t i = 0; i < told; ++i)
    text += fmt::format("{}{} on {}{}", i == 0 ? "" : ", ", camps[i].first, ranks_text(camps[i].second),
                        machines_text(ranks, camps[i].second));
  if (told < camps.size()) text += fmt::format(", and {} other values", camps.size() - told);
  for (const RankFacts& rank : ranks)
    if (const Facts::Fact* const fact = rank.find(*first)) {
      text += "; " + fact->remedy;
      break;
    }
  if (others.empty()) return text;
  const std::size_t named = std::min(others.size(), most_keys);
  text += fmt::format(" (they disagree about {} too",
                      fmt::join(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(named), ", "));
  if (named < others.size()) text += fmt::format(", and {} more", others.size() - named);
  return text + ")";
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0, end = 0; i < ranks.size(); i = end) {
    for (end = i + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1; ++end) {
    }
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (end - i > 1) text += (end - i == 2 ? ", " : "-") + std::to_string(ranks[end - 1]);
  }
  return text;
}

}  // namespace annulus::comm
