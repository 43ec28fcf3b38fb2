#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

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
  fmt::print("skipped           {} binary or not UTF-8, {} empty\n", summary.skipped_binary,
             summary.skipped_empty);
  fmt::print("unigram entropy   {:.4f} nats/token (a model that learns beats this loss)\n",
             summary.unigram_entropy);
}

int run(PackArguments& arguments) {
  arguments.options.tokenizer = data::make_tokenizer(arguments.tokenizer, arguments.model);
  std::optional<io::ProgressLine> line;
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
  pack->add_option(
          "inputs", arguments->options.inputs,
          "Files (each a document), folders (walked in sorted order), *.jsonl files (documents in \"text\")")
      ->required();
  pack->add_option("--out", arguments->options.output, "Folder of the shards")->required();
  pack->add_option("--tokenizer", arguments->tokenizer, "byte or sentencepiece")->capture_default_str();
  pack->add_option("--model", arguments->model, "Model file of the sentencepiece tokenizer");
  pack->add_option("--shard-tokens", arguments->options.shard_tokens,
                   "A shard is closed before it grows beyond this; a document is never cut")
      ->capture_default_str();
  pack->add_option("--extensions", arguments->options.extensions,
                   "Take only files with these extensions from folders, like .hpp,.cpp")
      ->delimiter(',');
  pack->callback([arguments, &command] { command = [arguments] { return run(*arguments); }; });
}

}  // namespace annulus::tokens
