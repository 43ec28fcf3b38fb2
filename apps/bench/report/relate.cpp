#include "bench/report/relate.hpp"

#include <algorithm>
#include <initializer_list>

namespace annulus::bench {

using nlohmann::json;

namespace {

json without(json config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) config.erase(key);
  return config;
}

/// The case differs from another in what `change` does to its configuration alone.
template <class Change>
const json* counterpart(const std::vector<json>& cases, const json& of, const Change& change) {
  const auto chosen = [](const json& c) {
    return without(c.at("config"), {"asked_schedule", "asked_layout"});
  };
  json wanted = chosen(of);
  change(wanted);
  const auto found = std::ranges::find_if(cases, [&](const json& other) {
    return chosen(other) == wanted && other.at("topology") == of.at("topology");
  });
  return found == cases.end() ? nullptr : &*found;
}

/// The case with the same work on one rank, with the same number of tokens or, `weak`, with as many as a rank
/// of the case has; null without one. There all schedules and layouts do the same, but the case's own is the
/// first choice.
const json* on_one_rank(const std::vector<json>& cases, const json& of, bool weak) {
  const auto work = [](const json& c) {
    return without(c.at("config"),
                   {"schedule", "layout", "asked_schedule", "asked_layout", "effective_mask"});
  };
  const json& topology = of.at("topology");
  const auto ranks = topology.at("ranks").get<std::int64_t>(),
             tokens = of.at("config").at("tokens").get<std::int64_t>();
  if (weak && tokens % ranks != 0) return nullptr;
  json wanted = work(of);
  if (weak) wanted["tokens"] = tokens / ranks;
  const json* found = nullptr;
  for (const json& other : cases) {
    const json& there = other.at("topology");
    if (there.at("ranks") != 1 || work(other) != wanted) continue;
    if (there.at("execution_space") != topology.at("execution_space") ||
        there.at("attention_kernel") != topology.at("attention_kernel") ||
        there.at("threads_per_rank") != topology.at("threads_per_rank"))
      continue;
    const bool same = other.at("config").at("schedule") == of.at("config").at("schedule") &&
                      other.at("config").at("layout") == of.at("config").at("layout");
    if (found == nullptr || same) found = &other;
  }
  return found;
}

/// Rate of a rank over that of one rank alone: T₁ / (N · T_N) where both do the same work (strong scaling);
/// null where `one` was not measured.
json efficiency(const json& pass, const json* one, const char* name) {
  if (one == nullptr || one->at(name).is_null()) return nullptr;
  const double alone = one->at(name).at("gflops_per_rank").get<double>();
  return alone > 0 ? json(pass.at("gflops_per_rank").get<double>() / alone) : json();
}

double number(const json& pass, const char* pointer) {
  return pass.at(json::json_pointer(pointer)).get<double>();
}

}  // namespace

bool is_same_case(const json& a, const json& b) {
  return a.at("config") == b.at("config") && a.at("topology") == b.at("topology");
}

void relate(std::vector<json>& cases) {
  for (json& of : cases) {
    const json* const ring = counterpart(cases, of, [](json& config) {
      config["schedule"] = "ring";
      config["layout"] = "contiguous";
    });
    const json* const without = of.at("config").at("overlap") == true
                                    ? counterpart(cases, of, [](json& config) { config["overlap"] = false; })
                                    : nullptr;
    const json *const strong = on_one_rank(cases, of, false), *const weak = on_one_rank(cases, of, true);
    for (const char* pass : {"forward", "backward"}) {
      json& here = of[pass];
      if (here.is_null()) continue;
      here["scaling"] = {{"strong_efficiency", efficiency(here, strong, pass)},
                         {"weak_efficiency", efficiency(here, weak, pass)}};
      const double seconds = number(here, "/seconds");
      const json ring_pass = ring != nullptr ? ring->at(pass) : json();
      here["striped_attention"]["measured_speedup"] =
          ring_pass.is_object() && seconds > 0 ? json(number(ring_pass, "/seconds") / seconds) : json();
      const json share_of_ring =
          ring_pass.is_object() ? ring_pass.value("local_kernel_share", json()) : json();
      here["striped_attention"]["speedup_at_equal_rate"] =
          here["local_kernel_share"].is_number() && share_of_ring.is_number()
              ? json(here["local_kernel_share"].get<double>() / share_of_ring.get<double>())
              : json();
      here["exposed_communication"]["overlapped_share"] = nullptr;
      if (without == nullptr || !without->at(pass).is_object()) continue;
      const double exposed = number(without->at(pass), "/exposed_communication/seconds");
      if (exposed > 0) {
        here["exposed_communication"]["overlapped_share"] =
            1 - number(here, "/exposed_communication/seconds") / exposed;
      }
    }
  }
}

}  // namespace annulus::bench
