#include <annulus/training/model/config.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include <annulus/base/error.hpp>

#include "base/nearest.hpp"

namespace annulus::model {

namespace {

constexpr std::array<std::string_view, 4> names_of_scales{"none", "linear", "llama3", "yarn"};

// One operation in float, rounded once: the double result of two floats rounds to the float that the exact
// result rounds to. Without the volatile a compiler may take a product and a sum for one fused operation.
float rounded(double value) {
  const volatile float once = static_cast<float>(value);
  return once;
}
float sum(float a, float b) {
  return rounded(static_cast<double>(a) + static_cast<double>(b));
}
float product(float a, float b) {
  return rounded(static_cast<double>(a) * static_cast<double>(b));
}
float quotient(float a, float b) {
  return rounded(static_cast<double>(a) / static_cast<double>(b));
}

// theta^(2i / turned): what positions are divided by.
float wave(double theta, int i, int turned) {
  const float exponent = quotient(static_cast<float>(2 * i), static_cast<float>(turned));
  return static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
}

// Llama 3.1, of one inverse frequency.
float llama3_frequency(float inverse, const RopeScaling& s) {
  const auto original = static_cast<float>(s.original_length), factor = static_cast<float>(s.factor),
             low = static_cast<float>(s.low_frequency_factor);
  const float length = product(quotient(1.0f, inverse), static_cast<float>(2 * std::numbers::pi));
  if (length > static_cast<float>(static_cast<double>(s.original_length) / s.low_frequency_factor))
    return quotient(inverse, factor);
  if (length < static_cast<float>(static_cast<double>(s.original_length) / s.high_frequency_factor))
    return inverse;
  const float smooth = quotient(sum(product(quotient(1.0f, length), original), -low),
                                static_cast<float>(s.high_frequency_factor - s.low_frequency_factor));
  return sum(quotient(product(sum(1.0f, -smooth), inverse), factor), product(smooth, inverse));
}

// YaRN's ramp: first and last dimension between those that are kept and those that are divided (equation 21
// of the paper for the number of turns, solved for the dimension).
struct Ramp {
  double first, last;
};
Ramp yarn_ramp(double theta, int turned, const RopeScaling& s) {
  const auto dimension = [&](double turns) {
    return turned * std::log(static_cast<double>(s.original_length) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  const double first = dimension(s.beta_fast), last = dimension(s.beta_slow);
  Ramp ramp{std::max(s.truncate ? std::floor(first) : first, 0.0),
            std::min(s.truncate ? std::ceil(last) : last, turned - 1.0)};
  if (ramp.first == ramp.last) ramp.last += 0.001;
  return ramp;
}

// YaRN, of dimension i.
float yarn_frequency(float wave, int i, const Ramp& ramp, const RopeScaling& s) {
  const float divided = quotient(1.0f, product(static_cast<float>(s.factor), wave)),
              kept = quotient(1.0f, wave);
  const float along = quotient(sum(static_cast<float>(i), -static_cast<float>(ramp.first)),
                               static_cast<float>(ramp.last - ramp.first));
  const float keep = sum(1.0f, -std::clamp(along, 0.0f, 1.0f));
  return sum(product(divided, sum(1.0f, -keep)), product(kept, keep));
}

}  // namespace

RopeScale parse_rope_scale(std::string_view name, std::string_view field) {
  return static_cast<RopeScale>(place_of_name(name, names_of_scales, field));
}

void RopeScaling::check() const {
  const RopeScaling defaults;
  const RopeScale kind = scale();
  const bool llama3 = kind == RopeScale::llama3, yarn = kind == RopeScale::yarn;
  const auto require_unused = [&](bool used, auto value, auto unset, const char* field) {
    require(used || value == unset,
            "model.rope_{} = {} has no effect with model.rope_scaling = '{}': "
            "leave it out or set model.rope_scaling",
            field, value, name);
  };
  require_unused(kind != RopeScale::none, factor, defaults.factor, "factor");
  require_unused(llama3 || yarn, original_length, defaults.original_length, "original_length");
  require_unused(llama3, low_frequency_factor, defaults.low_frequency_factor, "low_frequency_factor");
  require_unused(llama3, high_frequency_factor, defaults.high_frequency_factor, "high_frequency_factor");
  require_unused(yarn, beta_fast, defaults.beta_fast, "beta_fast");
  require_unused(yarn, beta_slow, defaults.beta_slow, "beta_slow");
  require_unused(yarn, truncate, defaults.truncate, "truncate");
  require_unused(yarn, attention_factor, defaults.attention_factor, "attention_factor");
  require(std::isfinite(factor) && factor >= 1,
          "model.rope_factor = {}: give 1 or more, the new length over the old one", factor);
  if (llama3 || yarn)
    require(original_length > 0,
            "model.rope_original_length = {}: model.rope_scaling = '{}' needs the length of the sequences "
            "that the model was trained on",
            original_length, name);
  require(low_frequency_factor > 0 && high_frequency_factor > low_frequency_factor &&
              std::isfinite(high_frequency_factor),
          "model.rope_high_frequency_factor = {} must be above model.rope_low_frequency_factor = {}, and "
          "that above 0",
          high_frequency_factor, low_frequency_factor);
  require(beta_slow > 0 && beta_fast > beta_slow && std::isfinite(beta_fast),
          "model.rope_beta_fast = {} must be above model.rope_beta_slow = {}, and that above 0", beta_fast,
          beta_slow);
  require(std::isfinite(attention_factor) && attention_factor >= 0,
          "model.rope_attention_factor = {}: give a positive number, "
          "or 0 for the one that follows from the factor",
          attention_factor);
}

RopeFrequencies rope_frequencies(double theta, int turned, const RopeScaling& scaling) {
  const RopeScale scale = scaling.scale();
  RopeFrequencies frequencies;
  const Ramp ramp = scale == RopeScale::yarn ? yarn_ramp(theta, turned, scaling) : Ramp{};
  for (int i = 0; i < turned / 2; ++i) {
    const float divisor = wave(theta, i, turned);
    float inverse = quotient(1.0f, divisor);
    if (scale == RopeScale::linear) inverse = quotient(inverse, static_cast<float>(scaling.factor));
    if (scale == RopeScale::llama3) inverse = llama3_frequency(inverse, scaling);
    if (scale == RopeScale::yarn) inverse = yarn_frequency(divisor, i, ramp, scaling);
    frequencies.inverse.push_back(inverse);
  }
  if (scale == RopeScale::yarn)
    frequencies.attention_factor =
        scaling.attention_factor > 0 ? scaling.attention_factor : 0.1 * std::log(scaling.factor) + 1;
  return frequencies;
}

}  // namespace annulus::model
