// config.json of models in Hugging Face's format: what is taken is written, and read again the same.
#include "training/weights/hf_config.hpp"

#include "fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace annulus;
  weights::HfConfig config;
  if (!fuzz::accepts("config.json",
                     [&] { config = weights::parse_hf_config(fuzz::text_of(data, size), "config.json"); }))
    return 0;
  const std::string text = to_hf_config(config, DType::bf16);
  weights::HfConfig again;
  fuzz::expect(fuzz::accepts("written", [&] { again = weights::parse_hf_config(text, "written"); }),
               "what was written is taken", text);
  fuzz::expect(to_hf_config(again, DType::bf16) == text, "the same configuration from what was written",
               text);
  return 0;
}
