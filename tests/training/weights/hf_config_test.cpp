#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "support/error_text.hpp"
#include "training/weights/hf_config.hpp"

namespace annulus::weights {
namespace {

using nlohmann::json;

const std::string origin = "model/config.json";

HfConfig parse(const json& config) {
  return parse_hf_config(config.dump(), origin);
}

/// The error that it is refused with: one line that names the file.
std::string config_refusal(const json& config) {
  const std::string text = error_text([&] { parse(config); });
  EXPECT_THAT(text, mentions(origin));
  EXPECT_EQ(text.find('\n'), text.npos) << text;
  return text;
}

/// Configurations that are refused, and what of them is named.
void expect_refusals(const std::vector<std::pair<json, const char*>>& cases) {
  for (const auto& [config, named] : cases) EXPECT_THAT(config_refusal(config), mentions(named)) << config;
}

json llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 128256},
          {"hidden_size", 4096},
          {"intermediate_size", 14336},
          {"num_hidden_layers", 32},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 8},
          {"rms_norm_eps", 1e-5},
          {"max_position_embeddings", 131072},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"torch_dtype", "bfloat16"},
          {"bos_token_id", 128000},
          {"pretraining_tp", 1},
          {"rope_theta", 500000.0},
          {"rope_scaling",
           {{"rope_type", "llama3"},
            {"factor", 8.0},
            {"low_freq_factor", 1.0},
            {"high_freq_factor", 4.0},
            {"original_max_position_embeddings", 8192}}}};
}

json with(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

json without(json config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) config.erase(key);
  return config;
}

/// A model of another type, with keys of its own.
json of_type(const char* type, const char* architecture, const json& own) {
  json config = without(llama(), {"rope_scaling", "attention_bias", "mlp_bias"});
  config.update({{"architectures", {architecture}}, {"model_type", type}});
  config.update(own);
  return config;
}

json qwen2() {
  return of_type("qwen2", "Qwen2ForCausalLM",
                 {{"use_mrope", false},
                  {"use_sliding_window", false},
                  {"sliding_window", 32768},
                  {"max_window_layers", 21}});
}

json qwen3() {
  json config = qwen2();
  config.update({{"architectures", {"Qwen3ForCausalLM"}},
                 {"model_type", "qwen3"},
                 {"attention_bias", false},
                 {"tie_word_embeddings", true}});
  return config;
}

TEST(HfConfig, OfLlama31) {
  const HfConfig config = parse(llama());
  const model::Config& shape = config.shape;
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(std::tuple(shape.vocabulary, shape.hidden, shape.ffn, shape.layers),
            std::tuple(128256, 4096, 14336, 32));
  EXPECT_EQ(std::tuple(shape.heads, shape.kv_heads, shape.head_dim), std::tuple(32, 8, 128));
  EXPECT_EQ(std::tuple(shape.tied, shape.block), std::tuple(false, model::Block()));
  EXPECT_EQ(std::tuple(shape.norm_epsilon, shape.rope_theta), std::tuple(1e-5f, 500000.0f));
  EXPECT_EQ(shape.rope, (model::RopeScaling{.name = "llama3", .factor = 8, .original_length = 8192}));
  EXPECT_EQ(config.positions, 131072);
  EXPECT_EQ(config.dtype, DType::bf16);
  EXPECT_EQ(config.mask(), "causal");
}

TEST(HfConfig, OfLlama2TakesWhatIsNotSaid) {
  const HfConfig config =
      parse(without(with(llama(), "head_dim", 64), {"num_key_value_heads", "rope_scaling", "rope_theta",
                                                    "rms_norm_eps", "hidden_act", "architectures"}));
  EXPECT_EQ(config.shape.kv_heads, 32);
  EXPECT_EQ(config.shape.head_dim, 64);
  EXPECT_EQ(config.shape.rope_theta, 10000.0f);
  EXPECT_EQ(config.shape.rope, model::RopeScaling{});
  EXPECT_EQ(config.shape.norm_epsilon, 1e-6f);
}

