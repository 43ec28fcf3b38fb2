#include "training/io/logging.hpp"

#include <spdlog/spdlog.h>

#include <array>
#include <cstddef>

namespace annulus::logging {

void write(Level level, fmt::string_view text, fmt::format_args args) {
  constexpr std::array levels{spdlog::level::info, spdlog::level::warn, spdlog::level::err};
  const auto of_spdlog = levels[static_cast<std::size_t>(level)];
  spdlog::logger& logger = *spdlog::default_logger_raw();
  if (logger.should_log(of_spdlog)) logger.log(of_spdlog, fmt::vformat(text, args));
}

}  // namespace annulus::logging
