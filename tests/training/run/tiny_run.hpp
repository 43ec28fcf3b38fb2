#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/training/checkpoint/reader.hpp>

#include "support/error_text.hpp"
#include "support/exec.hpp"
#include "support/temporary_folder.hpp"
#include "training/model/parameters.hpp"
#include "training/run/hooks.hpp"

/// Runs of milliseconds on the fixture's texts, and what they leave in their folders.
namespace annulus::training::test {

namespace fs = std::filesystem;
using annulus::test::on_host;
using annulus::test::TestExec;
using testing::AllOf, testing::Each, testing::HasSubstr, testing::Not, testing::StartsWith;

/// A corpus of the fixture's texts and configurations of runs on it.
class TinyRun {
 public:
  TinyRun();

  /// A run in the folder `name` of this object: 6 optimizer steps on sequences of 50 tokens, which no number
  /// of ranks divides. AdamW's epsilon is large, so that rounding does not grow.
  /// `sets`: as --set takes them.
  Config config(const std::string& name, const std::vector<std::string>& sets = {}) const;

  /// A configuration with two layers, whose units are of several blocks of a Partition: every rank holds
  /// something of each.
  Config wide(const std::string& name, int zero = 0, const std::vector<std::string>& sets = {}) const;

  /// On eight sequences, read in order by groups of one rank, of which the last one alone has token 7: with
  /// two groups the second meets it in optimizer step 4.
  Config with_a_rare_token(Config config) const;

  /// Writes a shard of documents of so many letters each, and gives its name.
  std::string shard(const std::string& name, const std::vector<std::int64_t>& documents) const;

  const annulus::test::TemporaryFolder& folder() const { return folder_; }
  fs::path file(const std::string& name) const { return folder_.path() / name; }

 private:
  annulus::test::TemporaryFolder folder_;
};

/// The base of fixtures.
class TinyTest : public testing::Test {
 protected:
  /// What is said of a configuration with these values.
  std::string refusal(const std::vector<std::string>& sets) const {
    return error_text([&] { tiny_.config("refused", sets); });
  }

  const TinyRun tiny_;
};

/// A configuration with other values, as --set takes them.
Config with(const Config& config, const std::vector<std::string>& sets);

/// Hooks with which a run on the CPU may offload.
Hooks offloading();

/// Trains on `ranks` ranks that are threads, on nodes of parallel.ranks_per_node or on one; what rank 0 was
/// told.
Outcome run(int ranks, const Config& config, const ResumePolicy& resume = {}, const Hooks& hooks = {},
            const DumpRequest& dump = {});

/// Each rank with the configuration and hooks that `of_rank` gives it; the error that each is told, "no
/// error" where there is none.
std::vector<std::string> messages(int ranks, const std::function<std::pair<Config, Hooks>(int rank)>& of_rank,
                                  int ranks_per_node = 0);

/// What the ranks are told when those of `bad` do `change` to what they hold after optimizer step `step`.
std::vector<std::string> messages_when_changed(int ranks, const Config& config, const std::set<int>& bad,
                                               std::int64_t step,
                                               const std::function<void(const Buffers&)>& change,
                                               const Hooks& hooks = {});

/// The error of run().
std::string run_error(int ranks, const Config& config, const ResumePolicy& resume = {},
                      const Hooks& hooks = {});

/// Bytes that the rank with the most of `ranks` on one node holds at most where the run computes, as
/// predicted.
std::int64_t predicted_peak(int ranks, const Config& config);

/// The records of metrics.jsonl, or of another file of the run.
std::vector<nlohmann::json> records(const Config& config, const char* file = "metrics.jsonl");

/// What metrics.jsonl has under `key`, record by record; infinity where it was not finite.
std::vector<double> metric(const Config& config, const std::string& key);

/// The losses in metrics.jsonl, which has every optimizer step once, in order.
std::vector<double> losses(const Config& config);

std::string log_of(const Config& config);

/// Flat buffers of a model in the memory of TestExec, with what the host sees of them.
struct Arrays {
  using Array = Array1<float, TestExec>;

  explicit Arrays(const model::ParameterMap& map)
      : parameters("parameters", static_cast<std::size_t>(map.size())),
        first_moment("first_moment", static_cast<std::size_t>(map.size())),
        second_moment("second_moment", static_cast<std::size_t>(map.size())) {}

  Buffers buffers() const {
    return {{TestExec(), parameters}, {TestExec(), first_moment}, {TestExec(), second_moment}};
  }

  Array parameters, first_moment, second_moment;
};

/// Parameters and moments of a checkpoint, one after the other.
struct State {
  checkpoint::Progress progress;
  std::vector<float> parameters, first_moment, second_moment;
};
State state_of(const Config& config, const fs::path& checkpoint);
/// The state after the last optimizer step.
State last_state(const Config& config);

/// The checkpoint of optimizer step `step` in the folder of the run.
fs::path checkpoint_of(const Config& config, std::int64_t step);

/// Names and bytes of all its files.
std::string contents(const fs::path& checkpoint);

/// Writes the checkpoint anew, as one part, with what `change` makes of it.
void edit_checkpoint(
    const Config& config, std::int64_t step,
    const std::function<void(const model::ParameterMap&, const Buffers&, checkpoint::Progress&)>& change);

/// The run in another folder, with other values, as --set takes them.
Config copy(const Config& config, const std::string& name, const std::vector<std::string>& sets = {});

/// Makes the folder of `resumed` that of a run which was interrupted behind optimizer step `step` of `whole`.
void interrupt(const Config& whole, std::int64_t step, const Config& resumed);

/// EXPECTs equal parameters and moments.
void expect_same_state(const State& a, const State& b);
/// EXPECTs equal losses, gradient norms, parameters, moments and places in the data.
void expect_same_bits(const Config& a, const Config& b);
/// Makes the run `other` and EXPECTs the bits of `whole`, which has been made.
void expect_same_run(const Config& whole, int ranks, const Config& other, const Hooks& hooks = {});
/// EXPECTs the bits of `whole` of a run that goes on behind its third optimizer step.
void expect_same_when_resumed(const Config& whole, int ranks, const Config& resumed, const Hooks& hooks = {});

/// ‖a − b‖ / ‖a‖ of the parameters.
double difference(const Config& a, const Config& b);

/// Largest difference of two vectors of one size.
template <class T>
double largest_difference(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(double(a[i]) - double(b[i]));
    largest = std::isnan(d) ? INFINITY : std::max(largest, d);
  }
  return largest;
}

}  // namespace annulus::training::test