TEST(HfConfig, NewFormOfRopeSettings) {
  json config = without(llama(), {"rope_theta", "rope_scaling"});
  config["rope_parameters"] = {{"rope_type", "yarn"},
                               {"rope_theta", 1e6},
                               {"factor", 4.0},
                               {"original_max_position_embeddings", 32768}};
  const HfConfig yarn = parse(config);
  EXPECT_EQ(yarn.shape.rope_theta, 1e6f);
  EXPECT_EQ(yarn.shape.rope, (model::RopeScaling{.name = "yarn", .factor = 4, .original_length = 32768}));
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 2e6}};
  EXPECT_EQ(parse(config).shape.rope_theta, 2e6f);
  config["rope_theta"] = 1e6;
  EXPECT_THAT(config_refusal(config), mentions("rope_parameters.rope_theta = 2000000.0"));
  config.erase("rope_theta");
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_THAT(config_refusal(config), mentions("rope_scaling", "rope_parameters"));
  config["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
  config.erase("rope_scaling");
  EXPECT_THAT(config_refusal(config), mentions("rope_parameters"));
}

TEST(HfConfig, OldFormsOfRopeSettings) {
  EXPECT_EQ(parse(with(llama(), "rope_scaling", {{"type", "linear"}, {"factor", 4}})).shape.rope,
            (model::RopeScaling{.name = "linear", .factor = 4}));
  EXPECT_EQ(parse(with(llama(), "rope_scaling", nullptr)).shape.rope, model::RopeScaling{});
  // Without a length of its own YaRN takes the model's.
  EXPECT_EQ(
      parse(with(llama(), "rope_scaling", {{"type", "yarn"}, {"factor", 4.0}, {"beta_fast", 16}})).shape.rope,
      (model::RopeScaling{.name = "yarn", .factor = 4, .original_length = 131072, .beta_fast = 16}));
  const json pair = {{"type", "yarn"}, {"factor", 40.0}, {"mscale", 1.0}, {"mscale_all_dim", 0.5}};
  EXPECT_DOUBLE_EQ(parse(with(llama(), "rope_scaling", pair)).shape.rope.attention_factor,
                   (0.1 * std::log(40.0) + 1) / (0.05 * std::log(40.0) + 1));
  // A factor of 0, or one without the other, is none, as in transformers.
  for (const json& numbers :
       {json{{"mscale", 0.0}, {"mscale_all_dim", 1.0}}, json{{"mscale", 1.0}, {"mscale_all_dim", 0}},
        json{{"mscale", 0}, {"mscale_all_dim", 0}}, json{{"mscale", 0.707}}, json{{"mscale_all_dim", 1.0}},
        json{{"beta_fast", 0}, {"beta_slow", 0.0}}}) {
    json scaling = {{"type", "yarn"}, {"factor", 40.0}};
    scaling.update(numbers);
    const model::Config shape = parse(with(llama(), "rope_scaling", scaling)).shape;
    EXPECT_DOUBLE_EQ(shape.frequencies().attention_factor, 0.1 * std::log(40.0) + 1) << numbers;
    EXPECT_EQ(shape.rope.beta_fast, 32) << numbers;
    EXPECT_EQ(shape.rope.beta_slow, 1) << numbers;
  }
  const auto whole = [](bool truncate) {
    return parse_hf_config(with(llama(), "rope_scaling",
                                {{"type", "yarn"},
                                 {"factor", 2.0},
                                 {"original_max_position_embeddings", 4096},
                                 {"truncate", truncate}})
                               .dump(),
                           "config.json");
  };
  EXPECT_TRUE(whole(true).shape.rope.truncate);
  EXPECT_FALSE(whole(false).shape.rope.truncate);
  EXPECT_NE(whole(true).shape.frequencies(), whole(false).shape.frequencies());
  EXPECT_EQ(json::parse(to_hf_config(whole(false), DType::f32)).at("rope_scaling").at("truncate"), false);
  EXPECT_FALSE(json::parse(to_hf_config(whole(true), DType::f32)).at("rope_scaling").contains("truncate"));
  for (const char* type : {"dynamic", "longrope", "mrope", "su"})
    EXPECT_THAT(config_refusal(with(llama(), "rope_scaling", {{"rope_type", type}, {"factor", 2.0}})),
                mentions("rope_type", type));
  for (const auto& [scaling, named] : std::vector<std::pair<json, const char*>>{
           {{{"type", "linear"}}, "rope_scaling.factor"},
           {{{"type", "linear"}, {"factor", "2"}}, "rope_scaling.factor"},
           {{{"type", "linear"}, {"factor", 0.5}}, "rope_factor = 0.5"},
           {{{"type", "linear"}, {"factor", 2}, {"beta_fast", 32}}, "rope_scaling.\"beta_fast\" = 32"},
           {{{"type", "yarn"}, {"factor", 2}, {"truncate", 0}}, "truncate"}})
    EXPECT_THAT(config_refusal(with(llama(), "rope_scaling", scaling)), mentions(named));
}

