#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include <annulus/base/error.hpp>
#include <annulus/train/convert_weights.hpp>

#include "commands.hpp"
#include "progress.hpp"

namespace annulus::weights_program {

namespace {

struct ImportArguments {
  std::filesystem::path from, to;
};

int run(const ImportArguments& arguments) {
  require(train::weights_format(arguments.from) == train::WeightsFormat::hugging_face,
          "'{}' is a checkpoint already: model.from takes it as it is", arguments.from.string());
  const train::WeightSource from(arguments.from);
  train::write_as_checkpoint(from, arguments.to, Progress("importing", from.map().size()));
  fmt::print("{} parameters of '{}' are in the checkpoint '{}'\n", from.map().size(), arguments.from.string(),
             arguments.to.string());
  return 0;
}

}  // namespace

void add_import(CLI::App& app, Command& command) {
  const auto arguments = std::make_shared<ImportArguments>();
  CLI::App* take_in =  // a line that begins with "import" is a module's to clang-format
      app.add_subcommand("import", "Make a checkpoint, with checksums, of a model in Hugging Face's format");
  take_in->add_option("model", arguments->from, "Folder with config.json and safetensors")->required();
  take_in->add_option("checkpoint", arguments->to, "Folder of the checkpoint, which is made")->required();
  take_in->callback([arguments, &command] { command = [arguments] { return run(*arguments); }; });
}

}  // namespace annulus::weights_program
