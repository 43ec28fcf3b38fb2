#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "prediction/measurement/sampling.hpp"

namespace annulus::eval {

/// The time of a model to the first token behind a prompt.
struct Prefill {
  int ranks = 1;
  std::int64_t tokens = 0;        ///< of the prompt
  std::string schedule, layout;   ///< of attention; where `auto` was asked for, what it chose
  measurement::Sample seconds{};  ///< of the slowest rank
  std::string unsupported = {};   ///< why it cannot be computed so; else empty

  double tokens_per_second() const { return double(tokens) / seconds.median; }
};

/// A row for each case.
std::string to_table(const std::vector<Prefill>& all);
nlohmann::json to_json(const Prefill& one);
std::string to_csv(const std::vector<Prefill>& all);

/// A page that needs nothing else: times over tokens, a line for each schedule, layout and number of ranks,
/// and a table. `subtitle` tells what computed.
std::string to_html(const std::vector<Prefill>& all, const std::string& subtitle);

}  // namespace annulus::eval
