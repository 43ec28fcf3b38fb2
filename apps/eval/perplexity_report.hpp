#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <annulus/training/run/trainer.hpp>

namespace annulus::eval {

/// The loss of one model by one way of attention.
struct Perplexity {
  std::string model;      ///< as the user named it
  std::string attention;  ///< attention.sparsity; empty: dense
  std::string mask, schedule, layout, dtype, device;
  std::int64_t step = 0;  ///< optimizer steps of a checkpoint's run; 0: not of a run
  std::int64_t tokens = 0, stride = 0, windows = 0;
  int ranks = 1, context = 1;  ///< of the job, and of a group that shares windows
  training::ValidationLoss loss;
  double seconds = 0;  ///< of all passes; without loading the weights
};

/// exp(loss).
double perplexity(double loss);

/// "0–15", "16–31", …: tokens of the document before, of a bucket.
std::string bucket_text(std::int64_t from, std::int64_t up_to);

/// Loss and perplexity of each, then the losses by position side by side.
std::string to_table(const std::vector<Perplexity>& all);

nlohmann::json to_json(const Perplexity& one);

/// A line of names, then for each evaluation one of the whole and one for each bucket.
std::string to_csv(const std::vector<Perplexity>& all);

/// A page that needs nothing else: curves of the loss by position, tables, and, where several models were
/// evaluated by several ways of attention, a heat map of their losses. `subtitle` tells what was read.
std::string to_html(const std::vector<Perplexity>& all, const std::string& subtitle);

}  // namespace annulus::eval
