// Configurations of runs (docs/formats/configuration.md), given and stored. Lines behind a zero byte are
// overrides (--set).
#include <spdlog/spdlog.h>

#include <annulus/training/run/config.hpp>

#include "fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace annulus;
  const std::string_view all = fuzz::text_of(data, size), text = all.substr(0, all.find('\0'));
  std::string_view rest = all.substr(text.size());
  std::vector<std::string> overrides;
  if (!rest.empty()) rest.remove_prefix(1);
  while (!rest.empty()) overrides.emplace_back(fuzz::take_line(rest));

  if (overrides.empty()) {  // as a checkpoint keeps it: what another version knew is left out, with a warning
    spdlog::set_level(spdlog::level::off);
    fuzz::accepts("input.toml", [&] { training::Config::parse_stored(text, "input.toml"); });
  }
  training::Config config;
  // What is wrong with an override names it and not the file.
  const std::string_view origin = overrides.empty() ? "input.toml" : "";
  if (!fuzz::accepts(origin, [&] { config = training::Config::parse(text, "input.toml", overrides); }))
    return 0;
  const std::string written = config.to_toml();
  const training::Config again = training::Config::parse(written, "written");
  fuzz::expect(again.to_toml() == written, "the same configuration from what was written", written);
  fuzz::expect(incompatible(config, again, training::Continuation::same_run).empty(),
               "a configuration that is compatible with itself", written);
  return 0;
}
