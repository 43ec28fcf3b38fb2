#pragma once

#include <string>

#include <annulus/training/run/config.hpp>
#include <annulus/training/run/trainer.hpp>

namespace annulus::app {

/// How a run went, for people and for scripts. For rank 0.
class RunSummary {
 public:
  /// `config` is the one that the run was started with. Reads (part of) the corpus to find its entropy.
  RunSummary(const training::Config& config, const training::Outcome& outcome, int ranks);

  /// Writes run.folder/summary.json, specified in docs/formats/metrics.md. A full disk is logged as an error.
  void save() const;

  /// Prints losses beside the entropy of the corpus, speed, memory, where things lie, and what to try next.
  void print() const;

 private:
  void print_next_steps() const;
  void print_longer(const std::string& config) const;  // `config`: the run's, as a word of a shell

  const training::Config& config_;
  const training::Outcome& outcome_;
  int ranks_;
  double entropy_;
};

}  // namespace annulus::app
