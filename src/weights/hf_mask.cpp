#include <annulus/base/error.hpp>
#include <annulus/weights/hf_config.hpp>

#include "sequence/mask_terms.hpp"

namespace annulus::weights {

std::int64_t sliding_window_of(std::string_view mask, const std::string& origin) {
  const detail::MaskTerms terms = detail::parse_mask_terms(mask, "attention.mask");
  require(!terms.dilated && !terms.blocks,
          "{}: models in Hugging Face's format have causal attention, or a sliding window, and not "
          "attention.mask = '{}'",
          origin, mask);
  return terms.window ? terms.window->left + 1 : 0;
}

}  // namespace annulus::weights