TEST(HfConfig, OfMistralHasAWindow) {
  const json config = of_type("mistral", "MistralForCausalLM", {{"sliding_window", 1024}});
  EXPECT_EQ(parse(config).mask(), "window:1023,0");
  EXPECT_EQ(parse(with(config, "sliding_window", nullptr)).mask(), "causal");
  EXPECT_EQ(parse(without(config, {"sliding_window"})).mask(), "window:4095,0");  // transformers' own
  EXPECT_THAT(config_refusal(with(llama(), "sliding_window", 4096)), mentions("sliding_window"));
}

TEST(HfConfig, OfQwenHasBiasesOrNorms) {
  const HfConfig two = parse(qwen2());
  EXPECT_EQ(two.shape.block, model::Block{.qkv_bias = true});
  EXPECT_EQ(two.mask(), "causal") << "use_sliding_window is false";
  const HfConfig three = parse(with(qwen3(), "hidden_size", 1024));
  EXPECT_EQ(three.shape.block, model::Block{.qk_norm = model::QkNorm::head});
  EXPECT_TRUE(three.shape.tied);
  EXPECT_EQ(three.shape.head_dim, 128) << "not 1024 / 32";
  // Biases of all four products of attention.
  EXPECT_THAT(config_refusal(with(qwen3(), "attention_bias", true)), mentions("attention_bias = true"));
}

