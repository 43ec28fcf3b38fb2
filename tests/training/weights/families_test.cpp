// config.json of families whose layers differ, or whose block is not a LLaMA's.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "support/error_text.hpp"
#include "training/weights/families.hpp"

namespace annulus::weights {
namespace {

using nlohmann::json;
using test::mentions;
using Pattern = std::vector<std::string>;

HfConfig parsed(const json& config) {
  return parse_hf_config(config.dump(), "config.json");
}

json changed(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

std::string refusal_of(const json& config) {
  return error_text([&] { parsed(config); });
}

/// What is written is what was read, in the form that either generation of transformers reads.
json written(const HfConfig& config) {
  const std::string text = to_hf_config(config, DType::bf16);
  const HfConfig again = parse_hf_config(text, "written");
  EXPECT_EQ(again.family, config.family);
  EXPECT_EQ(again.shape.kinds(), config.shape.kinds());
  EXPECT_EQ(again.shape.block, config.shape.block);
  EXPECT_EQ(again.shape.query_scale, config.shape.query_scale);
  EXPECT_EQ(again.shape.soft_cap, config.shape.soft_cap);
  EXPECT_EQ(again.shape.logit_cap, config.shape.logit_cap);
  EXPECT_EQ(again.shape.rope_theta, config.shape.rope_theta);
  EXPECT_EQ(again.shape.rope_fraction, config.shape.rope_fraction);
  EXPECT_EQ(again.shape.frequencies(), config.shape.frequencies());
  EXPECT_EQ(again.mask(), config.mask());
  EXPECT_EQ(to_hf_config(again, DType::bf16), text);
  return json::parse(text);
}

json olmo3() {
  return {{"architectures", {"Olmo3ForCausalLM"}},
          {"model_type", "olmo3"},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"eos_token_id", 100257},
          {"hidden_act", "silu"},
          {"hidden_size", 4096},
          {"intermediate_size", 11008},
          {"max_position_embeddings", 65536},
          {"num_attention_heads", 32},
          {"num_hidden_layers", 32},
          {"num_key_value_heads", 32},
          {"pad_token_id", 100277},
          {"rms_norm_eps", 1e-6},
          {"rope_scaling",
           {{"attention_factor", 1.2079441541679836},
            {"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"factor", 8.0},
            {"original_max_position_embeddings", 8192},
            {"rope_type", "yarn"}}},
          {"rope_theta", 500000},
          {"sliding_window", 4096},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"use_cache", false},
          {"vocab_size", 100278}};
}

TEST(Families, Olmo3HasScaledPositionsInFullLayersAlone) {
  const HfConfig config = parsed(olmo3());
  EXPECT_EQ(config.shape.pattern, Pattern{"3*window:4095,0 scaling=none, causal"});
  EXPECT_EQ(config.shape.block,
            (model::Block{.norms = model::NormPlace::behind, .qk_norm = model::QkNorm::heads}));
  EXPECT_EQ(config.shape.rope.name, "yarn");
  EXPECT_EQ(config.shape.head_dim, 128);
  EXPECT_EQ(config.mask(), "causal");
  const json out = written(config);
  EXPECT_EQ(out.at("layer_types").size(), 32u);
  EXPECT_EQ(out.at("layer_types")[3], "full_attention");
  EXPECT_EQ(out.at("rope_scaling").at("factor"), 8.0);
  // Transformers 5 says it by types of layers, and means the same.
  json five = olmo3();
  five.erase("rope_theta");
  five.erase("rope_scaling");
  five["rope_parameters"] = {{"full_attention", olmo3()["rope_scaling"]},
                             {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 500000}}}};
  five["rope_parameters"]["full_attention"]["rope_theta"] = 500000;
  EXPECT_EQ(to_hf_config(parsed(five), DType::bf16), to_hf_config(config, DType::bf16));
  // Before its sequences were made longer: the pattern says already what a scaling is not for.
  json base = olmo3();
  base.erase("rope_scaling");
  EXPECT_EQ(parsed(base).shape.pattern, config.shape.pattern);
  written(parsed(base));
  // All layers alike: their positions are the model's.
  json windows = olmo3();
  windows["num_hidden_layers"] = 3;
  EXPECT_EQ(parsed(windows).shape.pattern, Pattern());
  EXPECT_EQ(parsed(windows).mask(), "window:4095,0");
  EXPECT_EQ(parsed(windows).shape.rope, model::RopeScaling());
  written(parsed(windows));
}

