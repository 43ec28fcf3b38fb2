#include "bench/attention/results.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/base/version.hpp>

#include "bench/report/case_file.hpp"
#include "bench/report/columns.hpp"
#include "bench/report/page.hpp"
#include "bench/report/relate.hpp"
#include "common/output/output_json.hpp"
#include "training/io/atomic.hpp"

namespace annulus::bench {

using nlohmann::json;

namespace {

std::vector<json> read_cases(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return {};
  CaseFile file = read_case_file(path);
  require(file.git_hash == git_hash(),
          "--resume: {} was written by the build {}, this is {}: take another --json", path, file.git_hash,
          git_hash());
  return std::move(file.cases);
}

/// The check of an earlier run tells what this one is to tell.
bool is_checked(const json& check, const BenchCase& c) {
  if (!check.is_object()) return c.options.check == "none" && check.is_null();
  if (check["passed"] != true) return false;
  if (c.options.check == "none") return true;
  return check["tolerance"] <= c.options.tolerance.value_or(tolerance(c.problem.dtype, c.options.soft_cap)) &&
         (c.options.check != "reference" || check["method"] == "reference");
}

/// A pass of an earlier run holds what this one is to measure.
bool holds_all(const json& pass, const AttentionOptions& o, const std::string& prediction_source) {
  if (!pass["prediction_source"].get<std::string>().starts_with(prediction_source)) return false;
  return !o.compute_only || pass["exposed_communication"]["compute_only_seconds"].is_number();
}

}  // namespace

Results::Results(const SweepOptions& options, bool is_sweep) : options_(options), is_sweep_(is_sweep) {
  if (options.resume) earlier_ = read_cases(options.json);
}

const json* Results::earlier(const BenchCase& c, const Machinery& on,
                             const std::string& prediction_source) const {
  if (!c.options.dump.empty()) return nullptr;
  const json wanted = config_json(c, on);
  const auto found = std::ranges::find_if(earlier_, [&](const json& some) {
    const std::vector<plan::Pass> passes = passes_of(c.options);
    return is_same_case(some, wanted) && is_checked(some["check"], c) &&
           std::ranges::all_of(passes, [&](plan::Pass pass) {
             return holds_all(some[std::string(plan::name_of(pass))], c.options, prediction_source);
           });
  });
  return found == earlier_.end() ? nullptr : &*found;
}

void Results::add(json of_case) {
  cases_.push_back(std::move(of_case));
  relate(cases_);
  write();
}

void Results::mark(std::size_t index, const std::string& asked) {
  cases_[index]["asked"] = asked;
  write();
}

void Results::refuse(const AttentionOptions& o, const std::string& reason) {
  unsupported_.push_back({{"schedule", o.schedule},
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
      if (std::ranges::none_of(cases_, [&](const json& c) { return is_same_case(c, some); }))
        cases.push_back(some);
    }
    json file = is_sweep_ ? app::output_head("annulus-bench attention") : cases.front();
    if (is_sweep_) file.update({{"cases", cases}, {"unsupported", unsupported_}});
    app::write_output(options_.json, std::move(file));
  }
  if (!options_.csv.empty()) io::write_text_atomically(options_.csv, to_csv(cases_));
  if (!options_.html.empty()) io::write_text_atomically(options_.html, to_html(cases_, unsupported_));
}

}  // namespace annulus::bench
