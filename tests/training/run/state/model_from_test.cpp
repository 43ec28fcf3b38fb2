// Runs that start from weights (model.from).

#include "training/data/shard.hpp"

#include "training/checkpoint/kept_files.hpp"
#include "training/io/crc32.hpp"
#include "training/model/variant.hpp"
#include "training/run/state/initial_weights/convert_weights.hpp"
#include "training/run/tiny_run.hpp"
#include "training/weights/hf_folder.hpp"

namespace annulus::training::test {
namespace {

class ModelFrom : public TinyTest {
 protected:
  ModelFrom() {
    hf_.shape.vocabulary = 259;  // more than the data have
    hf_.shape.rope_theta = 500000.0f;
    hf_.shape.rope = {.name = "llama3", .factor = 8, .original_length = 32};
    hf_.sliding_window = 40;
    weights::test::write_small_model(path("model"), hf_, DType::bf16, 5000);
    weights::HfConfig plain = hf_;
    plain.shape.rope = {};
    weights::test::write_small_model(path("plain"), plain, DType::bf16);
  }

  std::string path(const std::string& name) const { return tiny_.file(name).string(); }

  /// A run in the folder `run` with what is given, beside what a tiny run has.
  Config config(const std::string& run, const std::vector<std::string>& given,
                const std::string& from = "model") const {
    const Config tiny = tiny_.config(run);
    std::vector<std::string> all = given;
    all.insert(all.begin(), {"run.folder=" + tiny.run.folder, "run.device=" + tiny.run.device,
                             "data.shards=" + tiny.data.shards.front(), "data.sequence_length=50",
                             "train.steps=4", "train.warmup_steps=1", "checkpoint.every=4",
                             "checkpoint.keep=10", "model.from=" + path(from)});
    return Config::parse("", "run.toml", all);
  }
  /// A learning rate of 0 leaves the weights what they are.
  Config still(const std::string& run, std::vector<std::string> given,
               const std::string& from = "model") const {
    given.insert(given.end(), {"train.lr=0.0", "train.min_lr=0.0"});
    return config(run, given, from);
  }
  std::string refused(const std::vector<std::string>& given, const std::string& from = "model") const {
    return error_text([&] { config("refused", given, from); });
  }
  /// The weights of small models.
  std::vector<float> expected() const {
    std::vector<float> all(static_cast<std::size_t>(model::ParameterMap(hf_.shape).size()));
    weights::test::read_small_weights(0, all);
    return all;
  }
  /// EXPECTs that all of `ranks` end with these texts.
  static void expect_refused(int ranks, const Config& run, const std::vector<std::string>& texts) {
    for (const std::string& said : messages(ranks, [&](int) { return std::pair(run, Hooks()); }))
      for (const std::string& text : texts) EXPECT_THAT(said, HasSubstr(text));
  }

