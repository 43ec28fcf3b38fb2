#include <fmt/format.h>
#include <fmt/ranges.h>

#include <Kokkos_Timer.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/training/run/trainer.hpp>

#include "base/file.hpp"
#include "base/printable.hpp"
#include "eval/commands.hpp"
#include "eval/evaluation/config.hpp"
#include "eval/evaluation/evaluation.hpp"
#include "eval/evaluation/model.hpp"
#include "eval/evaluation/model_folder.hpp"
#include "eval/sampler.hpp"
#include "options/checks.hpp"
#include "options/shared.hpp"
#include "training/io/logging.hpp"

namespace annulus::eval {

namespace fs = std::filesystem;

namespace {

struct GenerateArguments {
  fs::path model;
  std::optional<std::string> prompt;
  fs::path prompt_file;
  std::vector<std::int32_t> ids;
  std::int64_t tokens = 100;  // of the continuation
  SamplingOptions sampling;
  fs::path shards;
  std::string device = "auto", dtype;
};

/// The ids of a prompt, and the tokenizer that has made them; null where ids were given.
struct Prompt {
  std::vector<std::int32_t> ids;
  std::unique_ptr<const data::Tokenizer> tokenizer;
};

Prompt read_prompt(const GenerateArguments& o, const training::WeightSource& weights,
                   const fs::path& folder) {
  Prompt prompt{.ids = o.ids, .tokenizer = nullptr};
  if (prompt.ids.empty()) {
    const std::string text = o.prompt ? *o.prompt : read_text(o.prompt_file, {"a prompt", kinds::mib * 64});
    prompt.tokenizer = tokenizer_of(weights, folder, o.shards);
    prompt.tokenizer->encode(text, prompt.ids);
    require(!prompt.ids.empty(), "{} is empty: a model goes on from one token at least",
            o.prompt ? "--prompt" : fmt::format("--prompt-file '{}'", o.prompt_file.string()));
  }
  const std::int64_t vocabulary = weights.model().shape.vocabulary;
  for (const std::int32_t id : prompt.ids)
    require(id >= 0 && id < vocabulary, "--ids: the model has no token {}: its ids are 0 to {}", id,
            vocabulary - 1);
  return prompt;
}

/// The text as a terminal may see it (printable), with its lines and tabs.
std::string shown(std::string_view text) {
  std::string all;
  while (true) {
    const std::size_t end = text.find_first_of("\n\t");
    all += printable(text.substr(0, end));
    if (end == text.npos) return all;
    all += text[end];
    text.remove_prefix(end + 1);
  }
}

/// What `ids` adds to the text of its first `prompt` tokens: alone it may begin without its space.
std::string text_behind(std::span<const std::int32_t> ids, std::size_t prompt,
                        const data::Tokenizer& tokenizer) {
  const std::string before = tokenizer.decode(ids.first(prompt)), whole = tokenizer.decode(ids);
  return whole.starts_with(before) ? whole.substr(before.size()) : tokenizer.decode(ids.subspan(prompt));
}

void warn_of_length(const training::ModelDescription& model, std::int64_t prompt, std::int64_t tokens) {
  if (model.positions == 0 || prompt + tokens <= model.positions) return;
  logging::warn(
      "prompt ({} tokens) and continuation ({}) are longer than the {} tokens of the model's "
      "sequences: expect worse text behind these",
      prompt, tokens, model.positions);
}

/// How a model computes that goes on with a prompt, over all of `tokens`.
training::Config config_of(const GenerateArguments& o, const training::WeightSource& weights,
                           const fs::path& folder, std::int64_t tokens) {
  training::Config config = evaluation_config(
      weights.model(),
      {.folder = folder, .tokens = tokens, .overrides = {"run.device=" + o.device, "attention.sparsity="}});
  if (!o.dtype.empty()) config.train.dtype = o.dtype;
  config.memory.lm_head_rows = 1;  // logits of one row are asked for
  require_causal(config);
  try {
    training::computes_on_gpu(config);
  } catch (const Error& error) {
    fail("--device {}: {}", o.device, error.what());
  }
  return config;
}

int run_generate(GenerateArguments& o, const comm::MpiEnvironment& mpi) {
  const int prompts = (o.prompt ? 1 : 0) + (o.prompt_file.empty() ? 0 : 1) + (o.ids.empty() ? 0 : 1);
  require(prompts == 1,
          "{} prompts were given: give one, as --prompt TEXT, --prompt-file FILE or --ids 1,2,3", prompts);
  options::require_positive("--tokens", o.tokens);
  Sampler sampler(o.sampling);

  const fs::path folder = weights_folder(o.model);
  const training::WeightSource weights(folder, check_of(mpi.rank()));
  const training::ModelDescription& model = weights.model();
  Prompt prompt = read_prompt(o, weights, folder);
  const std::int64_t known = std::ssize(prompt.ids), most = known + o.tokens;
  if (mpi.rank() == 0) warn_of_length(model, known, o.tokens);
  const training::Config config =
      config_of(o, weights, folder, most - 1);  // none comes behind the last token
  const auto world = training::connect(mpi, config);
  const auto next = make_evaluation_model(*world, *world, config, load_weights(*world, config, &weights));
  logging::info("'{}', {} parameters, on {}", folder.string(), next->parameters(), next->description());

  std::vector<std::int32_t>& ids = prompt.ids;
  world->broadcast(HostExec(), ids.data(), ids.size() * sizeof(std::int32_t), 0);
  std::vector<float> logits(static_cast<std::size_t>(model.shape.vocabulary));
  const data::TokenizerIdentity* const text = prompt.tokenizer ? &prompt.tokenizer->identity() : nullptr;
  const std::span choices =
      std::span(logits).first(text != nullptr ? static_cast<std::size_t>(text->vocabulary) : logits.size());
  const Kokkos::Timer timer;
  bool ended = false;
  while (!ended && std::ssize(ids) < most) {
    const int owner = next->logits(ids, logits);
    world->broadcast(HostExec(), logits.data(), logits.size() * sizeof(float), owner);
    const std::int32_t id = sampler.choose(choices);
    ended = text != nullptr && id == text->end_of_document;
    if (!ended) ids.push_back(id);
  }
  const std::int64_t made = std::ssize(ids) - known;
  logging::info("{} tokens in {:.1f} s{}", made, timer.seconds(),
                ended ? ", then the model ended the document" : "");
  if (mpi.rank() != 0) return 0;
  const std::span all(ids);
  if (text != nullptr)
    fmt::print("{}\n", shown(text_behind(all, static_cast<std::size_t>(known), *prompt.tokenizer)));
  else
    fmt::print("{}\n", fmt::join(all.subspan(static_cast<std::size_t>(known)), ","));
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Command& chosen) {
  auto [command, o] = add_command(app, chosen, "generate",
                                  "Go on with a prompt: one forward pass over prompt and continuation a "
                                  "token, which ranks share. Prints the continuation alone",
                                  run_generate);
  command
      .add_option("model", o.model,
                  "Folder of a run (its newest checkpoint), of a checkpoint, or in Hugging Face's format")
      ->required();
  command.add_option("--prompt", o.prompt, "Text to go on with");
  command.add_option("--prompt-file", o.prompt_file, "File of the text to go on with, as it is");
  command
      .add_option("--ids", o.ids,
                  "Token ids to go on with, like 1,2,3; ids are printed, too, and no id ends a document")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option("--tokens", o.tokens, "Tokens of the continuation at most")->capture_default_str();
  command
      .add_option("--temperature", o.sampling.temperature,
                  "Divides logits before a token is drawn; 0: the likeliest token each time")
      ->capture_default_str();
  command
      .add_option("--top-p", o.sampling.top_p,
                  "Draw from the fewest likeliest tokens whose probabilities have this sum")
      ->capture_default_str();
  command.add_option("--seed", o.sampling.seed, "Of the tokens that are drawn")
      ->capture_default_str()
      ->check(options::without_sign);
  command.add_option("--shards", o.shards,
                     "Token shards that carry the tokenizer; without it that of the model, or of its run");
  command.add_option("--device", o.device, "auto, cpu or gpu")
      ->check(CLI::IsMember({"auto", "cpu", "gpu"}))
      ->capture_default_str();
  command.add_option("--dtype", o.dtype, "f32 or bf16; without it what the model was trained in")
      ->check(CLI::IsMember({"f32", "bf16"}));
  command.footer(
      "Example:\n"
      "  annulus-eval generate runs/mine --prompt 'int main(' --tokens 60 --temperature 0.8 --top-p 0.9");
}

}  // namespace annulus::eval
