#include "training/run/config/attention_inputs.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/error.hpp>

#include "attention/sequence/mask_terms.hpp"
#include "base/file.hpp"
#include "training/io/crc32.hpp"

namespace annulus::training {

bool takes_documents_from_data(std::string_view mask) {
  while (true) {
    const auto plus = mask.find('+');
    if (mask.substr(0, plus) == "documents") return true;
    if (plus == std::string_view::npos) return false;
    mask.remove_prefix(plus + 1);
  }
}

LayerMasks layer_masks(const Config& config) {
  LayerMasks masks;
  for (const model::LayerKind& kind : config.model.kinds()) {
    std::string text = config.attention.mask;
    // Beside a pattern that is causal, or documents: a causal layer has the one or the other.
    if (kind.has_window()) {
      detail::MaskTerms terms = detail::parse_mask_terms(text, "attention.mask");
      terms.causal = false;
      terms.window = detail::parse_mask_terms(kind.mask, "model.pattern").window;
      text = detail::to_string(terms);
    }
    const auto found = std::ranges::find(masks.distinct, text);
    masks.of_layer.push_back(static_cast<int>(found - masks.distinct.begin()));
    if (found == masks.distinct.end()) masks.distinct.push_back(std::move(text));
  }
  return masks;
}

std::vector<Mask> masks_of(const Config& config, std::int64_t tokens) {
  constexpr std::array<std::int64_t, 1> one_document = {0};
  std::vector<Mask> masks;
  for (const std::string& text : layer_masks(config).distinct)
    masks.push_back(takes_documents_from_data(text)
                        ? Mask::with_documents(text, tokens, one_document, "attention.mask")
                        : Mask::parse(text, tokens, "attention.mask"));
  return masks;
}

AttentionInputs read_attention_inputs(const Config& config) {
  AttentionInputs inputs;
  inputs.masks = masks_of(config, config.data.sequence_length);
  if (const std::string& file = config.attention.cluster; !file.empty()) {
    std::string content;
    try {
      content = read_text(file, kinds::toml);
    } catch (const Error& error) {
      fail("attention.cluster: {}", error.what());
    }
    inputs.cluster = simulator::parse_cluster(content, file);
    inputs.cluster_checksum = io::crc32_of(std::span<const char>(content));
  }
  inputs.make_plan = [](const std::string& schedule, const plan::Problem& problem, plan::Pass pass) {
    return plan::make_plan(schedule, problem, pass, "attention.schedule");
  };
  return inputs;
}

}  // namespace annulus::training
