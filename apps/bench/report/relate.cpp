#include "bench/report/relate.hpp"

#include <algorithm>

namespace annulus::bench {

using nlohmann::json;

namespace {

/// The case differs from another in what `change` does to its configuration alone.
template <class Change>
const json* counterpart(const std::vector<json>& cases, const json& of, const Change& change) {
  json wanted = of;
  change(wanted["config"]);
  wanted["config"].erase("asked_schedule");
  wanted["config"].erase("asked_layout");
  const auto found = std::find_if(cases.begin(), cases.end(), [&](const json& other) {
    json there = other;
    there["config"].erase("asked_schedule");
    there["config"].erase("asked_layout");
    return is_same_case(there, wanted);
  });
  return found == cases.end() ? nullptr : &*found;
}

double number(const json& pass, const char* pointer) {
  return pass.at(json::json_pointer(pointer)).get<double>();
}

}  // namespace

bool is_same_case(const json& a, const json& b) {
  return a["config"] == b["config"] && a["topology"] == b["topology"];
}

void relate(std::vector<json>& cases) {
  for (json& of : cases) {
    const json* const ring = counterpart(cases, of, [](json& config) {
      config["schedule"] = "ring";
      config["layout"] = "contiguous";
    });
    const json* const without = of["config"]["overlap"] == true
                                    ? counterpart(cases, of, [](json& config) { config["overlap"] = false; })
                                    : nullptr;
    for (const char* pass : {"forward", "backward"}) {
      json& here = of[pass];
      if (here.is_null()) continue;
      const double seconds = number(here, "/seconds");
      const json ring_pass = ring != nullptr ? (*ring)[pass] : json();
      here["striped_attention"]["measured_speedup"] =
          ring_pass.is_object() && seconds > 0 ? json(number(ring_pass, "/seconds") / seconds) : json();
      const json ring_efficiency = ring_pass.is_object() ? ring_pass.value("efficiency", json()) : json();
      here["striped_attention"]["speedup_at_equal_rate"] =
          here["efficiency"].is_number() && ring_efficiency.is_number()
              ? json(here["efficiency"].get<double>() / ring_efficiency.get<double>())
              : json();
      here["exposed_communication"]["overlapped_share"] = nullptr;
      if (without == nullptr || !(*without)[pass].is_object()) continue;
      const double exposed = number((*without)[pass], "/exposed_communication/seconds");
      if (exposed > 0) {
        here["exposed_communication"]["overlapped_share"] =
            1 - number(here, "/exposed_communication/seconds") / exposed;
      }
    }
  }
}

}  // namespace annulus::bench
