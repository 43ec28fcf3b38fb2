// annulus-tokens: makes, describes and checks the token shards that training reads.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/training/data/packer.hpp>

#include "base/printable.hpp"
#include "common/process.hpp"
#include "common/run_commands.hpp"
#include "tokens/tokenizer_options.hpp"
#include "training/data/verify.hpp"
#include "training/io/json.hpp"
#include "training/io/progress_line.hpp"

namespace annulus::tokens {
namespace {

// --- pack -------------------------------------------------------------------------------------------------

struct PackArguments {
  data::PackOptions options;
  TokenizerArguments tokenizer;
  std::string bad_lines = "error";
};

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

int run_pack(PackArguments& arguments) {
  ChosenTokenizer chosen = make_tokenizer(arguments.tokenizer);
  arguments.options.tokenizer = std::move(chosen.tokenizer);
  arguments.options.tokenizer_settings = std::move(chosen.settings);
  arguments.options.parquet_reader = chosen.parquet_reader;
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
  arguments.options.on_shard = [&](const data::PackedShard& shard, std::int64_t) {
    if (line) line->hide();
    app::say(fmt::format("{}: {} tokens, {} documents", (arguments.options.output / shard.file).string(),
                         shard.tokens, shard.documents));
  };
  const data::PackSummary summary = data::pack(arguments.options);
  line.reset();
  print(summary, arguments.options);
  return 0;
}

void add_pack(CLI::App& app, app::Command& command) {
  auto [pack, arguments] = app::add_command(
      app, command, "pack", "Pack text into token shards; run again, it goes on where it stopped", run_pack);
  pack.add_option(
          "inputs", arguments.options.inputs,
          "Files (each a document), folders (walked in sorted order), *.jsonl, *.ndjson (also packed by "
          "gzip: *.jsonl.gz) and *.json files of JSON lines (documents in \"text\")")
      ->required();
  pack.add_option("--out", arguments.options.output, "Folder of the shards")->required();
  add_tokenizer(pack, arguments.tokenizer);
  pack.add_option("--shard-tokens", arguments.options.shard_tokens,
                  "A shard is closed before it grows beyond this; a document is never cut")
      ->capture_default_str();
  pack.add_option("--extensions", arguments.options.extensions,
                  "Take only files with these extensions from folders, like .hpp,.cpp")
      ->delimiter(',')
      ->allow_extra_args(false);  // what follows is an input
  pack.add_option(
      "--chat-template", arguments.options.chat_template,
      "JSON file that says how conversations (\"messages\" of records, with roles) become text, and "
      "which tokens count in the loss; shards then have a loss_mask");
  pack.add_option("--threads", arguments.options.threads,
                  "Threads that encode at the same time; 0: one for each core. Shards do not depend on it")
      ->capture_default_str();
  pack.add_option("--bad-lines", arguments.bad_lines,
                  "Lines of JSON-lines files that are no record (a JSON object with a string \"text\", or a "
                  "conversation): error (the pack ends) or skip (they are counted and passed over)")
      ->check(CLI::IsMember({"error", "skip"}))
      ->capture_default_str();
  pack.add_flag(
      "--follow-links", arguments.options.follow_links,
      "Read what symbolic links inside of folders lead to, wherever that is; without it they are passed "
      "over. Links given as inputs are always followed");
}

// --- info -------------------------------------------------------------------------------------------------

struct ShardsInfoArguments {
  std::vector<std::filesystem::path> paths;
  bool json = false;
  bool quick = false;
};

/// What info reports.
struct PackReport {
  std::vector<data::ShardHeader> shards;
  std::int64_t tokens = 0, documents = 0;
  std::optional<double> entropy;  // without --quick
  std::int64_t masked = 0;        // shards with a loss_mask
  std::int64_t counted = 0;       // tokens that count as targets, in all shards, without --quick
};

/// The shards, of which each is there once: sums over them would count another one twice.
std::vector<std::filesystem::path> different_shards(std::span<const std::filesystem::path> paths) {
  std::vector<std::filesystem::path> shards = data::find_shards(paths);
  std::map<std::filesystem::path, std::filesystem::path> seen;  // by what links lead to
  for (const std::filesystem::path& shard : shards) {
    const auto [first, is_new] = seen.try_emplace(std::filesystem::weakly_canonical(shard), shard);
    require(is_new, "'{}' is the shard '{}', which is given before it: give each shard once", shard.string(),
            first->second.string());
  }
  return shards;
}

PackReport collect(const ShardsInfoArguments& arguments) {
  PackReport report;
  data::TokenHistogram histogram;
  for (const auto& path : different_shards(arguments.paths)) {
    const data::TokenShard shard = data::TokenShard::open(path);
    report.shards.push_back(shard.header());
    report.tokens += shard.header().tokens;
    report.documents += shard.header().documents;
    const bool masked = shard.header().loss_mask_checksum.has_value();
    report.masked += masked ? 1 : 0;
    if (arguments.quick) continue;
    data::count_tokens(shard, histogram);
    report.counted += masked ? shard.sum_loss_mask().counted : shard.header().tokens;
  }
  if (!arguments.quick) report.entropy = histogram.entropy();
  return report;
}

nlohmann::json to_json(const PackReport& report) {
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
                     {"loss_mask", shard.loss_mask_checksum.has_value()},
                     {"creator", shard.creator}});
  }
  nlohmann::json all = {{"files", files}, {"tokens", report.tokens}, {"documents", report.documents}};
  if (report.entropy) all.update({{"unigram_entropy", *report.entropy}, {"counted_tokens", report.counted}});
  return all;
}