  weights::HfConfig hf_ = weights::test::small_hf_config();
};

TEST_F(ModelFrom, EveryWayOfHoldingWeightsStartsFromTheSameBits) {
  for (const int zero : {0, 1, 3}) {
    const Config run = still(fmt::format("zero {}", zero), {fmt::format("parallel.zero={}", zero)});
    test::run(zero == 0 ? 3 : 2, run);
    const State state = state_of(run, checkpoint_of(run, 4));
    EXPECT_EQ(state.parameters, expected()) << zero;
    EXPECT_EQ(state.progress.step, 4);
    EXPECT_THAT(log_of(run), mentions("model.from = '" + path("model"), "attention.mask = 'window:39,0'"));
  }
}

/// Bytes that this thread has read so far; nothing where the system does not count them.
std::optional<std::int64_t> bytes_read() {
  std::ifstream file("/proc/thread-self/io");
  std::string key;
  std::int64_t bytes = 0;
  if (file >> key >> bytes && key == "rchar:") return bytes;
  return std::nullopt;
}

TEST_F(ModelFrom, RanksReadTheirSharesAlone) {
  if (!bytes_read()) GTEST_SKIP() << "the system does not count what threads read";
  hf_.shape.hidden = 256;
  hf_.shape.ffn = 768;
  weights::test::write_small_model(path("large"), hf_, DType::bf16);
  const auto size = static_cast<std::int64_t>(fs::file_size(path("large/model.safetensors")));
  constexpr int ranks = 3;
  // Configurations, headers, data, the ends of tensors; /proc/cpuinfo, of 1.5 kB a core.
  constexpr std::int64_t rest = 400'000;
  for (const int zero : {0, 3}) {
    const Config run = config("read" + std::to_string(zero),
                              {"train.steps=1", "parallel.zero=" + std::to_string(zero)}, "large");
    std::array<std::int64_t, ranks> read{};
    comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& world) {
      const std::int64_t before = *bytes_read();
      train(world, run, {}, {}, Hooks());
      read[std::size_t(world.rank())] = *bytes_read() - before;
    });
    // Shards are made of whole blocks of elements and differ in size; together they are the model once.
    for (const std::int64_t bytes : read) EXPECT_LT(bytes, size / 2) << zero;
    const std::int64_t all = std::accumulate(read.begin(), read.end(), std::int64_t{0});
    EXPECT_GT(all, size) << zero;
    EXPECT_LT(all, size + ranks * rest) << zero;
  }
}

TEST_F(ModelFrom, BiasesAndNormsComeFromTheModel) {
  for (const bool qwen3 : {false, true}) {
    const std::string name = qwen3 ? "qwen3" : "qwen2";
    hf_.shape.block = {.qk_norm = qwen3 ? model::QkNorm::head : model::QkNorm::none, .qkv_bias = !qwen3};
    weights::test::write_small_model(path(name), hf_, DType::bf16);
    const Config run = still(name + "-run", {"parallel.zero=3"}, name);
    EXPECT_EQ(run.model.block, hf_.shape.block);
    test::run(2, run);
    EXPECT_EQ(state_of(run, checkpoint_of(run, 4)).parameters, expected());
    EXPECT_THAT(refused({qwen3 ? "model.qk_norm=false" : "model.qkv_bias=false"}, name),
                HasSubstr(qwen3 ? "whose model has 'head'" : "whose model has true"));
  }
}

TEST_F(ModelFrom, KindsOfLayersComeFromTheModelAndGoOut) {
  using Pattern = std::vector<std::string>;
  hf_.sliding_window = 0;
  hf_.shape.pattern = {"causal, window:39,0"};
  weights::test::write_small_model(path("ministral"), hf_, DType::f32);
  EXPECT_EQ(weights::read_hf_config(path("ministral")).family, "ministral");
  const Config run = still("mixed", {}, "ministral");
  EXPECT_EQ(run.model.pattern, Pattern{"causal, window:39,0"});
  EXPECT_EQ(run.attention.mask, "causal");
  test::run(2, run);
  EXPECT_EQ(state_of(run, checkpoint_of(run, 4)).parameters, expected());
  write_as_hf(WeightSource(checkpoint_of(run, 4)), {}, path("exported"));
  const weights::HfConfig out = weights::read_hf_config(path("exported"));
  EXPECT_EQ(out.family, "ministral");
  EXPECT_EQ(out.shape.pattern, run.model.pattern);
  EXPECT_THAT(refused({"model.pattern=causal"}, "ministral"),
              mentions("model.pattern", "causal, window:39,0", "contradicts"));
  EXPECT_THAT(refused({"attention.mask=window:10,0"}, "ministral"),
              mentions("attention.mask", "model.pattern"));
  const Config bare = config("bare", {"model.pattern=causal, causal theta=100", "model.layers=2",
                                      "model.from=", "model.vocabulary=259"});
  test::run(1, bare);
  EXPECT_THAT(error_text([&] { write_as_hf(WeightSource(checkpoint_of(bare, 4)), {}, path("none")); }),
              mentions("model.pattern", "theta=100"));
}

