#include "summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include <annulus/base/error.hpp>
#include <annulus/base/version.hpp>

#include "common/process.hpp"
#include "common/text.hpp"
#include "training/data/verify.hpp"
#include "training/io/atomic.hpp"
#include "training/io/json.hpp"
#include "training/io/logging.hpp"

namespace annulus::app {

namespace {

constexpr std::int64_t sampled_tokens = std::int64_t{1} << 24;

// Entropy of the ids of the corpus, or of its first shards when it is large: what a model that knows nothing
// but how frequent each token is would reach.
double unigram_entropy(const training::Config& config) {
  data::TokenHistogram histogram;
  const std::vector<std::string> shards = config.training_shards();
  const std::vector<std::filesystem::path> paths(shards.begin(), shards.end());
  for (const auto& file : data::find_shards(paths)) {
    if (histogram.total() >= sampled_tokens) break;
    data::count_tokens(data::TokenShard::open(file), histogram);
  }
  return histogram.entropy();
}

std::string categories(const MemoryUse& use) {
  std::string text;
  for (int i = 0; i < memory_category_count; ++i) {
    const std::int64_t bytes = use.peak[static_cast<std::size_t>(i)];
    if (bytes > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(static_cast<MemoryCategory>(i)),
                          binary_text(bytes));
  }
  return text;
}

std::filesystem::path program_folder() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::filesystem::path() : program.parent_path();
}

/// A command line, ready to be pasted, that starts a program of Annulus on `ranks` ranks as `launcher` does.
std::string launch_command(int ranks, const std::string& program) {
  return fmt::format("{} {}", launcher(ranks),
                     driver().empty() ? shell_word((program_folder() / program).string()) : program);
}

/// True when `program` lies beside this one.
bool has_program(const std::string& program) {
  std::error_code error;
  return std::filesystem::exists(program_folder() / program, error);
}

/// How a corpus of one's own is trained on.
std::string own_text_command() {
  return fmt::format("{} pack --out SHARDS FOLDER, then --set data.shards=SHARDS",
                     shell_word((program_folder() / "annulus-tokens").string()));
}

}  // namespace

RunSummary::RunSummary(const training::Config& config, const training::Outcome& outcome, int ranks)
    : config_(config), outcome_(outcome), ranks_(ranks), entropy_(unigram_entropy(config)) {}

void RunSummary::save() const {
  nlohmann::json summary = {{"version", version()},
                            {"git_hash", git_hash()},
                            {"ranks", ranks_},
                            {"schedule", outcome_.schedule},
                            {"layout", outcome_.layout},
                            {"device", outcome_.device},
                            {"transport", outcome_.transport},
                            {"first_step", outcome_.first_step},
                            {"last_step", outcome_.last_step},
                            {"steps", outcome_.steps},
                            {"finished", outcome_.last_step >= outcome_.steps},
                            {"first_loss", nullptr},
                            {"last_loss", nullptr},
                            {"unigram_entropy", entropy_},
                            {"tokens_per_second", nullptr},
                            {"tflops", nullptr},
                            {"failed_saves", outcome_.failed_saves},
                            {"last_save_failed", outcome_.last_save_failed},
                            {"checkpoint", outcome_.last_checkpoint},
                            {"peak_memory_bytes", training::to_json(outcome_.memory)}};
  const prediction::UpdateMemory& predicted = outcome_.predicted_memory;
  summary["predicted_peak_bytes"] = {{"total", predicted.host.total}};
  if (predicted.device.total > 0)
    summary["predicted_peak_bytes"]["device"] = {{"total", predicted.device.total}};
  if (outcome_.last_step > outcome_.first_step) {
    summary["first_loss"] = outcome_.first_loss;
    summary["last_loss"] = outcome_.last_loss;
  }
  if (!outcome_.validation.empty()) summary["validation"] = training::to_json(outcome_.validation);
  if (outcome_.tokens_per_second > 0) {
    summary["tokens_per_second"] = outcome_.tokens_per_second;
    summary["tflops"] = outcome_.tflops;
  }
  try {
    io::write_text_atomically(std::filesystem::path(config_.run.folder) / "summary.json",
                              io::json_text(summary) + "\n", Links::refuse);
  } catch (const Error& error) {
    logging::error("the summary was not saved: {}", error.what());
  }
}