void print_table(const PackReport& report) {
  std::size_t width = 4;
  for (const data::ShardHeader& shard : report.shards) width = std::max(width, printable(shard.path).size());
  fmt::print("{:{}}  {:>12}  {:>10}  {:>13}  {:>10}  {:>4}  {:>8}\n", "file", width, "tokens", "documents",
             "tokenizer", "vocabulary", "type", "checksum");
  for (const data::ShardHeader& shard : report.shards) {
    fmt::print("{:{}}  {:>12}  {:>10}  {:>13}  {:>10}  {:>4}  {:08x}\n", printable(shard.path), width,
               shard.tokens, shard.documents, printable(shard.tokenizer.name), shard.tokenizer.vocabulary,
               name_of(shard.type), shard.checksum);
  }
  fmt::print("{:{}}  {:>12}  {:>10}\n", "in all", width, report.tokens, report.documents);
  if (report.entropy) fmt::print("unigram entropy: {:.4f} nats/token\n", *report.entropy);
  if (report.masked > 0)
    fmt::print("loss mask: {} of {} shards{}\n", report.masked, report.shards.size(),
               report.entropy ? fmt::format("; {} tokens count as targets", report.counted) : "");
}

int run_info(ShardsInfoArguments& arguments) {
  const PackReport report = collect(arguments);
  if (arguments.json) {
    fmt::print("{}\n", io::json_text(to_json(report)));
  } else {
    print_table(report);
  }
  return 0;
}

// --- verify -----------------------------------------------------------------------------------------------

/// Checks one shard; tells what is wrong instead of throwing, so that the others are checked too.
bool verify(const std::filesystem::path& path) {
  try {
    const data::TokenShard shard = data::TokenShard::open(path);
    data::verify_shard(shard);
    fmt::print("ok   {}: {} tokens, {} documents\n", printable(path.string()), shard.header().tokens,
               shard.header().documents);
    return true;
  } catch (const std::exception& error) {
    fmt::print("bad  {}\n", printable_message(error.what()));
    return false;
  }
}

int run_verify(std::vector<std::filesystem::path>& paths) {
  int bad = 0;
  for (const auto& path : data::find_shards(paths)) bad += verify(path) ? 0 : 1;
  if (bad > 0) app::say(fmt::format("annulus-tokens: {} bad shards", bad));
  return bad > 0 ? 1 : 0;
}

}  // namespace
}  // namespace annulus::tokens

int main(int argc, char** argv) {
  using namespace annulus;
  CLI::App program("Makes, describes and checks token shards (docs/formats/token-shards.md).",
                   "annulus-tokens");
  app::Command command;
  tokens::add_pack(program, command);
  auto [info, of_info] = app::add_command(
      program, command, "info", "Describe token shards: sizes, tokenizer, unigram entropy", tokens::run_info);
  info.add_option("paths", of_info.paths, "Shards, or folders of shards")->required();
  info.add_flag("--json", of_info.json, "Print JSON");
  info.add_flag("--quick", of_info.quick, "Read headers and offsets only: no entropy");
  auto [verify, paths] =
      app::add_command(program, command, "verify",
                       "Check shards in full: format, sizes, offsets, ids, checksums; exit status 1 if bad",
                       tokens::run_verify);
  verify.add_option("paths", paths, "Shards, or folders of shards")->required();
  program.footer(
      "Examples:\n"
      "  annulus-tokens pack --out shards --extensions .md,.txt ~/texts\n"
      "  annulus-tokens info shards\n"
      "annulus-tokens COMMAND --help explains a command.");
  return app::run_commands(program, command, argc, argv);
}