// Of the type that it came from, and of its layers: nobody has to say it again.
TEST_F(ModelFrom, AnExportOfATrainedModelHasItsTypeAndItsBits) {
  hf_.sliding_window = 0;
  hf_.shape.rope = {};
  for (const auto& [family, block, pattern, tied] :
       {std::tuple{"gemma3_text", annulus::test::on_both_sides.block,
                   "window:9,0 theta=10000 scaling=none, causal", true},
        {"olmo3", annulus::test::behind.block, "window:9,0 scaling=none, causal", false},
        {"phi3", model::Block(), "", false}}) {  // which could be a LLaMA as well
    SCOPED_TRACE(family);
    hf_.family = family;
    hf_.shape.block = block;
    hf_.shape.tied = tied;
    hf_.shape.pattern.clear();
    if (*pattern != 0) hf_.shape.pattern = {pattern};
    weights::test::write_small_model(path(family), hf_, DType::bf16);
    const Config run = still(std::string(family) + "-run", {"parallel.zero=3", "train.dtype=bf16"}, family);
    test::run(2, run);
    const std::string out = path(std::string(family) + "-exported");
    write_as_hf(WeightSource(checkpoint_of(run, 4)), {}, out);
    EXPECT_EQ(weights::read_hf_config(out).family, family);
    EXPECT_EQ(weights::read_hf_config(out).shape.kinds(), hf_.shape.kinds());
    EXPECT_EQ(io::read_text(out + "/model.safetensors"), io::read_text(path(family) + "/model.safetensors"));
  }
}

TEST_F(ModelFrom, ItsCheckpointIsTheSameStart) {
  write_as_checkpoint(WeightSource(path("model")), path("imported"));
  const Config a = config("a", {}), b = config("b", {}, "imported");
  EXPECT_EQ(a.model.rope, hf_.shape.rope);
  EXPECT_EQ(b.model.rope, hf_.shape.rope);
  EXPECT_EQ(b.attention.mask, "window:39,0");
  test::run(2, a);
  test::run(2, b);
  expect_same_bits(a, b);
  EXPECT_THAT(log_of(b), HasSubstr("(a checkpoint after 0 optimizer steps)"));
  // On from what a run has learned, with sequences and rotary positions of another length.
  const Config longer = still("longer",
                              {"data.sequence_length=70", "model.rope_scaling=yarn", "model.rope_factor=2.0",
                               "model.rope_original_length=50", "attention.mask=causal"},
                              "b/checkpoints/step-00000004");
  test::run(2, longer);
  const State start = state_of(b, checkpoint_of(b, 4)), end = state_of(longer, checkpoint_of(longer, 4));
  EXPECT_EQ(end.parameters, start.parameters);
  EXPECT_NE(end.second_moment, start.second_moment);
  EXPECT_EQ(metric(longer, "step").front(), 1);
  EXPECT_THAT(log_of(longer),
              mentions("(a checkpoint after 4 optimizer steps)",
                       "model.rope_scaling = 'yarn' (the model has 'llama3')",
                       "attention.mask = 'causal' was set; the model's own mask is 'window:39,0'"));
}

TEST_F(ModelFrom, TheSameCommandResumesAndReadsTheWeightsNoMore) {
  const Config whole = config("whole", {"train.schedule_steps=8", "train.steps=8"}),
               start = config("run", {"train.schedule_steps=8"}),
               again = config("run", {"train.schedule_steps=8", "train.steps=8"});
  test::run(2, whole);
  test::run(2, start);
  for (const auto& entry : fs::directory_iterator(path("model")))
    if (entry.path().extension() == ".safetensors") fs::resize_file(entry.path(), 10);
  test::run(2, again);
  expect_same_bits(whole, again);
  EXPECT_THAT(log_of(again), mentions("resumed after optimizer step 4", "were read when the run began"));
  // Damaged as they are, they start no other run: one error, on all ranks.
  expect_refused(2, config("other", {}), {"model.from: ", path("model")});
}

