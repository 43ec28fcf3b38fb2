#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/base/printable.hpp>
#include <annulus/checkpoint/manifest.hpp>
#include <annulus/checkpoint/reader.hpp>
#include <annulus/io/json.hpp>
#include <annulus/io/progress_line.hpp>
#include <annulus/train/weight_source.hpp>

#include "commands.hpp"

namespace annulus::weights_program {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct InfoArguments {
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
  json["qkv_bias"] = shape.qkv_bias;
  json["qk_norm"] = shape.qk_norm;
  json["rope"] = rope_json(shape);
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
  std::vector<std::string> left_out;
  json["files"] = names_of(weights::read_model_files(folder, left_out));
  return json;
}

/// What the model is called in Hugging Face's format.
std::string family_of(const train::ModelDescription& model, const std::string& origin) {
  weights::HfConfig config;
  config.shape = model.shape;
  config.sliding_window = weights::sliding_window_of(model.mask, origin);
  return Json::parse(weights::to_hf_config(config, DType::f32)).at("model_type");
}

/// What the files hold beside the model. Throws Error at the first damage when they are to be verified.
void add_files(const checkpoint::Checkpoint& checkpoint, bool verify, Json& json) {
  const checkpoint::Progress& progress = checkpoint.progress();
  json["written_by"] = checkpoint.creator();
  json["bytes"] = checkpoint.bytes();
  json["parts"] = checkpoint.manifest().parts.size();
  json["reading"] = {{"epoch", progress.epoch}, {"sequences", progress.sequences_read}};
  if (verify) {
    io::ProgressLine line("verifying", static_cast<std::int64_t>(checkpoint.bytes()));
    checkpoint.verify([&](std::uint64_t bytes) { line.show(static_cast<std::int64_t>(bytes)); });
  }
  json["verified"] = verify;
}

Json checkpoint_info(const fs::path& path, bool verify) {
  const train::WeightSource source(path, checkpoint::Checkpoint::Check::manifest);
  const train::ModelDescription& model = source.model();
  Json json = {{"format", "checkpoint"}, {"step", source.step()}, {"parameters", source.map().size()}};
  json["dtype"] = "f32";
  json["trained_in"] = model.dtype;
  add_shape(model.shape, json);
  json["positions"] = model.positions;
  json["mask"] = model.mask;
  // The engine computes masks that Hugging Face's format has no words for.
  try {
    json["exports_as"] = family_of(model, path.string());
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

int run(const InfoArguments& arguments) {
  const bool hf = train::weights_format(arguments.folder) == train::WeightsFormat::hugging_face;
  const Json info = hf ? hf_info(arguments.folder) : checkpoint_info(arguments.folder, arguments.verify);
  if (arguments.json) {
    fmt::print("{}\n", io::json_text(info));
    return 0;
  }
  for (const auto& [key, value] : info.items()) fmt::print("{:13} {}\n", key, text_of(value));
  return 0;
}

}  // namespace

void add_info(CLI::App& app, Command& command) {
  const auto arguments = std::make_shared<InfoArguments>();
  CLI::App* info = app.add_subcommand("info",
                                      "Describe a model: shape, parameters, rope settings, mask; an error "
                                      "where the engine does not compute it. Of a checkpoint everything is "
                                      "read and compared with its checksums");
  info->add_option("folder", arguments->folder,
                   "Folder with config.json and safetensors, or a checkpoint of Annulus")
      ->required();
  info->add_flag("--json", arguments->json, "Print JSON");
  info->add_flag("!--no-verify", arguments->verify, "Read no more of a checkpoint than its manifest");
  info->callback([arguments, &command] { command = [arguments] { return run(*arguments); }; });
}

}  // namespace annulus::weights_program
