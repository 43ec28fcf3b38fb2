#include "bench/attention/results.hpp"

#include <algorithm>

#include <annulus/base/error.hpp>
#include <annulus/base/version.hpp>
#include <annulus/io/atomic.hpp>

#include "bench/attention/measure/report.hpp"
#include "bench/report/csv.hpp"
#include "bench/report/page.hpp"
#include "bench/report/relate.hpp"

namespace annulus::bench {

using nlohmann::json;

namespace {

std::vector<json> read_cases(const std::string& path) {
  if (!std::filesystem::exists(path)) return {};
  const json file = json::parse(io::read_text(path), nullptr, false);
  const bool readable = file.is_object() && file.value("program", "") == "annulus-bench attention";
  require(readable, "--resume: {} is no result of annulus-bench attention: take another --json", path);
  require(file.value("git_hash", "") == git_hash(),
          "--resume: {} was written by the build {}, this is {}: take another --json", path,
          file.value("git_hash", ""), git_hash());
  if (!file.contains("cases")) return {file};
  return file["cases"].get<std::vector<json>>();
}

/// The check of an earlier run tells what this one is to tell.
bool is_checked(const json& check, const Case& c) {
  if (!check.is_object()) return c.options.check == Check::none && check.is_null();
  if (check["passed"] != true) return false;
  if (c.options.check == Check::none) return true;
  return check["tolerance"] <= c.options.tolerance.value_or(tolerance(c.problem.activation)) &&
         (c.options.check != Check::reference || check["method"] == "reference");
}

/// A pass of an earlier run holds what this one is to measure.
bool holds_all(const json& pass, const AttentionOptions& o, const std::string& predicted_on) {
  if (!pass["predicted_on"].get<std::string>().starts_with(predicted_on)) return false;
  return !o.compute_only || pass["exposed_communication"]["compute_only_seconds"].is_number();
}

}  // namespace

Results::Results(const SweepOptions& options, bool is_sweep) : options_(options), is_sweep_(is_sweep) {
  if (options.resume) earlier_ = read_cases(options.json);
}

const json* Results::earlier(const Case& c, const Machinery& on, const std::string& predicted_on) const {
  if (!c.options.dump.empty()) return nullptr;
  const json wanted = config_json(c, on);
  const auto found = std::find_if(earlier_.begin(), earlier_.end(), [&](const json& some) {
    const std::vector<plan::Pass> passes = passes_of(c.options);
    return is_same_case(some, wanted) && is_checked(some["check"], c) &&
           std::all_of(passes.begin(), passes.end(), [&](plan::Pass pass) {
             return holds_all(some[std::string(plan::name_of(pass))], c.options, predicted_on);
           });
  });
  return found == earlier_.end() ? nullptr : &*found;
}

void Results::add(json of_case) {
  cases_.push_back(std::move(of_case));
  relate(cases_);
  write();
}

void Results::refuse(const AttentionOptions& o, const std::string& reason) {
  refused_.push_back({{"schedule", o.schedule},
                      {"layout", o.layout},
                      {"mask", o.mask},
                      {"tokens", o.tokens},
                      {"ranks", o.ranks},
                      {"heads", o.heads},
                      {"kv_heads", o.key_value_heads()},
                      {"dtype", o.dtype},
                      {"overlap", o.overlap},
                      {"reason", reason}});
  write();
}

void Results::write() const {
  if (!options_.json.empty()) {
    // Cases of before that this run has not come to yet are not lost when it is cut off.
    json cases = cases_;
    for (const json& some : earlier_) {
      if (std::none_of(cases_.begin(), cases_.end(), [&](const json& c) { return is_same_case(c, some); }))
        cases.push_back(some);
    }
    const json file = is_sweep_ ? json{{"program", "annulus-bench attention"},
                                       {"version", version()},
                                       {"git_hash", git_hash()},
                                       {"cases", cases},
                                       {"refused", refused_}}
                                : cases.front();
    io::write_text_atomically(options_.json, file.dump(2) + "\n");
  }
  if (!options_.csv.empty()) io::write_text_atomically(options_.csv, to_csv(cases_));
  if (!options_.html.empty()) io::write_text_atomically(options_.html, to_html(cases_, refused_));
}

}  // namespace annulus::bench
