#include "summary.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include <annulus/base/error.hpp>
#include <annulus/base/version.hpp>
#include <annulus/data/verify.hpp>
#include <annulus/io/atomic.hpp>

namespace annulus::app {

namespace {

constexpr std::int64_t sampled_tokens = std::int64_t{1} << 24;

// Entropy of the ids of the corpus, or of its first shards when it is large: what a model that knows nothing
// but how frequent each token is would reach.
double unigram_entropy(const train::Config& config) {
  data::TokenHistogram histogram;
  const std::vector<std::filesystem::path> paths(config.data.shards.begin(), config.data.shards.end());
  for (const auto& file : data::find_shards(paths)) {
    if (histogram.total() >= sampled_tokens) break;
    data::count_tokens(data::TokenShard::open(file), histogram);
  }
  return histogram.entropy();
}

std::string mebibytes(std::int64_t bytes) {
  return fmt::format("{:.1f} MiB", double(bytes) / (1 << 20));
}

}  // namespace

void summarize(const train::Config& config, const train::Outcome& outcome, int ranks) {
  const std::filesystem::path folder = config.run.folder;
  const double entropy = unigram_entropy(config);
  nlohmann::json memory = {{"total", outcome.memory.total_peak}, {"resident", peak_resident_bytes()}};
  std::string categories;
  for (int i = 0; i < memory_category_count; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    const std::int64_t bytes = outcome.memory.peak[static_cast<std::size_t>(i)];
    memory[std::string(name_of(category))] = bytes;
    if (bytes > 0)
      categories +=
          fmt::format("{}{} {}", categories.empty() ? "" : ", ", name_of(category), mebibytes(bytes));
  }

  fmt::print("\nsummary\n");
  fmt::print("  steps         {} to {} of {} on {} ranks{}\n", outcome.first_step + 1, outcome.last_step,
             config.train.steps, ranks, outcome.stop_signal != 0 ? " (stopped by a signal)" : "");
  fmt::print("  loss          {:.3f} at first, {:.3f} at last (nats a token, means over 5 steps)\n",
             outcome.first_loss, outcome.last_loss);
  fmt::print(
      "                {:.3f} is the unigram entropy of the corpus: a model below it has learnt from "
      "context\n",
      entropy);
  fmt::print("  speed         {:.0f} tokens/s\n", outcome.tokens_per_second);
  fmt::print("  peak memory   {} resident, of rank 0: {}\n", mebibytes(peak_resident_bytes()), categories);
  if (outcome.failed_saves > 0)
    fmt::print("  saves         {} checkpoints could not be written: see the log\n", outcome.failed_saves);
  fmt::print("  metrics       {}\n", (folder / "metrics.jsonl").string());
  fmt::print("  checkpoint    {}\n", outcome.last_checkpoint.empty() ? "none" : outcome.last_checkpoint);
  fmt::print("  log           {}\n", (folder / "train.log").string());
  fmt::print("  configuration {}\n", (folder / "config.toml").string());
  fmt::print(
      "\nwhat to try next\n"
      "  train on:      mpirun -n {0} annulus-train {1} --set train.steps={2}\n"
      "  other rings:   mpirun -n 4 annulus-train {1} --set run.folder={3}-4 --set attention.schedule=burst "
      "--set attention.layout=striped\n"
      "  your own text: ./annulus demo --text FOLDER\n"
      "  attention alone, checked against double precision:\n"
      "                 mpirun -n 4 annulus-bench attention --schedule burst --layout zigzag --mask causal "
      "--tokens 1024 --check\n",
      ranks, (folder / "config.toml").string(), 2 * config.train.steps, folder.string());
  std::fflush(stdout);

  const nlohmann::json summary = {{"version", version()},
                                  {"git_hash", git_hash()},
                                  {"ranks", ranks},
                                  {"first_step", outcome.first_step},
                                  {"last_step", outcome.last_step},
                                  {"finished", outcome.last_step == config.train.steps},
                                  {"first_loss", outcome.first_loss},
                                  {"last_loss", outcome.last_loss},
                                  {"unigram_entropy", entropy},
                                  {"tokens_per_second", outcome.tokens_per_second},
                                  {"failed_saves", outcome.failed_saves},
                                  {"checkpoint", outcome.last_checkpoint},
                                  {"peak_memory_bytes", memory}};
  try {
    io::write_text_atomically(folder / "summary.json", summary.dump(2) + "\n");
  } catch (const Error& error) {
    spdlog::error("the summary was not saved: {}", error.what());
  }
}

}  // namespace annulus::app
