#include "training/run/run_data.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <annulus/attention/sequence/layout.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/watchdog.hpp"
#include "training/data/shard.hpp"
#include "training/run/config/agreement.hpp"
#include "training/run/config/resolve.hpp"

namespace annulus::training {

namespace {

/// Files or folders that a key of the configuration names.
std::vector<data::ShardHeader> headers_of(std::string_view key, const std::vector<std::string>& names) {
  const std::vector<std::filesystem::path> paths(names.begin(), names.end());
  try {
    return data::read_headers(paths);
  } catch (const Error& error) {
    std::error_code none;
    const bool lost = std::ranges::any_of(paths, [&](const std::filesystem::path& path) {
      return path.is_relative() && !std::filesystem::exists(path, none);
    });
    fail("{}: {}{}", key, error.what(),
         lost ? fmt::format(" ({}relative paths are looked for in {})",
                            key.starts_with("data.sets") ? "" : fmt::format("--set {}=PATH; ", key),
                            std::filesystem::current_path(none).string())
              : std::string());
  }
}

/// The bytes that the first rank of each node gives, on all ranks of the node.
std::string from_first_of_node(comm::Communicator& world, std::string bytes) {
  const Queue host{HostExec()};
  const Topology& topology = world.topology();
  const int node = topology.node(world.rank()), first = topology.first_rank(node);
  auto size = static_cast<std::int64_t>(bytes.size());
  if (world.rank() == first) {
    std::vector<comm::Send> sizes, contents;
    for (int rank = first + 1; rank < first + topology.ranks_on(node); ++rank) {
      sizes.push_back({&size, sizeof size, rank});
      contents.push_back({bytes.data(), bytes.size(), rank});
    }
    world.exchange(host, sizes, {}).wait();
    world.exchange(host, contents, {}).wait();
  } else {
    world.exchange(host, {}, std::array{comm::Receive{&size, sizeof size, first}}).wait();
    bytes.resize(static_cast<std::size_t>(size));
    world.exchange(host, {}, std::array{comm::Receive{bytes.data(), bytes.size(), first}}).wait();
  }
  return bytes;
}

/// The key that names what a run learns from.
std::string_view training_key(const Config& config) {
  return config.data.sets.empty() ? "data.shards" : "data.sets";
}

std::vector<std::string> shards_of_rank(const data::Blend& data, int rank, int ranks) {
  std::vector<std::string> paths;
  int next = 0;
  for (const data::Blend::Set& set : data.sets())
    for (const data::ShardHeader& shard : set.dataset->shards())
      if (next++ % ranks == rank) paths.push_back(shard.path);
  return paths;
}

/// Collective: the first rank of each node reads headers for its node.
std::shared_ptr<const data::TokenDataset> open_shards(comm::Communicator& world, const Config& config,
                                                      std::string_view key,
                                                      const std::vector<std::string>& names,
                                                      std::int64_t sequence_tokens,
                                                      data::Filling filling = data::Filling::stream) {
  const comm::Watchdog::ActivityScope activity(
      world.watchdog(), "the start of the run, for which one rank of each node opens the shards",
      config.file_stall_timeout());
  const bool reads = world.topology().local_rank(world.rank()) == 0;
  // Paths and headers; what is behind the last path is for those who have the same paths.
  const std::string paths = fmt::format("{}\n\n", fmt::join(names, "\n"));
  std::vector<data::ShardHeader> headers;
  if (reads) headers = headers_of(key, names);
  const std::string given = from_first_of_node(world, reads ? paths + data::to_bytes(headers) : "");
  if (!reads)
    headers = given.starts_with(paths) ? data::headers_from_bytes(given.substr(paths.size()))
                                       : headers_of(key, names);
  std::shared_ptr<const data::TokenDataset> dataset;
  try {
    dataset = std::make_shared<const data::TokenDataset>(std::move(headers), sequence_tokens, filling);
  } catch (const Error& error) {
    fail("{}: {}", key, error.what());
  }
  comm::require_agreement(world, data_facts(*dataset, key));
  return dataset;
}

void require_shards(const Config& config) {
  require(!config.data.shards.empty(),
          "data.shards is empty: name token shards or a folder of them (annulus-tokens pack makes them), or "
          "sets of them in data.sets");
}

}  // namespace

std::shared_ptr<const data::TokenDataset> open_data(comm::Communicator& world, const Config& config) {
  require_shards(config);
  return open_shards(world, config, "data.shards", config.data.shards, config.data.sequence_length);
}

data::Blend open_training_data(comm::Communicator& world, const Config& config) {
  const auto open = [&](std::string_view key, const std::vector<std::string>& shards) {
    return open_shards(world, config, key, shards, config.data.sequence_length,
                       config.data.packing == "best-fit" ? data::Filling::best_fit : data::Filling::stream);
  };
  if (config.data.sets.empty()) {
    require_shards(config);
    return open("data.shards", config.data.shards);
  }
  std::vector<data::Blend::Set> sets;
  for (const Config::DataSet& set : config.data.sets)
    sets.push_back({set.name, std::llround(set.weight * 1e6),
                    open(fmt::format("data.sets, set '{}'", set.name), set.shards)});
  try {
    return data::Blend(std::move(sets));
  } catch (const Error& error) {
    fail("data.sets: {}", error.what());
  }
}

std::vector<ValidationSet> open_validation(comm::Communicator& world, const Config& config,
                                           const data::TokenizerIdentity& training) {
  constexpr std::string_view key = "data.validation";
  std::vector<std::pair<std::string, std::vector<std::string>>> named;  // in the order of the configuration
  for (const auto& [name, path] : config.validation_shards()) {
    const auto found = std::ranges::find(named, name, [](const auto& set) { return set.first; });
    (found == named.end() ? named.emplace_back(name, std::vector<std::string>()) : *found)
        .second.push_back(path);
  }
  std::vector<ValidationSet> sets;
  for (const auto& [name, paths] : named) {
    sets.push_back({name, open_shards(world, config, key, paths, config.validation_length())});
    const data::TokenizerIdentity& its = sets.back().dataset->tokenizer();
    require(its.fingerprint == training.fingerprint && its.vocabulary == training.vocabulary,
            "{}: set '{}' was packed with tokenizer {} of {} entries, {} with {} of {}: "
            "pack both with one tokenizer",
            key, name, its.name, its.vocabulary, training_key(config), training.name, training.vocabulary);
  }
  return sets;
}

Config complete(Config config, const data::TokenizerIdentity& tokenizer) {
  const std::int64_t vocabulary = tokenizer.vocabulary;
  if (config.model.vocabulary == 0) config.model.vocabulary = vocabulary;
  require(config.model_from.empty() || config.model.vocabulary >= vocabulary,
          "the tokenizer of {} ({}) has {} entries, more than model.vocabulary = {} with model.from = '{}': "
          "set model.vocabulary = {} or more, which gives the model new rows (docs/models.md), or pack the "
          "data with the model's own tokenizer",
          training_key(config), tokenizer.name, vocabulary, config.model.vocabulary, config.model_from,
          vocabulary);
  require(config.model.vocabulary >= vocabulary,
          "model.vocabulary = {} is smaller than the vocabulary of the data ({}): set it to {} or to 0, "
          "which takes the data's",
          config.model.vocabulary, vocabulary, vocabulary);
  return config;
}

std::vector<std::int64_t> typical_documents(const data::Blend& data, const Config& config) {
  if (!takes_documents_from_data(config.attention.mask)) return {0};
  const PositionMap no_rows = Layout().shard(data.sequence_tokens(), 1, 0).slice({0, 0});
  std::vector<std::vector<std::int64_t>> few;
  const std::int64_t count = std::min<std::int64_t>(7, data.sequences());
  for (std::int64_t i = 0; i < count; ++i)
    few.push_back(data.read(i * data.sequences() / count, no_rows).document_starts);
  const auto squares = [&](const std::vector<std::int64_t>& starts) {
    double sum = 0;
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const std::int64_t end = i + 1 < starts.size() ? starts[i + 1] : data.sequence_tokens();
      sum += double(end - starts[i]) * double(end - starts[i]);
    }
    return sum;
  };
  std::ranges::stable_sort(few, {}, squares);
  return few[few.size() / 2];
}

DataVerification::DataVerification(comm::Communicator& world, const data::Blend& data)
    : world_(world), shards_(shards_of_rank(data, world.rank(), world.size())) {}

bool DataVerification::complete(std::int64_t first, std::int64_t last) const {
  enum State : std::int32_t { compared, under_way, damaged };
  const bool done = shards_.done();  // before problem, which is not known earlier
  const std::string problem = shards_.problem();
  const auto worst = world_.all_reduce_value<std::int32_t>(!problem.empty() ? damaged
                                                           : done           ? compared
                                                                            : under_way,
                                                           comm::ReduceOp::max);
  if (worst == damaged)
    comm::throw_together(
        world_,
        problem.empty() || last < first
            ? problem
            : fmt::format(
                  "{}. Optimizer steps {} to {} of this run, and checkpoints of them, may have learned from "
                  "it: with the shard mended, branch off an earlier checkpoint (--resume FILE --set "
                  "run.folder=NEW), or accept that and run the same command again",
                  problem, first, last));
  return worst == compared;
}

}  // namespace annulus::training
