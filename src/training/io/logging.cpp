#include "training/io/logging.hpp"

#include <spdlog/spdlog.h>

namespace annulus::logging {

void write(Level level, fmt::string_view text, fmt::format_args args) {
  const auto of_spdlog = [&] {
    switch (level) {
      case Level::info:
        return spdlog::level::info;
      case Level::warning:
        return spdlog::level::warn;
      case Level::error:
        break;
    }
    return spdlog::level::err;
  }();
  spdlog::logger& logger = *spdlog::default_logger_raw();
  if (logger.should_log(of_spdlog)) logger.log(of_spdlog, fmt::vformat(text, args));
}

}  // namespace annulus::logging