TEST_F(ModelFrom, RanksWithOtherWeightsAreTold) {
  const auto other = [](std::int64_t begin, std::span<float> values) {
    weights::test::read_small_weights(begin, values);
    for (float& value : values) value += begin == 0 ? 0.5f : 0.0f;
  };
  weights::write_hf_folder(path("model2"), {.config = hf_, .type = DType::f32, .read = other});
  const Config a = config("run", {}), b = config("run", {}, "model2");
  EXPECT_THAT(messages(3, [&](int rank) { return std::pair(rank == 1 ? b : a, Hooks()); }),
              Each(mentions("the contents of model.from", "rank 1")));
}

TEST_F(ModelFrom, KeysComeFromTheModelUnlessTheySayTheSame) {
  const Config taken = config("run", {"model.layers=2", "model.vocabulary=0", "model.rope_factor=16.0"});
  EXPECT_EQ(taken.model.vocabulary, 259);
  EXPECT_EQ(taken.model.hidden, 32);
  EXPECT_EQ(taken.model.ffn, 24);
  EXPECT_EQ(taken.model.rope_theta, 500000.0f);
  EXPECT_EQ(taken.model.rope.name, "llama3");
  EXPECT_EQ(taken.model.rope.factor, 16);  // one number anew, the others stay
  EXPECT_EQ(taken.model.rope.original_length, 32);
  // Another scaling has none of the model's numbers.
  const Config linear = config("run", {"model.rope_scaling=linear", "model.rope_factor=2.0"});
  EXPECT_EQ(linear.model.rope, (model::RopeScaling{.name = "linear", .factor = 2}));
  EXPECT_EQ(config("run", {"model.rope_scaling=none"}).model.rope, model::RopeScaling());
  // What a run writes down can be given again, also without the folder.
  const Config again = Config::parse(taken.to_toml(), "config.toml");
  EXPECT_EQ(again.to_toml(), taken.to_toml());
  fs::remove_all(path("model"));
  EXPECT_EQ(
      Config::parse(taken.to_toml(), "config.toml", std::vector<std::string>{"model.from="}).model.layers, 2);
  EXPECT_THAT(error_text([&] { Config::parse(taken.to_toml(), "config.toml"); }),
              mentions("model.from: there is no '", path("model")));
}

TEST_F(ModelFrom, ContradictionsNameBothValues) {
  const struct {
    std::vector<std::string> given;
    const char *said, *value;
  } cases[] = {{{"model.layers=3"}, "--set model.layers=3: model.layers = 3", "has 2"},
               {{"model.tied=true"}, "model.tied = true", "has false"},
               // Settings of rotary positions that make no sense together.
               {{"model.rope_scaling=yarn", "model.rope_factor=4.0"}, "model.rope_original_length", "= 0"},
               {{"model.rope_fraction=0.5"}, "model.rope_fraction = 0.5", "contradicts model.from"},
               {{"model.rope_beta_fast=3.0"}, "model.rope_beta_fast", "= 3"}};
  for (const auto& [given, said, value] : cases) EXPECT_THAT(refused(given), mentions(said, value));
  EXPECT_THAT(error_text([&] {
                Config::parse("[model]\nfrom = '" + path("model") + "'\nhidden = 64\n", "run.toml");
              }),
              mentions("run.toml:3: model.hidden = 64", "has 32"));
}

