#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/samples/sample_set.hpp"

namespace annulus::eval {

/// A sample and how it was answered.
struct AnsweredSample {
  std::int64_t tokens = 0;  ///< of the sample
  SampleFacts facts;
  bool correct = false;  ///< every token of the answer is the greedy choice
  double loss = 0;       ///< of the answer's tokens, summed, in nats
  std::int64_t answer_tokens = 0;
};

/// How one model answers samples by one way of attention.
struct Retrieval {
  std::string model;      ///< as the user named it
  std::string attention;  ///< attention.sparsity; empty: dense
  std::string mask, dtype, device;
  std::int64_t step = 0;  ///< optimizer steps of a checkpoint's run; 0: not of a run
  int ranks = 1;
  std::vector<AnsweredSample> samples;
  double seconds = 0;  ///< of all passes; without loading the weights
};

/// Samples of one kind, length and depth.
struct RetrievalCell {
  std::string kind;
  std::int64_t tokens = 0;
  std::optional<double> depth;
  std::int64_t samples = 0, correct = 0;
  double loss = 0;                                                    ///< per token of the answers, in nats
  double score() const { return double(correct) / double(samples); }  ///< share that is answered
};

/// The cells of a retrieval by kind, length and depth, in the order of the samples; without `by_depth` depths
/// are joined.
std::vector<RetrievalCell> cells_of(const Retrieval& one, bool by_depth);

/// Scores of each kind, (kinds, lengths).
std::string to_table(const std::vector<Retrieval>& all);

nlohmann::json to_json(const Retrieval& one);

/// A line of names, then one for each cell.
std::string to_csv(const std::vector<Retrieval>& all);

/// A page that needs nothing else: heat maps of scores, kind by length, and depth by length of kinds that
/// have depths. `subtitle` tells what was asked.
std::string to_html(const std::vector<Retrieval>& all, const std::string& subtitle);

}  // namespace annulus::eval
