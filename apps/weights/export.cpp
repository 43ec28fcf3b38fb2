#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include <annulus/base/error.hpp>
#include <annulus/train/convert_weights.hpp>

#include "commands.hpp"
#include "progress.hpp"

namespace annulus::weights_program {

namespace {

struct ExportArguments {
  std::filesystem::path from, to;
  std::string dtype;
  train::HfChoices choices;
};

int run(ExportArguments& arguments) {
  require(train::weights_format(arguments.from) == train::WeightsFormat::checkpoint,
          "'{}' is in Hugging Face's format already: give a checkpoint", arguments.from.string());
  if (!arguments.dtype.empty()) arguments.choices.dtype = parse_dtype(arguments.dtype, "--dtype");
  const train::WeightSource from(arguments.from);
  train::write_as_hf(from, arguments.choices, arguments.to, Progress("exporting", from.map().size()));
  fmt::print("{} parameters of '{}' are in '{}', as {}\n", from.map().size(), arguments.from.string(),
             arguments.to.string(), name_of(train::export_type(arguments.choices, from.model())));
  return 0;
}

}  // namespace

void add_export(CLI::App& app, Command& command) {
  const auto arguments = std::make_shared<ExportArguments>();
  CLI::App* write = app.add_subcommand("export", "Write a checkpoint in Hugging Face's format");
  write->add_option("checkpoint", arguments->from, "Folder of the checkpoint")->required();
  write->add_option("model", arguments->to, "Folder of config.json and safetensors, which is made")
      ->required();
  write
      ->add_option("--dtype", arguments->dtype,
                   "Of the weights: f32, bf16 or f16; without it train.dtype of the checkpoint's run")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  write
      ->add_option(
          "--positions", arguments->choices.positions,
          "max_position_embeddings; without it the larger of model.positions and data.sequence_length of "
          "the checkpoint's run")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{2147483647}));
  write->callback([arguments, &command] { command = [arguments] { return run(*arguments); }; });
}

}  // namespace annulus::weights_program