/// Without it nothing would change but the warning that sequences are longer than the model's.
TEST_F(ModelFrom, AScalingNeedsItsFactor) {
  for (const std::string name : {"linear", "yarn"}) {
    const std::vector<std::string> given = {"model.rope_scaling=" + name};
    EXPECT_THAT(refused(given), mentions("--set model.rope_scaling=" + name, "model.rope_factor"));
    // Also where nothing is started from.
    EXPECT_THAT(error_text([&] { Config::parse("[model]\nrope_scaling = '" + name + "'\n", "run.toml"); }),
                mentions("run.toml:2: ", "model.rope_factor"));
  }
  EXPECT_EQ(config("run", {"model.rope_scaling=llama3"}).model.rope.factor, 8) << "the model's own";
  // A factor of 1 is said, and changes nothing.
  const Config run = still("run",
                           {"data.sequence_length=100", "model.rope_scaling=yarn", "model.rope_factor=1.0",
                            "model.rope_original_length=64"},
                           "plain");
  test::run(1, run);
  EXPECT_THAT(log_of(run), HasSubstr("data.sequence_length = 100 exceeds the 64 tokens"));
}

TEST_F(ModelFrom, ItsPositionsStay) {
  const Config run = config("run", {"data.sequence_length=37"});
  EXPECT_EQ(run.model_positions, 64);
  test::run(1, run);
  const fs::path saved = checkpoint_of(run, 4);
  EXPECT_EQ(describe_model(saved).positions, 64);
  write_as_hf(WeightSource(saved), {}, path("exported"));
  EXPECT_EQ(weights::read_hf_config(path("exported")).positions, 64);
  EXPECT_EQ(config("next", {"data.sequence_length=70"}, "run/checkpoints/step-00000004").model_positions, 64);
  EXPECT_EQ(config("next", {"model.positions=128"}).model_positions, 128);
}

TEST_F(ModelFrom, ALargerVocabularyOfTheDataIsToldWhatWorks) {
  hf_.shape.vocabulary = 61;
  weights::test::write_small_model(path("few"), hf_, DType::bf16);
  expect_refused(2, config("run", {}, "few"), {"257", "61", "set model.vocabulary = 257"});
}

// Old rows as they were, new ones near their mean, whoever holds them; all else is untouched.
TEST_F(ModelFrom, AnotherVocabularyResizesEmbeddingAndHead) {
  for (const bool tied : {false, true}) {
    hf_.shape.tied = tied;
    hf_.shape.vocabulary = 259;
    const std::string name = tied ? "tied" : "untied";
    weights::test::write_small_model(path(name), hf_, DType::bf16);
    const std::vector<float> old = expected();
    const model::ParameterMap before(hf_.shape);
    for (const std::int64_t vocabulary : {300, 257}) {
      hf_.shape.vocabulary = vocabulary;
      const model::ParameterMap map(hf_.shape);
      std::vector<float> first;
      for (const auto& [ranks, zero, seed] : {std::tuple(1, 0, 1), {3, 3, 1}, {2, 0, 2}}) {
        const Config run = still(fmt::format("{} {} {} {}", name, vocabulary, ranks, seed),
                                 {fmt::format("model.vocabulary={}", vocabulary),
                                  fmt::format("parallel.zero={}", zero), fmt::format("run.seed={}", seed)},
                                 name);
        EXPECT_EQ(run.model.vocabulary, vocabulary);
        test::run(ranks, run);
        EXPECT_THAT(log_of(run),
                    mentions(fmt::format("model.vocabulary = {}: ", vocabulary),
                             vocabulary > 259 ? "41 rows more than its 259" : "lose the last 2 of its 259",
                             tied ? "which the LM head shares" : "embedding and LM head",
                             "the tokenizer must follow"));
        const std::vector<float> made = state_of(run, checkpoint_of(run, 4)).parameters;
        ASSERT_EQ(std::ssize(made), map.size());
        for (const model::Parameter& p : map.all()) {
          const model::Parameter& its = before.find(p.name);
          const auto theirs = old.begin() + its.offset, mine = made.begin() + p.offset;
          EXPECT_TRUE(std::equal(mine, mine + std::min(p.size(), its.size()), theirs)) << p.name;
          for (std::int64_t row = its.rows; row < p.rows; ++row)
            for (std::int64_t column = 0; column < p.columns; ++column) {
              double mean = 0, squares = 0;
              for (std::int64_t r = 0; r < its.rows; ++r) {
                const double value = theirs[r * p.columns + column];
                mean += value / double(its.rows);
                squares += value * value / double(its.rows);
              }
              const double deviation = std::sqrt(squares - mean * mean),
                           apart = mine[row * p.columns + column] - mean;
              EXPECT_LT(std::abs(apart), 0.06 * deviation) << p.name;
              EXPECT_NE(mine[row * p.columns + column],
                        mine[(row == its.rows ? row + 1 : its.rows) * p.columns + column]);
            }
        }
        if (first.empty()) first = made;
        EXPECT_EQ(first == made, seed == 1 || vocabulary < 259) << ranks;
        // It goes on, with model.from still there.
        Config longer = run;
        longer.train.steps = 5;
        EXPECT_EQ(test::run(ranks, longer).first_step, 4);
      }
    }
  }
}

