#include "training/run/tiny_run.hpp"

#include <nlohmann/json.hpp>

#include <annulus/training/data/packer.hpp>

#include "training/checkpoint/writer.hpp"
#include "training/data/shard.hpp"
#include "training/io/atomic.hpp"
#include "training/io/json_lines.hpp"
#include "training/run/planner/memory_planner.hpp"
#include "training/run/saving/checkpoint_parts.hpp"

namespace annulus::training::test {

TinyRun::TinyRun() {
  data::PackOptions options;
  options.inputs = {ANNULUS_FIXTURE_TEXT};
  options.output = file("shards");
  options.tokenizer = data::make_byte_tokenizer();
  options.shard_tokens = 6000;
  data::pack(options);
}

Config TinyRun::config(const std::string& name, const std::vector<std::string>& sets) const {
  std::vector<std::string> all = {"run.folder=" + folder_.file(name),
                                  on_host ? "run.device=cpu" : "run.device=gpu",
                                  "data.shards=" + folder_.file("shards")};
  all.insert(all.end(), sets.begin(), sets.end());
  return Config::parse(R"([model]
vocabulary = 257
layers = 1
hidden = 32
heads = 2
kv_heads = 1
head_dim = 16
ffn = 40
[data]
sequence_length = 50
[train]
steps = 6
warmup_steps = 2
lr = 1e-2
min_lr = 1e-3
epsilon = 1e-3
[checkpoint]
every = 3
keep = 10
)",
                       "a tiny run", all);
}

Config TinyRun::wide(const std::string& name, int zero, const std::vector<std::string>& sets) const {
  return with(config(fmt::format("{} {}", name, zero), {"model.layers=2", "model.hidden=96", "model.ffn=256",
                                                        fmt::format("parallel.zero={}", zero)}),
              sets);
}

