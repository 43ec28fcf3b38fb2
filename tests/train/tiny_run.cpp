#include "train/tiny_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include <annulus/checkpoint/writer.hpp>
#include <annulus/comm/loopback.hpp>
#include <annulus/data/packer.hpp>
#include <annulus/data/shard.hpp>
#include <annulus/io/atomic.hpp>
#include <annulus/io/json_lines.hpp>

#include "train/arrays.hpp"
#include "train/attention_inputs.hpp"
#include "train/checkpoint_parts.hpp"
#include "train/memory_planner.hpp"

namespace annulus::train::test {

TinyRun::TinyRun() {
  data::PackOptions options;
  options.inputs = {ANNULUS_FIXTURE_TEXT};
  options.output = file("shards");
  options.tokenizer = data::make_byte_tokenizer();
  options.shard_tokens = 6000;
  data::pack(options);
}

Config TinyRun::config(const std::string& name) const {
  Config config;
  config.run.folder = folder_.file(name);
  config.run.device = annulus::test::on_host ? "cpu" : "gpu";
  config.model.vocabulary = 257;
  config.model.layers = 1;
  config.model.hidden = 32;
  config.model.heads = 2;
  config.model.kv_heads = 1;
  config.model.head_dim = 16;
  config.model.ffn = 40;
  config.data.shards = {folder_.file("shards")};
  config.data.sequence_length = 50;
  config.train.steps = 6;
  config.train.warmup_steps = 2;
  config.train.lr = 1e-2;
  config.train.min_lr = 1e-3;
  config.train.epsilon = 1e-3;
  config.checkpoint.every = 3;
  config.checkpoint.keep = 10;
  return config;
}

Config TinyRun::with_a_rare_token(Config config) const {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 50 * 8 + 1; ++i) tokens.push_back('a' + i % 20);
  tokens[50 * 7 + 3] = 7;
  const std::int64_t documents[] = {0};
  data::write_shard(file("shard.h5"), *data::make_byte_tokenizer(), tokens, documents);
  config.data.shards = {file("shard.h5").string()};
  config.data.shuffle = false;
  config.parallel.context = 1;
  return config;
}

Outcome run(int ranks, const Config& config, const ResumePolicy& resume, const Hooks& hooks) {
  Outcome outcome;
  std::mutex mutex;
  const int ranks_per_node = config.parallel.ranks_per_node > 0 ? config.parallel.ranks_per_node : ranks;
  comm::run_loopback(Topology::uniform(ranks, ranks_per_node), [&](comm::Communicator& world) {
    Outcome mine = train(world, config, resume, {}, hooks);
    const std::scoped_lock lock(mutex);
    if (world.rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

std::int64_t predicted_peak(int ranks, const Config& config) {
  const Topology topology = Topology::uniform(ranks, ranks);
  constexpr bool on_host = annulus::test::on_host;
  MemoryPlanner planner(config, topology, SequencePlans(topology, 0, config, read_attention_inputs(config)),
                        !on_host);
  std::int64_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const forecast::UpdateMemory memory = planner.memory(config.memory, rank);
    most = std::max(most, on_host ? memory.host.total : memory.device.total);
  }
  return most;
}

std::vector<double> metric(const Config& config, const std::string& key) {
  std::vector<double> values;
  io::read_json_lines(std::filesystem::path(config.run.folder) / "metrics.jsonl",
                      [&](const nlohmann::json& record, std::int64_t) { values.push_back(record.at(key)); });
  return values;
}

std::vector<double> losses(const Config& config) {
  const std::vector<double> steps = metric(config, "step");
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (steps[i] != static_cast<double>(i + 1))
      throw std::runtime_error(fmt::format("record {} is of step {}", i + 1, steps[i]));
  return metric(config, "loss");
}

namespace {

checkpoint::Progress load(const std::filesystem::path& path, const model::ParameterMap& map,
                          const Buffers& buffers) {
  const checkpoint::Checkpoint saved(path);
  saved.require_tensors(tensors_of(map));
  const checkpoint::Slice everything{0, map.size(), 0};
  load_slices(saved, map, {&everything, 1}, buffers);
  return saved.progress();
}

}  // namespace

State state_of(const Config& config, const std::filesystem::path& checkpoint) {
  const model::ParameterMap map(config.model);
  const Arrays arrays(map);
  const Buffers buffers = arrays;
  State state;
  state.progress = load(checkpoint, map, buffers);
  state.parameters = Arrays::values(buffers.parameters);
  state.first_moment = Arrays::values(buffers.first_moment);
  state.second_moment = Arrays::values(buffers.second_moment);
  return state;
}

std::filesystem::path checkpoint_of(const Config& config, std::int64_t step) {
  return std::filesystem::path(config.run.folder) / "checkpoints" / fmt::format("step-{:08}", step);
}

std::string contents(const std::filesystem::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint))
    files[entry.path().filename().string()] = io::read_text(entry.path());
  std::string all;
  for (const auto& [name, bytes] : files) all += name + "\n" + bytes;
  return all;
}

void edit_checkpoint(
    const Config& config, std::int64_t step,
    const std::function<void(const model::ParameterMap&, const Buffers&, checkpoint::Progress&)>& change) {
  const model::ParameterMap map(config.model);
  const Arrays arrays(map);
  const Buffers buffers = arrays;
  const std::filesystem::path path = checkpoint_of(config, step);
  checkpoint::Progress progress = load(path, map, buffers);
  change(map, buffers, progress);
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  std::vector<float> values;
  checkpoint::write_part({.folder = path, .part = 0, .parts = 1, .slices = {{0, map.size(), 0}}},
                         tensors_of(map),
                         [&](checkpoint::Buffer buffer, std::int64_t offset, std::int64_t count) {
                           values.resize(static_cast<std::size_t>(count));
                           buffer_of(buffers, buffer).read(offset, values);
                           return std::span<const float>(values);
                         });
  checkpoint::write_manifest(path, progress, tensors_of(map), 1);
}

namespace {
template <class T>
double difference(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(double(a[i]) - double(b[i]));
    largest = std::isnan(d) ? INFINITY : std::max(largest, d);
  }
  return largest;
}
}  // namespace

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  return difference(a, b);
}
double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  return difference(a, b);
}

}  // namespace annulus::train::test