/// A tokenizer.json of bytes, as pack_tokenizer_json.py names it in shards.
class Words : public data::Tokenizer {
 public:
  explicit Words(const std::string& model)
      : model_(model.begin(), model.end()),
        identity_{"tokenizer.json", 257, 256, fmt::format("crc32:{:08x}", io::crc32_of(std::span(model)))} {}
  const data::TokenizerIdentity& identity() const override { return identity_; }
  std::span<const std::uint8_t> model() const override { return model_; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    ids.insert(ids.end(), text.begin(), text.end());
  }
  std::string decode(std::span<const std::int32_t>) const override { return {}; }

 private:
  std::vector<std::uint8_t> model_;
  data::TokenizerIdentity identity_;
};

/// Files of the model beside its weights.
class ModelFiles : public ModelFrom {
 protected:
  ModelFiles() {
    hf_.token_ids = {{"eos_token_id", "[4,5]"}};
    weights::test::write_small_model(path("words"), hf_, DType::bf16);
    for (const auto& [name, contents] : files_)
      io::write_text_atomically(path("words") + "/" + name, contents);
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < 50 * 8 + 1; ++i) tokens.push_back('a' + i % 20);
    const std::int64_t documents[] = {0};
    data::write_shard(path("words.h5"), Words(files_.at("tokenizer.json")), tokens, documents);
  }

  /// A run on data that were packed with the model's tokenizer.
  Config run_of(const std::string& name, const std::string& from = "words") const {
    const Config run = config(name, {"data.shards=" + path("words.h5")}, from);
    test::run(2, run);
    return run;
  }
  /// Names and contents of an export, but config.json and weights.
  std::map<std::string, std::string> exported(const Config& run) const {
    fs::remove_all(path("exported"));
    write_as_hf(WeightSource(checkpoint_of(run, 4)), {}, path("exported"));
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::directory_iterator(path("exported")))
      if (entry.path().filename() != "config.json" && entry.path().extension() != ".safetensors")
        all[entry.path().filename().string()] = io::read_text(entry.path());
    return all;
  }
  std::string end_of_export() const {
    return weights::read_hf_config(path("exported")).token_ids.at("eos_token_id");
  }

  const std::map<std::string, std::string> files_ = {
      {"generation_config.json", R"({"eos_token_id": [4, 5]})"},
      {"tokenizer.json", R"({"version": "1.0"})"},
      {"tokenizer_config.json", R"({"eos_token": "</s>"})"},
      {"chat_template.jinja", "{{ messages }}"}};
};

