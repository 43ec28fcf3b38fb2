#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/training/data/packer.hpp>

#include "eval/commands.hpp"
#include "eval/samples/benchmark_files.hpp"
#include "eval/samples/sample_set.hpp"
#include "options/checks.hpp"
#include "options/shared.hpp"
#include "tokens/tokenizer_options.hpp"
#include "training/data/shard.hpp"
#include "training/io/logging.hpp"

namespace annulus::eval {

namespace fs = std::filesystem;

namespace {

struct MakeArguments {
  fs::path out;
  std::vector<std::string> kinds{"needle"};
  std::vector<std::int64_t> lengths;
  std::vector<double> depths{0, 0.25, 0.5, 0.75, 1};
  std::int64_t samples = 10;
  std::uint64_t seed = 1;
  KindOptions of_kinds;
  fs::path text;  // empty: sentences are generated
  std::string from;
  std::vector<fs::path> inputs;
  bool all_tokens_count = false;
  tokens::TokenizerArguments tokenizer;
  fs::path shards;
};

std::shared_ptr<const data::Tokenizer> chosen_tokenizer(const MakeArguments& o) {
  if (o.shards.empty()) return tokens::make_tokenizer(o.tokenizer).tokenizer;
  const auto shard = data::TokenShard::open(data::find_shards(std::span(&o.shards, 1)).front());
  const std::string& name = shard.header().tokenizer.name;
  require(name == "byte" || name == "sentencepiece",
          "--shards '{}': its tokenizer '{}' is not read here: make samples for a tokenizer.json with "
          "pack_tokenizer_json.py, whose option --make takes the arguments of annulus-eval make",
          shard.header().path, name);
  return shard.tokenizer();
}

/// In order, each once.
template <class T>
std::vector<T> ordered(std::vector<T> values) {
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

std::vector<std::int64_t> checked_lengths(const MakeArguments& o) {
  require(!o.lengths.empty(), "--lengths is missing: give the tokens of samples, like --lengths 4k,16k,64k");
  for (const std::int64_t length : o.lengths) options::require_positive("--lengths", length);
  return ordered(o.lengths);
}

/// A sample that is still to be composed.
struct Planned {
  SampleOrder order;
  std::uint64_t number = 0;  // among those of the same order
};

std::vector<SampleGroup> groups_of_kinds(const MakeArguments& o, const PieceEncoder& encode, Filler& filler) {
  check(o.of_kinds);
  options::require_positive("--samples", o.samples);
  for (const double depth : o.depths)
    require(depth >= 0 && depth <= 1, "--depths {}: give shares of the text, from 0 to 1", depth);
  std::vector<Kind> kinds;
  for (const std::string& name : o.kinds) kinds.push_back(parse_kind(name));
  std::vector<SampleGroup> groups;
  for (const std::int64_t tokens : checked_lengths(o)) {
    SampleGroup group{.tokens = tokens};
    std::vector<Planned> planned;
    for (const Kind kind : ordered(kinds))
      for (const double depth : has_depth(kind) ? ordered(o.depths) : std::vector{0.0})
        for (std::int64_t number = 0; number < o.samples; ++number) {
          planned.push_back({{.kind = kind, .tokens = tokens, .depth = depth}, std::uint64_t(number)});
          group.samples.push_back({.kind = std::string(name_of(kind)),
                                   .depth = has_depth(kind) ? std::optional(depth) : std::nullopt});
        }
    group.compose = [&o, &encode, &filler, planned = std::move(planned)](std::int64_t index) {
      const Planned& of = planned[static_cast<std::size_t>(index)];
      Random random{o.seed, static_cast<std::uint64_t>(of.order.kind),
                    static_cast<std::uint64_t>(of.order.tokens), std::bit_cast<std::uint64_t>(of.order.depth),
                    of.number};
      return compose(of.order, o.of_kinds, encode, filler, random);
    };
    groups.push_back(std::move(group));
  }
  return groups;
}

/// Each record goes to the shortest length that holds it.
std::vector<SampleGroup> groups_of_records(const MakeArguments& o, const PieceEncoder& encode) {
  const std::vector<std::int64_t> lengths = checked_lengths(o);
  const auto records = o.from == "ruler" ? read_ruler(o.inputs) : read_infinitebench(o.inputs);
  std::map<std::int64_t, std::pair<SampleGroup, std::vector<Sample>>> by_length;
  std::int64_t longer = 0, longest = 0;
  for (const BenchmarkRecord& record : records) {
    const Ids prompt = encode.whole(record.prompt), answer = encode(record.answer);
    const std::int64_t tokens = std::ssize(prompt) + std::ssize(answer) + 1;
    longest = std::max(longest, tokens);
    const auto length = std::ranges::lower_bound(lengths, tokens);
    if (length == lengths.end()) {
      ++longer;
      continue;
    }
    auto& [group, samples] = by_length[*length];
    group.samples.push_back({.kind = record.task, .depth = std::nullopt});
    samples.push_back(compose(prompt, answer, *length, encode.end_of_document()));
    samples.back().answer = record.answer;
  }
  require(!by_length.empty(), "all {} records are longer than --lengths: the longest has {} tokens",
          records.size(), longest);
  if (longer > 0)
    logging::warn("{} of {} records are longer than --lengths and were left out: the longest has {} tokens",
                  longer, records.size(), longest);
  std::vector<SampleGroup> groups;
  for (auto& [tokens, of] : by_length) {
    of.first.tokens = tokens;
    of.first.compose = [samples = std::move(of.second)](std::int64_t index) {
      return samples[static_cast<std::size_t>(index)];
    };
    groups.push_back(std::move(of.first));
  }
  return groups;
}

void pack_books(const MakeArguments& o) {
  data::PackOptions options;
  options.inputs = find_pg19(o.inputs);
  options.output = o.out;
  options.tokenizer = chosen_tokenizer(o);
  const data::PackSummary summary = data::pack(options);
  fmt::print("{} books, {} tokens, for annulus-eval perplexity\n", summary.documents, summary.tokens);
}

nlohmann::json made_by(const MakeArguments& o) {
  if (!o.from.empty()) return {{"from", o.from}};
  return {{"seed", o.seed},
          {"text", o.text.empty() ? "generated" : o.text.string()},
          {"keys", o.of_kinds.keys},
          {"values", o.of_kinds.values},
          {"queries", o.of_kinds.queries},
          {"hops", o.of_kinds.hops},
          {"words", o.of_kinds.words},
          {"digits", o.of_kinds.digits},
          {"terse", o.of_kinds.terse}};
}

int run_make(MakeArguments& o, const comm::MpiEnvironment& mpi) {
  require(mpi.size() == 1, "make works on one rank, but there are {}: start it without mpirun", mpi.size());
  require(o.from.empty() == o.inputs.empty(), "{}",
          o.from.empty() ? "files were given, but not of what: --from ruler, infinitebench or pg19"
                         : "--from " + o.from + " needs its files, or the folder that has them");
  if (o.from == "pg19") {
    pack_books(o);
    return 0;
  }
  const auto tokenizer = chosen_tokenizer(o);
  const PieceEncoder encode(*tokenizer);
  Filler filler = o.text.empty() ? Filler::generated(encode) : Filler::of_text(encode, o.text);
  const auto groups = o.from.empty() ? groups_of_kinds(o, encode, filler) : groups_of_records(o, encode);
  write_samples(o.out, *tokenizer, groups, made_by(o), !o.all_tokens_count);
  for (const SampleGroup& group : groups)
    fmt::print("{:>10} tokens  {:>8} samples\n", group.tokens, group.samples.size());
  return 0;
}

}  // namespace

void add_make(CLI::App& app, Command& chosen) {
  auto [command, o] = add_command(app, chosen, "make",
                                  "Make samples for retrieval, as token shards with the spans of answers, or "
                                  "take them from files of a benchmark",
                                  run_make);
  command.option_defaults()->always_capture_default();
  command.add_option("inputs", o.inputs, "With --from: files, or folders of them")->default_str("");
  command.add_option("--out", o.out, "Folder to make")->required();
  command.add_option("--kinds", o.kinds, fmt::format("What is asked: {}", fmt::join(kind_names, ", ")))
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      .add_option("--lengths", o.lengths,
                  "Tokens of samples, like 4k,16k; with --from those of the shortest that holds it")
      ->transform(options::in_units())
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str("");
  command
      .add_option("--depths", o.depths,
                  "Where in the text stands what is asked for, from 0 to 1; of kinds needle and keys")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option("--samples", o.samples, "Samples of each kind, length and depth");
  command.add_option("--seed", o.seed, "Of everything that is drawn")->check(options::without_sign);
  command.add_option("--text", o.text,
                     "File of the text around what is hidden; without it sentences are made");
  command.add_option("--keys", o.of_kinds.keys, "Keys of a sample of kind keys");
  command.add_option("--values", o.of_kinds.values, "Numbers of a sample of kind values");
  command.add_option("--queries", o.of_kinds.queries, "Keys of a sample of kind queries");
  command.add_option("--hops", o.of_kinds.hops, "Assignments from variable to variable, of kind variables");
  command.add_option("--words", o.of_kinds.words, "Words to be told, of kind common-words");
  command.add_option("--digits", o.of_kinds.digits, "Digits of a number");
  command.add_flag("--terse", o.of_kinds.terse,
                   "Kinds needle and keys hide 'QX 46.' in place of sentences, for very small models");
  command.add_option("--from", o.from, "Benchmark whose files are given: ruler, infinitebench or pg19")
      ->check(CLI::IsMember({"ruler", "infinitebench", "pg19"}));
  command.add_flag("--all-tokens-count", o.all_tokens_count,
                   "Without loss_mask: to train on the whole text of samples, not to score them");
  tokens::add_tokenizer(command, o.tokenizer);
  command.add_option("--shards", o.shards, "Token shards that carry the tokenizer, in place of --tokenizer");
  command.footer(
      "Example:\n"
      "  annulus-eval make --out samples --kinds needle,keys --lengths 4k,16k --shards shards/books");
}

}  // namespace annulus::eval