TEST(HfConfig, LayersOfSeveralKindsAreAPattern) {
  json config = with(qwen2(), "use_sliding_window", true);
  const auto pattern = [](const json& of) { return parse(of).shape.pattern; };
  using Pattern = std::vector<std::string>;
  EXPECT_EQ(pattern(config), Pattern{"21*causal, 11*window:32767,0"});
  EXPECT_EQ(parse(config).mask(), "causal");
  EXPECT_EQ(pattern(with(config, "max_window_layers", 0)), Pattern{});
  EXPECT_EQ(parse(with(config, "max_window_layers", 0)).mask(), "window:32767,0");
  EXPECT_EQ(parse(with(config, "max_window_layers", 32)).mask(), "causal");
  config["num_hidden_layers"] = 2;
  config["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(pattern(config), Pattern{"causal, window:32767,0"});
  EXPECT_THAT(config_refusal(with(config, "layer_types", {"full_attention", "chunked_attention"})),
              mentions("layer_types", "sliding_attention"));
  EXPECT_THAT(config_refusal(with(config, "use_sliding_window", false)),
              mentions("layer_types", "sliding_window"));
  EXPECT_EQ(parse(with(config, "layer_types", {"full_attention", "full_attention"})).mask(), "causal");
  EXPECT_EQ(parse(with(config, "layer_types", {"sliding_attention", "sliding_attention"})).mask(),
            "window:32767,0");
  EXPECT_THAT(config_refusal(with(config, "layer_types", {"full_attention"})), mentions("layer_types"));
  // The model's code takes one kind whatever the key says.
  EXPECT_THAT(config_refusal(of_type("mistral", "MistralForCausalLM",
                                     {{"sliding_window", 512},
                                      {"num_hidden_layers", 2},
                                      {"layer_types", {"full_attention", "sliding_attention"}}})),
              mentions("layer_types", "one kind"));
}

TEST(HfConfig, OfMinistralHasWindowsInSomeLayers) {
  json config =
      of_type("ministral", "MinistralForCausalLM", {{"sliding_window", 32768}, {"num_hidden_layers", 9}});
  EXPECT_EQ(parse(config).mask(), "window:32767,0") << "types are not said: all have it";
  for (int i = 0; i < 9; ++i)
    config["layer_types"].push_back(i % 4 == 0 ? "full_attention" : "sliding_attention");
  const HfConfig mixed = parse(config);
  EXPECT_EQ(mixed.shape.pattern, std::vector<std::string>{"causal, 3*window:32767,0"});
  EXPECT_EQ(mixed.mask(), "causal");
  EXPECT_EQ(mixed.sliding_window, 0);
  const json written = json::parse(to_hf_config(mixed, DType::bf16));
  for (const char* key : {"model_type", "architectures", "layer_types", "sliding_window"})
    EXPECT_EQ(written.at(key), config.at(key));
  EXPECT_EQ(parse(written).shape.pattern, mixed.shape.pattern);
  expect_refusals({{with(config, "llama_4_scaling_beta", 0.1), "llama_4_scaling_beta"}});
}

TEST(HfConfig, MixesThatNoTypeOfModelHasAreNotWritten) {
  HfConfig config = parse(qwen3());
  const auto written = [&](const char* pattern) {
    config.shape.pattern = {pattern};
    return error_text([&] { to_hf_config(config, DType::bf16); });
  };
  EXPECT_EQ(written("causal, window:99,0"), "no error");
  EXPECT_EQ(written("causal, window:99,0 theta=500000"), "no error") << "the model's own base";
  EXPECT_THAT(written("causal, window:99,0 theta=100"), mentions("theta=100"));
  EXPECT_THAT(written("causal, causal rope=none"), mentions("rope=none"));
  EXPECT_THAT(written("window:9,0, window:99,0"), mentions("window:9,0", "sliding_window"));
  config.shape.pattern = {"window:99,0"};
  EXPECT_EQ(parse(json::parse(to_hf_config(config, DType::bf16))).mask(), "window:99,0");
}

TEST(HfConfig, RefusesWhatChangesWhatIsComputed) {
  expect_refusals(
      {{with(llama(), "model_type", "gemma"), "model_type = \"gemma\""},
       {without(llama(), {"model_type"}), "model_type = null"},
       {with(llama(), "architectures", {"LlamaForSequenceClassification"}), "LlamaForCausalLM"},
       {with(llama(), "attention_bias", true), "attention_bias = true"},
       {with(llama(), "mlp_bias", true), "mlp_bias = true"},
       {with(llama(), "attention_dropout", 0.1), "attention_dropout = 0.1"},
       {with(llama(), "partial_rotary_factor", 0.5), "partial_rotary_factor = 0.5"},
       {with(llama(), "hidden_act", "gelu"), "hidden_act = \"gelu\""},
       {with(qwen2(), "use_mrope", true), "use_mrope = true"},
       {with(llama(), "rope_interleaved", true), "rope_interleaved = true"},
       {with(llama(), "quantization_config", {{"bits", 4}}), "quantization_config"},
       {with(llama(), "torch_dtype", "float8"), "torch_dtype"},
       {with(llama(), "attention_multiplier", 0.5), "\"attention_multiplier\" = 0.5"},
       {without(llama(), {"vocab_size"}), "vocab_size"},
       {with(llama(), "vocab_size", -1), "vocab_size = -1"},
       {with(llama(), "vocab_size", 1ull << 40), "vocab_size = 1099511627776"},
       {with(llama(), "hidden_size", 4095), "num_attention_heads"},
       {with(llama(), "num_key_value_heads", 5), "model.kv_heads = 5"},
       {with(llama(), "num_hidden_layers", 2147483647), "num_hidden_layers = 2147483647"},
       {with(with(llama(), "num_hidden_layers", 2147483647), "layer_types", {"full_attention"}),
        "num_hidden_layers = 2147483647"},
       {with(with(llama(), "hidden_size", 2147483647), "head_dim", 128), "model.hidden = 2147483647"},
       {with(llama(), "head_dim", 12), "model.head_dim = 12"},
       {with(llama(), "rope_theta", 1e200), "model.rope_theta = inf"},
       {with(llama(), "rms_norm_eps", 1e200), "model.norm_epsilon = inf"}});
  EXPECT_EQ(parse(with(llama(), "attention_multiplier", nullptr)).family, "llama");
}

TEST(HfConfig, MustBeOneJsonObject) {
  for (const auto& [text, named] : {std::pair<std::string, const char*>{"", "byte"},
                                    {"[]", "JSON object"},
                                    {R"({"rms_norm_eps": 1e999})", "number"},
                                    {R"({"a": 1, "a": 2})", "'a' twice"},
                                    {R"({"a": {"b": 1, "b": 2}})", "'b' twice"},
                                    {"{\"a\":" + std::string(100, '['), "nested"}})
    EXPECT_THAT(error_text([&] { parse_hf_config(text, origin); }), mentions(origin, named)) << text;
}

/// Quadratic readers took minutes.
TEST(HfConfig, ManyKeysAreRefusedInNoTime) {
  std::string names, objects;
  for (int i = 0; i < 200'000; ++i) {
    names += (i == 0 ? "" : ",") + std::string("\"key.") + std::to_string(i) + "\":1";
    objects += (i == 0 ? "" : ",") + std::string("\"key.") + std::to_string(i) + "\":{}";
  }
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& keys : {names, objects})
    EXPECT_THAT(error_text([&] {
                  parse_hf_config(R"({"model_type":"llama","vocab_size":-1,)" + keys + "}", origin);
                }),
                mentions("vocab_size"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(HfConfig, KeepsIdsOfSpecialTokens) {
  const json given = with(with(without(llama(), {"pad_token_id"}), "eos_token_id", {128001, 128008, 128009}),
                          "bos_token_id", nullptr);
  const HfConfig config = parse(given);
  EXPECT_EQ(config.token_ids,
            (TokenIds{{"bos_token_id", "null"}, {"eos_token_id", "[128001,128008,128009]"}}));
  HfConfig kept, asked;
  asked.family = "mistral";
  take_kept(kept_text(config), "kept", kept);
  take_kept(kept_text(config), "kept", asked);
  EXPECT_EQ(kept.token_ids, config.token_ids);
  EXPECT_EQ(kept.family, "llama");
  EXPECT_EQ(asked.family, "mistral");
  const json written = json::parse(to_hf_config(config, DType::bf16));
  EXPECT_EQ(written.at("eos_token_id"), given.at("eos_token_id"));
  EXPECT_EQ(written.at("bos_token_id"), nullptr);
  EXPECT_FALSE(written.contains("pad_token_id"));
  EXPECT_EQ(parse(with(llama(), "pad_token_id", -1)).token_ids.at("pad_token_id"), "-1");
  expect_refusals({{with(llama(), "eos_token_id", "</s>"), "eos_token_id = \"</s>\""},
                   {with(llama(), "eos_token_id", {1, 2.5}), "eos_token_id"}});
}

/// By positions over the original length.
TEST(HfConfig, OlderVersionsTakeAnotherFactorOfYarn) {
  const model::RopeScaling yarn{.name = "yarn", .factor = 4, .original_length = 32768};
  EXPECT_EQ(older_yarn(yarn, 131072), "");
  EXPECT_THAT(older_yarn(yarn, 1024), mentions("0.03125", "131072"));
  EXPECT_EQ(older_yarn({.name = "llama3", .factor = 8, .original_length = 8192}, 131072), "");
}

TEST(HfConfig, IsWrittenAsItIsRead) {
  for (json config : {llama(), without(llama(), {"rope_scaling"}),
                      with(llama(), "rope_scaling", {{"type", "linear"}, {"factor", 3.5}}),
                      with(llama(), "rope_scaling",
                           {{"type", "yarn"},
                            {"factor", 32.0},
                            {"attention_factor", 1.25},
                            {"original_max_position_embeddings", 4096}}),
                      qwen2(), qwen3()}) {
    config["tie_word_embeddings"] = true;
    for (const std::int64_t window : {0, 4096}) {
      HfConfig before = parse(config);
      before.sliding_window = window;
      const std::string text = to_hf_config(before, DType::f16);
      const HfConfig after = parse_hf_config(text, "written");
      EXPECT_EQ(to_hf_config(after, DType::f16), text);
      EXPECT_EQ(after.family, before.family != "llama" ? before.family : window == 0 ? "llama" : "mistral");
      EXPECT_EQ(after.shape.block, before.shape.block);
      EXPECT_EQ(after.shape.rope, before.shape.rope);
      EXPECT_EQ(after.shape.norm_epsilon, before.shape.norm_epsilon);
      EXPECT_TRUE(after.shape.tied);
      EXPECT_EQ(after.mask(), before.mask());
      EXPECT_EQ(after.positions, before.positions);
      EXPECT_EQ(after.dtype, DType::f16);
    }
  }
  EXPECT_THAT(to_hf_config(parse(llama()), DType::bf16), mentions("\"rms_norm_eps\": 1e-05"));
  HfConfig both = parse(qwen2());
  both.shape.block.qk_norm = model::QkNorm::head;
  EXPECT_THAT(error_text([&] { to_hf_config(both, DType::bf16); }),
              mentions("model.qkv_bias", "model.qk_norm"));
}

}  // namespace
}  // namespace annulus::weights
