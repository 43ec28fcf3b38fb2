#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/data/packer.hpp>
#include <annulus/io/progress_line.hpp>

#include "commands.hpp"
#include "common/process.hpp"

namespace annulus::tokens {

namespace {

struct PackArguments {
  data::PackOptions options;
  std::string tokenizer = "byte";
  std::string model;
  std::string bad_lines = "error";
  std::string served;
};

/// The tokenizer of the process that has started this one (pack_tokenizer_json.py), as its JSON object says.
void take_served_tokenizer(PackArguments& arguments) {
  const nlohmann::json served = nlohmann::json::parse(arguments.served, nullptr, false);
  try {
    std::string model = data::read_tokenizer_model(arguments.model);
    data::TokenizerIdentity identity{.name = arguments.tokenizer,
                                     .vocabulary = served.at("vocabulary"),
                                     .end_of_document = served.at("end_of_document"),
                                     .fingerprint = data::fingerprint_of_model(model)};
    arguments.options.tokenizer_settings = served.at("settings");
    arguments.options.tokenizer =
        data::make_piped_tokenizer(std::move(identity), std::move(model), served.at("socket"));
  } catch (const nlohmann::json::exception& error) {
    fail("--served-tokenizer is for programs that have a tokenizer, and '{}' is not what they give ({})",
         arguments.served, error.what());
  }
}

/// Tells the first notes of a pack, and how many there were.
class Notes {
 public:
  void add(const std::string& text) {
    if (++count_ <= shown) app::say("annulus-tokens: " + text);
  }
  ~Notes() {
    if (count_ > shown) fmt::print(stderr, "annulus-tokens: and {} more of these notes\n", count_ - shown);
  }

 private:
  static constexpr std::int64_t shown = 20;
  std::int64_t count_ = 0;
};

void print(const data::PackSummary& summary, const data::PackOptions& options) {
  const std::string folder = options.output.string();
  if (summary.was_complete) {
    fmt::print("'{}' is packed already, nothing to do\n", folder);
  } else if (summary.resumed_shards > 0) {
    fmt::print("went on behind {} shards of an interrupted run\n", summary.resumed_shards);
  }
  fmt::print("shards            {} in {}\n", summary.shards.size(), folder);
  fmt::print("tokens            {}\n", summary.tokens);
  fmt::print("documents         {}\n", summary.documents);
  fmt::print("skipped           {} binary or not UTF-8, {} empty, {} bad lines\n", summary.skipped_binary,
             summary.skipped_empty, summary.skipped_lines);
  fmt::print("unigram entropy   {:.4f} nats/token (a model that learns beats this loss)\n",
             summary.unigram_entropy);
}

int run(PackArguments& arguments) {
  require(arguments.tokenizer != "sentencepiece" || !arguments.model.empty(),
          "--tokenizer sentencepiece needs --model FILE, the .model file that spm_train wrote or that came "
          "with the model");
  if (arguments.served.empty())
    arguments.options.tokenizer = data::make_tokenizer(arguments.tokenizer, arguments.model);
  else
    take_served_tokenizer(arguments);
  arguments.options.bad_lines = arguments.bad_lines == "skip" ? data::BadLines::skip : data::BadLines::error;
  std::optional<io::ProgressLine> line;
  Notes notes;
  arguments.options.on_note = [&](const std::string& text) {
    if (line) line->hide();
    notes.add(text);
  };
  arguments.options.on_read = [&](std::int64_t read, std::int64_t total) {
    if (!line) line.emplace("packing", total);
    line->show(read);
  };
  arguments.options.on_shard = [&](const data::ShardHeader& shard, std::int64_t) {
    if (line) line->hide();
    app::say(fmt::format("{}: {} tokens, {} documents", shard.path, shard.tokens, shard.documents));
  };
  const data::PackSummary summary = data::pack(arguments.options);
  line.reset();
  print(summary, arguments.options);
  return 0;
}

}  // namespace

void add_pack(CLI::App& app, Command& command) {
  const auto arguments = std::make_shared<PackArguments>();
  CLI::App* pack =
      app.add_subcommand("pack", "Pack text into token shards; run again, it goes on where it stopped");
  pack->add_option("inputs", arguments->options.inputs,
                   "Files (each a document), folders (walked in sorted order), *.jsonl, *.ndjson and *.json "
                   "files of JSON "
                   "lines (documents in \"text\")")
      ->required();
  pack->add_option("--out", arguments->options.output, "Folder of the shards")->required();
  pack->add_option("--tokenizer", arguments->tokenizer, "byte or sentencepiece")->capture_default_str();
  pack->add_option("--model", arguments->model, "Model file of the sentencepiece tokenizer");
  pack->add_option("--shard-tokens", arguments->options.shard_tokens,
                   "A shard is closed before it grows beyond this; a document is never cut")
      ->capture_default_str();
  pack->add_option("--extensions", arguments->options.extensions,
                   "Take only files with these extensions from folders, like .hpp,.cpp")
      ->delimiter(',')
      ->allow_extra_args(false);  // what follows is an input
  pack->add_option("--bad-lines", arguments->bad_lines,
                   "Lines of JSON-lines files that are no JSON object with a string \"text\": error (the "
                   "pack ends) or "
                   "skip (they are counted and passed over)")
      ->check(CLI::IsMember({"error", "skip"}))
      ->capture_default_str();
  pack->add_flag(
      "--follow-links", arguments->options.follow_links,
      "Read what symbolic links inside of folders lead to, wherever that is; without it they are passed "
      "over. Links given as inputs are always followed");
  pack->add_option("--served-tokenizer", arguments->served)->group("");  // not for users
  pack->callback([arguments, &command] { command = [arguments] { return run(*arguments); }; });
}

}  // namespace annulus::tokens