void RunSummary::print() const {
  const std::filesystem::path folder = config_.run.folder;
  fmt::print("\nsummary\n");
  if (outcome_.last_step == outcome_.first_step) {
    fmt::print("  steps         none: {} of {} were made before\n", outcome_.last_step, outcome_.steps);
  } else {
    fmt::print("  steps         {} to {} of {} on {} ranks{}\n", outcome_.first_step + 1, outcome_.last_step,
               outcome_.steps, ranks_, outcome_.stop_signal != 0 ? " (stopped by a signal)" : "");
    fmt::print("  loss          {:.3f} at first, {:.3f} at last (nats a token, means over up to 10 steps)\n",
               outcome_.first_loss, outcome_.last_loss);
    fmt::print(
        "                {:.3f} is the unigram entropy of the corpus: "
        "a model below it has learnt from context\n",
        entropy_);
    for (const training::ValidationLoss& of : outcome_.validation)
      fmt::print("  validation    {:.3f} on '{}', {} tokens that the run does not learn from\n", of.loss,
                 of.set, of.targets);
    if (outcome_.tokens_per_second > 0)
      fmt::print("  speed         {:.0f} tokens/s, {:.3g} TFLOP/s per rank\n", outcome_.tokens_per_second,
                 outcome_.tflops);
    fmt::print("  peak memory   {} resident in the largest rank; of these {}\n",
               binary_text(outcome_.memory.resident), categories(outcome_.memory.host));
    const bool gpu = outcome_.memory.device.total_peak > 0;
    const prediction::UpdateMemory& predicted = outcome_.predicted_memory;
    const std::int64_t before = (gpu ? predicted.device : predicted.host).total,
                       after = (gpu ? outcome_.memory.device : outcome_.memory.host).total_peak;
    fmt::print("  predicted     {} of arrays{}, {} measured: {:.3f} times\n", binary_text(before),
               gpu ? " on the GPU" : "", binary_text(after),
               double(before) / double(std::max<std::int64_t>(1, after)));
    if (gpu)
      fmt::print("                {} on the GPU of the largest rank; of these {}\n",
                 binary_text(outcome_.memory.device.total_peak), categories(outcome_.memory.device));
  }
  if (outcome_.failed_saves > 0)
    fmt::print("  saves         {} checkpoints could not be written: see the log\n", outcome_.failed_saves);
  fmt::print("  metrics       {}\n", (folder / "metrics.jsonl").string());
  fmt::print("  checkpoint    {}\n", outcome_.last_checkpoint.empty() ? "none" : outcome_.last_checkpoint);
  fmt::print("  log           {}\n", (folder / "train.log").string());
  fmt::print("  configuration {}\n", (folder / "config.toml").string());
  fmt::print("  this, as JSON {}\n", (folder / "summary.json").string());
  print_next_steps();
  std::fflush(stdout);
}

// The learning rate has to come off its minimum: a run keeps the curve that it began with.
void RunSummary::print_longer(const std::string& config) const {
  const training::Config::Train& train = config_.train;
  const std::string length = train.steps > 0    ? fmt::format("train.steps={}", 2 * train.steps)
                             : train.tokens > 0 ? fmt::format("train.tokens={}", 2 * train.tokens)
                                                : fmt::format("train.epochs={}", 2 * train.epochs);
  fmt::print("  train on, twice as long\n    {} {} --set {} --set train.schedule_steps={} --summary\n",
             launch_command(ranks_, "annulus-train"), config, length,
             std::max(2 * outcome_.steps, config_.train.schedule_steps));
}

void RunSummary::print_next_steps() const {
  const std::filesystem::path folder = config_.run.folder;
  const std::string config = shell_word((folder / "config.toml").string());
  fmt::print("\nwhat to try next\n");
  if (outcome_.last_step < outcome_.steps)
    fmt::print("  go on from here\n    {} {} --summary\n", launch_command(ranks_, "annulus-train"), config);
  else
    print_longer(config);
  if (has_program("annulus-report"))
    fmt::print("  a page about this run\n    {} {} --html report.html\n",
               shell_word((program_folder() / "annulus-report").string()), shell_word(folder.string()));
  if (has_program("annulus-eval"))
    fmt::print("  text from the model\n    {} generate {} --prompt 'The '\n",
               shell_word((program_folder() / "annulus-eval").string()), shell_word(folder.string()));
  fmt::print(
      "  the same on four ranks in stripes, into another folder\n"
      "    {} {} --set {} --set parallel.context=4 --set attention.schedule=ring "
      "--set attention.layout=striped\n",
      launch_command(4, "annulus-train"), config,
      shell_word("run.folder=" + config_.run.folder + "-striped"));
  if (has_program("annulus-bench"))
    fmt::print(
        "  attention alone, checked against double precision\n"
        "    {} attention --schedule burst --layout zigzag --mask causal --tokens 1024 --check\n",
        launch_command(4, "annulus-bench"));
  fmt::print("  your own text\n    {}\n", own_text_command());
}

}  // namespace annulus::app
