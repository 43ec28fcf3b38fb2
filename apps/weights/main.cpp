// annulus-weights: describes models and takes them in from Hugging Face's format and out to it.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/training/checkpoint/reader.hpp>

#include "base/printable.hpp"
#include "common/log.hpp"
#include "common/run_commands.hpp"
#include "training/io/json.hpp"
#include "training/io/progress_line.hpp"
#include "training/run/state/initial_weights/convert_weights.hpp"
#include "training/run/state/initial_weights/weight_source.hpp"

namespace annulus::weights_program {
namespace {

// --- info -------------------------------------------------------------------------------------------------

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct ModelInfoArguments {
  fs::path folder;
  bool json = false, verify = true;
};

/// The shortest decimal number that is read as this float.
double number(float value) {
  return std::stod(fmt::format("{}", value));
}

Json rope_json(const model::Config& shape) {
  const model::RopeScaling& rope = shape.rope;
  Json json = {{"theta", number(shape.rope_theta)}, {"scaling", rope.name}};
  if (shape.rope_fraction != 1) json["fraction"] = shape.rope_fraction;
  const model::RopeScale scale = rope.scale();
  if (scale == model::RopeScale::none) return json;
  json["factor"] = rope.factor;
  if (scale == model::RopeScale::linear) return json;
  json["original_length"] = rope.original_length;
  if (scale == model::RopeScale::llama3) {
    json["low_frequency_factor"] = rope.low_frequency_factor;
    json["high_frequency_factor"] = rope.high_frequency_factor;
  } else {
    json["beta_fast"] = rope.beta_fast;
    json["beta_slow"] = rope.beta_slow;
    json["attention_factor"] = shape.frequencies().attention_factor;
    if (!rope.truncate) json["truncate"] = false;
  }
  return json;
}

void add_shape(const model::Config& shape, Json& json) {
  json["vocabulary"] = shape.vocabulary;
  json["layers"] = shape.layers;
  json["hidden"] = shape.hidden;
  json["heads"] = shape.heads;
  json["kv_heads"] = shape.kv_heads;
  json["head_dim"] = shape.head_dim;
  json["ffn"] = shape.ffn;
  json["norm_epsilon"] = number(shape.norm_epsilon);
  json["tied"] = shape.tied;
  if (shape.query_scale > 0) json["query_scale"] = number(shape.query_scale);
  if (shape.soft_cap > 0) json["soft_cap"] = number(shape.soft_cap);
  if (shape.logit_cap > 0) json["logit_cap"] = number(shape.logit_cap);
  json["qkv_bias"] = shape.block.qkv_bias;
  json["out_bias"] = shape.block.out_bias;
  json["qk_norm"] = name_of_choice(shape.block.qk_norm);
  json["norms"] = name_of_choice(shape.block.norms);
  json["gains_from_one"] = shape.block.gains_from_one;
  json["activation"] = name_of_choice(shape.block.activation);
  json["scaled_embedding"] = shape.block.scaled_embedding;
  json["rope"] = rope_json(shape);
  if (!shape.pattern.empty()) json["pattern"] = shape.pattern;
}

Json names_of(const weights::ModelFiles& files) {
  Json names = Json::array();
  for (const auto& [name, contents] : files) names.push_back(name);
  return names;
}

Json hf_info(const fs::path& folder) {
  const weights::HfWeights model(folder);
  const weights::HfConfig& config = model.config();
  Json json = {{"format", "Hugging Face"}, {"family", config.family}, {"parameters", model.map().size()}};
  json["dtype"] = name_of(model.type());
  add_shape(config.shape, json);
  json["positions"] = config.positions;
  json["mask"] = config.mask();
  if (!model.left_out().empty()) json["left_out"] = model.left_out();
  std::vector<std::string> left_out;
  json["files"] = names_of(weights::read_model_files(folder, left_out));
  return json;
}

/// What the files hold beside the model. Throws Error at the first damage when they are to be verified.
void add_files(const checkpoint::Checkpoint& checkpoint, bool verify, Json& json) {
  const checkpoint::Progress& progress = checkpoint.progress();
  json["written_by"] = checkpoint.creator();
  json["bytes"] = checkpoint.bytes();
  json["parts"] = checkpoint.parts();
  json["reading"] = {{"epoch", progress.epoch}, {"sequences", progress.sequences_read}};
  for (const checkpoint::SetProgress& set : progress.sets)
    if (!set.name.empty())
      json["reading"]["sets"][set.name] = {{"epoch", set.epoch}, {"sequences", set.sequences_read}};
  if (verify) {
    io::ProgressLine line("verifying", static_cast<std::int64_t>(checkpoint.bytes()));
    checkpoint.verify([&](std::uint64_t bytes) { line.show(static_cast<std::int64_t>(bytes)); });
  }
  json["verified"] = verify;
}

Json checkpoint_info(const fs::path& path, bool verify) {
  const training::WeightSource source(path, checkpoint::Checkpoint::Check::manifest);
  const training::ModelDescription& model = source.model();
  Json json = {{"format", "checkpoint"}, {"step", source.step()}, {"parameters", source.map().size()}};
  json["dtype"] = "f32";
  json["trained_in"] = model.dtype;
  add_shape(model.shape, json);
  json["positions"] = model.positions;
  json["mask"] = model.mask;
  // The engine computes masks that Hugging Face's format has no words for.
  try {
    std::vector<std::string> notes;
    json["exports_as"] = training::config_of_export(model, source.files(notes), {}, path.string()).family;
  } catch (const Error& error) {
    json["exports_as"] = nullptr;
    json["why_not"] = error.what();
  }
  add_files(checkpoint::Checkpoint(path), verify, json);
  std::vector<std::string> notes;
  if (verify) json["files"] = names_of(source.files(notes));
  return json;
}

std::string text_of(const Json& value) {
  if (value.is_string()) return printable(value.get<std::string>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_null()) return "nothing";
  if (!value.is_object()) return value.dump();
  std::string text;
  for (const auto& [key, field] : value.items())
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", printable(key), text_of(field));
  return text;
}

int run_info(ModelInfoArguments& arguments) {
  const bool hf = training::weights_format(arguments.folder) == training::WeightsFormat::hugging_face;
  const Json info = hf ? hf_info(arguments.folder) : checkpoint_info(arguments.folder, arguments.verify);
  if (arguments.json) {
    fmt::print("{}\n", io::json_text(info));
    return 0;
  }
  for (const auto& [key, value] : info.items()) fmt::print("{:13} {}\n", key, text_of(value));
  return 0;
}

// --- import and export ------------------------------------------------------------------------------------

/// A training::Seen that shows a line on a terminal, until the last copy of it goes.
class ConversionProgress {
 public:
  ConversionProgress(const char* what, std::int64_t elements)
      : line_(std::make_shared<io::ProgressLine>(what, bytes_of(elements))) {}

