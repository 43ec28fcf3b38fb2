// annulus-train: trains a Transformer as a TOML file says.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/training/run/trainer.hpp>

#include "common/command_line.hpp"
#include "common/conventions.hpp"
#include "common/run_main.hpp"
#include "memory_plan.hpp"
#include "summary.hpp"
#include "training/io/logging.hpp"
#include "training/run/config/config_table.hpp"
#include "training/run/planner/planned_model.hpp"
#include "training/run/saving/other_folder.hpp"
#include "training/run/stop_signal.hpp"

namespace annulus::app {
namespace {

/// "train.lr=VALUE", for --learning-rate.
std::string setting_of(std::string_view option) {
  std::string name(option);
  std::ranges::replace(name, '-', '_');
  const auto found = training::suggest_key(name);
  if (!found) return "";
  return fmt::format("{}=VALUE{}", found->key,
                     found->meaning.empty() ? "" : fmt::format(" ({})", found->meaning));
}

int body(comm::MpiEnvironment& mpi, int argc, char** argv) {
  std::string file, resume = "auto";
  std::vector<std::string> overrides;
  training::DumpRequest dump;
  bool print_config = false, summary = false;
  MemoryPlanOptions memory_plan;
  CLI::App app(
      "Trains a decoder-only Transformer (LLaMA, Qwen, OLMo, Gemma and others: docs/models.md) on token "
      "shards. The MPI ranks of a group share each sequence. parallel.zero also divides weights, gradients "
      "and optimizer state among ranks.");
  add_conventions(app, "annulus-train", setting_of);
  app.option_defaults()->group("The run");
  app.add_option(
      "config", file,
      "TOML file; docs/formats/configuration.md explains its keys. With --plan-memory also a model in "
      "Hugging Face's format: its folder, or its config.json alone");
  app.add_option("--set", overrides, "section.key=value, overrides the file; may be repeated")
      ->allow_extra_args(false);
  app.add_option(
         "--resume", resume,
         "Where to resume: auto (the newest good checkpoint of run.folder, if any), never, or a checkpoint")
      ->capture_default_str();
  app.add_flag("--print-config", print_config,
               "Print the effective configuration with the meaning of each key, and end");
  app.add_flag("--summary", summary,
               "Print a summary at the end (run.folder/summary.json is written in any case)");
  app.option_defaults()->group("Comparing runs");
  auto* const dump_file = app.add_option(
      "--dump", dump.file,
      "HDF5 file to which the tensors of one optimizer step are written, in global token order; "
      "annulus-diff compares two such files (docs/debugging.md)");
  app.add_option("--dump-step", dump.step,
                 "Number of that optimizer step, from 1; default: the first of this run")
      ->needs(dump_file)
      ->check(at_least(1));
  app.option_defaults()->group("Planning memory and time");
  add_memory_plan(app, memory_plan);
  app.footer(
      "Examples:\n"
      "  mpirun -n 2 annulus-train data/demo.toml --set data.shards=shards --set run.folder=runs/mine\n"
      "  annulus-train data/llama-7b.toml --plan-memory --ranks 8 --gpu-memory 79.6GiB\n"
      "  annulus-train model/config.json --plan-memory --ranks 8 --gpu-memory 79.6GiB\n"
      "  annulus-train --print-config\n"
      "Exit status: 0 when all optimizer steps are done, or when a signal (SIGTERM, SIGUSR1, SIGINT, "
      "SIGHUP,\n"
      "SIGXCPU) ended the run after saving (run the same command again to resume it; summary.json says\n"
      "\"finished\"); 1 after an error; 2 when the last checkpoint could not be saved;\n"
      "3 where --plan-memory finds that the configuration does not fit.");
  if (const auto status = parse(app, argc, argv, mpi)) return *status;

  const auto print = [&](const training::Config& config) {
    if (mpi.rank() == 0) fmt::print("{}", config.to_toml(true));
    return 0;
  };
  if (print_config && file.empty()) return print(training::Config::parse("", "(defaults)", overrides));
  require(!file.empty(),
          "no configuration was given: annulus-train CONFIG.toml "
          "(data/demo.toml is an example, --help explains)");
  const bool model = training::names_model(file);
  require(
      memory_plan.plan || !model,
      "'{}' is a model, not a configuration: --plan-memory plans a run of it as it stands; to train it, name "
      "its folder as model.from in a TOML file (docs/models.md)",
      file);
  const training::Config config = model ? training::planned_model(file, memory_plan.ranks, overrides)
                                        : training::Config::load(file, overrides);
  if (print_config) return print(config);
  if (model && mpi.rank() == 0)
    fmt::print("{} is a model alone, planned with {}; --set SECTION.KEY=VALUE takes others\n", file,
               training::planned_model_text(config));
  if (const std::string warning = training::other_folder_warning(file, overrides, config);
      mpi.rank() == 0 && !warning.empty())
    logging::warn("{}", warning);
  if (memory_plan.plan) return mpi.rank() == 0 ? plan_memory(config, memory_plan) : 0;
  const auto world = training::connect(mpi, config);
  const training::Outcome outcome =
      training::train(*world, config, training::ResumePolicy::parse(resume), dump);
  if (mpi.rank() == 0) {
    const RunSummary result(config, outcome, mpi.size());
    result.save();
    if (summary) result.print();
  }
  return outcome.last_save_failed ? 2 : 0;
}

}  // namespace
}  // namespace annulus::app

int main(int argc, char** argv) {
  // From the first line on, so that a signal while MPI starts or ends is one that asks to save, too. It is
  // never destroyed: srun and mpirun send SIGTERM to a rank that is about to end as soon as another one has
  // ended with an error, and that must not replace the exit status.
  [[maybe_unused]] static const auto* const stop = new annulus::training::StopSignal;
  return annulus::app::run_main(argc, argv, annulus::app::body);
}