TEST(Families, WhatIsSaidTwiceMustAgree) {
  json both = olmo3();
  both["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 500000}}}};
  EXPECT_THAT(refusal_of(both), mentions("rope_scaling", "rope_parameters.full_attention"));
  both.erase("rope_scaling");
  EXPECT_EQ(parsed(both).shape.rope_theta, 500000.0f);
  both["rope_parameters"]["full_attention"]["rope_theta"] = 10000;
  EXPECT_THAT(refusal_of(both), mentions("rope_theta", "rope_parameters.full_attention"));
  json scaled = olmo3();
  scaled.erase("rope_scaling");
  scaled["rope_parameters"] = {{"sliding_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}};
  EXPECT_THAT(refusal_of(scaled), mentions("rope_parameters", "window"));
  scaled["rope_parameters"] = {{"sliding_attention", {{"rope_theta", 20000}}}};
  EXPECT_THAT(refusal_of(scaled), mentions("rope_parameters", "one rope_theta"));
  scaled["rope_parameters"] = {{"sliding_attention", {{"partial_rotary_factor", 0.5}}}};
  EXPECT_THAT(refusal_of(scaled), mentions("rope_parameters.sliding_attention.partial_rotary_factor"));
}

TEST(Families, Olmo2HasNoWindows) {
  json config = olmo3();
  config["model_type"] = "olmo2";
  config["architectures"] = {"Olmo2ForCausalLM"};
  config.erase("sliding_window");
  const HfConfig model = parsed(config);
  EXPECT_EQ(model.shape.pattern, Pattern());
  EXPECT_EQ(model.mask(), "causal");
  written(model);
  EXPECT_THAT(refusal_of(changed(config, "sliding_window", 4096)), mentions("sliding_window"));
  EXPECT_THAT(refusal_of(changed(config, "attention_bias", true)), mentions("attention_bias"));
}

json gemma3() {
  return {{"architectures", {"Gemma3ForConditionalGeneration"}},
          {"boi_token_index", 255999},
          {"eoi_token_index", 256000},
          {"eos_token_id", {1, 106}},
          {"image_token_index", 262144},
          {"initializer_range", 0.02},
          {"mm_tokens_per_image", 256},
          {"model_type", "gemma3"},
          {"text_config",
           {{"hidden_size", 2560},
            {"intermediate_size", 10240},
            {"model_type", "gemma3_text"},
            {"num_hidden_layers", 34},
            {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
            {"sliding_window", 1024}}},
          {"torch_dtype", "bfloat16"},
          {"vision_config", {{"hidden_size", 1152}, {"model_type", "siglip_vision_model"}}}};
}

TEST(Families, TheTextPartOfGemma3TakesWhatIsNotSaid) {
  const HfConfig config = parsed(gemma3());
  const model::Config& shape = config.shape;
  EXPECT_EQ(config.family, "gemma3_text");
  EXPECT_TRUE(config.beside_images);
  EXPECT_EQ(std::tuple(shape.vocabulary, shape.heads, shape.kv_heads, shape.head_dim),
            std::tuple(262208, 8, 4, 256));
  EXPECT_EQ(shape.pattern, Pattern{"5*window:1023,0 theta=10000 scaling=none, causal"});
  EXPECT_EQ(std::tuple(shape.rope_theta, shape.rope.name, shape.rope.factor),
            std::tuple(1e6f, "linear", 8.0));
  EXPECT_TRUE(shape.tied);
  EXPECT_EQ(shape.query_scale, 0) << "256, the width of a head";
  EXPECT_EQ(config.positions, 131072);
  EXPECT_EQ(config.dtype, DType::bf16);
  EXPECT_EQ(config.token_ids.at("eos_token_id"), "[1,106]");
  EXPECT_EQ(shape.block, (model::Block{.norms = model::NormPlace::both,
                                       .gains_from_one = true,
                                       .qk_norm = model::QkNorm::head,
                                       .activation = model::Activation::gelu_tanh,
                                       .scaled_embedding = true}));
  const json out = written(config);
  EXPECT_EQ(out.at("model_type"), "gemma3_text");
  EXPECT_EQ(out.at("rope_local_base_freq"), 10000.0);
  EXPECT_EQ(out.at("query_pre_attn_scalar"), 256);
  EXPECT_EQ(out.at("rope_parameters").at("full_attention").at("factor"), 8.0);
  EXPECT_FALSE(out.contains("vision_config"));

  EXPECT_THAT(refusal_of(changed(gemma3(), "audio_config", {{"a", 1}})), mentions("audio_config"));
  EXPECT_THAT(refusal_of(changed(gemma3(), "text_config", nullptr)), mentions("text_config"));
  EXPECT_THAT(refusal_of(changed(gemma3(), "architectures", {"Gemma3Model"})), mentions("architectures"));
}

TEST(Families, Gemma3) {
  json config = gemma3()["text_config"];
  config.update({{"query_pre_attn_scalar", 168}, {"head_dim", 128}, {"sliding_window_pattern", 4}});
  const HfConfig model = parsed(config);
  EXPECT_FALSE(model.beside_images);
  EXPECT_EQ(model.shape.query_scale, 168);
  EXPECT_EQ(model.shape.pattern, Pattern{"3*window:1023,0 theta=10000 scaling=none, causal"});
  EXPECT_EQ(written(model).at("query_pre_attn_scalar"), 168);
  EXPECT_EQ(parsed(changed(config, "rope_local_base_freq", 20000)).shape.pattern,
            Pattern{"3*window:1023,0 theta=20000 scaling=none, causal"});
  const struct {
    const char* key;
    json value;
  } refused[] = {{"use_bidirectional_attention", true}, {"final_logit_softcapping", 0.0},
                 {"attn_logit_softcapping", -50.0},     {"hidden_activation", "gelu"},
                 {"query_pre_attn_scalar", -1},         {"rope_local_base_freq", 0},
                 {"layer_types", json::array()}};
  for (const auto& [key, value] : refused)
    EXPECT_THAT(refusal_of(changed(config, key, value)), mentions("config.json", key));
  EXPECT_EQ(parsed(changed(config, "final_logit_softcapping", 30.0)).shape.logit_cap, 30);
  EXPECT_EQ(written(model).at("attn_logit_softcapping"), nullptr);
  EXPECT_THAT(refusal_of(changed(config, "model_type", "gemma")), mentions("gemma", "gemma3_text"));
  EXPECT_THAT(refusal_of(changed(config, "model_type", "gpt_oss")), mentions("gpt_oss"));
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"})
    EXPECT_THAT(refusal_of(changed(changed(config, "model_type", "gpt_oss"), key, 32)),
                mentions("config.json", std::string(key) + " = 32", "experts"));
  EXPECT_EQ(parsed(changed(config, "num_experts", 0)).family, "gemma3_text");
}

TEST(Families, Gemma2HasSoftCaps) {
  const json config = {{"architectures", {"Gemma2ForCausalLM"}},
                       {"attention_bias", false},
                       {"cache_implementation", "hybrid"},
                       {"_attn_implementation", "eager"},
                       {"sliding_window_size", 4096},  // as the model of 9 billion parameters has it
                       {"hidden_act", "gelu_pytorch_tanh"},
                       {"hidden_activation", "gelu_pytorch_tanh"},
                       {"hidden_size", 3584},
                       {"intermediate_size", 14336},
                       {"model_type", "gemma2"},
                       {"num_attention_heads", 16},
                       {"num_hidden_layers", 42},
                       {"num_key_value_heads", 8}};
  const HfConfig model = parsed(config);
  const model::Config& shape = model.shape;
  EXPECT_EQ(std::tuple(shape.vocabulary, shape.head_dim, shape.soft_cap, shape.logit_cap, shape.query_scale),
            std::tuple(256000, 256, 50.0f, 30.0f, 0.0f));
  EXPECT_EQ(std::tuple(shape.rope_theta, shape.tied, model.positions), std::tuple(10000.0f, true, 8192));
  EXPECT_EQ(shape.pattern, Pattern{"window:4095,0, causal"});
  EXPECT_EQ(shape.block, (model::Block{.norms = model::NormPlace::both,
                                       .gains_from_one = true,
                                       .activation = model::Activation::gelu_tanh,
                                       .scaled_embedding = true}));
  const json out = written(model);
  EXPECT_EQ(out.at("model_type"), "gemma2");
  EXPECT_THAT(refusal_of(changed(config, "sliding_window_size", 1024)),
              mentions("sliding_window_size = 1024"));
  EXPECT_EQ(out.at("attn_logit_softcapping"), 50.0);
  EXPECT_EQ(out.at("final_logit_softcapping"), 30.0);
  EXPECT_EQ(out.at("layer_types")[0], "sliding_attention");
  const HfConfig without =
      parsed(changed(changed(config, "attn_logit_softcapping", nullptr), "final_logit_softcapping", 7));
  EXPECT_EQ(std::pair(without.shape.soft_cap, without.shape.logit_cap), std::pair(0.0f, 7.0f));
  EXPECT_EQ(written(without).at("attn_logit_softcapping"), nullptr);
  EXPECT_THAT(refusal_of(changed(olmo3(), "final_logit_softcapping", 30.0)),
              mentions("final_logit_softcapping"));
}

TEST(Families, SmolLM3HasLayersWithoutRotaryPositions) {
  json config = {{"model_type", "smollm3"},     {"hidden_size", 2048},     {"intermediate_size", 11008},
                 {"num_hidden_layers", 36},     {"rope_theta", 5000000.0}, {"num_attention_heads", 16},
                 {"num_key_value_heads", 4},    {"vocab_size", 128256},    {"max_window_layers", 28},
                 {"use_sliding_window", false}, {"mlp_bias", false}};
  EXPECT_EQ(parsed(config).shape.pattern, Pattern{"3*causal, causal rope=none"});
  EXPECT_TRUE(parsed(config).shape.tied);
  EXPECT_EQ(written(parsed(config)).at("no_rope_layers")[3], 0);
  config["num_hidden_layers"] = 3;
  EXPECT_EQ(parsed(config).shape.pattern, Pattern());
  EXPECT_EQ(parsed(changed(config, "no_rope_layers", {0, 0, 0})).shape.pattern, Pattern{"causal rope=none"});
  config["no_rope_layers"] = {1, 0, 1, 1};  // more than there are layers
  EXPECT_EQ(parsed(config).shape.pattern, Pattern{"causal, causal rope=none"});
  for (const json& wrong : {json{1, 0}, json{1, 2, 1}, json("1")})
    EXPECT_THAT(refusal_of(changed(config, "no_rope_layers", wrong)), mentions("no_rope_layers"));
  config.update({{"use_sliding_window", true}, {"sliding_window", 64}});
  EXPECT_EQ(parsed(config).shape.pattern, Pattern{"causal, window:63,0 rope=none"});
  written(parsed(config));
}

TEST(Families, Phi3HasNoLongerPositions) {
  json config = {{"model_type", "phi3"},
                 {"hidden_size", 5120},
                 {"intermediate_size", 17920},
                 {"num_hidden_layers", 40},
                 {"num_attention_heads", 40},
                 {"num_key_value_heads", 10},
                 {"original_max_position_embeddings", 16384},
                 {"max_position_embeddings", 16384},
                 {"rope_theta", 250000},
                 {"partial_rotary_factor", 1.0},
                 {"rope_scaling", nullptr},
                 {"embd_pdrop", 0.0},
                 {"resid_pdrop", 0.0},
                 {"sliding_window", nullptr},
                 {"vocab_size", 100352}};
  const HfConfig model = parsed(config);
  EXPECT_EQ(model.mask(), "causal");
  EXPECT_EQ(model.shape.norm_epsilon, 1e-5f);
  EXPECT_EQ(written(model).at("model_type"), "phi3");
  EXPECT_EQ(parsed(changed(config, "sliding_window", 2047)).mask(), "window:2046,0");
  for (const char* type : {"longrope", "su", "yarn"})
    EXPECT_THAT(refusal_of(changed(config, "rope_scaling", {{"type", type}, {"factor", 4.0}})),
                mentions("rope_scaling.type", type));
  for (const char* key : {"resid_pdrop", "embd_pdrop"})
    EXPECT_THAT(refusal_of(changed(config, key, 0.5)), mentions(key));
  // Positions that turn a part of each head, in the words of either generation.
  const HfConfig partial = parsed(changed(config, "partial_rotary_factor", 0.75));
  EXPECT_EQ(partial.shape.rope_fraction, 0.75);
  EXPECT_EQ(partial.shape.frequencies().inverse.size(), 48u);
  EXPECT_EQ(written(partial).at("partial_rotary_factor"), 0.75);
  json five = config;
  for (const char* key : {"rope_theta", "rope_scaling", "partial_rotary_factor"}) five.erase(key);
  five["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 250000}, {"partial_rotary_factor", 0.75}};
  EXPECT_EQ(to_hf_config(parsed(five), DType::bf16), to_hf_config(partial, DType::bf16));
  EXPECT_THAT(refusal_of(changed(five, "partial_rotary_factor", 0.5)),
              mentions("partial_rotary_factor = 0.5", "rope_parameters.partial_rotary_factor = 0.75"));
  for (const double part : {0.0, 1.5, -1.0})
    EXPECT_THAT(refusal_of(changed(config, "partial_rotary_factor", part)),
                mentions("partial_rotary_factor"));
  EXPECT_THAT(refusal_of(changed(config, "partial_rotary_factor", 0.7)),
              mentions("model.rope_fraction", "89"));
}

// The type that a model is written as is the first that has its block and its layers.
TEST(Families, AModelIsWrittenAsTheOneThatFits) {
  HfConfig config = parsed(olmo3());
  config.family.clear();
  const auto family = [&](const Pattern& pattern) {
    config.shape.pattern = pattern;
    return family_of(config).name;
  };
  EXPECT_EQ(family({}), "olmo2");
  EXPECT_EQ(family({"3*window:4095,0 scaling=none, causal"}), "olmo3");
  const auto refused = [&](const Pattern& pattern) { return error_text([&] { family(pattern); }); };
  EXPECT_THAT(refused({"window:9,0, causal"}), mentions("model.pattern", "olmo3", "rotary positions"));
  EXPECT_THAT(refused({"window:9,0 theta=100 scaling=none, causal"}), mentions("olmo3"));
  EXPECT_THAT(refused({"causal, causal rope=none"}), mentions("rope=none"));
  EXPECT_THAT(refused({"window:9,0 scaling=none, window:10,0 scaling=none"}), mentions("sliding_window"));
  config.shape.pattern.clear();
  config.shape.query_scale = 64;
  EXPECT_THAT(error_text([&] { family_of(config); }), mentions("model.query_scale"));
  config.shape.query_scale = 0;
  config.shape.soft_cap = 50;
  EXPECT_THAT(error_text([&] { family_of(config); }), mentions("model.soft_cap"));
  config.shape.soft_cap = 0;
  config.shape.block.activation = model::Activation::gelu_tanh;
  EXPECT_THAT(error_text([&] { family_of(config); }), mentions("model.activation = 'gelu_tanh'"));
  config.shape.block = {};
  EXPECT_EQ(family({}), "llama");
  EXPECT_EQ(family({"causal, causal rope=none"}), "smollm3");
  EXPECT_EQ(family({"window:9,0, causal"}), "ministral");
  config.shape.rope = {};
  config.shape.rope_fraction = 0.5;
  EXPECT_EQ(family({}), "phi3");
  EXPECT_THAT(refused({"causal, causal fraction=0.25"}),
              mentions("phi3 has not: rotary positions of these kinds"));
  EXPECT_THAT(refused({"window:9,0, causal"}), mentions("ministral has not", "model.rope_fraction"));
  config.shape.rope_fraction = 1;
  EXPECT_THAT(refused({"causal soft_cap=50, causal"}), mentions("soft cap of their own"));
  EXPECT_THAT(refused({"window:9,0 sinks, causal sinks"}), mentions("ministral has not: sinks"));
  config.shape.block.out_bias = true;
  EXPECT_THAT(refused({}), mentions("model.out_bias = true"));
  config.shape.block = {};
  EXPECT_THAT(refused({"causal query_scale=5, causal"}), mentions("scale of queries of their own"));
}

}  // namespace
}  // namespace annulus::weights