TEST_F(ModelFiles, TravelThroughARunAndFromRunToRun) {
  const Config run = run_of("run");
  EXPECT_EQ(exported(run), files_);
  EXPECT_EQ(end_of_export(), "[4,5]");
  // Stored once, and resumed without the model.
  fs::remove_all(path("words"));
  const Config second = run_of("second", "run/checkpoints/step-00000004");
  EXPECT_EQ(exported(second), files_);
  Config branch = second;
  branch.run.folder = path("branch");
  branch.model_from.clear();
  branch.train.steps = 5;
  test::run(1, branch, {ResumePolicy::Kind::file, checkpoint_of(second, 4)});
  fs::rename(checkpoint_of(branch, 5), checkpoint_of(branch, 4));
  EXPECT_EQ(exported(branch), files_);
  // Nothing of another model is kept, also where a start came to nothing.
  fs::remove_all(path("branch/checkpoints"));
  branch.train.steps = 4;
  test::run(1, branch);
  EXPECT_FALSE(fs::exists(path("branch/model_files")));
  EXPECT_TRUE(exported(branch).empty());
  EXPECT_EQ(end_of_export(), "null");
}

TEST_F(ModelFiles, DoNotTravelWhereTheDataAreOfAnotherTokenizer) {
  const Config bytes = config("bytes", {}, "words");
  test::run(2, bytes);
  EXPECT_THAT(log_of(bytes), HasSubstr("data.shards were packed with another tokenizer (byte, 257 entries)"));
  EXPECT_TRUE(exported(bytes).empty());
  EXPECT_EQ(end_of_export(), "null");
}

// With rows that the tokenizer has no ids for, it is the model's as before.
TEST_F(ModelFiles, TravelWithMoreRowsThanTheyHaveIds) {
  const Config run = config("rows", {"data.shards=" + path("words.h5"), "model.vocabulary=320"}, "words");
  test::run(2, run);
  EXPECT_EQ(exported(run), files_);
  EXPECT_EQ(weights::read_hf_config(path("exported")).shape.vocabulary, 320);
}

TEST_F(ModelFiles, OfAnotherVocabularyDoNotGoOut) {
  const Config run = run_of("run");
  checkpoint::KeptFiles kept = checkpoint::read_kept_files(path("run/model_files"));
  kept.vocabulary += 1;
  checkpoint::write_kept_files(path("run"), kept);
  EXPECT_TRUE(exported(run).empty());
}

TEST_F(ModelFiles, ThatCannotBeReadEndTheStartOnAllRanks) {
  io::write_text_atomically(path("words/tokenizer_config.json"), "{");
  expect_refused(2, config("run", {"data.shards=" + path("words.h5")}, "words"),
                 {"model.from: ", "tokenizer_config.json"});
}

TEST_F(ModelFrom, FoldersOfOtherKindsAreRefused) {
  EXPECT_THAT(refused({}, "nowhere"), mentions("model.from: there is no '", "nowhere"));
  EXPECT_THAT(refused({}, "shards"), HasSubstr("holds neither config.json"));
  EXPECT_THAT(refused({}, "model/config.json"), HasSubstr("is a file: give the folder"));
  const Config run = config("run", {});
  test::run(1, run);
  EXPECT_THAT(refused({}, "run"), mentions("is the folder of a run", "step-00000004'"));
  EXPECT_THAT(refused({}, "run/checkpoints"), HasSubstr("step-00000004'"));
  fs::copy(path("model") + "/config.json", checkpoint_of(run, 4) / "config.json");
  EXPECT_THAT(refused({}, "run/checkpoints/step-00000004"),
              HasSubstr("holds config.json of a model in Hugging Face's format and manifest.json"));
  weights::test::edit(path("model") + "/config.json", "\"MistralForCausalLM\"", "\"FalconForCausalLM\"");
  EXPECT_THAT(refused({}), mentions("model.from: ", "architectures"));
}

TEST_F(ModelFrom, LongerSequencesThanTheModelKnowsAreNoted) {
  const Config longer = still("longer", {"data.sequence_length=100"}), fits = still("fits", {});
  test::run(1, longer);  // the model has 64 positions
  EXPECT_THAT(log_of(longer), HasSubstr("data.sequence_length = 100 exceeds the 64 tokens"));
  test::run(1, fits);
  EXPECT_THAT(log_of(fits), Not(HasSubstr("exceeds the")));
}

}  // namespace
}  // namespace annulus::training::test