  void operator()(std::int64_t elements) const { line_->show(bytes_of(elements)); }

 private:
  static std::int64_t bytes_of(std::int64_t elements) {
    return elements * static_cast<std::int64_t>(sizeof(float));
  }
  std::shared_ptr<io::ProgressLine> line_;
};

struct ImportArguments {
  std::filesystem::path from, to;
};

int run_import(ImportArguments& arguments) {
  require(training::weights_format(arguments.from) == training::WeightsFormat::hugging_face,
          "'{}' is a checkpoint already: model.from takes it as it is", arguments.from.string());
  const training::WeightSource from(arguments.from);
  training::write_as_checkpoint(from, arguments.to, ConversionProgress("importing", from.map().size()));
  fmt::print("{} parameters of '{}' are in the checkpoint '{}'\n", from.map().size(), arguments.from.string(),
             arguments.to.string());
  return 0;
}

struct ExportArguments {
  std::filesystem::path from, to;
  std::string dtype;
  training::HfChoices choices;
};

int run_export(ExportArguments& arguments) {
  require(training::weights_format(arguments.from) == training::WeightsFormat::checkpoint,
          "'{}' is in Hugging Face's format already: give a checkpoint", arguments.from.string());
  if (!arguments.dtype.empty()) arguments.choices.dtype = parse_dtype(arguments.dtype, "--dtype");
  const training::WeightSource from(arguments.from);
  training::write_as_hf(from, arguments.choices, arguments.to,
                        ConversionProgress("exporting", from.map().size()));
  fmt::print("{} parameters of '{}' are in '{}', as {}\n", from.map().size(), arguments.from.string(),
             arguments.to.string(), name_of(training::export_type(arguments.choices, from.model())));
  return 0;
}

}  // namespace
}  // namespace annulus::weights_program

int main(int argc, char** argv) {
  using namespace annulus;
  using namespace annulus::weights_program;
  app::start_log();  // standard output is the commands'
  spdlog::set_pattern("annulus-weights: %l: %v");
  CLI::App program(
      "Describes models, and takes them in from Hugging Face's format and out to it (docs/models.md).",
      "annulus-weights");
  app::Command command;
  auto [info, of_info] =
      app::add_command(program, command, "info",
                       "Describe a model: shape, parameters, rope settings, mask; an error "
                       "where the engine does not compute it. Of a checkpoint everything is "
                       "read and compared with its checksums",
                       run_info);
  info.add_option("folder", of_info.folder,
                  "Folder with config.json and safetensors, or a checkpoint of Annulus")
      ->required();
  info.add_flag("--json", of_info.json, "Print JSON");
  info.add_flag("!--no-verify", of_info.verify,
                "Read no more of a checkpoint than its manifest and the files of the model");
  // A line that begins with "import" is a module's to clang-format.
  auto [take_in, of_import] =
      app::add_command(program, command, "import",
                       "Make a checkpoint, with checksums, of a model in Hugging Face's format", run_import);
  take_in.add_option("model", of_import.from, "Folder with config.json and safetensors")->required();
  take_in.add_option("checkpoint", of_import.to, "Folder of the checkpoint, which is made")->required();
  auto [write, of_export] =
      app::add_command(program, command, "export", "Write a checkpoint in Hugging Face's format", run_export);
  write.add_option("checkpoint", of_export.from, "Folder of the checkpoint")->required();
  write.add_option("model", of_export.to, "Folder of config.json and safetensors, which is made")->required();
  write.add_option(
      "--family", of_export.choices.family,
      "model_type of an export, where several fit: phi3 for example; without it that of the model that the "
      "weights come from, else the first one that fits (docs/models.md)");
  write
      .add_option("--dtype", of_export.dtype,
                  "Of the weights: f32, bf16 or f16; without it train.dtype of the checkpoint's run")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  write
      .add_option(
          "--positions", of_export.choices.positions,
          "max_position_embeddings; without it the larger of model.positions and data.sequence_length of "
          "the checkpoint's run")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{2147483647}));
  program.footer(
      "Examples:\n"
      "  annulus-weights info MODEL\n"
      "  annulus-weights export runs/mine/checkpoints/step-00000400 EXPORTED\n"
      "annulus-weights COMMAND --help explains a command.");
  return app::run_commands(program, command, argc, argv);
}