Config with(const Config& config, const std::vector<std::string>& sets) {
  return Config::parse(config.to_toml(), "a run", sets);
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

std::string TinyRun::shard(const std::string& name, const std::vector<std::int64_t>& documents) const {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> starts;
  for (const std::int64_t length : documents) {
    starts.push_back(std::ssize(tokens));
    for (std::int64_t i = 0; i < length; ++i)
      tokens.push_back(static_cast<std::int32_t>('a' + (i * i + 7 * std::ssize(starts)) % 23));
  }
  data::write_shard(file(name), *data::make_byte_tokenizer(), tokens, starts);
  return file(name).string();
}

Hooks offloading() {
  Hooks hooks;
  hooks.offload_on_cpu = true;
  return hooks;
}

Outcome run(int ranks, const Config& config, const ResumePolicy& resume, const Hooks& hooks,
            const DumpRequest& dump) {
  Outcome outcome;
  const int ranks_per_node = config.parallel.ranks_per_node > 0 ? config.parallel.ranks_per_node : ranks;
  comm::run_loopback(Topology::uniform(ranks, ranks_per_node), [&](comm::Communicator& world) {
    Outcome mine = train(world, config, resume, dump, hooks);
    if (world.rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

std::vector<std::string> messages(int ranks, const std::function<std::pair<Config, Hooks>(int rank)>& of_rank,
                                  int ranks_per_node) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  comm::run_loopback(
      Topology::uniform(ranks, ranks_per_node > 0 ? ranks_per_node : ranks), [&](comm::Communicator& world) {
        const auto [config, hooks] = of_rank(world.rank());
        texts[static_cast<std::size_t>(world.rank())] =
            error_text([&, &config = config, &hooks = hooks] { train(world, config, {}, {}, hooks); });
      });
  return texts;
}

std::vector<std::string> messages_when_changed(int ranks, const Config& config, const std::set<int>& bad,
                                               std::int64_t step,
                                               const std::function<void(const Buffers&)>& change,
                                               const Hooks& hooks) {
  return messages(ranks, [&](int rank) {
    Hooks mine = hooks;
    if (bad.contains(rank))
      mine.updated = [&](std::int64_t made, const Buffers& held) {
        if (made == step) change(held);
      };
    return std::pair(config, mine);
  });
}

std::string run_error(int ranks, const Config& config, const ResumePolicy& resume, const Hooks& hooks) {
  return error_text([&] { run(ranks, config, resume, hooks); });
}

std::int64_t predicted_peak(int ranks, const Config& config) {
  const Topology topology = Topology::uniform(ranks, ranks);
  MemoryPlanner planner(config, topology, resolve_attention(config, topology, read_attention_inputs(config)),
                        !on_host);
  std::int64_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const prediction::UpdateMemory memory = planner.memory(config.memory, rank);
    most = std::max(most, on_host ? memory.host.total : memory.device.total);
  }
  return most;
}

std::vector<nlohmann::json> records(const Config& config, const char* file) {
  std::vector<nlohmann::json> all;
  io::read_json_lines(fs::path(config.run.folder) / file,
                      [&](const nlohmann::json& record, std::int64_t) { all.push_back(record); });
  return all;
}

std::vector<double> metric(const Config& config, const std::string& key) {
  std::vector<double> values;
  for (const nlohmann::json& record : records(config)) {
    const nlohmann::json& value = record.at(key);
    values.push_back(value.is_null() ? INFINITY : value.get<double>());
  }
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

checkpoint::Progress load(const fs::path& path, const model::ParameterMap& map, const Buffers& buffers) {
  const checkpoint::Checkpoint saved(path);
  saved.require_tensors(tensors_of(map));
  const checkpoint::Slice everything{0, map.size(), 0};
  load_slices(saved, map, {&everything, 1}, buffers);
  return saved.progress();
}

}  // namespace

State state_of(const Config& config, const fs::path& checkpoint) {
  const model::ParameterMap map(config.model);
  const Arrays arrays(map);
  const Buffers buffers = arrays.buffers();
  const auto values = [](const FlatBuffer& buffer) {
    std::vector<float> values(static_cast<std::size_t>(buffer.size()));
    buffer.read(0, values);
    return values;
  };
  checkpoint::Progress progress = load(checkpoint, map, buffers);
  return {std::move(progress), values(buffers.parameters), values(buffers.first_moment),
          values(buffers.second_moment)};
}

State last_state(const Config& config) {
  return state_of(config, checkpoint_of(config, config.train.steps));
}

fs::path checkpoint_of(const Config& config, std::int64_t step) {
  return fs::path(config.run.folder) / "checkpoints" / fmt::format("step-{:08}", step);
}

std::string contents(const fs::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(checkpoint))
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
  const Buffers buffers = arrays.buffers();
  const fs::path path = checkpoint_of(config, step);
  checkpoint::Progress progress = load(path, map, buffers);
  change(map, buffers, progress);
  fs::remove_all(path);
  fs::create_directories(path);
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

std::string log_of(const Config& config) {
  return io::read_text(fs::path(config.run.folder) / "train.log");
}

Config copy(const Config& config, const std::string& name, const std::vector<std::string>& sets) {
  Config changed = sets.empty() ? config : with(config, sets);
  changed.run.folder += " " + name;
  return changed;
}

void interrupt(const Config& whole, std::int64_t step, const Config& resumed) {
  fs::create_directories(fs::path(resumed.run.folder) / "checkpoints");
  fs::copy(checkpoint_of(whole, step), checkpoint_of(resumed, step), fs::copy_options::recursive);
  fs::copy(fs::path(whole.run.folder) / "metrics.jsonl", fs::path(resumed.run.folder) / "metrics.jsonl");
}

void expect_same_state(const State& a, const State& b) {
  EXPECT_TRUE(a.parameters == b.parameters);  // not EXPECT_EQ, which would print them
  EXPECT_TRUE(a.first_moment == b.first_moment);
  EXPECT_TRUE(a.second_moment == b.second_moment);
}

void expect_same_bits(const Config& a, const Config& b) {
  EXPECT_EQ(losses(a), losses(b));
  EXPECT_EQ(metric(a, "grad_norm"), metric(b, "grad_norm"));
  const State x = last_state(a), y = last_state(b);
  expect_same_state(x, y);
  EXPECT_EQ(x.progress.epoch, y.progress.epoch);
  EXPECT_EQ(x.progress.sequences_read, y.progress.sequences_read);
}

void expect_same_run(const Config& whole, int ranks, const Config& other, const Hooks& hooks) {
  SCOPED_TRACE(other.run.folder);
  run(ranks, other, {}, hooks);
  expect_same_bits(whole, other);
}

void expect_same_when_resumed(const Config& whole, int ranks, const Config& resumed, const Hooks& hooks) {
  SCOPED_TRACE(resumed.run.folder);
  interrupt(whole, 3, resumed);
  EXPECT_EQ(run(ranks, resumed, {}, hooks).first_step, 3);
  expect_same_bits(whole, resumed);
}

double difference(const Config& a, const Config& b) {
  const State x = last_state(a), y = last_state(b);
  if (x.parameters.size() != y.parameters.size()) return INFINITY;
  double squares = 0, differences = 0;
  for (std::size_t i = 0; i < x.parameters.size(); ++i) {
    squares += std::pow(double(x.parameters[i]), 2);
    differences += std::pow(double(x.parameters[i]) - y.parameters[i], 2);
  }
  return std::sqrt(differences / squares);
}

}  // namespace annulus::training::test
