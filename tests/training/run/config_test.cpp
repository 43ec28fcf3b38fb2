#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <annulus/training/run/config.hpp>
#include <chrono>
#include <set>
#include <variant>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/atomic.hpp"
#include "training/run/config/config_table.hpp"

namespace annulus::training {
namespace {

using testing::AllOf, testing::ElementsAre, testing::HasSubstr, testing::Not, testing::StartsWith;

std::string parse_error(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return error_text([&] { Config::parse(text, "run.toml", overrides); });
}

Config with(const std::vector<std::string>& overrides) {
  return Config::parse("", "run.toml", overrides);
}

// A value of every key that is not its default and that the key takes; they need not go together.
Config unusual() {
  Config config;
  for (const Key& key : config_table()) {
    std::visit(
        [&](auto* value) {
          using T = std::remove_pointer_t<decltype(value)>;
          if constexpr (std::is_same_v<T, bool>)
            *value = !*value;
          else if constexpr (std::is_same_v<T, std::string>)
            *value = "\n'" + *value + "'\t\x7f \"quoted\" \\ é";
          else if constexpr (std::is_same_v<T, std::vector<std::string>>)
            *value = {"a folder", "b.h5"};
          else if constexpr (std::is_same_v<T, std::vector<Config::DataSet>>)
            *value = {{"it's one", {"a folder"}, 0.1}};
          else if constexpr (std::is_enum_v<T>)
            *value = *value == T(1) ? T(0) : T(1);
          else if (*value > 0 && key.minimum < double(*value))
            *value = static_cast<T>(std::max(key.minimum, double(*value) / 3));
          else
            *value += static_cast<T>(std::min(8.25, (key.maximum - double(*value)) / 2));
        },
        key.reference(config));
  }
  config.model.layers = 4;
  config.model.pattern = {"causal, window:511,0 theta=5000 fraction=0.25 sinks"};
  return config;
}

TEST(Config, SetsSurvivePrintingAndParsing) {
  const Config config = Config::parse(R"([[data.sets]]
name = "it's one"
shards = "a folder"
[[data.sets]]
name = 'two'
shards = ['b.h5', 'c']
weight = 0.1
)",
                                      "run.toml");
  const std::vector<Config::DataSet> sets = {{"it's one", {"a folder"}, 1}, {"two", {"b.h5", "c"}, 0.1}};
  EXPECT_EQ(config.data.sets, sets);
  EXPECT_EQ(Config::parse(config.to_toml(), "run.toml").data.sets, sets);
  EXPECT_THAT(config.training_shards(), ElementsAre("a folder", "b.h5", "c"));
  const std::string others[] = {"data.sets=[{name='a', shards='b', weight=3}]"};
  EXPECT_EQ(Config::parse(config.to_toml(), "run.toml", others).data.sets,
            (std::vector<Config::DataSet>{{"a", {"b"}, 3}}));
}

TEST(Config, WrongSetsNameTheRemedy) {
  const struct {
    std::string value;
    std::vector<std::string> named;
  } cases[] = {
      {"'a'", {"data.sets must be an array of tables"}},
      {"[{name='a'}]", {"a table of data.sets has no shards"}},
      {"[{name='a', shards='b', wait=1}]", {"data.sets.wait is no key of a set"}},
      {"[{name='a', shards='b', weight='1'}]", {"data.sets must be an array of tables"}},
      {"[{name='', shards='b'}]", {"a set without a name"}},
      {"[{name='a', shards=[]}]", {"set 'a' has no shards"}},
      {"[{name='a', shards='b'}, {name='a', shards='c'}]", {"two sets of the name 'a'"}},
      {"[{name='a', shards='b', weight=0}]", {"weight of set 'a' is 0", "leave sets out"}},
      {"[{name='a', shards='b', weight=0.33333333}]", {"weight of set 'a' is 0.33333333", "six decimals"}},
      {"[{name='a', shards='b', weight=2e6}]", {"weight of set 'a'", "1000000"}},
  };
  for (const auto& [value, named] : cases) {
    const std::string set = "data.sets=" + value;
    const std::string said = error_text([&] { Config::parse("", "run.toml", {&set, 1}); });
    for (const std::string& name : named) EXPECT_THAT(said, HasSubstr(name)) << value;
  }
  EXPECT_THAT(error_text([] {
                Config::parse("[data]\nshards = 'a'\nsets = [{name='b', shards='b'}]\n", "run.toml");
              }),
              AllOf(HasSubstr("data.shards and data.sets"), HasSubstr("data.sets=[]")));
}

TEST(Config, EveryKeySurvivesPrintingAndParsing) {
  const Config config = unusual();
  for (const bool explain : {false, true}) {
    const Config again = Config::parse_stored(config.to_toml(explain), "run.toml");
    EXPECT_EQ(again.to_toml(), config.to_toml());
    EXPECT_EQ(again.train.lr, config.train.lr);  // doubles and floats bit for bit
    EXPECT_EQ(again.model.rope_theta, config.model.rope_theta);
    EXPECT_EQ(again.model.norm_epsilon, config.model.norm_epsilon);
    EXPECT_EQ(again.run.folder, config.run.folder);
    EXPECT_THAT(again.data.shards, ElementsAre("a folder", "b.h5"));
  }
  Config defaults;
  EXPECT_EQ(Config::parse("", "run.toml").to_toml(), defaults.to_toml());
  // Every key made a difference, so none was lost on the way.
  std::istringstream a(defaults.to_toml()), b(config.to_toml());
  for (std::string line_a, line_b; std::getline(a, line_a) && std::getline(b, line_b);)
    if (line_a.find('=') != std::string::npos) {
      EXPECT_NE(line_a, line_b);
    }
}

// The same layers are the same value, however the pattern says them; a run goes on with either.
TEST(Config, PatternsOfTheSameLayersAreEqual) {
  const auto of = [](const std::string& pattern) {
    return Config::parse("[model]\nlayers = 6\npattern = " + pattern, "run.toml");
  };
  const Config one = of("'2*causal, window:63,0'"), other = of("['causal', 'causal, window:63,0']");
  EXPECT_EQ(one.model.pattern, other.model.pattern);
  EXPECT_THAT(incompatible(one, other, Continuation::same_run), testing::IsEmpty());
  EXPECT_THAT(incompatible(one,
                           Config::parse_stored("[model]\nlayers = 6\npattern = ['2*causal', 'window:63,0']",
                                                "checkpoint"),
                           Continuation::same_run),
              testing::IsEmpty());
  EXPECT_THAT(incompatible(one, of("'causal, window:63,0'"), Continuation::same_run), testing::SizeIs(1));
}

// As runs of earlier versions have it.
TEST(Config, NormsOfHeadsMayBeTrueOrFalse) {
  const auto of = [](const std::string& value) {
    return Config::parse("[model]\nqk_norm = " + value, "run.toml").model.block.qk_norm;
  };
  EXPECT_EQ(of("true"), model::QkNorm::head);
  EXPECT_EQ(of("false"), model::QkNorm::none);
  EXPECT_EQ(of("'heads'"), model::QkNorm::heads);
  EXPECT_THAT(error_text([&] { of("'all'"); }), mentions("run.toml:2", "model.qk_norm", "heads"));
  EXPECT_THAT(error_text([&] { of("3"); }), mentions("run.toml:2", "model.qk_norm"));
}

TEST(Config, KeysOfTheTableHaveNamesAndMeaningsOfTheirOwn) {
  std::set<std::string> names;
  Config config;
  std::set<const void*> targets;
  for (const Key& key : config_table()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_NE(std::string(key.meaning), "") << key.name;
    std::visit([&](auto* target) { EXPECT_TRUE(targets.insert(target).second) << key.name; },
               key.reference(config));
    EXPECT_EQ(suggested_key(key.name), fmt::format("did you mean '{}'? ", key.name));
  }
}

TEST(Config, SuggestionsKnowOtherProgramsAndStaySilentWhereNothingIsNear) {
  for (const auto& [name, key] :
       {std::pair("run.stall_limit", "run.stall_timeout"),
        std::pair("parallel.nccl_blocks", "parallel.max_ctas"), std::pair("train.learning_rate", "train.lr"),
        std::pair("batch_size", "train.micro_batches"), std::pair("optimizer.lr_scheduler", "train.schedule"),
        std::pair("model.seq_len", "data.sequence_length"),
        std::pair("train.max_grad_norm", "train.clip_norm"),
        std::pair("model.num_hidden_layers", "model.layers"), std::pair("train.step", "train.steps"),
        std::pair("data.sed", "data.seed"), std::pair("train.warmup_stps", "train.warmup_steps")})
    EXPECT_THAT(suggested_key(name), StartsWith(fmt::format("did you mean '{}'", key))) << name;
  for (const char* name : {"train.colour", "train.x", "attention.something_else", ""})
    EXPECT_EQ(suggested_key(name), "") << name;
  EXPECT_EQ(suggested_section("trian"), "did you mean [train]? ");
  EXPECT_EQ(suggested_section("wandb"), "");
  EXPECT_THAT(parse_error("[wandb]\nproject = 'x'\n"),
              AllOf(HasSubstr("run.toml:1: unknown section [wandb]"), Not(HasSubstr("did you mean"))));
}

TEST(Config, ValuesOfOverridesAreNotBlamedOnTheFile) {
  EXPECT_THAT(parse_error("[model]\nheads = 4\n", {"model.kv_heads=3"}),
              AllOf(StartsWith("--set model.kv_heads=3: "), Not(HasSubstr("run.toml"))));
  EXPECT_THAT(parse_error("[train]\nmin_lr = 1.0\n", {"run.seed=3"}), StartsWith("run.toml: train.min_lr"));
  EXPECT_THAT(parse_error("", {"train.warmup_steps=20", "train.steps=10"}),
              StartsWith("--set train.steps=10, --set train.warmup_steps=20: "));
}

// Products of counts overflowed, a timeout ended the run at once, and some counted for ever.
TEST(Config, CountsThatNoRunHasAreErrors) {
  constexpr const char* huge = "9223372036854775807";
  for (const char* key :
       {"run.stall_timeout", "run.stop_within", "data.sequence_length", "train.steps", "train.micro_batches",
        "train.sequences_per_pass", "train.warmup_steps", "train.schedule_steps", "train.log_every",
        "train.check_replicas", "checkpoint.every", "checkpoint.keep", "checkpoint.keep_every",
        "memory.chunk_rows", "memory.lm_head_rows", "sparsity.dense_updates", "sparsity.audit_every",
        "sparsity.audit_queries"})
    EXPECT_THAT(parse_error("", {fmt::format("{}={}", key, huge)}),
                HasSubstr(fmt::format("{} = {} is out of range", key, huge)))
        << key;
  // The largest of both do not go together.
  EXPECT_THAT(parse_error("", {"train.micro_batches=16777216", "data.sequence_length=2147483648"}),
              mentions("train.micro_batches = 16777216", "data.sequence_length"));
  const Config large = with({"train.micro_batches=4194304", "run.stall_timeout=1000000000"});
  EXPECT_EQ(large.train.passes(), 4194304);
  EXPECT_EQ(large.stall_timeout(), std::chrono::seconds(1'000'000'000));
}

TEST(Config, KeysWithoutEndAreErrors) {
  std::string key = "a";
  for (int i = 0; i < 400000; ++i) key += ".a";
  EXPECT_THAT(parse_error("\n" + key + " = 1\n"),
              HasSubstr("run.toml:2: keys and values are nested more than 100 deep"));
  EXPECT_THAT(parse_error("", {"run.folder={" + key + " = 1}"}), HasSubstr("nested more than 100 deep"));
  const std::string letters(1 << 20,
                            'a');  // as many steps for every key that might be meant would take minutes
  EXPECT_THAT(parse_error("[train]\n" + letters + " = 1\n"), HasSubstr("unknown key"));
}

TEST(Config, OverridesAreUtf8AsTheFilesThatTheyAreWrittenTo) {
  EXPECT_THAT(parse_error("", {"run.folder=caf\xe9"}), HasSubstr("--set run.folder: the value is not UTF-8"));
  EXPECT_EQ(with({"run.folder=caf\xc3\xa9"}).run.folder, "caf\xc3\xa9");
}

TEST(Config, WhatIsWrongIsNamed) {
  const struct {
    std::string text;
    std::vector<std::string> named;
  } cases[] = {
      // Unknown keys, with the nearest one.
      {"[train]\nsteps = 3\nlearning_rte = 1",
       {"run.toml:3: unknown key 'train.learning_rte'", "did you mean '"}},
      {"[train]\nwarmup_step = 1", {"did you mean 'train.warmup_steps'"}},
      {"[model]\n\nmicro_batches = 1", {"run.toml:3", "did you mean 'train.micro_batches'"}},
      {"[trian]\nsteps = 1", {"run.toml:1: unknown section [trian]", "did you mean [train]?"}},
      {"steps = 1", {"did you mean 'train.steps'"}},
      {"train = 1", {"run.toml:1", "train is a section"}},
      {"[run]\ncolour = 'red'", {"unknown key 'run.colour'"}},
      {"[train]\nsteps = 3\nlr 5", {"run.toml:3: "}},
      // Types.
      {"[train]\nsteps = 'many'", {"run.toml:2: train.steps must be a whole number"}},
      {"[train]\nsteps = 1.5", {"train.steps must be a whole number"}},
      {"[train]\nlr = '1e-3'", {"train.lr must be a number"}},
      {"[train]\nlr = {peak = 1.0}", {"train.lr must be a number"}},
      {"[model]\ntied = 1", {"model.tied must be true or false"}},
      {"[attention]\nmask = 3", {"attention.mask must be a string"}},
      {"[data]\nshards = [1, 2]", {"data.shards must be a string or an array of strings"}},
      // Ranges, with the bound.
      {"[train]\nsteps = -1", {"run.toml:2: train.steps = -1", "at least 0"}},
      {"[train]\nsteps = 0", {"run.toml: nothing says how long", "train.epochs"}},
      {"[train]\nlr = -1.0", {"train.lr = -1"}},
      {"[train]\nlr = nan", {"train.lr = nan"}},
      {"[train]\nclip_norm = inf", {"train.clip_norm = inf"}},
      {"[model]\nlayers = 99999999999", {"model.layers = 99999999999", "at most 2147483647"}},
      {"[checkpoint]\nkeep = 0", {"checkpoint.keep = 0"}},
      {"[parallel]\ncontext = -1", {"parallel.context = -1"}},
      {"[parallel]\nmax_ctas = -1", {"parallel.max_ctas = -1"}},
      {"[run]\nstall_timeout = 9300000000", {"run.toml:2: run.stall_timeout = 9300000000"}},
      {"[parallel]\nranks_per_node = 100000000", {"parallel.ranks_per_node = 100000000"}},
      {"[memory]\nrecompute = 'sequence-selective'\nstore_fraction = 1.5", {"memory.store_fraction = 1.5"}},
      {"[memory]\noffload_activations = 2", {"memory.offload_activations = 2"}},
      // Values that are none, and those that do not go together.
      {"[model]\nheads = 4\nkv_heads = 3", {"run.toml: ", "model.heads = 4", "model.kv_heads = 3"}},
      {"[model]\nhead_dim = 21", {"model.head_dim = 21"}},
      {"[model]\nhead_dim = 264", {"model.head_dim = 264"}},
      {"[model]\nhead_dim = 8", {"model.head_dim = 8"}},
      {"[train]\nsteps = 5\nwarmup_steps = 6", {"train.warmup_steps = 6", "train.steps = 5"}},
      {"[train]\nsteps = 5", {"train.warmup_steps = 10 (its default)", "train.steps = 5:"}},
      {"[train]\nschedule_steps = 5\nwarmup_steps = 6",
       {"train.warmup_steps = 6", "train.schedule_steps = 5"}},
      {"[train]\nlr = 1e-5\nmin_lr = 1e-4", {"train.min_lr", "train.lr"}},
      {"[train]\ndtype = 'f16'", {"train.dtype = 'f16'", "f32 or bf16"}},
      {"[train]\nbeta2 = 1.0", {"train.beta2 = 1"}},
      {"[train]\nepsilon = 0", {"train.epsilon = 0"}},
      {"[train]\nclip_norm = 0", {"train.clip_norm = 0"}},
      {"[run]\ndevice = 'tpu'", {"run.device = 'tpu'"}},
      {"[run]\nfolder = ''", {"run.folder is empty"}},
      {"[memory]\nrecompute = 'some'", {"memory.recompute 'some'", "or auto alone"}},
      {"[memory]\nrecompute = ['none', 'full']\n[model]\nlayers = 3",
       {"memory.recompute", "2 policies", "3 layers"}},
      {"[memory]\nstore_fraction = 0.25", {"memory.store_fraction = 0.25", "sequence-selective"}},
      {"[memory]\nrecompute = ['full', 'none']\nlayers_without_recompute = 1\n[model]\nlayers = 2",
       {"memory.layers_without_recompute = 1", "end the list with 'none'"}},
      {"[memory]\nlayers_without_recompute = 1", {"memory.layers_without_recompute = 1", "no effect"}},
      {"[memory]\nrecompute = 'full'\nlayers_without_recompute = 2\n[model]\nlayers = 2",
       {"memory.layers_without_recompute = 2", "2 layers"}},
      {"[attention]\nschedule = 'spiral'", {"attention.schedule", "spiral", "topology-burst"}},
      {"[attention]\nschedule = 'brust'", {"attention.schedule", "did you mean 'burst'?", "auto"}},
      {"[attention]\ncluster = 'links.toml'", {"attention.cluster", "auto"}},
      {"[attention]\nlayout = 'spiral'", {"attention.layout", "spiral"}},
      {"[attention]\nlayout = 'zig-zag'", {"attention.layout", "did you mean 'zigzag'?"}},
      {"[attention]\nmask = 'casual'", {"run.toml: attention.mask", "did you mean 'causal'?"}}};
  for (const auto& [text, named] : cases) {
    const std::string said = parse_error(text + "\n");
    for (const std::string& name : named) EXPECT_THAT(said, HasSubstr(name)) << text;
  }
  EXPECT_EQ(Config::parse("[train]\nlr = 1\nmin_lr = 0\n", "run.toml").train.lr, 1.0);
  EXPECT_EQ(Config::parse("[train]\nsteps = 5\nwarmup_steps = 6\nschedule_steps = 100\n", "x").train.steps,
            5);
  EXPECT_EQ(Config::parse("[attention]\nschedule = 'auto'\ncluster = 'links.toml'\n", "x").attention.cluster,
            "links.toml");
}

TEST(Config, FilesAreNamed) {
  const annulus::test::TemporaryFolder folder;
  const std::string missing = folder.file("none.toml");
  EXPECT_THAT(error_text([&] { Config::load(missing); }), HasSubstr(missing));
  const std::string file = folder.write("a.toml", "[train]\nstep = 3\n");
  EXPECT_THAT(error_text([&] { Config::load(file); }), HasSubstr(file + ":2: "));
}

TEST(Config, OverridesAreTomlValuesOrBareStrings) {
  EXPECT_EQ(with({"train.steps=200"}).train.steps, 200);
  EXPECT_EQ(with({"train.lr=3e-3"}).train.lr, 3e-3);
  EXPECT_EQ(with({"train.lr=1"}).train.lr, 1.0);
  EXPECT_TRUE(with({"model.tied=true"}).model.tied);
  EXPECT_EQ(with({"attention.mask=window:512,0"}).attention.mask, "window:512,0");
  EXPECT_EQ(with({"attention.mask=\"causal\""}).attention.mask, "causal");
  EXPECT_EQ(with({"run.folder=runs/a = b"}).run.folder, "runs/a = b");
  EXPECT_EQ(with({"run.folder=2024"}).run.folder, "2024");  // a string key takes what looks like a number
  EXPECT_EQ(with({"run.folder=true"}).run.folder, "true");
  EXPECT_EQ(with({"run.folder=2024-01-02"}).run.folder, "2024-01-02");
  EXPECT_THAT(with({"data.shards=7"}).data.shards, ElementsAre("7"));
  EXPECT_THAT(with({"data.shards=folder"}).data.shards, ElementsAre("folder"));
  EXPECT_THAT(with({"data.shards=[\"a\", \"b\"]"}).data.shards, ElementsAre("a", "b"));
  EXPECT_EQ(with({"train.steps=20", "train.steps=30"}).train.steps, 30);  // the last one counts
  EXPECT_EQ(Config::parse("[train]\nsteps = 20\n", "run.toml", std::vector<std::string>{"train.steps=40"})
                .train.steps,
            40);

  EXPECT_THAT(parse_error("", {"train.step=3"}),
              mentions("--set train.step=3", "did you mean 'train.steps'"));
  EXPECT_THAT(parse_error("", {"train.steps=abc"}), HasSubstr("train.steps must be a whole number"));
  EXPECT_THAT(parse_error("", {"train.steps"}), HasSubstr("write it as key=value"));
  EXPECT_THAT(parse_error("", {"=3"}), HasSubstr("write it as key=value"));
  EXPECT_THAT(parse_error("", {"train.steps="}), HasSubstr("train.steps must be a whole number"));
  EXPECT_THAT(parse_error("", {"train=3"}), HasSubstr("train is a section"));
}

TEST(Config, OverridesMayHaveBlanksAroundKeyAndValue) {
  EXPECT_EQ(with({" train.steps = 20 "}).train.steps, 20);
  EXPECT_EQ(with({"run.folder = runs/a b"}).run.folder, "runs/a b");
  EXPECT_EQ(with({"run.folder = ' a'"}).run.folder, " a");
}

TEST(Config, TokensMayHaveAUnit) {
  EXPECT_EQ(with({"data.sequence_length=128k"}).data.sequence_length, 131072);
  EXPECT_EQ(with({"data.sequence_length=1M"}).data.sequence_length, 1048576);
  EXPECT_EQ(Config::parse("[data]\nsequence_length = '64K'\n", "x").data.sequence_length, 65536);
  for (const char* text : {"12x", "1.5k", "k", "-1k", "9999999999G", "1kk", "''"})
    EXPECT_THAT(parse_error("", {fmt::format("data.sequence_length={}", text)}),
                mentions("data.sequence_length", "'128k'"))
        << text;
  EXPECT_THAT(parse_error("", {"data.sequence_length=4G"}), HasSubstr("is out of range"));
  EXPECT_THAT(parse_error("", {"train.steps=10k"}), HasSubstr("train.steps must be a whole number"));
}

TEST(Config, ContinuationsMayDifferInWhatDoesNotChangeTheResult) {
  const Config before;
  Config after = before;
  after.run.folder = "elsewhere";
  after.attention.layout = "striped";
  after.attention.schedule = "burst";
  after.parallel.context = 3;
  after.parallel.transport = "mpi";
  after.run.device = "cpu";
  after.run.peak_tflops = 100;
  after.train.steps = 1000;
  after.checkpoint.every = 7;
  EXPECT_TRUE(incompatible(before, after, Continuation::same_run).empty());

  after.train.lr = 1e-3;
  after.model.layers = 5;
  const auto same = incompatible(before, after, Continuation::same_run);
  ASSERT_EQ(same.size(), 2u);
  EXPECT_EQ(same[0].key, "model.layers");
  EXPECT_EQ(same[0].before, "2");
  EXPECT_EQ(same[0].after, "5");
  EXPECT_EQ(same[1].key, "train.lr");
  after.train.dtype = "bf16";
  EXPECT_EQ(incompatible(before, after, Continuation::same_run).size(), 3u);
  const auto branch = incompatible(before, after, Continuation::branch);
  ASSERT_EQ(branch.size(), 1u);
  EXPECT_EQ(branch[0].key, "model.layers");
}

TEST(Config, TheScheduleHasALengthOfItsOwn) {
  Config config = with({"train.steps=40", "train.warmup_steps=0", "train.lr=1.0", "train.min_lr=0.5"});
  EXPECT_EQ(config.learning_rate().schedule_steps, 40);
  config.train.schedule_steps = 11;
  EXPECT_EQ(config.learning_rate().schedule_steps, 11);
  EXPECT_EQ(config.learning_rate().at(5), 0.75);
  for (const int step : {10, 11, 39, 400}) EXPECT_EQ(config.learning_rate().at(step), 0.5);
  Config after = config;
  after.train.schedule_steps = 20;
  EXPECT_TRUE(incompatible(config, after, Continuation::same_run).empty());
}

TEST(Config, StoredOnesOfOtherVersionsAreRead) {
  // An older version's: a few keys, and a value that is refused today.
  const Config older =
      Config::parse_stored("[train]\nsteps = 7\n[attention]\nschedule = 'spiral'\n", "old.h5");
  EXPECT_EQ(older.train.steps, 7);
  EXPECT_EQ(older.attention.schedule, "spiral");
  Config expected;
  expected.model.vocabulary = 0;
  expected.train.steps = 7;
  expected.attention.schedule = "spiral";
  EXPECT_EQ(older.to_toml(), expected.to_toml());

  // A newer version's.
  testing::internal::CaptureStdout();
  const Config newer = Config::parse_stored(
      "[run]\nfolder = 'a'\ncolour = 'red'\n[data]\nmirror = ['x']\n[train]\nsteps = 7\n[train.average]\n"
      "decay = 0.5\n[checkpoint]\nkeep = 5\nspread = true\n",
      "new.h5");
  const std::string log = testing::internal::GetCapturedStdout();
  EXPECT_EQ(newer.run.folder, "a");
  EXPECT_EQ(newer.train.steps, 7);
  EXPECT_EQ(newer.checkpoint.keep, 5);
  for (const char* key :
       {"run.colour = 'red'", "data.mirror = [ 'x' ]", "train.average = ", "checkpoint.spread = true"})
    EXPECT_THAT(log, mentions("warn", key, "new.h5"));

  for (const auto& [text, said] : {std::pair("[model]\nexperts = 8\n", "model.experts = 8"),
                                   {"[attention]\nsinks = 4\n", "attention.sinks = 4"},
                                   {"[parallel]\npipeline = 2\n", "parallel.pipeline = 2"},
                                   {"[quantization]\nbits = 8\n", "[quantization]"},
                                   {"[train]\nsteps = 'many'\n", "train.steps must be"}})
    EXPECT_THAT(error_text([&, text = text] { Config::parse_stored(text, "new.h5"); }),
                mentions("new.h5", said));
}

/// docs/formats/configuration.md shows all keys as --print-config prints them.
TEST(Config, TheDocumentedTableIsThatOfTheProgram) {
  const std::string text = io::read_text(ANNULUS_CONFIGURATION_FORMAT);
  const std::string open = "```toml\n# annulus-train --print-config\n";
  const auto begin = text.find(open);
  ASSERT_NE(begin, std::string::npos);
  const auto end = text.find("```", begin + open.size());
  EXPECT_EQ(text.substr(begin + open.size(), end - begin - open.size()), Config().to_toml(true))
      << "put the output of annulus-train --print-config into docs/formats/configuration.md";
}

}  // namespace
}  // namespace annulus::training
