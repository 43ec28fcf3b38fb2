#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/data/verify.hpp>

#include "commands.hpp"

namespace annulus::tokens {

namespace {

struct InfoArguments {
  std::vector<std::filesystem::path> paths;
  bool json = false;
  bool quick = false;
};

/// What info reports: the headers, and the entropy unless it was asked to be quick.
struct Report {
  std::vector<data::ShardHeader> shards;
  std::int64_t tokens = 0, documents = 0;
  bool has_entropy = false;
  double entropy = 0;
};

Report collect(const InfoArguments& arguments) {
  Report report;
  data::TokenHistogram histogram;
  for (const auto& path : data::find_shards(arguments.paths)) {
    const data::TokenShard shard = data::TokenShard::open(path);
    report.shards.push_back(shard.header());
    report.tokens += shard.header().tokens;
    report.documents += shard.header().documents;
    if (!arguments.quick) data::count_tokens(shard, histogram);
  }
  report.has_entropy = !arguments.quick;
  report.entropy = histogram.entropy();
  return report;
}

nlohmann::json to_json(const Report& report) {
  nlohmann::json files = nlohmann::json::array();
  for (const data::ShardHeader& shard : report.shards) {
    files.push_back({{"path", shard.path},
                     {"tokens", shard.tokens},
                     {"documents", shard.documents},
                     {"tokenizer", shard.tokenizer.name},
                     {"fingerprint", shard.tokenizer.fingerprint},
                     {"vocabulary", shard.tokenizer.vocabulary},
                     {"end_of_document", shard.tokenizer.end_of_document},
                     {"type", name_of(shard.type)},
                     {"checksum", shard.checksum},
                     {"creator", shard.creator}});
  }
  nlohmann::json all = {{"files", files}, {"tokens", report.tokens}, {"documents", report.documents}};
  if (report.has_entropy) all["unigram_entropy"] = report.entropy;
  return all;
}

void print_table(const Report& report) {
  std::size_t width = 4;
  for (const data::ShardHeader& shard : report.shards) width = std::max(width, shard.path.size());
  fmt::print("{:{}}  {:>12}  {:>10}  {:>13}  {:>10}  {:>4}  {:>8}\n", "file", width, "tokens", "documents",
             "tokenizer", "vocabulary", "type", "checksum");
  for (const data::ShardHeader& shard : report.shards) {
    fmt::print("{:{}}  {:>12}  {:>10}  {:>13}  {:>10}  {:>4}  {:08x}\n", shard.path, width, shard.tokens,
               shard.documents, shard.tokenizer.name, shard.tokenizer.vocabulary, name_of(shard.type),
               shard.checksum);
  }
  fmt::print("{:{}}  {:>12}  {:>10}\n", "in all", width, report.tokens, report.documents);
  if (report.has_entropy) fmt::print("unigram entropy: {:.4f} nats/token\n", report.entropy);
}

int run(const InfoArguments& arguments) {
  const Report report = collect(arguments);
  if (arguments.json) {
    fmt::print("{}\n", to_json(report).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    print_table(report);
  }
  return 0;
}

}  // namespace

void add_info(CLI::App& app, Command& command) {
  const auto arguments = std::make_shared<InfoArguments>();
  CLI::App* info = app.add_subcommand("info", "Describe token shards: sizes, tokenizer, unigram entropy");
  info->add_option("paths", arguments->paths, "Shards, or folders of shards")->required();
  info->add_flag("--json", arguments->json, "Print JSON");
  info->add_flag("--quick", arguments->quick, "Read headers and offsets only: no entropy");
  info->callback([arguments, &command] { command = [arguments] { return run(*arguments); }; });
}

}  // namespace annulus::tokens
