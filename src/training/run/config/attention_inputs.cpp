#include "training/run/config/attention_inputs.hpp"

#include <array>
#include <span>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/error.hpp>

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

Mask mask_of(const Config& config, std::int64_t tokens) {
  constexpr std::array<std::int64_t, 1> one_document = {0};
  const std::string& text = config.attention.mask;
  return takes_documents_from_data(text) ? Mask::with_documents(text, tokens, one_document, "attention.mask")
                                         : Mask::parse(text, tokens, "attention.mask");
}

AttentionInputs read_attention_inputs(const Config& config) {
  AttentionInputs inputs;
  inputs.mask = mask_of(config, config.data.sequence_length);
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
