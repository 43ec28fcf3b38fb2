#include "common/log.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <string>

#include "base/printable.hpp"

namespace annulus::app {

namespace {

class PrintableLogger final : public spdlog::logger {
 public:
  using spdlog::logger::logger;

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string text = printable_message({message.payload.data(), message.payload.size()});
    spdlog::details::log_msg shown = message;
    shown.payload = text;
    spdlog::logger::sink_it_(shown);
  }
};

}  // namespace

std::shared_ptr<spdlog::logger> start_log() {
  auto logger =
      std::make_shared<PrintableLogger>("annulus", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  spdlog::set_default_logger(logger);
  return logger;
}

}  // namespace annulus::app
