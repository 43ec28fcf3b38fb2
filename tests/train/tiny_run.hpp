#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <annulus/checkpoint/reader.hpp>
#include <annulus/model/parameters.hpp>
#include <annulus/train/config.hpp>
#include <annulus/train/flat_buffer.hpp>
#include <annulus/train/trainer.hpp>

#include "support/temporary_folder.hpp"
#include "train/hooks.hpp"

namespace annulus::train::test {

/// A corpus of the fixture's texts and configurations of runs on it that take milliseconds.
class TinyRun {
 public:
  TinyRun();

  /// A run in the folder `name` of this object: 6 optimizer steps on sequences of 50 tokens, which no number
  /// of ranks divides. AdamW's epsilon is large, so that rounding does not grow.
  Config config(const std::string& name) const;

  /// The same on eight sequences, read in order by groups of one rank, of which the last one alone has token
  /// 7: with two groups the second meets it in optimizer step 4.
  Config with_a_rare_token(Config config) const;

  const annulus::test::TemporaryFolder& folder() const { return folder_; }
  std::filesystem::path file(const std::string& name) const { return folder_.path() / name; }

 private:
  annulus::test::TemporaryFolder folder_;
};

/// Trains on `ranks` ranks that are threads, on nodes of parallel.ranks_per_node or on one; what rank 0 was
/// told.
Outcome run(int ranks, const Config& config, const ResumePolicy& resume = {}, const Hooks& hooks = {});

/// Bytes that the rank with the most of `ranks` on one node holds at most where the run computes, as
/// predicted.
std::int64_t predicted_peak(int ranks, const Config& config);

/// What metrics.jsonl has under `key`, record by record.
std::vector<double> metric(const Config& config, const std::string& key);

/// The losses in metrics.jsonl, which has every optimizer step once, in order.
std::vector<double> losses(const Config& config);

/// Parameters and moments of a checkpoint, one after the other.
struct State {
  checkpoint::Progress progress;
  std::vector<float> parameters, first_moment, second_moment;
};
State state_of(const Config& config, const std::filesystem::path& checkpoint);

/// The checkpoint of optimizer step `step` in the folder of the run.
std::filesystem::path checkpoint_of(const Config& config, std::int64_t step);

/// Names and bytes of all its files.
std::string contents(const std::filesystem::path& checkpoint);

/// Writes the checkpoint anew, as one part, with what `change` makes of it.
void edit_checkpoint(
    const Config& config, std::int64_t step,
    const std::function<void(const model::ParameterMap&, const Buffers&, checkpoint::Progress&)>& change);

/// Largest difference of two vectors of one size.
double largest_difference(const std::vector<float>& a, const std::vector<float>& b);
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace annulus::train::test
